"""What is learned and by what: the task, the attention layer and its state."""

from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from numeric.activation import Kernels, kernels_of
from numeric.errors import InputError, Verbatim
from numeric.prior import Prior
from numeric.validate import (
    ByValue,
    FloatArray,
    psd_matrix,
    real_array,
    real_number,
    store,
    whole_number,
)

MOST_HEADS = 1000
"""The largest number of heads; the theory has O(1) of them."""


@dataclass(frozen=True)
class Task:
    """Single-location retrieval: one of `tokens` tokens carries the signal.

    Parameters
    ----------
    tokens : int
        Number L of tokens, >= 1.
    prior : Prior
        Distribution of the signal amplitudes theta.

    Raises
    ------
    InputError
        If `tokens` is not a whole number >= 1 or `prior` not a prior.
    """

    tokens: int
    prior: Prior

    def __post_init__(self) -> None:
        store(self, tokens=whole_number("tokens", self.tokens, 1))
        if not isinstance(self.prior, Prior):
            raise InputError("prior", self.prior, "a prior, such as GaussianPrior")

    def continued(self, tokens: float) -> "Task":
        """Return the task with any real number L of tokens >= 1, in which losses are analytic.

        Simulations refuse it, unless L is a whole number.
        """
        count = real_number("tokens", tokens, minimum=1)
        task = copy(self)
        store(task, tokens=int(count) if count.is_integer() else count)
        return task

    def with_prior(self, prior: Prior) -> "Task":
        """Return the task with another prior, L as it is."""
        return Task(1, prior).continued(self.tokens)


@dataclass(frozen=True)
class Attention:
    """An attention layer.

    Parameters
    ----------
    activation : str or derive.Attention
        Name of a built-in activation, or a definition of your own.
    heads : int
        Number H of heads, >= 1.

    Raises
    ------
    InputError
        If the activation is unknown or the number of heads no whole number from 1 to 1000.
    """

    activation: object
    heads: int

    def __post_init__(self) -> None:
        store(self, activation=kernels_of(self.activation)[0])
        store(self, heads=whole_number("heads", self.heads, 1, MOST_HEADS))

    @property
    def kernel(self) -> Kernels:
        """The activation's generated kernels and constants."""
        return kernels_of(self.activation)[1]

    @property
    def name(self) -> str:
        """The activation's name."""
        return self.kernel.NAME

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters trained beside the keys, among "b" and "v"."""
        return tuple(self.kernel.PARAMETERS)

    @property
    def value(self) -> float:
        """Head value v_h unless values are given."""
        return 1 / self.heads if self.kernel.AVERAGED else 1.0

    def ignores_scores(self, tokens: int) -> bool:
        """Whether weights are one whatever the scores: there is one token, and it takes all."""
        kernel = self.kernel
        return tokens == 1 and kernel.NORMALIZATION != "none" and not kernel.BACKGROUND


@dataclass(frozen=True, eq=False)
class State(ByValue):
    """Order parameters of an attention layer, one set or a batch of sets.

    Parameters
    ----------
    m : array_like, shape (..., H, F)
        Alignments of the heads' keys with the features (magnetizations), O(1).
    r : array_like, shape (..., H, H)
        Overlaps of the keys' parts outside the feature space, O(1); positive semi-definite relative
        to its own scale.
    b, v : array_like, shape (..., H), optional
        Head biases and values; ``None`` where there are none.

    Raises
    ------
    InputError
        If shapes disagree, an entry is not finite or an `r` asymmetric or indefinite.
    """

    m: FloatArray
    r: FloatArray
    b: FloatArray | None = None
    v: FloatArray | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            m: ArrayLike,
            r: ArrayLike,
            b: ArrayLike | None = None,
            v: ArrayLike | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        m = real_array("m", self.m, (..., None, None))
        *batch, heads, _ = m.shape
        store(self, m=m, r=psd_matrix("r", self.r, heads, tuple(batch)))
        for name in ("b", "v"):
            value = getattr(self, name)
            if value is not None:
                store(self, **{name: real_array(name, value, m.shape[:-1])})

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the leading axes."""
        return self.m.shape[:-2]

    def at(self, index: int | tuple[int, ...]) -> "State":
        """Return one element of the batch.

        Parameters
        ----------
        index : int or tuple of int
            One whole number for each leading axis; negative ones count from the end.

        Raises
        ------
        InputError
            If there is no such element.
        """
        where, shape = index if isinstance(index, tuple) else (index,), self.batch_shape
        if len(where) != len(shape):
            raise InputError("index", index, f"an index into a batch of shape {shape}")
        place = tuple(
            whole_number("index", i, -n, n - 1) for i, n in zip(where, shape, strict=True)
        )
        b, v = (x if x is None else x[place] for x in (self.b, self.v))
        return State(self.m[place], self.r[place], b, v)

    def check(self, attention: Attention, features: int) -> "State":
        """Check that the state belongs to an attention layer, and complete it.

        Parameters
        ----------
        attention : Attention
        features : int
            Number F of latent features.

        Returns
        -------
        State
            The same, with a trained `b` or `v` that is missing: zeros, and the layer's `value`.

        Raises
        ------
        InputError
            If the number of heads or features is another one, or the state has a `b` or `v` that
            the activation does not have.
        """
        real_array("m", self.m, (..., attention.heads, features))
        missing = {}
        for name, initial in (("b", 0.0), ("v", attention.value)):
            trained = name in attention.parameters
            value = getattr(self, name)
            if value is not None and not trained:
                expected = f"none, since {attention.name} has no such parameter"
                raise InputError(name, value, expected)
            if value is None and trained:
                missing[name] = np.full(self.m.shape[:-1], initial)
        return replace(self, **missing)

    def single(self, attention: Attention, features: int) -> "State":
        """Check and complete one state; see `check`.

        Raises
        ------
        InputError
            Also for a batch of states.
        """
        if self.batch_shape:
            found = Verbatim(f"a batch of shape {self.batch_shape}")
            raise InputError("state", found, "one state")
        return self.check(attention, features)

    def biases_and_values(self, attention: Attention) -> tuple[FloatArray, FloatArray]:
        """Return b and v (H,) of one state: zeros and the layer's `value` where it has none."""
        heads = attention.heads
        b = np.zeros(heads) if self.b is None else self.b
        return b, np.full(heads, attention.value) if self.v is None else self.v
