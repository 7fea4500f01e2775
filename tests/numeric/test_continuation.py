"""The unspecialized saddle along a parameter, and tasks continued to real numbers of tokens."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.interpolate import BarycentricInterpolator

from numeric.continuation import difference_eigenvalue, follow_saddle, phase_boundary
from numeric.errors import HeadflowError, InputError
from numeric.loss import population_loss
from numeric.prior import GaussianPrior, isotropic
from numeric.saddles import unspecialized_saddle
from numeric.sgd import run_sgd
from numeric.task import Attention, State, Task
from tests.numeric.oracle import LAYERS, random_state

CENTRED = Task(5, GaussianPrior([0.0, 0.0], [[4.0, 0.0], [0.0, 2.0]]))
Problem = Callable[[float], tuple[Task, Attention]]


def over_tokens(name: str = "softmax", heads: int = 2, task: Task = CENTRED) -> Problem:
    return lambda tokens: (task.continued(tokens), Attention(name, heads))


def grown(heads: int, tokens: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Growth rate of the heads' differences at the origin (section 5 of the model)."""
    return 2 / (heads * tokens) * (1 - 1 / tokens) * (1 - 2 / tokens) * moment


@pytest.mark.parametrize("heads", [2, 5])
def test_softmax_heads_part_beyond_two_tokens(heads: int) -> None:
    values = np.array([1.2, 1.5, 2.3, 3.7, 6.0])
    branch = follow_saddle(over_tokens(heads=heads), values)
    assert branch.bifurcations == pytest.approx([2.0], abs=1e-8)
    assert np.array_equal(branch.values, values)
    # Below two tokens the weaker feature has the lower eigenvalue.
    moment = np.where(values < 2, 2.0, 4.0)
    assert branch.lowest == pytest.approx(-grown(heads, values, moment), abs=1e-9)
    assert [difference_eigenvalue(x) for x in branch.saddles] == branch.lowest.tolist()
    assert all(not x.state.m.any() for x in branch.saddles)


@pytest.mark.parametrize(
    ("values", "zeros"), [([1.5, 2.0, 3.0], [2.0]), ([1.0, 2.0, 3.0], [1.0, 2.0])]
)
def test_a_bifurcation_at_a_given_value_is_found(values: list[float], zeros: list[float]) -> None:
    """One token alone is certain: every eigenvalue vanishes there."""
    assert follow_saddle(over_tokens(), values).bifurcations == pytest.approx(zeros, abs=1e-8)


def test_a_boundary_at_an_end_of_the_bracket_is_found() -> None:
    found = phase_boundary(lambda _, y: over_tokens()(y), [0.0, 1.0], (2.0, 4.0))
    assert found == pytest.approx([2.0, 2.0], abs=1e-8)


def test_pooled_heads_part_at_any_number_of_tokens() -> None:
    branch = follow_saddle(over_tokens("b-softmax"), [1.5, 2.0, 4.0])
    assert (branch.lowest < 0).all()
    assert branch.bifurcations.shape == (0,)


@pytest.mark.parametrize("name", ["softmax", "b-softmax"])
def test_the_eigenvalue_is_that_of_the_saddle_with_a_mean(name: str) -> None:
    """Whole numbers of tokens: the lowest eigenvalue among those that the spectrum lists."""
    task, attention = Task(4, GaussianPrior([0.7], [[1.5]])), Attention(name, 3)
    saddle = unspecialized_saddle(task, attention)
    branch = follow_saddle(over_tokens(name, 3, task), [4.0, 5.0])
    assert branch.lowest[0] == difference_eigenvalue(saddle)
    listed = dict(zip(saddle.spectrum.sectors, saddle.spectrum.eigenvalues, strict=True))
    own = [x for s, x in listed.items() if s.startswith("difference") and "residual" not in s]
    assert branch.lowest[0] == min(own)
    assert branch.saddles[0].state.m.min() > 0


def test_a_phase_boundary_with_a_known_root() -> None:
    """L = x + y tokens: heads part where y = 2 - x."""

    def problem(x: float, y: float) -> tuple[Task, Attention]:
        return CENTRED.continued(x + y), Attention("softmax", 2)

    found = phase_boundary(problem, [0.2, 0.6, 1.4], (0.9, 2.4))
    assert found == pytest.approx([1.8, 1.4, np.nan], abs=1e-8, nan_ok=True)


@pytest.mark.slow
def test_a_phase_boundary_with_a_mean() -> None:
    """The boundary in (mean, tokens) is where the saddle's own Hessian changes sign."""

    def problem(mean: float, tokens: float) -> tuple[Task, Attention]:
        return Task(5, GaussianPrior([mean], [[1.0]])).continued(tokens), Attention("softmax", 2)

    means = [0.2, 0.6]
    for mean, tokens in zip(means, phase_boundary(problem, means, (1.2, 6.0)), strict=True):
        assert tokens > 1.2
        around = [
            difference_eigenvalue(unspecialized_saddle(*problem(mean, tokens + shift)))
            for shift in (-0.01, 0.0, 0.01)
        ]
        assert around[0] * around[2] < 0
        assert abs(around[1]) < 1e-6 * (abs(around[0]) + abs(around[2])) / 0.01


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="heads: found 1, expected at least 2"):
        follow_saddle(over_tokens(heads=1), [1.5, 3.0])
    with pytest.raises(InputError, match="heads: found 1"):
        phase_boundary(lambda _, y: over_tokens(heads=1)(y), [0.0, 1.0], (1.5, 3.0))
    for values in ([3.0, 2.0], [2.0, 2.0], [3.0], [1.5, np.nan]):
        with pytest.raises(InputError, match="values"):
            follow_saddle(over_tokens(), values)
    with pytest.raises(InputError, match="bracket"):
        phase_boundary(lambda _, y: over_tokens()(y), [0.0, 1.0], (3.0, 1.5))


def test_whole_numbers_of_tokens_are_those_of_a_task() -> None:
    assert CENTRED.continued(5.0) == CENTRED
    assert isinstance(CENTRED.continued(7.0).tokens, int)
    assert CENTRED.continued(7.0) == Task(7, CENTRED.prior)
    half = CENTRED.continued(5.5)
    assert (half.tokens, half.prior) == (5.5, CENTRED.prior)
    assert CENTRED.tokens == 5


def test_a_continued_task_can_be_continued() -> None:
    assert CENTRED.continued(5.5).continued(5) == CENTRED


@pytest.mark.parametrize("tokens", [0.999, 0, -3.0, np.nan, np.inf, "five"])
def test_fewer_than_one_token_is_refused(tokens: float) -> None:
    with pytest.raises(InputError, match="tokens"):
        CENTRED.continued(tokens)


def test_simulations_refuse_a_fractional_token() -> None:
    state, attention = State(np.zeros((2, 2)), np.eye(2)), Attention("softmax", 2)
    with pytest.raises(HeadflowError, match=r"tokens: found 5\.5, expected a whole number"):
        run_sgd(state, CENTRED.continued(5.5), attention, tau=1.0, dimension=20, step=0.1)
    run_sgd(state, CENTRED.continued(5.0), attention, tau=1.0, dimension=20, step=0.1)


@pytest.mark.parametrize("name", ["softmax", "softmax-1", "erf"])
def test_losses_are_smooth_between_whole_numbers(name: str) -> None:
    """A polynomial through L = 4 ... 8 predicts 6.5: in 1/L, in L where no weight has a denominator."""
    heads = 1 if name == "erf" else 2
    attention, whole = Attention(name, heads), np.arange(4, 9)
    state = random_state(np.random.default_rng(5), LAYERS[name], heads, 2, 0.5)

    def loss(tokens: float) -> float:
        return float(population_loss(state, CENTRED.continued(tokens), attention, 1e-9).value)

    power = 1 if name == "erf" else -1
    through = BarycentricInterpolator(whole.astype(float) ** power, [loss(x) for x in whole])
    assert loss(6.5) == pytest.approx(float(through(6.5**power)), abs=1e-4)
    assert abs(loss(6.5) - (loss(6) + loss(7)) / 2) < 0.05
    assert loss(6.0) == float(population_loss(state, Task(6, CENTRED.prior), attention, 1e-9).value)


def test_eigenvalues_are_smooth_in_the_variance() -> None:
    def problem(variance: float) -> tuple[Task, Attention]:
        return Task(6, isotropic(1, variance)), Attention("softmax", 2)

    branch = follow_saddle(problem, [0.5, 1.0, 2.0])
    assert branch.lowest == pytest.approx(-grown(2, np.array(6.0), branch.values), abs=1e-9)
    assert branch.bifurcations.size == 0
