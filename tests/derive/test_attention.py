"""Activations: what a definition accepts, what it refuses and what the messages say."""

import dataclasses

import mpmath as mp
import pytest
from sympy import Expr, I, Integer, Rational, Symbol, cosh, exp, log, nan, oo, sin, tanh, zoo

from derive.attention import ACTIVATIONS, NORMALIZATIONS, Attention, activation
from derive.errors import DeriveError
from derive.stable import written_out
from derive.symbols import H, b, chi, tau, theta

# Name: weight, normalization, background, trained parameters and the value of a head.
MODEL = {
    "softmax": (lambda x, b: mp.exp(x), "per-head", 0, (), 1 / H),
    "softmax-v": (lambda x, b: mp.exp(x), "per-head", 0, ("v",), 1 / H),
    "softmax-1": (lambda x, b: mp.exp(x + b), "per-head", 1, ("b", "v"), 1),
    "b-softmax": (lambda x, b: mp.exp(x + b), "pooled", 0, ("b",), 1),
    "linear": (lambda x, b: 1 + x, "none", 0, ("v",), 1),
    "erf": (lambda x, b: 1 + mp.erf(x + b), "none", 0, ("b", "v"), 1),
    "softplus": (lambda x, b: mp.log(1 + mp.exp(x)), "per-head", 0, (), 1 / H),
}


def number(expression: Expr, x: float, bias: float) -> float:
    return float(written_out(expression).subs({chi: x, b: bias}).evalf(20))


@pytest.mark.parametrize("name", MODEL)
def test_built_in_activations_are_those_of_the_model(name: str) -> None:
    weight, normalization, background, trained, value = MODEL[name]
    found = activation(name)
    for x, bias in ((-1.3, 0.4), (0.0, -0.7), (2.1, 0.2)):
        assert number(found.weight, x, bias) == pytest.approx(float(weight(x, bias)), rel=1e-14)
    assert (found.normalization, found.background, found.trained, found.value) == (
        normalization,
        background,
        trained,
        value,
    )
    assert found.averaged == (value == 1 / H)
    assert found.normalized == (normalization != "none")


def test_table_is_keyed_by_name_and_module_names_are_identifiers() -> None:
    assert list(ACTIVATIONS) == list(MODEL)
    modules = [a.module for a in ACTIVATIONS.values()]
    assert [a.name for a in ACTIVATIONS.values()] == list(ACTIVATIONS)
    assert all(name.isidentifier() for name in modules)
    assert len(set(modules)) == len(modules)
    assert activation("b-softmax").module == "b_softmax"


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(DeriveError) as caught:
        activation("sofmax")
    message = str(caught.value)
    assert "'sofmax'" in message
    assert all(name in message for name in ACTIVATIONS)
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_errors_are_value_errors() -> None:
    assert issubclass(DeriveError, ValueError)


@pytest.mark.parametrize("normalization", ["softmax", "", "Pooled", None])
def test_unknown_normalization(normalization: str) -> None:
    with pytest.raises(DeriveError, match=r"^normalization: .*'none', 'per-head', 'pooled'"):
        Attention("x", exp(chi), normalization)


@pytest.mark.parametrize(
    "foreign",
    [tau, theta, Symbol("chi"), Symbol("b", positive=True), Symbol("zeta_3", real=True)],
    ids=["tau", "theta", "chi without assumptions", "positive b", "new"],
)
def test_foreign_symbols_are_named(foreign: Symbol) -> None:
    with pytest.raises(
        DeriveError, match=rf"^weight: .*'{foreign}'.*only chi and b of derive.symbols$"
    ):
        Attention("x", exp(chi + foreign), "per-head")


def test_foreign_symbols_are_listed_in_order() -> None:
    with pytest.raises(DeriveError, match=r"\['tau', 'theta'\]"):
        Attention("x", chi + theta * tau, "none")


@pytest.mark.parametrize("weight", [I * chi, chi * oo, zoo * chi, nan * chi])
def test_weights_that_are_not_real_are_refused(weight: Expr) -> None:
    with pytest.raises(DeriveError, match=r"^weight: found .*, expected "):
        Attention("x", weight, "none")


@pytest.mark.parametrize("weight", ["exp(chi)", "__import__('os')", None, [chi], chi > 0])
def test_a_weight_is_an_expression_and_no_text(weight: object) -> None:
    with pytest.raises(DeriveError, match=r"^weight: found .*, expected a SymPy expression$"):
        Attention("x", weight, "none")  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [b, Integer(5), exp(b), chi - chi])
def test_a_weight_depends_on_the_score(weight: Expr) -> None:
    with pytest.raises(DeriveError, match=r"^weight: found .*, expected an expression in chi$"):
        Attention("x", weight, "none", trained=("b",))


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("weight", [chi, chi**2, log(1 + exp(chi))])
def test_trained_bias_must_be_in_the_weight(weight: Expr, normalization: str) -> None:
    with pytest.raises(DeriveError, match=r"^trained: .*'b' exactly when the weight contains b$"):
        Attention("x", weight, normalization, trained=("b",))


def test_bias_in_the_weight_must_be_trained() -> None:
    with pytest.raises(DeriveError, match=r"^trained: found \[\], expected 'b' exactly when"):
        Attention("x", exp(chi + b), "per-head")


@pytest.mark.parametrize(
    ("trained", "normalization"),
    [
        (("v",), "pooled"),
        (("b", "v"), "pooled"),
        (("b", "b"), "per-head"),
        (("v", "v"), "none"),
        (("b", "k"), "per-head"),
        (("B",), "none"),
    ],
)
def test_trained_are_different_ones_of_the_known(
    trained: tuple[str, ...], normalization: str
) -> None:
    with pytest.raises(DeriveError, match=r"^trained: found .*, expected different ones of"):
        Attention("x", exp(chi + b) if "b" in trained else exp(chi), normalization, 0, trained)


@pytest.mark.parametrize("background", [-1, Rational(-1, 10), oo, -oo, nan, zoo, I, chi, 1 + I])
def test_a_background_is_a_number_from_zero(background: object) -> None:
    with pytest.raises(
        DeriveError,
        match=r"^background: found .*, expected (a number >= 0|0, or a number from 1e-09 to 1e\+09)$",
    ):
        Attention("x", exp(chi), "per-head", background)


def test_nothing_is_normalized_by_a_background_alone() -> None:
    with pytest.raises(DeriveError, match=r"^background: found 1, expected 0"):
        Attention("x", exp(chi), "none", 1)
    assert Attention("x", exp(chi), "none").background == 0
    # Heads are averaged only where each head's weights sum to one.
    for background, normalization, value in (
        (0, "per-head", 1 / H),
        (2, "per-head", 1),
        (0, "pooled", 1),
        (0.5, "pooled", 1),
        (0, "none", 1),
    ):
        assert Attention("x", exp(chi), normalization, background).value == value


WEIGHTS = {
    "bent": exp(b * chi**3 + sin(chi)),
    "softplus": log(1 + exp(chi + b)),
    "a root": (1 + chi**2 + b**2) ** Rational(1, 3),
    "saturating": 2 + tanh(chi - b),
    "even": cosh(chi) * exp(b),
}


@pytest.mark.parametrize("normalization", ["per-head", "none"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_derivatives_against_differences(name: str, normalization: str) -> None:
    """The weight's own where nothing is normalized, else relative to the weight."""
    attention = Attention("x", WEIGHTS[name], normalization, trained=("b",))
    found = attention.derivatives(4)
    assert len(found) == 5
    for x, bias in ((0.7, 0.3), (-1.9, -0.6)):
        with mp.workdps(40):
            weight = {
                "bent": lambda x, b: mp.exp(b * x**3 + mp.sin(x)),
                "softplus": lambda x, b: mp.log(1 + mp.exp(x + b)),
                "a root": lambda x, b: (1 + x**2 + b**2) ** (mp.mpf(1) / 3),
                "saturating": lambda x, b: 2 + mp.tanh(x - b),
                "even": lambda x, b: mp.cosh(x) * mp.exp(b),
            }[name]
            scale = 1 if normalization == "none" else weight(x, bias)
            orders = [(k, 0) for k in range(1, 5)] + [(0, 1)]
            expected = [float(mp.diff(weight, (x, bias), order) / scale) for order in orders]
        values = [number(e, x, bias) for e in found]
        assert values == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_log_weights_split_products_and_powers() -> None:
    assert Attention("x", exp(b + chi), "pooled", 0, ("b",)).log_weight == b + chi
    mixed = Attention("x", 3 * exp(2 * chi) * (1 + chi**2) ** 4, "per-head").log_weight
    assert mixed == log(3) + 2 * chi + 4 * log(1 + chi**2)


def test_a_definition_is_frozen_and_comparable() -> None:
    attention = Attention("x", exp(chi), "per-head", trained=["v"])  # type: ignore[arg-type]
    assert attention == Attention("x", exp(chi), "per-head", Integer(0), ("v",))
    assert attention != Attention("x", exp(chi), "per-head")
    assert attention != Attention("x", exp(chi), "none", trained=("v",))
    assert hash(attention) == hash(Attention("x", exp(chi), "per-head", trained=("v",)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        attention.name = "y"  # type: ignore[misc]


def test_the_kernels_source_runs_without_sympy() -> None:
    attention = Attention("my-own", 2 + tanh(b + chi), "per-head", Rational(1, 4), ("b",))
    source = attention.kernel_source()
    assert "sympy" not in source.replace("SymPy", "")
    scope: dict = {}
    exec(source, scope)
    names = ("NAME", "NORMALIZATION", "PARAMETERS", "BACKGROUND", "AVERAGED")
    assert [scope[n] for n in names] == ["my-own", "per-head", ("b",), 0.25, False]
    value, first, *_ = scope["weight_functions_2"](0.3, 0.2)
    assert value == pytest.approx(float(mp.log(2 + mp.tanh(0.5))), rel=1e-14)
    assert first == pytest.approx(float(mp.sech(0.5) ** 2 / (2 + mp.tanh(0.5))), rel=1e-14)
