"""Stochastic gradient descent by its order parameters: exact in law at every D, at a cost free of D.

A step sees the keys through the tokens' coordinates along the keys, and moves them along the tokens. So
of all D directions a few are followed explicitly, and the rest is isotropic.

Coordinates. A key is a row (m_h, rho_h): its alignments with the F hidden directions, and the lower
triangular root of ``r = rho rho^T``, its coordinates along an orthonormal frame of H directions that
contains the keys. The tokens' coordinates along both, xi (L, F) and u (L, H), are standard normal, but
for the signal in the first row of xi. What is left of the tokens, Y (L, n) with n = D - F - H, is
standard normal too, and independent of the scores ``chi = m xi^T + rho u^T``.

The token target. Its slope ``(2/D) X X^T e`` with ``e = a - e_1`` feels Y through ``Y Y^T e``. Let e' be
the unit vector along e, and ``q = Y^T e'``. Then ``|q|^2`` is chi-square with n degrees of freedom, and
the tokens' coordinates along q are

    w = |q| e' + g - e' (e'.g),        g ~ N(0, I_L):

e'.Y is q, and what Y has orthogonal to e' is independent of q. So w is one more explicit coordinate, and
what remains of the tokens is orthogonal to e: ``Y' = (1 - e' e'^T) Y'`` with n - 1 columns. The slope is
that of tokens T = (xi, u, w), of F + H + 1 coordinates; Y' adds nothing to it.

The step. With the coefficients c (H, L) of the sample's gradient, ``dE/dk = c X``, the keys move by
``c xi`` and ``c u`` inside the frame, and outside by ``c w`` and ``c Y'``. Only the latter's overlaps
matter: a Wishart matrix of n - 1 degrees of freedom and scale ``E E^T = c (1 - e' e'^T) c^T``, so ``E A``
with Bartlett's lower triangular A (chi variables on the diagonal, normal ones below it). The new frame
turns the row (rho - s c u, s c w, s E A) of each key into a lower triangular root again: by orthogonal
transformations alone, so that r stays positive semi-definite, of whatever rank it is.

Batches. The samples of a step move the same keys, one after the other. What they have moved outside the
frame so far, G (H, H), spans H directions more. Tokens have explicit coordinates y (L, H) there, c y adds
to G, and n is smaller by H: exact for any batch, in a time that grows with its size alone.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from numeric.descent import Descent, Group, roots
from numeric.quadrature import Array
from numeric.scores import attention_slope, attention_weights, score_gradient
from numeric.task import State

DRAWN = 2**13
"""Normals that a run draws at a time, unless a sample needs more."""

TOGETHER = 2**22
"""Normals that a group of runs holds."""

DEPENDENT = 1e-14
"""Part of a row outside the rows before it, relative to the row, that is rounding."""


def least_dimension(heads: int, features: int) -> int:
    """Return the dimension from which the rest of a token has the H degrees of freedom it needs."""
    return features + 3 * heads + 2


def lower_factor(rows: Array) -> Array:
    """Return the lower triangular roots (..., H, H) of ``rows rows^T``, rows (..., H, n).

    Modified Gram-Schmidt: rows that depend on those before them get no direction of their own.
    """
    rows = rows.copy()
    count = rows.shape[-2]
    root = np.zeros((*rows.shape[:-2], count, count))
    whole = np.sqrt((rows**2).sum(axis=-1))
    for j in range(count):
        row = rows[..., j, :]
        norm = np.sqrt((row**2).sum(axis=-1))
        norm = np.where(norm > DEPENDENT * whole[..., j], norm, 0.0)
        row = row / np.where(norm > 0, norm, np.inf)[..., None]
        # By one formula for this row too, so that rows that are alike stay alike.
        root[..., j:, j] = (rows[..., j:, :] * row[..., None, :]).sum(axis=-1)
        rows[..., j + 1 :, :] -= root[..., j + 1 :, j, None] * row[..., None, :]
    return root


def runs_at_a_time(descent: Descent) -> int:
    """Return how many runs hold about `TOGETHER` numbers."""
    heads = descent.attention.heads
    width = descent.task.prior.features + 2 * heads + 1
    return max(1, TOGETHER // max(DRAWN, descent.task.tokens * width + heads**2))


class Reduced(Group):
    """Runs by their alignments and lower triangular roots: keys (runs, H, F + H).

    With `compiled`, numba walks through the samples, else NumPy does.
    """

    def __init__(self, descent: Descent, rngs: list[Generator], state: State) -> None:
        super().__init__(descent, rngs, state)
        heads, features = state.m.shape[1:]
        tokens, batch = descent.task.tokens, descent.batch
        self.keys = np.concatenate([state.m, lower_factor(roots(state.r))], axis=2)
        self.features, self.inside = features, features + heads
        # Coordinates of a token: xi, u, in batches y, and w.
        self.width = self.inside + 1 + (heads if batch > 1 else 0)
        self.below = np.tril_indices(heads, -1)
        size = tokens * self.width + len(self.below[0])
        self.samples = max(1, DRAWN // size)
        rest = descent.dimension - self.width + 1
        self.freedom = np.array([rest, *(rest - 1 - np.arange(heads))])
        self.used, self.summed = self.samples, 0
        self.sums = {"keys": np.zeros(self.keys.shape), "outside": np.zeros(state.r.shape)}
        self.sums |= {name: np.zeros(state.m.shape[:2]) for name in ("b", "v")}
        self.normals = np.empty((len(rngs), self.samples, size))
        self.chi = np.empty((len(rngs), len(self.freedom), self.samples))

    def advance(self, stop: int) -> None:
        """Take steps up to a number of them, or fewer: as many as samples drawn together allow."""
        if self.done >= stop:
            return
        if self.resumable:
            self._draw()
        with np.errstate(over="ignore", invalid="ignore"):
            if self.compiled:
                self._walk_compiled(stop)
            else:
                self._walk(stop)
        if self.resumable:
            self.check(self.keys, *self.others.values())

    @property
    def resumable(self) -> bool:
        """Whether all numbers drawn are used up."""
        return self.used == self.samples

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return keys, biases and values, passages, and the sums of the step under way."""
        summed = np.full(len(self.keys), self.summed)
        sums = {f"sum_{name}": x for name, x in self.sums.items()}
        parts = {"k": self.keys, "passed": self.passed, "summed": summed}
        return {**parts, **self.others, **sums}

    def restore(self, arrays: dict[str, NDArray[Any]], done: int) -> None:
        """Take over what `arrays` returned."""
        self.keys, self.passed, self.done = arrays["k"], arrays["passed"].astype(np.int64), done
        self.others = {name: arrays[name] for name in self.others}
        self.sums = {name: arrays[f"sum_{name}"] for name in self.sums}
        self.summed, self.used = int(arrays["summed"][0]), self.samples
        self.normals, self.chi = self.normals[: len(self.keys)], self.chi[: len(self.keys)]

    def order_parameters(self) -> tuple[Array, Array]:
        """Return m (runs, H, F) and r (runs, H, H)."""
        m, root = self.keys[..., : self.features].copy(), self.keys[..., self.features :]
        with np.errstate(over="ignore", invalid="ignore"):
            r = root @ root.mT
        self.check(m, r, *self.others.values())
        return m, r

    def _draw(self) -> None:
        """Draw the numbers of some samples: signals, normals, and chi variables."""
        prior = self.descent.task.prior
        for rng, normals, chi in zip(self.rngs, self.normals, self.chi, strict=True):
            signals = prior.sample(rng, self.samples)
            rng.standard_normal(out=normals)
            for freedom, out in zip(self.freedom, chi, strict=True):
                rng.standard_gamma(freedom / 2, out=out)
            normals[:, : self.features] += signals
        np.sqrt(2 * self.chi, out=self.chi)
        self.used = 0

    def _walk(self, stop: int) -> None:
        """Take samples, and steps, of those drawn."""
        while self.used < self.samples and self.done < stop:
            outside = self._sample(self.used)
            self.used += 1
            self.summed += 1
            if self.summed < self.descent.batch:
                self.sums["outside"] = lower_factor(outside)
                continue
            self._step(outside)
            self.done += 1
            self.note_passages(self.keys[..., : self.features])

    def _walk_compiled(self, stop: int) -> None:
        from numeric.compiled import compiled_walk

        descent, attention, sums = self.descent, self.descent.attention, self.sums
        shape, trained = self.keys.shape[:2], self.others
        # Pooled weights have no values, whatever the layer's are.
        pooled = attention.kernel.NORMALIZATION == "pooled"
        v = np.full(shape, 1.0 if pooled else attention.value)
        self.used, self.summed, self.done = compiled_walk(attention.activation)(
            self.keys,
            trained.get("b", np.zeros(shape)),
            trained.get("v", v),
            sums["keys"],
            sums["outside"],
            sums["b"],
            sums["v"],
            self.normals,
            self.chi,
            self.rows,
            self.ends,
            self.passed,
            self.used,
            self.summed,
            self.done,
            stop,
            descent.batch,
            descent.scale,
            descent.task.tokens,
            self.features,
            float(descent.dimension) if descent.target == "token" else 0.0,
            ("b" in trained, "v" in trained),
        )

    def _sample(self, index: int) -> Array:
        """Add a sample's gradient to the sums; return what the sum has outside the frame."""
        descent, tokens = self.descent, self.descent.task.tokens
        kernel, inside = descent.attention.kernel, self.inside
        b, v = self.others.get("b"), self.others.get("v", descent.attention.value)
        runs, heads, _ = self.keys.shape
        numbers, chi = self.normals[:, index], self.chi[:, :, index]
        x = numbers[:, : tokens * self.width].reshape(runs, tokens, self.width)
        scores = self.keys @ x[..., :inside].mT
        p, a = attention_weights(scores, b, v, kernel)
        a[:, 0] -= 1
        norm = np.sqrt((a**2).sum(axis=1, keepdims=True))
        unit = a / np.where(norm > 0, norm, np.inf)
        w = x[..., -1]
        x[..., -1] = w + unit * (chi[:, :1] - (unit * w).sum(axis=1, keepdims=True))
        slope = attention_slope(a, x, descent.target, descent.dimension)
        c, in_b, in_v = score_gradient(scores, b, v, p, slope, kernel)
        moved = c @ x
        self.sums["keys"] += moved[..., :inside]
        self.sums["b"] += in_b
        self.sums["v"] += in_v
        bartlett = np.zeros((runs, heads, heads))
        bartlett[:, *self.below] = numbers[:, tokens * self.width :]
        bartlett[:, np.arange(heads), np.arange(heads)] = chi[:, 1:]
        across = c - (c @ unit[..., None]) * unit[:, None]
        parts = [moved[..., inside:], lower_factor(across) @ bartlett]
        if descent.batch > 1:
            parts[0][..., :heads] += self.sums["outside"]
        return np.concatenate(parts, axis=2)

    def _step(self, outside: Array) -> None:
        """Move keys, biases and values, and turn the frame."""
        scale = self.descent.scale
        self.keys -= scale * self.sums["keys"]
        rows = np.concatenate([self.keys[..., self.features :], scale * outside], axis=2)
        self.keys[..., self.features :] = lower_factor(rows)
        for name, values in self.others.items():
            values -= scale * self.sums[name]
        for total in self.sums.values():
            total[...] = 0.0
        self.summed = 0
