"""Two heads at a time: three forms of one expectation against each other and against sums over both
scores, and ``B_hh'`` with derivatives against products of Gauss-Hermite rules and differences.
"""

from typing import Any

import numpy as np
import pytest
import scipy.special
from numpy.polynomial.hermite_e import hermegauss

from numeric._generated import ACTIVATIONS
from numeric.errors import QuadratureError
from numeric.heads import race_times
from numeric.pairs import LEAST_REST, Block, Nodes, pair_races, pair_width
from numeric.quadrature import Rule
from numeric.race import Law
from tests.numeric.oracle import EXACT, LAYERS, slope

# Race times of the two heads; one, of no meaning, where there is no race.
TIMES = np.array([[-3.0, 0.0, 4.0], [-2.0, 0.5, 7.0]])
MEAN, BIAS = np.array([0.5, -0.7]), np.array([0.3, -0.4])
CORRELATIONS = [0.0, 0.3, 0.9, 0.99, 1.0, -1.0, 0.9999]
DEVIATIONS = [(0.01, 0.01), (0.3, 0.3), (1.0, 1.0), (5.0, 5.0), (5.0, 0.3), (0.01, 5.0), (0.0, 1.0)]
DIGITS = 9.0


def rows(name: str, chi: Any, bias: float, u: Any) -> list[Any]:
    """Not won and win, each with its derivatives in score and bias, from the weight's formula."""
    w, d, d2, d_b = {
        "softmax": lambda x, b: (np.exp(x),) * 3 + (0 * x,),
        "softmax-1": lambda x, b: (np.exp(x + b),) * 4,
        "softplus": lambda x, b: (
            np.log1p(np.exp(x)),
            scipy.special.expit(x),
            scipy.special.expit(x) * scipy.special.expit(-x),
            0 * x,
        ),
        "linear": lambda x, b: (1 + x, 1 + 0 * x, 0 * x, 0 * x),
        "erf": lambda x, b: (
            1 + scipy.special.erf(x + b),
            2 / np.sqrt(np.pi) * np.exp(-((x + b) ** 2)),
            -4 / np.sqrt(np.pi) * (x + b) * np.exp(-((x + b) ** 2)),
            2 / np.sqrt(np.pi) * np.exp(-((x + b) ** 2)),
        ),
    }[name](chi, bias)
    if LAYERS[name].normalization == "none":
        return [1 + 0 * w, 0 * w, 0 * w, 0 * w, w, d, d2, d_b]
    with np.errstate(over="ignore"):
        t = np.minimum(w * np.exp(-u), 700)
        x, x2, x_b = (np.where(t < 700, y * np.exp(-u), 0) for y in (d, d2, d_b))
    e = np.exp(-t)
    win = [t * e, x * (1 - t) * e, (x2 * (1 - t) - x**2 * (2 - t)) * e, x_b * (1 - t) * e]
    return [e, -x * e, (x**2 - x2) * e, -x_b * e, *win]


def brute_force(name: str, sigma: tuple[float, float], rho: float) -> np.ndarray:
    """Expectations of all products of rows at all pairs of times: sums over two normal variables."""
    step = 0.1 if max(sigma) < 4 else 0.06
    z = np.arange(-7, 7 + step / 2, step)
    weights = np.exp(-z * z / 2) * step / np.sqrt(2 * np.pi)
    second, y_weights = (z, weights) if abs(rho) < 1 else (np.zeros(1), np.ones(1))
    x = MEAN[0] + sigma[0] * z
    y = MEAN[1] + sigma[1] * (rho * z[:, None] + np.sqrt(1 - rho**2) * second)
    one = LAYERS[name].normalization == "none"
    times = np.zeros((2, 1)) if one else TIMES
    left = np.array([rows(name, x, BIAS[0], u) for u in times[0]])
    right = np.array([[f @ y_weights for f in rows(name, y, BIAS[1], v)] for v in times[1]])
    return np.einsum("uin,vjn,n->uvij", left, right, weights)


def averages(block: Block) -> np.ndarray:
    """The same from a block of one pair: rows of `e` and then of `f`, within themselves."""

    def products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return np.einsum("iun,jvn->uvij", left[0], right[0])

    count = block.first.e.shape[1]
    result = np.zeros((*products(block.first.e, block.second.e).shape[:2], 8, 8))
    result[..., :count, :count] = products(block.first.e, block.second.e)
    result[..., 4 : 4 + count, 4 : 4 + count] = products(block.first.f, block.second.f)
    return result


def forms_of(nodes: Nodes, rho: float) -> dict[str, Block]:
    """Every form that is meant for a correlation, and the one that is chosen."""
    first, second, mine = np.array([0]), np.array([1]), np.array([0])
    rest = np.sqrt(1 - rho**2)
    forms = {"chosen": next(iter(nodes.blocks(first, second)))}
    forms["conditional"] = next(iter(nodes._conditional(first, second, mine)))
    if rest >= LEAST_REST:
        level = float(np.ceil(-2 * np.log2(rest)))
        forms["equispaced"] = nodes._equispaced(level, first, second, mine, np.array([rho]))
    if nodes.hermite <= 250:
        forms["hermite"] = nodes._hermite(first, second, mine, np.array([rho]))
    return forms


@pytest.mark.parametrize("sigma", DEVIATIONS)
@pytest.mark.parametrize("name", ["softmax", "softmax-1", "softplus", "linear", "erf"])
def test_three_forms_of_one_expectation(name: str, sigma: tuple[float, float]) -> None:
    kernel = ACTIVATIONS[name]
    times = np.zeros((2, 1)) if kernel.NORMALIZATION == "none" else TIMES
    alone = brute_force(name, (sigma[0], 0.0), 0.0)[:, 0, 0, 0]
    alone = alone / rows(name, MEAN[1], BIAS[1], times[1, 0])[0]
    for rho in CORRELATIONS if min(sigma) else [0.0]:
        cross = rho * sigma[0] * sigma[1]
        law = Law(1.0, MEAN, np.array([[sigma[0] ** 2, cross], [cross, sigma[1] ** 2]]))
        expected = brute_force(name, sigma, rho)
        size = max(1.0, float(np.abs(expected).max()))
        for form, block in forms_of(Nodes(law, BIAS, kernel, times, 5.0, DIGITS), rho).items():
            found, count = averages(block), block.first.e.shape[1]
            for part in (slice(0, count), slice(4, 4 + count)):
                error = np.abs(found[..., part, part] - expected[..., part, part])
                assert error[..., 0, 0].max() < 5 * 10**-DIGITS * size, (form, rho)
                # Derivatives converge a little later.
                assert error.max() < 100 * 10**-DIGITS * size, (form, rho)
            assert block.mean_won[0] == pytest.approx(1 - alone, abs=3e-9), (form, rho)


NULL = ([0.1, -0.2], [[0.5, 0.15], [0.15, 0.3]])
RELEVANT = (
    (0.3, [0.8, -0.4], [[0.9, -0.2], [-0.2, 0.4]]),
    (0.7, [-0.5, 0.6], [[0.3, 0.2], [0.2, 0.6]]),
)
VALUES = np.array([0.6, -1.4])


def make_laws() -> list[Law]:
    laws = [Law(1.0, *map(np.array, NULL))]
    return laws + [Law(p, np.array(mean), np.array(cov)) for p, mean, cov in RELEVANT]


def value(
    name: str, laws: list[Law], time: Rule, tokens: float, bias: np.ndarray = BIAS
) -> np.ndarray:
    return pair_races(laws[0], laws[1:], bias, ACTIVATIONS[name], time, tokens, VALUES, 12.0)


def pair_time(name: str, laws: list[Law], tokens: float) -> Rule:
    return race_times(laws[0], laws[1:], BIAS, ACTIVATIONS[name], tokens, 12.0)[1]


@pytest.mark.parametrize("name", EXACT)
def test_two_tokens_against_gauss_hermite(name: str) -> None:
    """``E sum_l p_1l p_2l`` from the definition of the weights, over all four scores at once."""
    layer = LAYERS[name]
    x, w = hermegauss(28)
    w = w / w.sum()
    z = np.stack([g.ravel() for g in np.meshgrid(x, x, indexing="ij")], axis=1)
    weights = np.multiply.outer(w, w).ravel()
    other = layer.weight(np.array(NULL[0]) + z @ np.linalg.cholesky(np.array(NULL[1])).T, BIAS)
    expected = 0.0
    for share, mean, cov in RELEVANT:
        mine = layer.weight(np.array(mean) + z @ np.linalg.cholesky(np.array(cov)).T, BIAS)
        weight = share * np.multiply.outer(weights, weights)
        total = layer.background + mine[:, None] + other
        if layer.normalization == "none":
            total = np.ones_like(total)
        p, q = mine[:, None] / total, other / total
        expected += float((weight * (p.prod(axis=-1) + q.prod(axis=-1))).sum())
    laws = make_laws()
    found = value(name, laws, pair_time(name, laws, 2.0), 2.0)
    assert found[0, 1] == found[1, 0] == pytest.approx(expected, abs=1e-9)
    assert not np.diag(found).any()


@pytest.mark.parametrize("tokens", [2.0, pytest.param(50.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in EXACT if name != "softmax-v"])
def test_derivatives_against_finite_differences(name: str, tokens: float) -> None:
    """Of ``sum v_h v_h' B_hh'`` over both orders of the pair, in means, covariances and biases."""
    laws = make_laws()
    time = pair_time(name, laws, tokens)

    def total(laws: list[Law], bias: np.ndarray = BIAS) -> float:
        return float(VALUES @ value(name, laws, time, tokens, bias) @ VALUES)

    def moved(which: int, mean: np.ndarray, cov: np.ndarray) -> float:
        laws = make_laws()
        law = laws[which]
        laws[which] = Law(law.weight, law.mean + mean, law.cov + cov)
        return total(laws)

    size = abs(total(laws))
    none, zero = np.zeros(2), np.zeros((2, 2))
    for which, law in enumerate(laws):
        assert np.abs(law.Gamma - law.Gamma.T).max() < 1e-14 * size
        for h in range(2):
            unit = np.eye(2)[h]
            in_mean = slope(lambda x, k=which, u=unit: moved(k, x * u, zero), 0.02)
            assert law.g[h] == pytest.approx(in_mean, abs=1e-9 * size)
        for direction in ([[1, 0], [0, 0]], [[0, 0.5], [0.5, 0]], [[0, 0], [0, 1]]):
            change = np.array(direction, dtype=float)
            in_cov = slope(lambda x, k=which, c=change: moved(k, none, x * c), 0.02)
            assert np.sum(law.Gamma * change) == pytest.approx(in_cov, abs=1e-9 * size)
    in_bias = sum(law.b for law in laws)
    for h in range(2):
        unit = np.eye(2)[h]
        expected = slope(lambda x, u=unit: total(make_laws(), BIAS + x * u), 0.02)
        assert in_bias[h] == pytest.approx(expected, abs=1e-9 * size)


@pytest.mark.parametrize("name", EXACT)
def test_heads_may_change_places(name: str) -> None:
    """Three heads of very unequal deviations, correlated in all ways: permutations permute."""
    scale = np.diag([0.02, 1.0, 2.5])
    unit = np.array([[1.0, 0.97, -0.3], [0.97, 1.0, -0.2], [-0.3, -0.2, 1.0]])
    bias, values = np.array([0.2, -0.1, 0.4]), np.array([0.5, -0.3, 1.0])
    kernel, results = ACTIVATIONS[name], []
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        laws = [
            Law(1.0, mean[order], (scale @ unit @ scale)[np.ix_(order, order)])
            for mean in (np.zeros(3), np.array([0.5, -0.3, 0.2]))
        ]
        b, v = bias[order], values[order]
        time = race_times(laws[0], laws[1:], b, kernel, 3.0, 10.0)[1]
        found = pair_races(laws[0], laws[1:], b, kernel, time, 3.0, v, 10.0)
        back = np.argsort(order)
        results.append([found[np.ix_(back, back)], laws[1].g[back], laws[1].Gamma[back][:, back]])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert two == pytest.approx(one, rel=1e-7, abs=1e-8)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine heads: all pairs at once, and a few at a time."""
    rng = np.random.default_rng(2)
    root = 0.3 * rng.normal(size=(9, 9))
    kernel, results = ACTIVATIONS["softmax-1"], []
    for kept in (10**9, 1):
        monkeypatch.setattr("numeric.pairs.KEPT", kept)
        monkeypatch.setattr("numeric.pairs.CHUNK", 10**9 if kept > 1 else 1)
        laws = [Law(1.0, np.zeros(9), root @ root.T), Law(1.0, root[0], 2 * root @ root.T)]
        bias, values = root[1], root[2]
        time = race_times(laws[0], laws[1:], bias, kernel, 4.0, 7.0)[1]
        b = pair_races(laws[0], laws[1:], bias, kernel, time, 4.0, values, 7.0)
        results.append([b, *(x for law in laws for x in (law.g, law.Gamma, law.b))])
    for one, two in zip(*results, strict=True):
        assert two == pytest.approx(one, rel=1e-12, abs=1e-15)


def test_pair_width() -> None:
    """The deviation of a difference of two race times over sqrt 2: two Gumbels' where scores agree."""
    laws = [Law(1.0, np.zeros(3), np.array([[1.0, 1.0, 0], [1.0, 1.0, 0], [0, 0, 9.0]]))]
    gumbel = np.pi**2 / 6
    assert pair_width(laws[0], []) == pytest.approx(np.sqrt([gumbel, gumbel, 5.0 + gumbel]))
    wider = Law(1.0, np.zeros(3), 4 * np.eye(3))
    assert pair_width(wider, laws) == pytest.approx(np.sqrt([gumbel, gumbel, 4.0 + gumbel]))


@pytest.mark.parametrize("correlation", [0.9999, -0.9999])
def test_pairs_out_of_reach_are_refused(correlation: float) -> None:
    cov = 1e5 * np.array([[1.0, correlation], [correlation, 1.0]])
    laws = [Law(1.0, np.zeros(2), cov) for _ in range(2)]
    for count in (20, 2000):
        time = np.zeros((2, count)), np.zeros((2, count))
        with pytest.raises(QuadratureError, match="scores") as caught:
            value("softmax", laws, time, 5.0)
        assert "\n" not in str(caught.value)
