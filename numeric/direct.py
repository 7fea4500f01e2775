"""Stochastic gradient descent on the keys themselves, in D dimensions.

This is the process that the order-parameter flow is a limit of, with nothing reduced but symmetry:

- The law of the tokens is invariant under rotations, so the hidden directions are the first F axes,
  and the parts of the keys outside their span start on the next H.
- Tokens are exchangeable, so the relevant one is token 0.

A run's stream gives the signals of one step or of as many as `SIGNALS` samples cover, then the tokens of
those steps in order, and so on.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from numeric.activation import Kernels
from numeric.descent import Descent, Group, roots
from numeric.scores import attention_slope, attention_weights, score_gradient
from numeric.task import State
from numeric.validate import FloatArray

NORMALS = 2**17
"""Normals held at a time, 1 MB: far above the cost of a call, and small enough for a cache."""

SIGNALS = 64
CHECK_EVERY = 1000
"""Steps between two checks that the keys are finite, beside those at recordings."""


def samples_at_a_time(descent: Descent) -> int:
    """Samples of one step whose tokens are held together, one at least."""
    return min(descent.batch, max(1, NORMALS // (descent.task.tokens * descent.dimension)))


def steps_at_a_time(descent: Descent) -> int:
    """Steps whose signals are drawn together: a draw from a prior is a slow call."""
    return max(1, SIGNALS // descent.batch)


def runs_at_a_time(descent: Descent) -> int:
    """Runs whose tokens, keys and signals take up about `NORMALS` numbers each."""
    rows = max(samples_at_a_time(descent) * descent.task.tokens, descent.attention.heads)
    signals = steps_at_a_time(descent) * descent.batch * descent.task.prior.features
    return max(1, NORMALS // max(rows * descent.dimension, signals))


class Direct(Group):
    """Runs by their keys (runs, H, D)."""

    def __init__(self, descent: Descent, rngs: list[Generator], state: State) -> None:
        super().__init__(descent, rngs, state)
        heads, features = state.m.shape[1:]
        self.k = np.zeros((len(rngs), heads, descent.dimension))
        self.k[..., :features] = state.m
        self.k[..., features : features + heads] = roots(state.r)
        shape = samples_at_a_time(descent), descent.task.tokens, descent.dimension
        self._x = np.empty((len(rngs), *shape))

    def advance(self, stop: int) -> None:
        """Take steps up to a number of them, or fewer: as many as signals drawn together allow."""
        descent, features = self.descent, self.descent.task.prior.features
        if self.resumable and self.done < stop:
            self._draw_signals()
        whole = steps_at_a_time(descent)
        for _ in range(min(stop - self.done, whole - self.done % whole)):
            self._step()
            self.done += 1
            self.note_passages(self.k[..., :features])
            if self.done % CHECK_EVERY == 0:
                self.check(self.k, *self.others.values())

    @property
    def resumable(self) -> bool:
        """Whether signals must be drawn next."""
        return self.done % steps_at_a_time(self.descent) == 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return keys, biases and values, and passages."""
        return {"k": self.k, "passed": self.passed, **self.others}

    def restore(self, arrays: dict[str, NDArray[Any]], done: int) -> None:
        """Take over keys, biases and values, and passages."""
        self.k, self.passed, self.done = arrays["k"], arrays["passed"].astype(np.int64), done
        self.others = {name: arrays[name] for name in self.others}
        self._x = self._x[: len(self.k)]

    def order_parameters(self) -> tuple[FloatArray, FloatArray]:
        """Return m (runs, H, F) and r (runs, H, H)."""
        features = self.descent.task.prior.features
        m, rest = self.k[..., :features], self.k[..., features:]
        with np.errstate(over="ignore", invalid="ignore"):
            r = rest @ rest.mT
        self.check(m, r, *self.others.values())
        return m, r

    def _step(self) -> None:
        descent, held = self.descent, samples_at_a_time(self.descent)
        attention = descent.attention
        slot = self.done % steps_at_a_time(descent)
        b, v = self.others.get("b"), self.others.get("v", attention.value)
        in_k = np.zeros_like(self.k)
        in_others = {"b": np.zeros(self.k.shape[:2]), "v": np.zeros(self.k.shape[:2])}
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, descent.batch, held):
                x = self._tokens(self._signals[:, slot, first : first + held])
                part = gradient_sum(x, self.k, b, v, attention.kernel, descent.target)
                in_k += part[0]
                in_others["b"] += part[1]
                in_others["v"] += part[2]
            in_k *= descent.scale
            self.k -= in_k
            for name, values in self.others.items():
                values -= descent.scale * in_others[name]

    def _draw_signals(self) -> None:
        prior = self.descent.task.prior
        shape = steps_at_a_time(self.descent), self.descent.batch
        draws = np.stack([prior.sample(rng, shape[0] * shape[1]) for rng in self.rngs])
        self._signals = draws.reshape(len(self.rngs), *shape, prior.features)

    def _tokens(self, signals: FloatArray) -> FloatArray:
        """Draw the tokens that carry the signals (runs, samples, F)."""
        x = self._x[:, : signals.shape[1]]
        for rng, out in zip(self.rngs, x, strict=True):
            rng.standard_normal(out=out)
        x[:, :, 0, : signals.shape[2]] += signals
        return x


def gradient_sum(
    x: FloatArray,
    k: FloatArray,
    b: FloatArray | None,
    v: FloatArray | float,
    kernel: Kernels,
    target: str,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the loss derivatives in keys, biases and values, summed over samples.

    Parameters
    ----------
    x : (runs, samples, L, D) array
        Tokens, the relevant one first.
    k : (runs, H, D) array
    b : (runs, H) array or None
    v : (runs, H) array or float
    kernel : Kernels
        The activation.
    target : {"token", "location"}

    Returns
    -------
    in_k, in_b, in_v : (runs, H, D), (runs, H) and (runs, H) arrays
        The latter two have no meaning where the activation does not train them.
    """
    runs, samples, tokens, dimension = x.shape
    flat = x.reshape(runs, samples * tokens, dimension)
    # Samples and heads change places in views only: the data stay (runs, H, samples, L).
    chi = (k @ flat.mT).reshape(runs, -1, samples, tokens).swapaxes(1, 2)
    bias = None if b is None else b[:, None]
    value = v if isinstance(v, float) else v[:, None]
    p, a = attention_weights(chi, bias, value, kernel)
    a[..., 0] -= 1  # a - e_eps
    slope = attention_slope(a, x, target, dimension)
    c, in_b, in_v = score_gradient(chi, bias, value, p, slope, kernel)
    in_k = c.swapaxes(1, 2).reshape(runs, -1, samples * tokens) @ flat
    return in_k, in_b.sum(axis=1), in_v.sum(axis=1)
