"""One step of a query on the sphere: on all d coordinates, or on its alignment alone, the same in law.

A sample has tokens x_i, weights a_i and output ``o = sum_i a_i x_i``; the gradient of ``|o|^2 / 2`` in q
is ``beta sum_i c_i x_i`` with ``c_i = a_i (x_i.o - |o|^2)``, and ``q <- (q + gamma_t gradient) / |...|``.

The alignment alone is a Markov chain: the tokens' two coordinates in the plane of u and q are drawn, and
of the d - 2 others only what a step feels. With ``O = sum_i a_i z_i`` there, of squared norm ``sigma^2
|a|^2 chi^2_{d-2}``, each ``z_i = (a_i / |a|^2) O + e_i``, the e_i Gaussian and independent of O with
covariance ``sigma^2 (1 - a a^T / |a|^2)`` over tokens: along O they are drawn, and across it only
``|sum_i c_i e_i|^2 = sigma^2 (|c|^2 - (a.c)^2 / |a|^2) chi^2_{d-3}`` counts. A step costs as much as
there are tokens, whatever d.

For comparison, classical subspace tracking on the same tokens: Oja's rule, whose gradient is
``sum_i (q.x_i) x_i / n``, and the power method, which replaces q by it. Their reduced steps need only
``|sum_i Y_i z_i|^2 = sigma^2 |Y|^2 chi^2_{d-2}``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.special import softmax

from numeric.errors import InputError
from numeric.quadrature import Array
from numeric.query import QueryTask
from numeric.validate import real_number, store

RULES = ("softmax", "oja", "power")
Draws = tuple[Array, ...]
"""Random numbers of many steps of one run, or of one step of many runs, along the first axis."""


@dataclass(frozen=True)
class Departure:
    """How tokens of a simulation in d dimensions depart from the model.

    Parameters
    ----------
    correlation : float
        From 0 to 1: share of the noise's variance that all tokens of a sample have in common.
    plus : float
        From 0 to 1: probability of a positive sign.
    freedom : float
        nu > 2: a token's noise has the multivariate Student law with nu degrees of freedom, scaled to the
        same covariance; infinite for Gaussian noise.

    Raises
    ------
    InputError
        If a parameter is outside its range.
    """

    correlation: float = 0.0
    plus: float = 0.5
    freedom: float = np.inf

    def __post_init__(self) -> None:
        for name in ("correlation", "plus"):
            value = real_number(name, getattr(self, name), minimum=0)
            if value > 1:
                raise InputError(name, value, "a number from 0 to 1")
            store(self, **{name: value})
        if self.freedom != np.inf and real_number("freedom", self.freedom) <= 2:
            raise InputError("freedom", self.freedom, "a number > 2, or infinity")


@dataclass(frozen=True)
class Sample:
    """What one step feels of samples of many runs: arrays (runs, n) and, of `length`, (runs, 1).

    Attributes
    ----------
    x, w : arrays
        Coordinates along u, and along the part of q that is orthogonal to it.
    e, length : arrays
        Parts of the tokens along O beside ``(a_i / |a|^2) O``, and the length of O.
    share, c : arrays
        ``a_i / |a|^2``, and the coefficients of the gradient over beta.
    """

    x: Array
    w: Array
    e: Array
    length: Array
    share: Array
    c: Array

    def rest(self) -> Array:
        """Return ``|c|^2 - (a.c)^2 / |a|^2`` (runs,): a a^T / |a|^2 is share share^T / |share|^2."""
        c, share = self.c, self.share
        return np.maximum(_dot(c, c) - _dot(c, share) ** 2 / _dot(share, share), 0.0)

    def along(self) -> Array:
        """Return the gradient's component along O (runs,), over beta."""
        return _dot(self.c, self.share) * self.length[:, 0] + _dot(self.c, self.e)


def draw_signs(task: QueryTask, count: int, rng: Generator, plus: float = 0.5) -> Array:
    """Return signs (count, n_I), or (count, 1) if they are shared."""
    shape = (count, 1 if task.shared else task.informative)
    return np.where(rng.random(shape) < plus, 1.0, -1.0)


def sample(task: QueryTask, alpha: Array, normals: Array, signs: Array, chi: Array) -> Sample:
    """Return samples at alignments (runs,).

    Parameters
    ----------
    task : QueryTask
    alpha : (runs,) array
    normals : (runs, 3, n) array
    signs : (runs, n_I or 1) array
    chi : (runs,) array
        Of d - 2 degrees of freedom.
    """
    x, w, e = _planted(task, normals, signs)
    a = softmax(task.beta * (alpha[:, None] * x + _across(alpha)[:, None] * w), axis=1)
    square = (a**2).sum(axis=1, keepdims=True)
    share = a / square
    length = task.sigma * np.sqrt(square * chi[:, None])
    e -= share * (a * e).sum(axis=1, keepdims=True)
    o_x, o_w = ((a * part).sum(axis=1, keepdims=True) for part in (x, w))
    overlap = x * o_x + w * o_w + share * length**2 + e * length
    return Sample(x, w, e, length, share, a * (overlap - (o_x**2 + o_w**2 + length**2)))


class Reduced:
    """The alignments of many runs.

    Parameters
    ----------
    task : QueryTask
    rule : {"softmax", "oja", "power"}
    alpha : (runs,) array
    """

    def __init__(self, task: QueryTask, rule: str, alpha: Array) -> None:
        self._task, self._rule, self.alpha = task, rule, alpha

    def draw(self, count: int, rngs: list[Generator]) -> Draws:
        """Return normals, signs and chi-squares of so many steps of one run."""
        task = self._task
        normals = rngs[0].standard_normal((count, 3, task.tokens))
        freedom = (task.dimension - 2, task.dimension - 3)
        signs = draw_signs(task, count, rngs[1])
        return normals, signs, rngs[2].chisquare(freedom, (count, 2))

    def step(self, gamma: float, draws: Draws) -> None:
        """Move by one step of size gamma."""
        move = self._ascent if self._rule == "softmax" else self._tracking
        u, v, beyond = move(gamma, *draws)
        self.alpha = u / np.sqrt(u**2 + v**2 + beyond)

    def _ascent(self, gamma: float, normals: Array, signs: Array, chi: Array) -> Draws:
        """Components along u and along the rest of q, and the squared length of all others."""
        task, alpha = self._task, self.alpha
        s, rate = sample(task, alpha, normals, signs, chi[:, 0]), gamma * task.beta
        beyond = s.along() ** 2 + task.sigma**2 * s.rest() * chi[:, 1]
        u, v = alpha + rate * _dot(s.c, s.x), _across(alpha) + rate * _dot(s.c, s.w)
        return u, v, rate**2 * beyond

    def _tracking(self, gamma: float, normals: Array, signs: Array, chi: Array) -> Draws:
        task, alpha, across = self._task, self.alpha, _across(self.alpha)
        x, w = _planted(task, normals[:, :2], signs)
        y = alpha[:, None] * x + across[:, None] * w
        old, rate = (0.0, 1.0) if self._rule == "power" else (1.0, gamma / task.tokens)
        beyond = task.sigma**2 * _dot(y, y) * chi[:, 0]
        return old * alpha + rate * _dot(y, x), old * across + rate * _dot(y, w), rate**2 * beyond


class Direct:
    """All coordinates of the queries of many runs; u is the first axis. Parameters as of `Reduced`."""

    def __init__(
        self, task: QueryTask, rule: str, alpha: Array, departure: Departure = Departure()
    ) -> None:
        self._task, self._rule, self._departure = task, rule, departure
        self.q = np.zeros((len(alpha), task.dimension))
        self.q[:, 0], self.q[:, 1] = alpha, _across(alpha)

    @property
    def alpha(self) -> Array:
        """Alignments (runs,)."""
        return self.q[:, 0]

    def draw(self, count: int, rngs: list[Generator]) -> Draws:
        """Return noise, tokens' factors and signs of so many steps of one run."""
        task, other = self._task, self._departure
        noise = rngs[0].standard_normal((count, task.tokens, task.dimension))
        if other.correlation:
            common = rngs[2].standard_normal((count, 1, task.dimension))
            noise *= np.sqrt(1 - other.correlation)
            noise += np.sqrt(other.correlation) * common
        if other.freedom != np.inf:
            chi = rngs[2].chisquare(other.freedom, (count, task.tokens, 1))
            noise *= np.sqrt((other.freedom - 2) / chi)
        factors = np.ones((count, task.tokens))
        if task.spread:
            size = task.spread / np.sqrt(task.dimension)
            factors += size * rngs[2].standard_normal(factors.shape)
        return noise, factors, draw_signs(task, count, rngs[1], other.plus)

    def step(self, gamma: float, draws: Draws) -> None:
        """Move by one step of size gamma."""
        noise, factors, signs = draws
        task, q = self._task, self.q
        x = task.sigma * noise
        x[:, : task.informative, 0] += task.theta * signs
        x *= factors[:, :, None]
        y = np.einsum("rnd,rd->rn", x, q)
        if self._rule == "softmax":
            a = softmax(task.beta * y, axis=1)
            o = np.einsum("rn,rnd->rd", a, x)
            c = a * (np.einsum("rnd,rd->rn", x, o) - _dot(o, o)[:, None])
            q = q + gamma * task.beta * np.einsum("rn,rnd->rd", c, x)
        else:
            gradient = np.einsum("rn,rnd->rd", y, x) / task.tokens
            q = gradient if self._rule == "power" else q + gamma * gradient
        self.q = q / np.linalg.norm(q, axis=1, keepdims=True)


def _planted(task: QueryTask, normals: Array, signs: Array) -> list[Array]:
    """Noise (runs, k, n) with the signal in the first coordinate, by coordinates."""
    parts = [task.sigma * normals[:, k] for k in range(normals.shape[1])]
    parts[0][:, : task.informative] += task.theta * signs
    return parts


def _across(alpha: Array) -> Array:
    result: Array = np.sqrt(np.maximum(1 - alpha**2, 0.0))
    return result


def _dot(one: Array, other: Array) -> Array:
    result: Array = np.einsum("rn,rn->r", one, other)
    return result
