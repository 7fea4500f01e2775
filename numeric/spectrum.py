"""Hessian spectra in the coordinates (m, rho), r = rho rho^T, by sector of the heads' symmetry.

At the origin the derived closed form is evaluated, at any other state the Hessian of `hessian`; the part
of the keys that leaves the span of rho sees the Hessian 2 G per residual dimension.
"""

from dataclasses import dataclass

import numpy as np

from numeric.hessian import factor_hessian
from numeric.origin import at_rest, origin_eigenvalues
from numeric.quadrature import Array
from numeric.task import Attention, State, Task

SAME = 1e-7
# Share of an eigenvector in a sector that gives the sector's name.
DOMINANT = 0.9


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a loss Hessian, merged where they are equal by symmetry.

    Attributes
    ----------
    point : {"origin", "state"}
    eigenvalues, errors : (n,) arrays
        Ascending, and their absolute errors (0: closed form).
    multiplicities : (n,) int array
        Residual sectors count once per residual dimension.
    sectors : tuple of str
        Which displacement of the heads and which feature.
    """

    point: str
    eigenvalues: Array
    multiplicities: np.ndarray
    sectors: tuple[str, ...]
    errors: Array

    @property
    def growth_rates(self) -> Array:
        """Growth rates under gradient flow: minus the eigenvalues."""
        return -self.eigenvalues + 0.0


def hessian_spectrum(task: Task, attention: Attention, state: State | None = None) -> Spectrum:
    """Return the Hessian's spectrum at the origin, or at a state.

    Parameters
    ----------
    task : Task
    attention : Attention
    state : State, optional
        One state, m (H, F), r (H, H). Biases and values are held fixed; at the origin they are those of
        `numeric.origin.at_rest`, b = 0 and equal v.

    Returns
    -------
    Spectrum
        Sectors are ``mean`` (heads move alike), ``difference`` (displacements sum to zero) and,
        away from the origin, ``mixed``; features are numbered as in the prior when its second moment is
        diagonal, else by descending second moment.

    Raises
    ------
    InputError
        For a batch of states, or one that does not fit.

    Notes
    -----
    arXiv 2603.03993, Lemma III.1; `derive.task` section 5. With a non-zero mean signal the origin
    is no saddle: its gradient does not vanish, and the spectrum is that of the expansion there.
    """
    if state is None:
        return _at_origin(task, attention)
    state = state.single(attention, task.prior.features)
    return _at_state(task, attention, state)


def feature_axes(task: Task) -> tuple[Array, Array]:
    """Second moments (F,) along the prior's principal features, and these as columns (F, F)."""
    moment = task.prior.second_moment
    if not (moment - np.diag(np.diag(moment))).any():
        return np.diag(moment).copy(), np.eye(len(moment))
    values, vectors = np.linalg.eigh(moment)
    return values[::-1], vectors[:, ::-1]


def _at_origin(task: Task, attention: Attention) -> Spectrum:
    moments, _ = feature_axes(task)
    heads, features = attention.heads, task.prior.features
    origin = at_rest(State(np.zeros((heads, features)), np.zeros((heads, heads))), task, attention)
    rows: list[tuple[float, int, str]] = []
    for f, nu in enumerate(moments, start=1):
        mean, difference, _, _ = origin_eigenvalues(origin, task, attention, float(nu))
        rows.append((mean, 1, f"mean, feature {f}"))
        rows.append((difference, heads - 1, f"difference, feature {f}"))
    _, _, mean, difference = origin_eigenvalues(origin, task, attention, 0.0)
    rows.append((mean, 1, "mean, residual"))
    rows.append((difference, heads - 1, "difference, residual"))
    # Closed forms that are zero may round to something else.
    zero = 1e-15 * max(abs(row[0]) for row in rows)
    rows = [(value if abs(value) > zero else 0.0, n, name) for value, n, name in rows if n > 0]
    rows.sort(key=lambda row: row[0])
    return Spectrum(
        "origin",
        np.array([row[0] for row in rows]) + 0.0,
        np.array([row[1] for row in rows]),
        tuple(row[2] for row in rows),
        np.zeros(len(rows)),
    )


def _at_state(task: Task, attention: Attention, state: State) -> Spectrum:
    found = factor_hessian(state, task, attention)
    values, vectors = np.linalg.eigh(found.matrix)
    shape = attention.heads, len(values) // attention.heads
    rows = _sectors(values, vectors, shape, SAME + 2 * found.error, task)
    errors = [found.error] * len(rows)
    bulk_values, bulk_vectors = np.linalg.eigh(found.bulk)
    for value, vector in zip(bulk_values, bulk_vectors.T, strict=True):
        rows.append((float(value), f"{_head_sector(vector[:, None])}, residual"))
        errors.append(found.bulk_error)
    return _merged(rows, errors)


def _head_sector(displacement: Array) -> str:
    """Classify a displacement (H, n): its share along the direction where all heads move alike."""
    share = float((displacement.sum(axis=0) ** 2).sum() / len(displacement))
    share /= max(float((displacement**2).sum()), 1e-300)
    if share > DOMINANT:
        return "mean"
    return "difference" if share < 1 - DOMINANT else "mixed"


def _sectors(
    values: Array, vectors: Array, shape: tuple[int, ...], margin: float, task: Task
) -> list[tuple[float, str]]:
    """Name the sector of every eigenvector; equal eigenvalues are first split by head symmetry.

    Single eigenvectors of a degenerate eigenvalue are arbitrary, so only what their span shares
    with a sector is used.
    """
    rows = []
    clusters = np.split(np.arange(len(values)), np.flatnonzero(np.diff(values) > margin) + 1)
    for cluster in clusters if len(values) else []:
        span = vectors[:, cluster].reshape(*shape, len(cluster))
        alike = span.mean(axis=0).reshape(-1, len(cluster))
        shares, rotation = np.linalg.eigh(shape[0] * alike.T @ alike)
        span = span @ rotation
        kinds = [
            "mean" if x > DOMINANT else "difference" if x < 1 - DOMINANT else "mixed"
            for x in shares
        ]
        for kind in sorted(set(kinds)):
            mine = [k for k, other in enumerate(kinds) if other == kind]
            name = f"{kind}, {_feature(span[..., mine], task)}"
            rows += [(float(values[cluster].mean()), name)] * len(mine)
    return rows


def _feature(span: Array, task: Task) -> str:
    """Name the feature, or the residual, that a span of displacements (H, F + k, n) lies along."""
    _, axes = feature_axes(task)
    features = len(axes)
    signal = np.einsum("hfn,fg->hgn", span[:, :features], axes)
    along = np.append((signal**2).sum(axis=(0, 2)), (span[:, features:] ** 2).sum())
    leading = int(np.argmax(along))
    if along[leading] < DOMINANT * along.sum():
        return "several directions"
    return "residual" if leading == features else f"feature {leading + 1}"


def _merged(rows: list[tuple[float, str]], errors: list[float]) -> Spectrum:
    """Merge rows of one sector that agree within their errors."""
    order = np.argsort([row[0] for row in rows], kind="stable")
    values: list[list[float]] = []
    sectors: list[str] = []
    margins: list[float] = []
    for i in order:
        value, sector = rows[i]
        same = [
            j
            for j in range(len(values))
            if sectors[j] == sector
            and abs(values[j][-1] - value) <= SAME + 2 * max(margins[j], errors[i])
        ]
        if same:
            values[same[0]].append(value)
            margins[same[0]] = max(margins[same[0]], errors[i])
        else:
            values.append([value])
            sectors.append(sector)
            margins.append(errors[i])
    return Spectrum(
        "state",
        np.array([np.mean(v) for v in values]),
        np.array([len(v) for v in values]),
        tuple(sectors),
        np.array(margins),
    )
