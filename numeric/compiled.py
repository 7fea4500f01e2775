"""The loop over samples of `numeric.reduced`, compiled by numba (extra ``fast``).

The same numbers drawn, the same formulas, the generated kernel of the activation included: what differs
from the NumPy loop is rounding. It runs without the interpreter's lock.
"""

import math
from collections.abc import Callable, Hashable
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np

from numeric.activation import kernels_of
from numeric.reduced import DEPENDENT

NORMALIZATIONS = ("none", "per-head", "pooled")

Walk = Callable[..., tuple[int, int, int]]


def _scalar_modules() -> dict[str, Any]:
    """Stand-ins for `numpy` and `scipy` by which a generated kernel becomes a function of scalars."""
    scalar, special, scipy = ModuleType("np"), ModuleType("special"), ModuleType("scipy")
    for name in dir(np):
        if isinstance(getattr(np, name), np.ufunc | float):
            setattr(scalar, name, getattr(np, name))
    shims: dict[str, Callable[..., Any]] = {
        "asarray": lambda x: x,
        "shape": lambda x: 0,
        "broadcast_shapes": lambda x, y: 0,
        "broadcast_to": lambda x, shape: x,
        "where": lambda condition, x, y: x if condition else y,
    }
    for name, shim in shims.items():
        setattr(scalar, name, numba.njit(shim))
    for name in ("erf", "erfc"):
        setattr(special, name, getattr(math, name))
    special.expit = numba.njit(lambda x: 1 / (1 + math.exp(-x)))  # type: ignore[attr-defined]
    scipy.special = special  # type: ignore[attr-defined]
    return {"np": scalar, "scipy": scipy}


@lru_cache(maxsize=32)
def _scalar_weight(activation: Hashable) -> Any:
    """The activation's log weight and relative derivatives, of scalars."""
    code = kernels_of(activation)[1].weight_functions_2.__code__
    return numba.njit(FunctionType(code, _scalar_modules()), error_model="numpy")


def can_compile(activation: Hashable) -> bool:
    """Whether numba knows all functions of an activation."""
    try:
        _scalar_weight(activation)(0.5, 0.5)
    except numba.core.errors.NumbaError:
        return False
    return True


@lru_cache(maxsize=32)
def compiled_walk(activation: Hashable) -> Walk:
    """Compile the loop for an activation.

    Parameters
    ----------
    activation : str or UserActivation
        As an attention layer holds it, one that `can_compile`.

    Returns
    -------
    callable
        See `walk` within: it changes its arrays in place, and returns the samples used, those of the
        step under way, and the steps done.
    """
    kernel = kernels_of(activation)[1]
    weight_of = _scalar_weight(activation)
    normalization = NORMALIZATIONS.index(kernel.NORMALIZATION)
    background = float(kernel.BACKGROUND)

    @numba.njit(error_model="numpy")
    def factor(rows: Any, root: Any, whole: Any) -> None:
        """Lower triangular root of ``rows rows^T``; see `numeric.reduced.lower_factor`."""
        count, length = rows.shape
        for j in range(count):
            whole[j] = 0.0
            for i in range(length):
                whole[j] += rows[j, i] ** 2
        for j in range(count):
            norm = 0.0
            for i in range(length):
                norm += rows[j, i] ** 2
            norm = math.sqrt(norm)
            for k in range(j):
                root[k, j] = 0.0
            # NaN must pass through.
            if norm <= DEPENDENT * math.sqrt(whole[j]):
                for k in range(j, count):
                    root[k, j] = 0.0
                continue
            root[j, j] = 0.0
            for i in range(length):
                unit = rows[j, i] / norm
                root[j, j] += rows[j, i] * unit
                rows[j, i] = unit
            for k in range(j + 1, count):
                along = 0.0
                for i in range(length):
                    along += rows[k, i] * rows[j, i]
                for i in range(length):
                    rows[k, i] -= along * rows[j, i]
                root[k, j] = along

    @numba.njit(error_model="numpy")
    def attend(
        scores: Any, b: Any, v: Any, p: Any, in_score: Any, in_bias: Any, a: Any, totals: Any
    ) -> None:
        """Shares p, relative derivatives in score and bias, attention a; the background's shares."""
        heads, tokens = scores.shape
        for h in range(heads):
            for n in range(tokens):
                p[h, n], in_score[h, n], _, in_bias[h, n] = weight_of(scores[h, n], b[h])
        if normalization != 0:
            first, last = 0, heads
            for h in range(heads):
                if normalization == 1:
                    first, last = h, h + 1
                elif h > 0:
                    totals[h] = totals[0]
                    continue
                largest = -np.inf
                for k in range(first, last):
                    for n in range(tokens):
                        if not p[k, n] <= largest:
                            largest = p[k, n]
                if background > 0:
                    largest = max(largest, math.log(background))
                total = 0.0
                for k in range(first, last):
                    for n in range(tokens):
                        p[k, n] = math.exp(p[k, n] - largest)
                        total += p[k, n]
                totals[h] = 0.0
                if background > 0:
                    totals[h] = math.exp(math.log(background) - largest)
                    total += totals[h]
                    totals[h] /= total
                for k in range(first, last):
                    for n in range(tokens):
                        p[k, n] /= total
        for n in range(tokens):
            a[n] = 0.0
            for h in range(heads):
                a[n] += v[h] * p[h, n]

    @numba.njit(error_model="numpy")
    def backward(
        p: Any,
        in_score: Any,
        in_bias: Any,
        v: Any,
        slope: Any,
        totals: Any,
        c: Any,
        sum_b: Any,
        sum_v: Any,
    ) -> None:
        """Gradient in the scores; those in biases and values are added to their sums."""
        heads, tokens = p.shape
        for h in range(heads):
            first, last = (0, heads) if normalization == 2 else (h, h + 1)
            mean = shift = 0.0
            if normalization != 0:
                # Slopes are taken from the likeliest token's, so that no digits are lost.
                best = -1.0
                for n in range(tokens):
                    share = 0.0
                    for k in range(first, last):
                        share += p[k, n]
                    if share > best:
                        best, shift = share, slope[n]
                for k in range(first, last):
                    for n in range(tokens):
                        mean += p[k, n] * (slope[n] - shift)
                mean -= shift * totals[h]
            for n in range(tokens):
                sum_v[h] += p[h, n] * slope[n]
                if normalization == 0:
                    part = v[h] * slope[n]
                else:
                    part = v[h] * p[h, n] * (slope[n] - shift - mean)
                c[h, n] = part * in_score[h, n]
                sum_b[h] += part * in_bias[h, n]

    @numba.njit(error_model="numpy", nogil=True)
    def walk(
        keys: Any,
        b: Any,
        v: Any,
        sums: Any,
        sum_outside: Any,
        sum_b: Any,
        sum_v: Any,
        normals: Any,
        chi: Any,
        weights: Any,
        ends: Any,
        passed: Any,
        used: int,
        summed: int,
        done: int,
        stop: int,
        batch: int,
        scale: float,
        tokens: int,
        features: int,
        finite: float,
        train: Any,
    ) -> tuple[int, int, int]:
        """Take samples until they are used up, or `stop` steps are done, for each run.

        `finite` is D for the token target, 0 for the location target; `train` tells whether b and v
        are trained. Pooled weights have v = 1.
        """
        runs, heads, inside = keys.shape
        samples = normals.shape[1]
        extra = heads if batch > 1 else 0
        width = inside + extra + 1
        x = np.empty((tokens, width))
        scores, p, in_score, in_bias, c, across = (
            np.empty((heads, tokens)),
            np.empty((heads, tokens)),
            np.empty((heads, tokens)),
            np.empty((heads, tokens)),
            np.empty((heads, tokens)),
            np.empty((heads, tokens)),
        )
        a, slope, unit = np.empty(tokens), np.empty(tokens), np.empty(tokens)
        miss, totals, whole = np.empty(width), np.zeros(heads), np.empty(heads)
        root = np.empty((heads, heads))
        outside = np.empty((heads, extra + 1 + heads))
        rows = np.empty((heads, 2 * heads + extra + 1))
        last = (used, summed, done)
        for run in range(runs):
            i, count, steps = used, summed, done
            while i < samples and steps < stop:
                numbers = normals[run, i]
                for n in range(tokens):
                    for k in range(width):
                        x[n, k] = numbers[n * width + k]
                for h in range(heads):
                    for n in range(tokens):
                        scores[h, n] = 0.0
                        for k in range(inside):
                            scores[h, n] += keys[run, h, k] * x[n, k]
                attend(scores, b[run], v[run], p, in_score, in_bias, a, totals)
                a[0] -= 1.0
                norm = 0.0
                for n in range(tokens):
                    norm += a[n] ** 2
                norm = math.sqrt(norm)
                along = 0.0
                for n in range(tokens):
                    unit[n] = a[n] / norm if norm > 0 else 0.0
                    along += unit[n] * x[n, width - 1]
                for n in range(tokens):
                    x[n, width - 1] += unit[n] * (chi[run, 0, i] - along)
                if finite > 0:
                    for k in range(width):
                        miss[k] = 0.0
                        for n in range(tokens):
                            miss[k] += a[n] * x[n, k]
                    for n in range(tokens):
                        slope[n] = 0.0
                        for k in range(width):
                            slope[n] += x[n, k] * miss[k]
                        slope[n] *= 2 / finite
                else:
                    for n in range(tokens):
                        slope[n] = 2 * a[n]
                backward(p, in_score, in_bias, v[run], slope, totals, c, sum_b[run], sum_v[run])
                for h in range(heads):
                    part = 0.0
                    for n in range(tokens):
                        part += c[h, n] * unit[n]
                    for n in range(tokens):
                        across[h, n] = c[h, n] - part * unit[n]
                    for k in range(width):
                        moved = 0.0
                        for n in range(tokens):
                            moved += c[h, n] * x[n, k]
                        if k < inside:
                            sums[run, h, k] += moved
                        else:
                            outside[h, k - inside] = moved
                    for k in range(extra):
                        outside[h, k] += sum_outside[run, h, k]
                factor(across, root, whole)
                place = tokens * width
                for k in range(heads):  # Bartlett's normals, row by row
                    for j in range(k):
                        rows[k, j] = numbers[place]
                        place += 1
                    rows[k, k] = chi[run, 1 + k, i]
                for h in range(heads):
                    for j in range(heads):
                        total = 0.0
                        for k in range(j, h + 1):
                            total += root[h, k] * rows[k, j]
                        outside[h, extra + 1 + j] = total
                i += 1
                count += 1
                if count < batch:
                    factor(outside, sum_outside[run], whole)
                    continue
                for h in range(heads):
                    for k in range(inside):
                        keys[run, h, k] -= scale * sums[run, h, k]
                        sums[run, h, k] = 0.0
                    for k in range(heads):
                        rows[h, k] = keys[run, h, features + k]
                        sum_outside[run, h, k] = 0.0
                    for k in range(extra + 1 + heads):
                        rows[h, heads + k] = scale * outside[h, k]
                    if train[0]:
                        b[run, h] -= scale * sum_b[run, h]
                    if train[1]:
                        v[run, h] -= scale * sum_v[run, h]
                    sum_b[run, h] = sum_v[run, h] = 0.0
                factor(rows, root, whole)
                for h in range(heads):
                    for k in range(heads):
                        keys[run, h, features + k] = root[h, k]
                count = 0
                steps += 1
                begin = 0
                for w in range(len(ends)):
                    if passed[run, w] < 0:
                        total = 0.0
                        for n in range(begin, ends[w]):
                            part = 0.0
                            for h in range(heads):
                                for f in range(features):
                                    part += weights[n, h * features + f] * keys[run, h, f]
                            total += part**2
                        if total > 1:
                            passed[run, w] = steps
                    begin = ends[w]
            last = (i, count, steps)
        return last

    return walk
