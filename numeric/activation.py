"""Attention activations as sets of generated kernels: built-in modules, and a user's from its source.

`derive` writes the kernels of a built-in activation into `numeric._generated`. Those of an activation
that a user defines are derived when they are needed and arrive here as source text, so that numbers
never need SymPy and an attention layer can be sent to another process.
"""

from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

from numeric._generated import ACTIVATIONS
from numeric.errors import InputError
from numeric.validate import one_of


class Kernels(Protocol):
    """What a generated module of an activation has.

    Attributes
    ----------
    NAME : str
    NORMALIZATION : {"none", "per-head", "pooled"}
    PARAMETERS : tuple of str
        Trained beside the keys, among "b" and "v".
    BACKGROUND : float
        Constant in the denominator.
    AVERAGED : bool
        Whether head values that are not given are 1/H, else 1.
    SLOPE : float or None
        Slope of a log weight that is linear in the score.
    weight_functions_2, weight_functions_4, score_gradient, origin_eigenvalues : callable
        See a generated module.
    """

    NAME: str
    NORMALIZATION: str
    PARAMETERS: tuple[str, ...]
    BACKGROUND: float
    AVERAGED: bool
    SLOPE: float | None
    weight_functions_2: Callable[..., Any]
    weight_functions_4: Callable[..., Any]
    score_gradient: Callable[..., Any]
    origin_eigenvalues: Callable[..., Any]


@runtime_checkable
class Definition(Protocol):
    """A symbolic definition that can write its kernels, such as `derive.Attention`."""

    def kernel_source(self) -> str:
        """Return the source of a generated module."""


class UserActivation:
    """The kernels of an activation that a user defined.

    Parameters
    ----------
    source : str
        Text of a generated module, from ``derive.Attention.kernel_source()``. It is executed.
    definition : derive.Attention, optional
        What it was derived from, for a derivation to be printed; another process does not get it.
    """

    def __init__(self, source: str, definition: Any = None) -> None:
        self.source, self.definition = source, definition
        namespace: dict[str, Any] = {}
        exec(compile(source, "<user activation>", "exec"), namespace)
        self.__dict__.update(
            (k, v) for k, v in namespace.items() if k.isupper() or getattr(v, "__doc__", None)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserActivation) and self.source == other.source

    def __hash__(self) -> int:
        return hash(self.source)

    def __repr__(self) -> str:
        return f"UserActivation({vars(self)['NAME']!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "UserActivation":
        return self

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return UserActivation, (self.source,)


def kernels_of(activation: object) -> tuple[object, Kernels]:
    """Return an activation in the form to keep, and its kernels.

    Parameters
    ----------
    activation : str, Definition or UserActivation
        The name of a built-in activation, or a definition.

    Raises
    ------
    InputError
        If there is no such activation.
    """
    if isinstance(activation, Definition) and not isinstance(activation, type):
        activation = UserActivation(activation.kernel_source(), activation)
    if isinstance(activation, UserActivation):
        return activation, cast(Kernels, activation)
    if not isinstance(activation, str):
        names = ", ".join(map(repr, ACTIVATIONS))
        raise InputError("activation", activation, f"one of {names}, or a derive.Attention")
    name = one_of("activation", activation, ACTIVATIONS)
    return name, ACTIVATIONS[name]
