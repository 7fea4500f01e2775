"""First passages of SGD from random keys at several D, and their growth with log D: A2, A3 and A8."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from numeric.claims.claim import Measured, array, sampled
from numeric.phases import first_passages, fit_scaling
from numeric.quadrature import Array
from numeric.task import Attention, Task
from numeric.watch import Watch


def passages(
    task: Task,
    layer: Attention,
    watch: Watch,
    dimensions: Sequence[int],
    seed: int,
    **how: Any,
) -> list[Array]:
    """Return the first passages of a watched norm, (runs,) for each D."""
    return [
        first_passages(task, layer, [watch], dimension=size, seed=seed + i, **how).passages[:, 0]
        for i, size in enumerate(dimensions)
    ]


def growth(
    dimensions: Sequence[int], durations: Sequence[Sequence[float]], unit: float | None = None
) -> tuple[Measured, Measured]:
    """Return how many runs have not passed, and the slope in log D times a unit if all have.

    By default slopes are relative to the mean duration.
    """
    found = [array(x) for x in durations]
    late = int(sum(np.isnan(x).sum() for x in found))
    if late:
        return Measured(late), Measured(np.nan)
    fit = fit_scaling(dimensions, found)
    factor = 1 / fit.constant if unit is None else unit
    return Measured(late), sampled(factor * fit.slope, factor * fit.slope_error)
