"""Gradients in the order parameters, by matrix calculus, and the gradient-flow equations.

Every token's scores are Gaussian (a mixture, if the prior is one): mean ``c = m mu`` and covariance
``C = m S m^T + r`` with ``S = 1 + Sigma`` for a component (mu, Sigma) of the prior, and
``mu = 0, S = 1`` for the other tokens. For the expectation of any function f of the scores

    dE f = g . dc + tr(Gamma dC),    g = E grad f,    Gamma = (1/2) E hess f,

so a law's share of the gradient is the chain rule below.
"""

from sympy import Add, Expr, MatrixExpr, Trace, Transpose

from derive.expansion import expansion_kernels
from derive.spec import Argument, Kernel, Module, Output
from derive.symbols import G, Gamma, M, S, V, gain, kappa, m, mu, r, rho
from derive.task import score_covariance, score_mean

SYMMETRIC = (Gamma, G, M, S, V, r)


def matrix_gradient(scalar: Expr, x: MatrixExpr) -> MatrixExpr:
    """Return the derivative of a scalar in a matrix, with symmetric matrices untransposed."""
    terms = [term.diff(x) for term in Add.make_args(scalar) if term.has(x)]
    total = sum(terms[1:], start=terms[0])
    return total.replace(
        lambda e: isinstance(e, Transpose) and e.arg in SYMMETRIC, lambda e: e.arg
    ).doit()


def law_gradient() -> tuple[MatrixExpr, MatrixExpr]:
    """Return one token law's share of dE/dm and dE/dr."""
    change = Trace(gain.T * score_mean()) + Trace(Gamma * score_covariance())
    return matrix_gradient(change, m), matrix_gradient(change, r)


def flow_field() -> tuple[MatrixExpr, MatrixExpr]:
    """Return dr/dtau = -2 (G r + r G) + kappa V and drho/dtau = -2 G rho (r = rho rho^T)."""
    return -2 * G * r - 2 * r * G + kappa * V, -2 * G * rho


def gradient_module() -> Module:
    """Return the order-parameter kernels that every activation shares."""
    in_m, in_r = law_gradient()
    in_overlap, in_factor = flow_field()
    matrix = {
        m: Argument("m", m, "alignments", "(H, F)"),
        r: Argument("r", r, "residual overlap", "(H, H)"),
        mu: Argument("mu", mu, "mean of the prior component", "(F, 1)"),
        S: Argument("S", S, "1 + covariance of the prior component", "(F, F)"),
        gain: Argument("g", gain, "derivative in the score means", "(H, 1)"),
        Gamma: Argument("Gamma", Gamma, "derivative in the score covariance", "(H, H)"),
        G: Argument("G", G, "dE/dr", "(H, H)"),
        V: Argument("V", V, "noise matrix", "(H, H)"),
        rho: Argument("rho", rho, "factor of r = rho rho^T", "(H, H)"),
    }
    return Module(
        "order_parameters",
        "Chain rule from score moments to order parameters, the flow, and the loss at the origin.",
        (
            Kernel(
                "law_gradient",
                "One token law's share of the loss gradient.",
                tuple(matrix[x] for x in (m, mu, S, gain, Gamma)),
                (
                    Output("in_m", in_m, "share of dE/dm", "(H, F)"),
                    Output("in_r", in_r, "share of dE/dr", "(H, H)"),
                ),
                "`derive.task` section 4, last formula",
                "Gamma and S symmetric",
            ),
            Kernel(
                "overlap_flow",
                "Time derivative of the residual overlap at finite kappa.",
                (
                    matrix[r],
                    matrix[G],
                    matrix[V],
                    Argument(
                        "kappa",
                        kappa,
                        "gamma D / N_b (for each state of a batch: with two more axes)",
                        "()",
                    ),
                ),
                (Output("in_tau", in_overlap, "dr/dtau", "(H, H)"),),
                "`derive.task` section 3",
            ),
            Kernel(
                "factor_flow",
                "Time derivative of a factor of the residual overlap at kappa = 0.",
                (matrix[rho], matrix[G]),
                (Output("in_tau", in_factor, "drho/dtau", "(H, H)"),),
                "`derive.task` section 3",
            ),
            *expansion_kernels(),
        ),
    )
