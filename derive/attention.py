"""Attention activations: one definition each, a score weight and how it is normalized.

A head's score ``chi`` enters only through its weight ``w(chi, b)``. Normalization says what the weight
is divided by (`derive.task` section 2):

``per-head``
    ``a_l = sum_h v_h w_hl / (background + sum_l' w_hl')``
``pooled``
    ``a_l = sum_h w_hl / (background + sum_h'l' w_h'l')``
``none``
    ``a_l = sum_h v_h w_hl``

A normalized weight must be positive. Head values ``v_h`` that are not trained, and where trained ones
start, average heads of weights that sum to one, ``v_h = 1/H``, and add up all others, ``v_h = 1``.

Adding an activation is adding one entry to `ACTIVATIONS`, or making an `Attention` of your own.
"""

import re
from dataclasses import dataclass

from sympy import Expr, I, Integer, Rational, S, diff, erf, exp, nan, oo, sympify, zoo

from derive.errors import DeriveError
from derive.stable import log_of, softplus, stable
from derive.symbols import H, b, chi

NORMALIZATIONS = ("none", "per-head", "pooled")
SPECIALIZATION = "arXiv 2603.03993, section II"
# Scores at which a weight's range is looked at.
PROBES = [Rational(x, 4) for x in range(-80, 81)]
# Least background; a weight can always be scaled.
LEAST = Rational(1, 10**9)


@dataclass(frozen=True)
class Attention:
    """A score weight and its normalization.

    Parameters
    ----------
    name : str
        The activation's name in the experiment file.
    weight : sympy.Expr
        ``w`` as an expression in the symbols ``chi`` and ``b``; positive unless `normalization` is
        ``"none"``.
    normalization : {"none", "per-head", "pooled"}
    background : number
        Constant that joins the weights' sum in the denominator: 0, or from 1e-9 to 1e9.
    trained : tuple of str
        Parameters trained beside ``k``: a subset of ``("b", "v")``.
    reference : str
        Where the activation is defined, if anywhere.

    Raises
    ------
    DeriveError
        For an unknown normalization, a foreign symbol in the weight, a background that nothing is
        divided by, or a trained ``b`` that the weight does not contain (and conversely).
    """

    name: str
    weight: Expr
    normalization: str
    background: Expr = S.Zero
    trained: tuple[str, ...] = ()
    reference: str = ""

    def __post_init__(self) -> None:
        # SymPy would evaluate a text as code; `derive.parser` reads one safely.
        weight = None if isinstance(self.weight, str) else sympify(self.weight)
        if not isinstance(weight, Expr):
            raise DeriveError(f"weight: found {self.weight!r:.80}, expected a SymPy expression")
        object.__setattr__(self, "weight", stable(weight))
        if not (isinstance(self.name, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_ -]*", self.name)):
            raise DeriveError(
                f"name: found {self.name!r:.80}, expected letters, digits, blanks, - and _"
            )
        if isinstance(self.background, bool) or not isinstance(self.background, int | float | Expr):
            raise DeriveError(f"background: found {self.background!r:.80}, expected a number >= 0")
        background = sympify(self.background)
        object.__setattr__(self, "background", background)
        if not isinstance(self.trained, list | tuple) or not all(
            isinstance(x, str) for x in self.trained
        ):
            raise DeriveError(f"trained: found {self.trained!r:.80}, expected a list of names")
        object.__setattr__(self, "trained", tuple(self.trained))
        if self.normalization not in NORMALIZATIONS:
            raise DeriveError(
                f"normalization: found {self.normalization!r}, expected one of {NORMALIZATIONS}"
            )
        foreign = sorted(str(x) for x in self.weight.free_symbols - {chi, b})
        if foreign:
            raise DeriveError(
                f"weight: found symbols {foreign}, expected only chi and b of derive.symbols"
            )
        if self.weight.has(I, oo, zoo, nan):
            raise DeriveError(f"weight: found {self.weight}, expected a real function of chi")
        if chi not in self.weight.free_symbols:
            raise DeriveError(f"weight: found {self.weight}, expected an expression in chi")
        number = background.is_number and background.is_real
        if not number or not (background == 0 or LEAST <= background <= 1 / LEAST):
            raise DeriveError(
                f"background: found {background!s:.40}, expected 0, or a number from "
                f"{float(LEAST):g} to {float(1 / LEAST):g}"
            )
        if self.normalization == "none" and background != 0:
            raise DeriveError(
                f"background: found {background}, expected 0, since nothing is normalized"
            )
        allowed = {"b"} if self.normalization == "pooled" else {"b", "v"}
        if not set(self.trained) <= allowed or len(set(self.trained)) < len(self.trained):
            raise DeriveError(
                f"trained: found {list(self.trained)}, expected different ones of {sorted(allowed)}"
            )
        if ("b" in self.trained) != (b in self.weight.free_symbols):
            raise DeriveError(
                f"trained: found {list(self.trained)}, expected 'b' exactly when the weight contains b"
            )
        self._check_range()

    def _check_range(self) -> None:
        """Refuse a weight that is real nowhere, or normalized and somewhere negative."""
        values = [(x, self.weight.subs({chi: x, b: 0}).n()) for x in PROBES]
        if not any(value.is_real for _, value in values):
            raise DeriveError(f"weight: found {self.weight}, expected a real function of chi")
        for x, value in values:
            if self.normalized and value.is_negative:
                found = f"{float(value):.6g} at chi = {float(x):g}, b = 0"
                raise DeriveError(
                    f"weight: found {found}, expected what is normalized to be positive"
                )

    @property
    def module(self) -> str:
        """Name of the generated module."""
        return re.sub(r"\W", "_", self.name)

    @property
    def normalized(self) -> bool:
        """Whether weights are divided by a sum."""
        return self.normalization != "none"

    @property
    def averaged(self) -> bool:
        """Whether heads are averaged, v_h = 1/H, unless values are given: else they are added."""
        return self.normalization == "per-head" and self.background == 0

    @property
    def value(self) -> Expr:
        """Head value unless values are given."""
        return 1 / H if self.averaged else Integer(1)

    @property
    def slope(self) -> float | None:
        """Slope of a normalized log weight that is linear in the score, else None."""
        slope = diff(self.log_weight, chi) if self.normalized else chi
        return abs(float(slope)) if slope.is_number else None

    @property
    def log_weight(self) -> Expr:
        """``log w``, of a positive weight."""
        return log_of(self.weight)

    def _repr_latex_(self) -> str:
        from derive.document import attention_formula  # documents need the definitions
        from derive.writer import formula_text

        weight = formula_text(self.weight)
        return rf"$\displaystyle w(\chi, b) = {weight},\qquad {attention_formula(self)[1]}$"

    def kernel_source(self) -> str:
        """Return the kernels as source: `numeric.Attention` takes a definition as its activation."""
        from derive.emit import activation_module, module_source  # emit needs the definitions

        return module_source(
            activation_module(self), "Generated from a definition of the user's own."
        )

    def derivatives(self, order: int) -> list[Expr]:
        """Return the first `order` derivatives in chi, and the first in b, of the weight.

        Of a normalized weight they are relative, ``w'/w, w''/w, ...``, which stay of order one
        wherever the weight over- or underflows.
        """
        if not self.normalized:
            return [diff(self.weight, chi, k + 1) for k in range(order)] + [diff(self.weight, b)]
        slope = diff(self.log_weight, chi)
        found = [slope]
        while len(found) < order:
            found.append(diff(found[-1], chi) + found[-1] * slope)
        return [*found, diff(self.log_weight, b)]


ACTIVATIONS = {
    a.name: a
    for a in (
        Attention("softmax", exp(chi), "per-head", reference=SPECIALIZATION),
        Attention("softmax-v", exp(chi), "per-head", trained=("v",), reference=SPECIALIZATION),
        Attention("softmax-1", exp(b + chi), "per-head", Integer(1), ("b", "v"), SPECIALIZATION),
        Attention("b-softmax", exp(b + chi), "pooled", trained=("b",), reference=SPECIALIZATION),
        Attention("linear", 1 + chi, "none", trained=("v",), reference="arXiv 2509.21936"),
        Attention(
            "erf", 1 + erf(b + chi), "none", trained=("b", "v"), reference="arXiv 2410.01537"
        ),
        Attention("softplus", softplus(chi), "per-head", reference="arXiv 2509.21936"),
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
