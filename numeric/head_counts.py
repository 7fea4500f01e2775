"""How many heads a prior needs: the least loss of H heads above the Bayes risk, against H.

With r = 0 and keys in the feature space, H heads of Bayes-softmax are the Bayes estimator of a discrete
prior with H points k_h of weights proportional to ``exp(b_h + |k_h|^2 / 2)``. So what they lose is the
price of that prior for the true one: of its optimal quantization, found by descent, or of any other, such
as the nodes of the prior's Gauss quadrature.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from numeric.bayes import Risk, bayes_risk
from numeric.decay import Decay, fit_decay
from numeric.errors import InputError, Verbatim
from numeric.loss import population_loss
from numeric.minimum import Minimum, bayes_softmax_optimum, minimize_loss
from numeric.prior import DiscretePrior, Prior
from numeric.quadrature import Array, principal_axes, product_rule
from numeric.tabular import Tabular
from numeric.task import Attention, State, Task
from numeric.validate import real_number, whole_number

# Nodes that stand for one Gaussian component of a prior of one feature.
FINE = 120
MOST_NODES = 30
# By how much two heads that one is split into are moved apart.
APART = 0.2
# A search for a gap ends where so many more heads do not bring it below this part of what it was.
PATIENCE, STALLED = 2, 0.97
# Heads that are split in turn.
SPLIT = 3


@dataclass(frozen=True, repr=False)
class HeadCount(Tabular):
    """Gaps to the Bayes risk against the number of heads.

    Attributes
    ----------
    heads : (n,) array
    gaps, errors : (n,) arrays
        Least loss found above the Bayes risk, and its error.
    nodes : (n,) array
        The gap of heads at the nodes of Gauss quadrature; NaN where there is no such rule of H points.
    minima : tuple of Minimum
    bayes : Risk
    max_gap : float or None
    decay : Decay or None
        None where fewer than three gaps can be fitted.
    """

    heads: Array
    gaps: Array
    errors: Array
    nodes: Array
    minima: tuple[Minimum, ...]
    bayes: Risk
    max_gap: float | None
    decay: Decay | None

    @property
    def needed(self) -> int | None:
        """The first number of heads whose gap, with its error, is at most `max_gap`; None if none is."""
        if self.max_gap is None:
            return None
        enough = self.heads[self.gaps + self.errors <= self.max_gap]
        return int(enough[0]) if len(enough) else None

    def rows(self) -> list[list[str]]:
        """Return a row for each number of heads; see `Tabular`."""
        columns = self.heads, self.gaps, self.errors, self.nodes
        return [
            ["heads", "gap to Bayes", "error", "gap of Gauss nodes"],
            *(
                [f"{h:.0f}", f"{gap:.6g}", f"{error:.1e}", f"{node:.6g}" if node == node else ""]
                for h, gap, error, node in zip(*columns, strict=True)
            ),
        ]

    def __repr__(self) -> str:
        gaps = ", ".join(
            f"{h:.0f}: {gap:.3g}" for h, gap in zip(self.heads, self.gaps, strict=True)
        )
        return f"<HeadCount: gaps {gaps}>"


def head_count(
    task: Task,
    activation: object = "b-softmax",
    *,
    max_gap: float | None = None,
    most: int = 8,
    starts: int = 4,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> HeadCount:
    """Return the least loss of 1, 2, ... heads above the Bayes risk.

    Parameters
    ----------
    task : Task
    activation : str or derive.Attention
        Bayes-softmax by default.
    max_gap : float, optional
        Absolute gap at which to stop; the search also ends where two more heads do not help.
    most : int
        Largest number of heads.
    starts, seed : int
        Random descents, at r = 0, for each number of heads, beside those from the minimum of one head
        less with a heavy head split in two, and for Bayes-softmax from Gauss nodes and from the closed
        form of a discrete prior.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    HeadCount
        Gaps are those of the best descent: upper bounds of the least loss.

    Raises
    ------
    InputError
        If an argument is out of range.

    Notes
    -----
    `derive.task` section 6; arXiv 2603.03993, section IV.
    """
    most, seed = whole_number("most", most, 1), whole_number("seed", seed, 0)
    if max_gap is not None:
        max_gap = real_number("max_gap", max_gap, positive=True)
    risk = bayes_risk(task)
    heads = np.arange(1, most + 1, dtype=np.float64)
    gaps, errors, nodes = np.full((3, most), np.nan)
    minima: list[Minimum] = []
    for i, count in enumerate(heads):
        layer = Attention(activation, int(count))
        begin: list[State] = []
        if layer.name == "b-softmax":
            begin = list(_quantizations(task, int(count)))
            for state in begin:
                gap = float(population_loss(state, task, layer, 1e-9).value) - risk.value
                nodes[i] = np.fmin(nodes[i], gap)
            begin += _closed_form(task, int(count))
        if minima:
            begin += split_heads(minima[-1].state)
        children = np.random.SeedSequence(seed, spawn_key=(int(count),))
        found = minimize_loss(
            task,
            layer,
            starts=starts,
            seed=int(children.generate_state(1)[0]),
            begin=begin,
            spectrum=False,
            bayes=risk,
            residual=False,
        )
        minima.append(found)
        gaps[i], errors[i] = found.gap, found.gap_error
        if progress is not None:
            progress(count * (count + 1) / (most * (most + 1)))
        if max_gap is not None and gaps[i] + errors[i] <= max_gap:
            break
        before = gaps[: max(i + 1 - PATIENCE, 0)]
        if max_gap is not None and len(before) and gaps[: i + 1].min() > STALLED * before.min():
            break
    done = slice(0, len(minima))
    return HeadCount(
        heads[done],
        gaps[done],
        errors[done],
        nodes[done],
        tuple(minima),
        risk,
        max_gap,
        fit_decay(heads[done], gaps[done], errors[done]),
    )


def gauss_nodes(prior: Prior, count: int) -> DiscretePrior:
    """Return the Gauss quadrature of a prior of one feature: it has the same 2 n - 1 first moments.

    Parameters
    ----------
    prior : Prior
        Of one feature; discrete ones of n support points are their own rule.
    count : int
        Number n of nodes.

    Raises
    ------
    InputError
        If the prior has another number of features, or fewer support points, or `count` exceeds 30 for
        one that is not discrete.
    """
    count = whole_number("count", count, 1)
    if prior.features != 1:
        raise InputError("prior", Verbatim(f"{prior.features} features"), "one feature")
    weights, means, covariances = prior.components()
    z, share = hermegauss(FINE) if not prior.is_discrete else (np.zeros(1), np.ones(1))
    x = (means + np.sqrt(covariances[:, 0]) * z).ravel()
    w = np.outer(weights, share / share.sum()).ravel()
    most = len(np.unique(x[w > 0])) if prior.is_discrete else MOST_NODES
    if count > most:
        words = "the number of support points" if prior.is_discrete else "beyond, weights underflow"
        raise InputError("count", count, f"at most {most} ({words})")
    # Lanczos' method with full orthogonalization: the Jacobi matrix of the measure.
    basis = [np.sqrt(w)]
    diagonal, side = [], []
    for _ in range(count):
        new = x * basis[-1]
        diagonal.append(float(basis[-1] @ new))
        for _ in range(2):
            for old in basis:
                new = new - (old @ new) * old
        size = float(np.linalg.norm(new))
        side.append(size)
        basis.append(new / max(size, 1e-300))
    jacobi = np.diag(diagonal) + np.diag(side[:-1], 1) + np.diag(side[:-1], -1)
    points, vectors = np.linalg.eigh(jacobi)
    found = vectors[0] ** 2
    return DiscretePrior(points[:, None], found / found.sum())


def _quantizations(task: Task, count: int) -> Iterator[State]:
    """States at the Gauss nodes of the prior: products of rules where it is one Gaussian."""
    prior = task.prior
    if prior.features == 1:
        try:
            yield bayes_softmax_optimum(replace(task, prior=gauss_nodes(prior, count)))
        except InputError:
            return
        return
    weights, means, covariances = prior.components()
    if len(weights) > 1 or prior.is_discrete:
        return
    sigma, axes = principal_axes(covariances[0])
    for sizes in _factorizations(count, prior.features):
        z, share = product_rule([hermegauss(n) for n in sizes])
        points = means[0] + (z * sigma) @ axes.T
        yield bayes_softmax_optimum(replace(task, prior=DiscretePrior(points, share / share.sum())))


def _factorizations(count: int, axes: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as an ordered product."""
    if axes == 1:
        yield (count,)
        return
    for first in range(1, count + 1):
        if count % first == 0:
            for rest in _factorizations(count // first, axes - 1):
                yield (first, *rest)


def _closed_form(task: Task, count: int) -> list[State]:
    """The Bayes estimator of a discrete prior, where there are heads enough; spare ones double others."""
    if not task.prior.is_discrete:
        return []
    state = bayes_softmax_optimum(task)
    if len(state.m) > count or state.b is None:
        return []
    while len(state.m) < count:
        state = _doubled(state, 0, 0.0)
    return [state]


def split_heads(state: State) -> list[State]:
    """Return states of one head more: one of the heaviest heads is two that are a little apart."""
    weight = np.ones(len(state.m)) if state.v is None else np.abs(state.v)
    if state.b is not None:
        weight = state.b + (state.m**2).sum(axis=1) / 2
    return [_doubled(state, int(h), APART) for h in np.argsort(-weight)[:SPLIT]]


def _doubled(state: State, head: int, apart: float) -> State:
    """One head as two, which share its weight or its value."""
    share, others = 0.5, {}
    if state.v is not None:
        v = state.v.copy()
        v[head] *= share
        others["v"] = np.append(v, v[head])
    if state.b is not None:
        b = state.b.copy()
        if state.v is None:
            b[head] += np.log(share)
        others["b"] = np.append(b, b[head])
    m = np.concatenate([state.m, state.m[head : head + 1]])
    direction = m[head] / max(float(np.linalg.norm(m[head])), 1e-3)
    m[head], m[-1] = m[head] + apart * direction, m[-1] - apart * direction
    return State(m, np.zeros((len(m), len(m))), **others)
