"""Norms of the alignments whose first passages a simulation notes: features, mean, specialization.

Each is ``|A m B|`` with some weights A over heads and B over features, and a threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from numeric.errors import InputError
from numeric.quadrature import Array
from numeric.task import Attention, Task
from numeric.validate import real_array, real_number, store

MOST = 20_000_000


@dataclass(frozen=True, eq=False)
class Watch:
    """A norm of the alignments, and the threshold that counts as passed.

    Parameters
    ----------
    name : str
    heads : (n, H) array_like
        A: combinations of heads.
    features : (F, n') array_like
        B: combinations of features.
    threshold : float
        Of the Frobenius norm ``|A m B|``, > 0.

    Raises
    ------
    InputError
        If an argument is not as above.
    """

    name: str
    heads: Array
    features: Array
    threshold: float

    if TYPE_CHECKING:

        def __init__(
            self, name: str, heads: ArrayLike, features: ArrayLike, threshold: float
        ) -> None: ...

    def __post_init__(self) -> None:
        store(
            self,
            heads=real_array("heads", self.heads, (None, None)),
            features=real_array("features", self.features, (None, None)),
            threshold=real_number("threshold", self.threshold, positive=True),
        )

    @property
    def rows(self) -> Array:
        """What takes m, its entries in a row, to ``A m B`` in units of the threshold: (n n', H F)."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = self.heads / self.threshold
            return np.kron(scaled, self.features.T).astype(float)

    def norm(self, m: ArrayLike) -> Array:
        """Return the norm of alignments (..., H, F): (...)."""
        product = self.heads @ np.asarray(m, dtype=float) @ self.features
        found: Array = np.sqrt((product**2).sum(axis=(-2, -1)))
        return found


def feature_norms(task: Task, attention: Attention, threshold: float = 1.0) -> tuple[Watch, ...]:
    """Return the norm of all heads' alignments with each feature.

    Parameters
    ----------
    task : Task
    attention : Attention
    threshold : float
    """
    every, unit = np.eye(attention.heads), np.eye(task.prior.features)
    return tuple(
        Watch(f"feature {f + 1}", every, unit[:, f : f + 1], threshold)
        for f in range(task.prior.features)
    )


def mean_alignment(task: Task, attention: Attention, threshold: float) -> Watch:
    """Return the mean head's alignment with the mean signal: its rise is the unspecialized phase.

    Parameters
    ----------
    task : Task
        Its prior with a mean.
    attention : Attention
    threshold : float

    Raises
    ------
    InputError
        If the prior has no mean.
    """
    mean = task.prior.mean
    size = float(np.linalg.norm(mean))
    if not size > 0:
        raise InputError("prior", "no mean signal", "a mean signal to align with")
    heads = np.full((1, attention.heads), 1 / attention.heads)
    return Watch("mean", heads, mean[:, None] / size, threshold)


def specialization(task: Task, attention: Attention, threshold: float = 1.0) -> Watch:
    """Return the norm of the heads' differences from their mean, over all features.

    Parameters
    ----------
    task : Task
    attention : Attention
        At least two heads.
    threshold : float

    Raises
    ------
    InputError
        If there is one head only.
    """
    heads = attention.heads
    if heads < 2:
        raise InputError("heads", heads, "at least 2, so that heads can part")
    apart = np.eye(heads) - 1 / heads
    return Watch("specialization", apart, np.eye(task.prior.features), threshold)


def check_watches(watches: object, heads: int, features: int) -> tuple[Watch, ...]:
    """Return watches, all of which belong to so many heads and features.

    Raises
    ------
    InputError
    """
    if not isinstance(watches, Sequence) or not all(isinstance(x, Watch) for x in watches):
        raise InputError("watch", watches, "a sequence of Watch")
    for x in watches:
        if x.heads.shape[1] != heads or len(x.features) != features:
            expected = f"combinations of {heads} heads and {features} features"
            raise InputError("watch", x.name, expected)
        if not np.isfinite(x.rows).all():
            raise InputError("watch", x.name, "weights within the range of numbers")
    if sum(len(x.heads) * x.features.shape[1] for x in watches) * heads * features > MOST:
        raise InputError(
            "watch", f"{len(watches)} norms", f"fewer: {MOST:,} weights in all at most"
        )
    return tuple(watches)
