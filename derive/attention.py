"""Attention activations: one definition each, a log score weight and how it is normalized.

A head's score ``chi`` enters only through its log weight ``log w(chi, b)``. Normalization says what
the weight is divided by (`derive.task` section 2):

``per-head``
    ``a_l = sum_h v_h w_hl / (background + sum_l' w_hl')``; a head's value ``v_h`` is ``1/H``.
``pooled``
    ``a_l = sum_h w_hl / (background + sum_h'l' w_h'l')``.

Adding an activation is adding one entry to `ACTIVATIONS`.
"""

from dataclasses import dataclass

from sympy import Expr, diff

from derive.errors import DeriveError
from derive.symbols import b, chi

NORMALIZATIONS = ("per-head", "pooled")


@dataclass(frozen=True)
class Attention:
    """A score weight and its normalization.

    Parameters
    ----------
    name : str
        The activation's name in the experiment file.
    log_weight : sympy.Expr
        ``log w`` as an expression in the symbols ``chi`` and ``b``.
    normalization : {"per-head", "pooled"}
    trained : tuple of str
        Parameters trained beside ``k``: a subset of ``("b",)``.
    reference : str
        Where the activation is defined.

    Raises
    ------
    DeriveError
        For an unknown normalization, a foreign symbol in the weight, or a trained ``b`` that the
        weight does not contain.
    """

    name: str
    log_weight: Expr
    normalization: str
    trained: tuple[str, ...] = ()
    reference: str = "arXiv 2603.03993, section II"

    def __post_init__(self) -> None:
        if self.normalization not in NORMALIZATIONS:
            raise DeriveError(
                f"normalization: found {self.normalization!r}, expected one of {NORMALIZATIONS}"
            )
        foreign = sorted(str(x) for x in self.log_weight.free_symbols - {chi, b})
        if foreign:
            raise DeriveError(f"log_weight: found symbols {foreign}, expected only chi and b")
        if self.trained not in ((), ("b",)):
            raise DeriveError(f"trained: found {self.trained}, expected () or ('b',)")
        if ("b" in self.trained) != (b in self.log_weight.free_symbols):
            raise DeriveError(
                f"trained: found {self.trained}, expected 'b' exactly when the weight contains b"
            )

    @property
    def module(self) -> str:
        """Name of the generated module."""
        return self.name.replace("-", "_")

    def derivative(self, *variables: Expr) -> Expr:
        """Return a derivative of the log weight."""
        return diff(self.log_weight, *variables)


ACTIVATIONS = {
    a.name: a
    for a in (
        Attention("softmax", chi, "per-head"),
        Attention("b-softmax", b + chi, "pooled", trained=("b",)),
    )
}


def activation(name: str) -> Attention:
    """Return a built-in activation by name.

    Raises
    ------
    DeriveError
        If there is none of that name.
    """
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise DeriveError(
            f"activation: found {name!r}, expected one of {', '.join(ACTIVATIONS)}"
        ) from None
