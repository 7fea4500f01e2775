"""Hessian at the origin, block by block, and the growth rates that it gives.

Heads are interchangeable at the origin, so the Hessian in (m, rho) splits into head sectors: the mean
(all heads move alike) and the H - 1 differences (displacements that sum to zero). In a sector, along
one eigenvector of the second moment with eigenvalue nu, displace ``m_h = x e_h`` with ``|e| = 1`` and
differentiate twice in x. A residual direction is the same with ``rho_h = x e_h``. The growth rate of
gradient flow is minus the eigenvalue.
"""

from sympy import Expr, Symbol, diff, factor

from derive.attention import Attention
from derive.expansion import (
    OriginExpansion,
    alignment,
    expand_at_origin,
    head_norm,
    head_residual,
    head_signal,
    pair_norm,
    pair_residual,
    pair_signal,
)
from derive.gradient import origin_gradient
from derive.spec import Argument, Kernel, Output
from derive.symbols import H, L, M, P, m, mu, nu_f, p, r

x = Symbol("x", real=True)

REFERENCE = "arXiv 2603.03993, Lemma III.1; `derive.task` section 5"


def sector_eigenvalues(expansion: OriginExpansion) -> dict[str, Expr]:
    """Return the Hessian's eigenvalues at the origin, by sector, for equal head weights 1/H.

    Returns
    -------
    dict
        Keys ``mean``, ``difference`` (along a feature of second moment nu), ``residual_mean``,
        ``residual_difference`` (per residual dimension).
    """
    average = x**2 / H
    signal = {head_signal: nu_f * average, head_norm: average, alignment: 0}
    residual = {head_residual: average}
    sectors = {
        "mean": signal | {pair_signal: nu_f * average, pair_norm: average},
        "difference": signal,
        "residual_mean": residual | {pair_residual: average},
        "residual_difference": residual,
    }
    invariants = (
        alignment,
        head_signal,
        head_norm,
        head_residual,
        pair_signal,
        pair_norm,
        pair_residual,
    )
    return {
        name: factor(
            diff(expansion.in_invariants.subs(dict.fromkeys(invariants, 0) | displacement), x, 2)
        )
        for name, displacement in sectors.items()
    }


def origin_kernels(attention: Attention) -> tuple[Kernel, ...]:
    """Return loss, gradient and Hessian eigenvalues at the origin as kernels."""
    expansion = expand_at_origin(attention)
    value, in_m, in_r = origin_gradient(expansion)
    sectors = sector_eigenvalues(expansion)
    tokens = Argument("L", L, "number of tokens", "()")
    domain = "small (m, sqrt r); L >= 1"
    return (
        Kernel(
            "origin_expansion",
            "Second-order expansion of the loss at the origin, and its gradient.",
            (
                Argument("m", m, "alignments", "(H, F)"),
                Argument("r", r, "residual overlap", "(H, H)"),
                Argument("mu", mu, "prior mean", "(F, 1)"),
                Argument("M", M, "prior second moment", "(F, F)"),
                Argument("p", p, "head weights, sum one", "(H, 1)"),
                Argument("P", P, "diag(p)", "(H, H)"),
                tokens,
            ),
            (
                Output("value", value, "loss to second order", "()"),
                Output("in_m", in_m, "dE/dm", "(H, F)"),
                Output("in_r", in_r, "dE/dr", "(H, H)"),
            ),
            REFERENCE,
            domain,
        ),
        Kernel(
            "origin_eigenvalues",
            "Eigenvalues of the Hessian in (m, rho) at the origin, by head sector.",
            (
                Argument("L", L, "number of tokens"),
                Argument("H", H, "number of heads"),
                Argument("nu", nu_f, "eigenvalues of the prior's second moment"),
            ),
            tuple(
                Output(name, eigenvalue, f"{name.replace('_', ' ')} sector")
                for name, eigenvalue in sectors.items()
            ),
            REFERENCE,
            "equal head weights",
        ),
    )
