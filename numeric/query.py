"""One query recovering a signal: the exact objective of its alignment, and the flow on the sphere.

`derive.query` reduces ``J = (1/2) E |sum_i a_i x_i|^2`` to one integral over a race time of products of
one-token means, so the cost depends neither on the number of tokens nor on the dimension. The alignment
``alpha = q.u`` follows ``d alpha / dt = (1 - alpha^2) J'(alpha)``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp

from numeric._generated import query as kernels
from numeric.errors import FlowError, InputError
from numeric.quadrature import Array, gaussian_rule, race_rule
from numeric.race import cut, race_variable
from numeric.refine import refine
from numeric.validate import real_array, real_number, store, whole_number

LEAST_DIGITS, MOST_DIGITS = 4.0, 13.0
# Deviation of Gumbel noise.
GUMBEL = np.pi / np.sqrt(6)
TINY = 1e-300
MOST_COUNT = 10**15


@dataclass(frozen=True)
class QueryTask:
    """Informative tokens ``s_i theta u + z_i`` among uninformative ones ``z_i``, and a query.

    Parameters
    ----------
    informative, nuisance : int
        Numbers n_I >= 1 and n_0 >= 0 of tokens.
    dimension : int
        Dimension d >= 2.
    theta : float
        Signal, >= 0.
    beta : float
        Inverse temperature of the scores, >= 0.
    sigma : float
        Noise of each coordinate, > 0: 1, or ``d^(-1/2)``.
    shared : bool
        Whether all informative tokens have one sign; else each has its own.
    spread : float
        c >= 0: each token is multiplied by ``1 + c xi / sqrt d`` with a standard normal xi of its own, a
        perturbation that breaks the symmetry of equal norms.

    Raises
    ------
    InputError
        If a parameter is outside its range.
    """

    informative: int
    nuisance: int
    dimension: int
    theta: float
    beta: float
    sigma: float = 1.0
    shared: bool = False
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.shared, bool):
            raise InputError("shared", self.shared, "True or False")
        store(
            self,
            informative=whole_number("informative", self.informative, 1, MOST_COUNT),
            nuisance=whole_number("nuisance", self.nuisance, 0, MOST_COUNT),
            dimension=whole_number("dimension", self.dimension, 2, MOST_COUNT),
            theta=real_number("theta", self.theta, minimum=0),
            beta=real_number("beta", self.beta, minimum=0),
            sigma=real_number("sigma", self.sigma, positive=True),
            spread=real_number("spread", self.spread, minimum=0),
        )

    @property
    def tokens(self) -> int:
        """Number n of all tokens."""
        return self.informative + self.nuisance


@dataclass(frozen=True)
class Objective:
    """The objective and its derivatives in alpha, arrays of the alignments' shape.

    Attributes
    ----------
    value, slope, curvature : arrays
        ``J``, ``J'`` and ``J''``.
    value_error, slope_error, curvature_error : arrays
    """

    value: Array
    slope: Array
    curvature: Array
    value_error: Array
    slope_error: Array
    curvature_error: Array


def query_objective(task: QueryTask, alpha: ArrayLike, tol: float = 1e-10) -> Objective:
    """Return J, J' and J'' at alignments alpha.

    Parameters
    ----------
    task : QueryTask
    alpha : array_like
        Alignments from -1 to 1, any shape.
    tol : float
        Absolute error aimed at, relative to the largest of the three; the reported ones say what was
        reached.

    Returns
    -------
    Objective

    Raises
    ------
    InputError
        If an alignment is outside [-1, 1], or `tol` not positive.
    QuadratureError
        If scores are so spread that they cannot be resolved.

    Notes
    -----
    `derive.query`; arXiv 2606.22406.
    """
    tol = real_number("tol", tol, positive=True)
    values = alignments(alpha)
    found = np.empty((2, 3, values.size))
    for i, a in enumerate(values.ravel()):
        result, errors = refine(
            lambda digits, a=float(a): _integrals(task, a, digits),  # type: ignore[misc]
            lambda x, y: (
                float(np.abs(x - y).max()),
                *(float(z) for z in np.abs(x - y)),
            ),
            tol,
            1 - np.log10(tol),
            LEAST_DIGITS,
            MOST_DIGITS,
            lambda x: float(np.abs(x).max()),
        )
        found[:, :, i] = result, errors[1:]
    return Objective(*found.reshape(6, *values.shape))


def alignments(alpha: ArrayLike) -> Array:
    """Return alignments as an array.

    Raises
    ------
    InputError
        If one is outside [-1, 1].
    """
    values = real_array("alpha", alpha, (...,))
    if not (np.abs(values) <= 1).all():
        raise InputError("alpha", alpha, "from -1 to 1")
    return values


def _integrals(task: QueryTask, alpha: float, digits: float) -> Array:
    """J, J' and J'' (3,) at one resolution."""
    n = float(task.tokens)
    signs: Sequence[tuple[int, ...]] = ((1,), (-1,)) if task.shared else ((1, -1),)
    z, _ = gaussian_rule(task.beta * task.sigma, 3.0, n, digits)
    scales = _scales(task, digits)[0]
    far = task.beta * (task.theta * abs(alpha) + task.sigma * float(np.abs(z).max()))
    far *= float(np.abs(scales).max())
    low, high = -far - 5, far + np.log(n) + 2.5 * digits + 5
    coarse = np.linspace(low, high, int(np.clip(3 * (high - low), 96, 20_000)))
    null, others = _means(task, alpha, coarse, signs, LEAST_DIGITS)
    lost = np.mean([_survival(task, null[0], x[0]) for x in others], axis=0)
    log_lost = np.maximum.accumulate(np.log(np.maximum(lost, TINY)))
    width = np.array([np.hypot(task.beta * task.sigma, GUMBEL)])
    u, du = (x[0] for x in race_rule(coarse, log_lost[None], width, digits))
    null, others = _means(task, alpha, u, signs, digits)
    sizes = task.nuisance, task.informative, task.dimension
    total = np.zeros(3)
    for x in others:
        given = *sizes, task.sigma, task.theta, alpha, *null, *x
        total += [float(du @ part) for part in kernels.objective(*given)]
    return total / len(others)


def _scales(task: QueryTask, digits: float) -> tuple[Array, Array]:
    """Nodes and weights of a token's factor."""
    if task.spread == 0:
        return np.ones(1), np.ones(1)
    size = task.spread / np.sqrt(task.dimension)
    # The weight exp(beta Y) varies with the factor as fast as the largest Y times beta.
    reach = task.beta * (task.theta + task.sigma * np.sqrt(2 * np.log(10) * digits))
    z, weights = gaussian_rule(max(size * reach, 0.3), digits, float(task.tokens))
    return 1 + size * z, weights


def _survival(task: QueryTask, g_0: Array, g_i: Array) -> Array:
    log = task.nuisance * np.log1p(-g_0) + task.informative * np.log1p(-g_i)
    return np.exp(np.maximum(log, -700.0))


def _means(
    task: QueryTask, alpha: float, u: Array, signs: Sequence[tuple[int, ...]], digits: float
) -> tuple[list[Array], list[list[Array]]]:
    """Means that the objective needs at times u, of an uninformative token and of informative ones.

    The latter for each of `signs`, with derivatives in alpha.
    """
    scales, shares = _scales(task, digits)
    z, weights = gaussian_rule(
        task.beta * task.sigma * float(np.abs(scales).max()), digits, float(task.tokens)
    )

    def token(mean: float, slope: float) -> Array:
        """One-token means (5, 3, times), by orders of the derivative in alpha."""
        total = np.zeros((5, 3, len(u)))
        for scale, share in zip(scales, shares, strict=True):
            y = scale * (mean + task.sigma * z)[:, None]
            tau = race_variable(task.beta * y - u)
            functions = kernels.token_functions(tau, y, task.beta)
            found = np.array([weights @ x for x in functions]).reshape(5, 3, -1)
            # d/d alpha acts on the mean; what is orthogonal to q is scaled, too.
            found *= np.array([1.0, scale * slope, (scale * slope) ** 2])[:, None]
            found[1:3] *= np.array([scale, scale**2])[:, None, None]
            total += share * found
        return total

    def chosen(means: Array) -> Array:
        """g, ww, yw, yyww: all but the second of the one-token functions."""
        found = means[[0, 2, 3, 4]]
        found[0, 0] = cut(found[0, 0])
        return found

    null = chosen(token(0.0, 0.0))[:, 0]
    others = []
    for kind in signs:
        plain, signed = np.zeros((4, 3, len(u))), np.zeros((3, len(u)))
        for s in kind:
            found = token(s * task.theta * alpha, s * task.theta)
            plain += chosen(found) / len(kind)
            signed += s * found[1] / len(kind)
        others.append([*plain.reshape(12, -1), *signed])
    return list(null), others


@dataclass(frozen=True, repr=False)
class QueryFlow:
    """A solution of ``d alpha / dt = (1 - alpha^2) J'(alpha)``.

    Attributes
    ----------
    t, alpha : (n,) arrays
    """

    t: Array
    alpha: Array

    def time_to(self, alignment: float) -> float:
        """Return the first time with ``|alpha|`` at an alignment, infinite if there is none."""
        return first_time(self.t, self.alpha, alignment)


def first_time(t: Array, alpha: Array, alignment: float) -> float:
    """Return the first time with ``|alpha|`` at an alignment, infinite if there is none."""
    beyond = np.flatnonzero(np.abs(alpha) >= alignment)
    if not len(beyond):
        return float("inf")
    i = int(beyond[0])
    if i == 0:
        return float(t[0])
    a, b = np.abs(alpha[i - 1 : i + 1])
    return float(np.interp(alignment, [a, b], t[i - 1 : i + 1]))


def query_flow(task: QueryTask, alpha: float, t: ArrayLike, *, rtol: float = 1e-8) -> QueryFlow:
    """Integrate the limiting flow of the alignment.

    Parameters
    ----------
    task : QueryTask
    alpha : float
        Start, from -1 to 1; 0 and +-1 are fixed points.
    t : float or (n,) array_like
        Horizon (201 equally spaced times) or increasing times, the first being the start.
    rtol : float
        Relative accuracy.

    Returns
    -------
    QueryFlow

    Raises
    ------
    InputError
        If an argument is out of range.
    FlowError
        If the solver fails.
    """
    if not np.iterable(t):
        t = np.linspace(0, real_number("t", t, positive=True), 201)
    times = real_array("t", t, (None,))
    if len(times) < 2 or (np.diff(times) <= 0).any():
        raise InputError("t", t, "increasing times, at least two")
    start = float(alignments(real_number("alpha", alpha)))
    digits = min(2 - np.log10(rtol), MOST_DIGITS)

    def field(_: float, x: Array) -> Array:
        a = float(np.clip(x[0], -1, 1))
        return np.array([(1 - a * a) * _integrals(task, a, digits)[1]])

    found = solve_ivp(
        field,
        (times[0], times[-1]),
        [start],
        method="LSODA",
        t_eval=times,
        rtol=rtol,
        atol=rtol * min(abs(start), 1e-3) or rtol,
    )
    if found.status < 0 or not np.isfinite(found.y).all():
        raise FlowError(f"flow: the solver stopped at t = {found.t[-1] if len(found.t) else 0:g}")
    return QueryFlow(times, np.clip(found.y[0], -1, 1))
