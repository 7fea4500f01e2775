"""Hessian at the origin, block by block, and the growth rates that it gives.

Heads of equal bias and value are interchangeable at the origin, so the Hessian in (m, rho) splits into
head sectors: the mean (all heads move alike) and the H - 1 differences (displacements that sum to
zero). In a sector, along one eigenvector of the second moment with eigenvalue nu, displace ``m_h = x
e_h`` with ``|e| = 1``: an average over heads becomes ``x^2 / H``, and so does one over pairs of heads in
the mean sector, while it vanishes in the others. A residual direction is the same with ``rho_h = x
e_h``. The growth rate of gradient flow is minus the eigenvalue.
"""

from sympy import Expr, Integer, Symbol, count_ops

from derive.attention import Attention
from derive.expansion import (
    REFERENCE,
    OriginExpansion,
    expand_at_origin,
    factored,
    head_norm,
    head_residual,
    head_signal,
    pair_norm,
    pair_residual,
    pair_signal,
)
from derive.spec import Argument, Kernel, Output
from derive.symbols import H, L, b, nu_f, v


def sector_eigenvalues(expansion: OriginExpansion) -> dict[str, Expr]:
    """Return the Hessian's eigenvalues at the origin, by sector, for heads of equal b and v.

    Returns
    -------
    dict
        Keys ``mean``, ``difference`` (along a feature of second moment nu), ``residual_mean``,
        ``residual_difference`` (per residual dimension).
    """

    def curvature(*invariants: Symbol) -> Expr:
        terms = [2 / H * expansion.coefficient(x) for x in invariants]
        total = sum(terms, start=Integer(0))
        return min(factored(total), total, key=count_ops)

    return {
        "mean": nu_f * curvature(head_signal, pair_signal) + curvature(head_norm, pair_norm),
        "difference": nu_f * curvature(head_signal) + curvature(head_norm),
        "residual_mean": curvature(head_residual, pair_residual),
        "residual_difference": curvature(head_residual),
    }


def origin_kernels(attention: Attention) -> tuple[Kernel, ...]:
    """Return the Hessian's eigenvalues at the origin as a kernel."""
    expansion = expand_at_origin(attention)
    trained = {"b": Argument("b", b, "bias of every head"), "v": Argument("v", v, "its value")}
    return (
        Kernel(
            "origin_eigenvalues",
            "Eigenvalues of the Hessian in (m, rho) at the origin, by head sector.",
            (
                Argument("L", L, "number of tokens"),
                Argument("H", H, "number of heads"),
                Argument("nu", nu_f, "eigenvalues of the prior's second moment"),
                *(trained[name] for name in attention.trained),
            ),
            tuple(
                Output(
                    name,
                    eigenvalue.subs(expansion.bias_functions),
                    f"{name.replace('_', ' ')} sector",
                )
                for name, eigenvalue in sector_eigenvalues(expansion).items()
            ),
            REFERENCE,
            "heads of equal bias and value",
        ),
    )
