"""Kernels by name, from a definition and from source: what they compute, compare and survive."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.special

import numeric
from derive.attention import ACTIVATIONS as DEFINITIONS
from derive.errors import DeriveError
from derive.user import user_attention
from numeric import Attention, DiscretePrior, State, Task, isotropic, population_loss
from numeric._generated import ACTIVATIONS
from numeric.activation import Definition, UserActivation, kernels_of
from numeric.errors import InputError, QuadratureError
from numeric.flow import integrate_flow
from numeric.sgd import run_sgd
from tests.numeric.oracle import LAYERS, NAMES, Layer, random_prior, random_state, sampled_loss

ROOT = Path(numeric.__file__).parent.parent
TASK = Task(4, DiscretePrior([[1.5, 0.0], [-0.5, 1.0]], [0.4, 0.6]))


@cache
def user(weight: str, normalization: str, *others: Any) -> UserActivation:
    """An activation from text; the last arguments are the background and the trained names."""
    return kernels_of(user_attention(weight, normalization, *others))[0]


def losses_of(state: State, *layers: Attention) -> list[Any]:
    return [population_loss(state, TASK, layer, 1e-10) for layer in layers]


def apart(first: Any, second: Any) -> float:
    """Largest distance of two losses or of entries of their gradients."""
    found = [abs(first.value - second.value)]
    for name in ("m", "r", "b", "v"):
        one, other = getattr(first, name), getattr(second, name)
        assert (one is None) == (other is None)
        found += [] if one is None else [np.abs(one - other).max()]
    return float(max(found))


# Written by a user: weight, normalization, background, trained; None where a built-in one is tested.
REWRITTEN = {
    "softmax": ("exp(chi)", "per-head"),
    "softmax-v": ("exp(chi)", "per-head", 0, ("v",)),
    "softmax-1": ("exp(b) * exp(chi)", "per-head", 1, ("b", "v")),
    "b-softmax": ("exp(chi) * exp(b)", "pooled", 0, ("b",)),
    "linear": ("chi + 1", "none", 0, ("v",)),
    "erf": ("2 - erfc(chi + b)", "none", 0, ("b", "v")),
    "softplus": ("log(exp(chi) + 1)", "per-head"),
}


@pytest.mark.parametrize("name", NAMES)
def test_built_in_activations_written_by_a_user(name: str) -> None:
    """The same loss and gradient to 1e-12."""
    rng = np.random.default_rng(3)
    state = random_state(rng, LAYERS[name], 2, 2)
    own = Attention(user(*REWRITTEN[name]), 2)
    assert (own.parameters, own.value) == (Attention(name, 2).parameters, Attention(name, 2).value)
    first, second = losses_of(state, Attention(name, 2), own)
    assert apart(first, second) < 1e-12


@pytest.mark.parametrize(("slope", "tokens"), [(4, 5), (0.25, 5), (4, 10**5)])
def test_a_steeper_exponential_is_softmax_of_larger_keys(slope: float, tokens: int) -> None:
    """``exp(k chi)`` at (m/k, r/k^2) is softmax at (m, r), derivatives by the chain rule."""
    state = random_state(np.random.default_rng(8), LAYERS["softmax"], 2, 2)
    scaled = State(state.m / slope, state.r / slope**2)
    task = Task(tokens, isotropic(2, 2.0))
    own = Attention(user(f"exp({slope} * chi)", "per-head"), 2)
    softmax = population_loss(state, task, Attention("softmax", 2))
    steep = population_loss(scaled, task, own)
    margin = steep.error + softmax.error
    assert margin < 2e-8
    assert abs(steep.value - softmax.value) <= margin
    margin = steep.gradient_error + slope**2 * softmax.gradient_error
    assert np.abs(steep.m - slope * softmax.m).max() <= margin
    assert np.abs(steep.r - slope**2 * softmax.r).max() <= margin


OWN: dict[str, tuple[tuple[Any, ...], Layer]] = {
    "saturating": (
        ("2 + tanh(chi + b)", "per-head", 0.5, ("b", "v")),
        Layer(lambda x, b: 2 + np.tanh(x + b), "per-head", 0.5, ("b", "v")),
    ),
    "even": (("cosh(chi)", "per-head"), Layer(lambda x, b: np.cosh(x), "per-head")),
    "pooled with background": (
        ("exp(b) * softplus(chi)", "pooled", 2, ("b",)),
        Layer(lambda x, b: np.exp(b) * np.log1p(np.exp(x)), "pooled", 2.0, ("b",)),
    ),
    "cubic": (
        ("chi + b * chi**3 / 9", "none", 0, ("b", "v")),
        Layer(lambda x, b: x + b * x**3 / 9, "none", 0.0, ("b", "v")),
    ),
    "a bump": (
        ("exp(-(chi - b)**2)", "none", 0, ("b",)),
        Layer(lambda x, b: np.exp(-((x - b) ** 2)), "none", 0.0, ("b",)),
    ),
    "algebraic": (
        ("sqrt(1 + chi**2) + 2", "pooled", 0),
        Layer(lambda x, b: np.sqrt(1 + x**2) + 2, "pooled"),
    ),
}


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", OWN)
def test_activations_of_ones_own_against_monte_carlo(name: str, heads: int) -> None:
    """|z| < 5 in 12 comparisons: a false alarm with probability below 1e-5 (seeds are fixed)."""
    given, layer = OWN[name]
    rng = np.random.default_rng(heads)
    task = Task(3, random_prior(rng, 2, "mixture"))
    state = random_state(rng, layer, heads, 2, 0.5)
    loss = population_loss(state, task, Attention(user(*given), heads), 1e-7)
    value, error = sampled_loss(layer, state, task, 100_000, heads)
    assert abs(loss.value - value) < 5 * np.hypot(error, loss.error)
    assert loss.error < 1e-6


NARROW = {
    "exp(-100*chi**2)": lambda x, b: np.exp(-100 * x**2),
    "1 + erf(30*chi)": lambda x, b: 1 + scipy.special.erf(30 * x),
    "2 + tanh(20*chi)": lambda x, b: 2 + np.tanh(20 * x),
    "1.1 + sin(8*chi)": lambda x, b: 1.1 + np.sin(8 * x),
    "cosh(3*chi)": lambda x, b: np.cosh(3 * x),
}
# The first two underflow to zero, where no share is defined.
NARROW_CASES = [(weight, "none") for weight in NARROW]
NARROW_CASES += [(weight, how) for weight in list(NARROW)[2:] for how in ("per-head", "pooled")]


@pytest.mark.parametrize("tol", [1e-2, 1e-8])
@pytest.mark.parametrize(("weight", "normalization"), NARROW_CASES)
def test_errors_are_honest_for_weights_finer_than_the_rules_expect(
    weight: str, normalization: str, tol: float
) -> None:
    """One head, two tokens of deviations 0.4 and 0.5: sums over a grid of both scores."""
    state, task = State([[0.3]], [[0.07]]), Task(2, numeric.isotropic(1, 1.0))
    loss = population_loss(state, task, Attention(user(weight, normalization), 1), tol)
    z = np.linspace(-9, 9, 3001)
    p = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    mine, other = (NARROW[weight](s * z, 0.0) for s in (0.5, 0.4))
    if normalization == "none":
        expected = ((1 - mine) ** 2 + other[:, None] ** 2).T @ p @ p
    else:
        share = mine[:, None] / (mine[:, None] + other)
        expected = p @ (2 * (1 - share) ** 2) @ p
    assert abs(loss.value - float(expected)) <= loss.error + 1e-9


@pytest.mark.parametrize("bias", [-23.0, -46.0, -150.0])
def test_a_background_that_dominates_leaves_moments(bias: float) -> None:
    """Softmax-1 at a low bias is an exponential without normalization, up to a part e^b of the loss."""
    state = State([[0.6, 0.2], [-0.3, 0.5]], [[0.3, 0.1], [0.1, 0.2]], v=[0.3, 0.2])
    plain = population_loss(state, TASK, Attention(user("exp(chi)", "none", 0, ("v",)), 2), 1e-10)
    low = State(state.m, state.r, b=[bias, bias], v=state.v * np.exp(-bias))
    found = population_loss(low, TASK, Attention("softmax-1", 2), 1e-10)
    allowed = 200 * np.exp(bias)
    assert abs(found.value - plain.value) <= found.error + plain.error + allowed
    for name, scale in (("m", 1.0), ("r", 1.0), ("v", np.exp(-bias))):
        gradient = getattr(found, name) * scale
        np.testing.assert_allclose(
            gradient, getattr(plain, name), rtol=1e-9, atol=1e-8 + 5 * allowed
        )
    assert found.error < 1e-8


def test_a_bias_cancels_without_a_background() -> None:
    """Softmax-1 without the 1 is softmax-v, whatever the biases: written by a user, in both ways."""
    rng = np.random.default_rng(4)
    state = random_state(rng, LAYERS["softmax-1"], 2, 2)
    values = State(state.m, state.r, v=state.v)
    biased = Attention(user("exp(chi + b)", "per-head", 0, ("b", "v")), 2)
    assert biased.value == 0.5
    for bias in (state.b, np.array([300.0, -300.0])):
        found = population_loss(State(state.m, state.r, bias, state.v), TASK, biased, 1e-10)
        expected = population_loss(values, TASK, Attention("softmax-v", 2), 1e-10)
        assert found.value == pytest.approx(expected.value, abs=1e-11)
        assert found.m == pytest.approx(expected.m, abs=1e-10)
        assert found.v == pytest.approx(expected.v, abs=1e-10)
        assert np.abs(found.b).max() < 1e-10


def test_names_and_definitions() -> None:
    for name, module in ACTIVATIONS.items():
        assert kernels_of(name) == (name, module)
    definition = DEFINITIONS["softplus"]
    assert isinstance(definition, Definition)
    kept, kernels = kernels_of(definition)
    assert kept is kernels
    assert isinstance(kept, UserActivation)
    assert kept.definition is definition
    assert kernels_of(kept)[0] is kept
    assert kernels.NAME == "softplus"
    assert repr(kept) == "UserActivation('softplus')"
    for text in (
        "weight_functions_2",
        "weight_functions_4",
        "score_gradient",
        "origin_eigenvalues",
    ):
        assert isinstance(getattr(kernels, text), Callable)
        assert getattr(kernels, text).__doc__


@pytest.mark.parametrize("bad", [None, 5, ["softmax"], "sofmax", "", ACTIVATIONS["erf"], object()])
def test_what_is_no_activation(bad: object) -> None:
    with pytest.raises(InputError, match=r"^activation: found .*, expected one of 'softmax'"):
        kernels_of(bad)
    assert not isinstance(bad, Definition)


def test_a_user_activation_is_its_source() -> None:
    definition = user_attention("exp(2*chi)", "per-head", 0.5)
    one, two = (kernels_of(definition)[0] for _ in range(2))
    other = user("exp(2*chi)", "per-head", 0.25)
    assert one == two and hash(one) == hash(two)
    assert one != other and one != "user-defined" and isinstance(one, UserActivation)
    assert Attention(one, 2) == Attention(definition, 2) != Attention(other, 2)
    assert Attention(one, 2) != Attention(one, 3)
    copy = pickle.loads(pickle.dumps(one))
    assert copy == one and copy.definition is None
    assert copy.BACKGROUND == 0.5


def test_an_attention_layer_survives_pickling() -> None:
    state = State(0.3 * np.eye(2), 0.1 * np.eye(2))
    layer = Attention(user("exp(chi + b)", "per-head", 1, ("b", "v")), 2)
    copy = pickle.loads(pickle.dumps(layer))
    assert copy == layer and hash(copy) == hash(layer)
    assert (copy.name, copy.parameters, copy.value) == ("user-defined", ("b", "v"), 1.0)
    assert apart(*losses_of(state, layer, copy)) == 0


def test_another_process_needs_no_sympy(tmp_path: Path) -> None:
    """A layer is sent as bytes and evaluated where SymPy was never imported."""
    layer = Attention(user("exp(chi + b)", "per-head", 1, ("b", "v")), 2)
    (tmp_path / "layer").write_bytes(pickle.dumps(layer))
    program = (
        "import pathlib, pickle, sys\n"
        "from numeric import State, Task, isotropic, population_loss\n"
        "layer = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "state = State([[0.5], [-0.2]], [[0.2, 0.0], [0.0, 0.1]])\n"
        "print(population_loss(state, Task(3, isotropic(1, 2.0)), layer).value.hex())\n"
        "assert not {'sympy', 'derive'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path / "layer")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    state = State([[0.5], [-0.2]], [[0.2, 0.0], [0.0, 0.1]])
    here = population_loss(state, Task(3, numeric.isotropic(1, 2.0)), layer)
    assert float.fromhex(done.stdout) == here.value


def test_flow_and_sgd_of_ones_own() -> None:
    """Trained parameters move, and b-softmax written by a user moves as b-softmax does."""
    state = State([[0.5, -0.2], [0.1, 0.4]], 0.2 * np.eye(2), [0.2, -0.3])
    layers = Attention("b-softmax", 2), Attention(user("exp(b + chi)", "pooled", 0, ("b",)), 2)
    paths = [integrate_flow(state, TASK, layer, [0.0, 1.0]) for layer in layers]
    runs = [
        run_sgd(state, TASK, layer, dimension=20, tau=[1.0], kappa=1.0, runs=2) for layer in layers
    ]
    for name in ("m", "r", "b"):
        for one, two in (paths, runs):
            assert np.abs(getattr(one, name) - getattr(two, name)).max() < 1e-9
    assert np.abs(paths[0].b[-1] - state.b).max() > 1e-3


@pytest.mark.parametrize(
    ("weight", "normalization"),
    [("1 + chi", "per-head"), ("2 + chi**3", "pooled"), ("exp(chi) - 0.9", "per-head")],
)
def test_a_normalized_weight_must_be_positive(weight: str, normalization: str) -> None:
    """Where it is not, one line says so and names a score."""
    with pytest.raises(DeriveError, match=r"^weight: found -.* at chi = .* to be positive$"):
        user(weight, normalization)
    # Where nothing is divided it may be.
    state = State(0.3 * np.eye(2), 0.1 * np.eye(2))
    assert np.isfinite(population_loss(state, TASK, Attention(user(weight, "none"), 2)).value)


@pytest.mark.parametrize("normalization", ["per-head", "pooled"])
def test_a_weight_that_is_negative_far_away(normalization: str) -> None:
    attention = Attention(user("exp(chi) - exp(-22)", normalization), 2)
    assert population_loss(State(0.3 * np.eye(2), 0.1 * np.eye(2)), TASK, attention).error < 1e-7
    with pytest.raises(
        QuadratureError, match=r"^activation: .* not positive and finite, .* chi = -"
    ):
        population_loss(State(6 * np.eye(2), 0.1 * np.eye(2)), TASK, attention)


def test_modules_are_no_definitions() -> None:
    assert not isinstance(ModuleType("m"), Definition)
    with pytest.raises(SyntaxError):
        UserActivation("def")
