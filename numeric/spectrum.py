"""Hessian spectra in the coordinates (m, rho), r = rho rho^T, by sector of the heads' symmetry.

At the origin the derived closed form is evaluated, at any other state the Hessian of `hessian`; the part
of the keys that leaves the span of rho sees the Hessian 2 G per residual dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from numeric.alike import alike_hessian, is_alike
from numeric.hessian import factor, factor_hessian
from numeric.origin import origin_eigenvalues, origin_state
from numeric.quadrature import Array
from numeric.tabular import Tabular
from numeric.task import Attention, State, Task
from numeric.validate import whole_number

SAME = 1e-7
# An eigenvalue that is zero but for rounding.
FLAT = 1e-12
# Share of an eigenvector in a sector that gives the sector's name.
DOMINANT = 0.9


@dataclass(frozen=True, repr=False)
class Spectrum(Tabular):
    """Eigenvalues of a loss Hessian, merged where they are equal by symmetry.

    Attributes
    ----------
    point : {"origin", "state", "unspecialized"}
    eigenvalues, errors : (n,) arrays
        Ascending, and their absolute errors (0: closed form).
    multiplicities : (n,) int array
        Residual sectors count once per residual dimension, until they are `lifted`.
    sectors : tuple of str
        Which displacement of the heads, and along what: a feature, the span of the keys, a head's bias or
        value, or a residual dimension outside that span.
    spanned : int
        Dimensions that the features and the keys span.
    """

    point: str
    eigenvalues: Array
    multiplicities: np.ndarray
    sectors: tuple[str, ...]
    errors: Array
    spanned: int

    def __repr__(self) -> str:
        low, high = self.eigenvalues.min(initial=0.0), self.eigenvalues.max(initial=0.0)
        return (
            f"<Spectrum at {self.point}: {len(self.eigenvalues)} sectors, eigenvalues {low:.6g} to "
            f"{high:.6g}, index {self.index}>"
        )

    def rows(self) -> list[list[str]]:
        """Return a row for each sector; see `Tabular`."""
        columns = (
            self.sectors,
            self.multiplicities,
            self.eigenvalues,
            self.errors,
            self.growth_rates,
        )
        return [
            ["sector", "multiplicity", "eigenvalue", "error", "growth rate"],
            *(
                [
                    x,
                    str(n),
                    f"{value:.8g}",
                    f"{error:.1e}",
                    f"{rate:+.8g}" if abs(rate) > error else "0",
                ]
                for x, n, value, error, rate in zip(*columns, strict=True)
            ),
        ]

    @property
    def residual(self) -> np.ndarray:
        """Which sectors are along a residual dimension: the bulk."""
        return np.array([sector.endswith("residual") for sector in self.sectors], dtype=bool)

    @property
    def unstable(self) -> np.ndarray:
        """Which eigenvalues are negative beyond their errors."""
        return self.eigenvalues < -self.errors - FLAT

    @property
    def index(self) -> int:
        """Number of unstable directions; a residual sector counts as its multiplicity says."""
        return int(self.multiplicities[self.unstable].sum())

    def lifted(self, dimension: int) -> "Spectrum":
        """Return the spectrum of keys in D dimensions: residual sectors have D - spanned copies.

        Parameters
        ----------
        dimension : int
            Token dimension D >= spanned.

        Raises
        ------
        InputError
            If `dimension` is smaller.
        """
        copies = whole_number("dimension", dimension, self.spanned) - self.spanned
        counts = np.where(self.residual, copies * self.multiplicities, self.multiplicities)
        kept = counts > 0
        return replace(
            self,
            eigenvalues=self.eigenvalues[kept],
            multiplicities=counts[kept],
            sectors=tuple(x for x, keep in zip(self.sectors, kept, strict=True) if keep),
            errors=self.errors[kept],
            spanned=dimension,
        )

    @property
    def growth_rates(self) -> Array:
        """Growth rates under gradient flow: minus the eigenvalues."""
        return -self.eigenvalues + 0.0


def hessian_spectrum(
    task: Task, attention: Attention, state: State | None = None, *, trained: bool = False
) -> Spectrum:
    """Return the Hessian's spectrum at the origin, or at a state.

    Parameters
    ----------
    task : Task
    attention : Attention
    state : State, optional
        One state, m (H, F), r (H, H). At the origin biases and values are those of
        `numeric.origin.at_rest`, b = 0 and equal v.
    trained : bool
        Whether the biases and values of a state are coordinates, as far as they are trained; else, and
        at the origin without a state, they are held fixed.

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
    if is_alike(state) and not state.r.any():
        return _where_alike(task, attention, state, trained)
    return _at_state(task, attention, state, trained)


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
    origin = origin_state(task, attention)
    rows: list[tuple[float, int, str, float]] = []
    for f in range(features + 1):
        nu, along = (float(moments[f]), f"feature {f + 1}") if f < features else (0.0, "residual")
        found = origin_eigenvalues(origin, task, attention, nu)
        values = found[:2] if f < features else found[2:]
        # Closed forms that are zero may round to something else.
        rounding = 1e-15 * max(map(abs, found))
        for kind, count, value in zip(("mean", "difference"), (1, heads - 1), values, strict=True):
            exact = value if abs(value) > rounding else 0.0
            rows.append((exact, count, f"{kind}, {along}", rounding))
    return _of_sectors("origin", rows, features)


def _where_alike(task: Task, attention: Attention, state: State, trained: bool) -> Spectrum:
    """At heads that are all alike, r = 0: two blocks of the size of one head."""
    found = alike_hessian(state, task, attention)
    size = task.prior.features + len(attention.parameters) * trained
    names = _Names(task, 0, attention.parameters if trained else ())
    rows: list[tuple[float, int, str, float]] = []
    for kind, count, block, bulk in (
        ("mean", 1, found.mean, found.own_bulk + (attention.heads - 1) * found.other_bulk),
        ("difference", attention.heads - 1, found.difference, found.own_bulk - found.other_bulk),
    ):
        values, vectors = np.linalg.eigh(block[:size, :size])
        for value, vector in zip(values, vectors.T, strict=True):
            rows.append(
                (float(value), count, f"{kind}, {names(vector[None, :, None])}", found.error)
            )
        rows.append((bulk, count, f"{kind}, residual", found.bulk_error))
    return _of_sectors("state", rows, task.prior.features)


def _of_sectors(point: str, rows: list[tuple[float, int, str, float]], spanned: int) -> Spectrum:
    """The spectrum of (eigenvalue, multiplicity, sector, error), in order; empty sectors are left out."""
    kept = sorted((row for row in rows if row[1] > 0), key=lambda row: row[0])
    return Spectrum(
        point,
        np.array([row[0] for row in kept]) + 0.0,
        np.array([row[1] for row in kept]),
        tuple(row[2] for row in kept),
        np.array([row[3] for row in kept]),
        spanned,
    )


def _at_state(task: Task, attention: Attention, state: State, trained: bool) -> Spectrum:
    found = factor_hessian(state, task, attention, trained=trained)
    values, vectors = np.linalg.eigh(found.matrix)
    shape = attention.heads, len(values) // attention.heads
    rank = factor(state.r).shape[1]
    names = _Names(task, rank, attention.parameters if trained else ())
    rows = _sectors(values, vectors, shape, SAME + 2 * found.error, names)
    errors = [found.error] * len(rows)
    bulk_values, bulk_vectors = np.linalg.eigh(found.bulk)
    for value, vector in zip(bulk_values, bulk_vectors.T, strict=True):
        rows.append((float(value), f"{_head_sector(vector[:, None])}, residual"))
        errors.append(found.bulk_error)
    return _merged(rows, errors, task.prior.features + rank)


def _head_sector(displacement: Array) -> str:
    """Classify a displacement (H, n): its share along the direction where all heads move alike."""
    share = float((displacement.sum(axis=0) ** 2).sum() / len(displacement))
    return _kind(share / max(float((displacement**2).sum()), 1e-300))


def _kind(share: float) -> str:
    """Name a displacement by its share along the direction where all heads move alike."""
    if share > DOMINANT:
        return "mean"
    return "difference" if share < 1 - DOMINANT else "mixed"


def _sectors(
    values: Array, vectors: Array, shape: tuple[int, ...], margin: float, names: "_Names"
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
        kinds = [_kind(x) for x in shares]
        for kind in sorted(set(kinds)):
            mine = [k for k, other in enumerate(kinds) if other == kind]
            name = f"{kind}, {names(span[..., mine])}"
            rows += [(float(values[cluster].mean()), name)] * len(mine)
    return rows


class _Names:
    """Names what a span of displacements lies along."""

    def __init__(self, task: Task, rank: int, parameters: Sequence[str]) -> None:
        _, self.axes = feature_axes(task)
        self.rank = rank
        self.labels = [f"feature {f + 1}" for f in range(len(self.axes))]
        self.labels += ["span of the keys", *({"b": "bias", "v": "value"}[x] for x in parameters)]

    def __call__(self, span: Array) -> str:
        """Name a span of displacements (H, F + k + ..., n)."""
        features = len(self.axes)
        end = features + self.rank
        signal = np.einsum("hfn,fg->hgn", span[:, :features], self.axes)
        along = [*(signal**2).sum(axis=(0, 2)), (span[:, features:end] ** 2).sum()]
        along += list((span[:, end:] ** 2).sum(axis=(0, 2)))
        leading = int(np.argmax(along))
        return (
            "several directions" if along[leading] < DOMINANT * sum(along) else self.labels[leading]
        )


def _merged(rows: list[tuple[float, str]], errors: list[float], spanned: int) -> Spectrum:
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
        spanned,
    )
