"""The Bayes estimator's weight of a position.

A position's posterior weight is ``w(xi) = E_theta exp(theta.xi - |theta|^2/2)`` (`derive.task`
section 6). For a Gaussian component the integral factorizes over the principal axes of its
covariance, and along one axis with mean mu and variance nu it is closed; a mixture sums its
components' weights, and a discrete prior is the limit nu -> 0 of each.

On one spike, one softmax head is the Bayes estimator. Of two tokens, ``1 - p_eps = 1/(1 + exp(g))``
with ``g ~ N(theta^2, 2 theta^2)``, of density ``exp(g/2 - theta^2/4 - g^2/(4 theta^2))`` up to a
constant, so

    risk = exp(-theta^2/4) / (4 theta sqrt(pi)) int sech(g/2) exp(-g^2/(4 theta^2)) dg .

Strong signals let the last factor be expanded. Each of L - 1 tokens adds as much; two of them compete
at once with a probability of order exp(-theta^2/3), which is less. A linear head falls as a power:
`derive.single_head`.
"""

from functools import cache

from sympy import Expr, euler, exp, expand_log, factorial, integrate, log, oo, pi, simplify, sqrt

from derive.attention import activation
from derive.single_head import spike_minimum
from derive.spec import Argument, Kernel, Module, Output
from derive.symbols import L, mu_f, nu_f, theta, xi

TERMS = 4
"""Terms of the strong-signal expansion: the ratio of two is of order ``(pi/theta)^2``."""


SPIKE = (
    Argument("L", L, "number of tokens"),
    Argument("nu", nu_f, "squared signal theta^2"),
)


@cache
def gaussian_log_weight() -> Expr:
    """Derive ``log E exp(theta xi - theta^2/2)`` for one axis, theta ~ N(mu, nu)."""
    density = exp(-((theta - mu_f) ** 2) / (2 * nu_f)) / sqrt(2 * pi * nu_f)
    weight = integrate(simplify(density * exp(theta * xi - theta**2 / 2)), (theta, -oo, oo))
    logarithm = simplify(expand_log(log(simplify(weight)), force=True))
    target = (nu_f * xi**2 + 2 * mu_f * xi - mu_f**2) / (2 * (1 + nu_f)) - log(1 + nu_f) / 2
    if simplify(logarithm - target) != 0:
        raise ArithmeticError("SymPy's integral differs from the completed square")
    return target


@cache
def strong_spike_risk() -> Expr:
    """Derive the Bayes risk of one strong spike, nu = theta^2: the expansion in 1/nu.

    ``int sech(g/2) g^2k dg = 2 pi |E_2k| pi^2k``, with Euler's numbers E_2k, of sign (-1)^k.
    """
    terms = (euler(2 * k) * (pi**2 / (4 * nu_f)) ** k / factorial(k) for k in range(TERMS))
    return (L - 1) * sqrt(pi) / (2 * sqrt(nu_f)) * exp(-nu_f / 4) * sum(terms)


def bayes_module() -> Module:
    """Return the Bayes kernels."""
    return Module(
        "bayes",
        "Bayes weight of a position.",
        (
            Kernel(
                "log_weight",
                "Log Bayes weight of one principal axis of a Gaussian component.",
                (
                    Argument("xi", xi, "token coordinate along the axis"),
                    Argument("mu", mu_f, "mean of the component along the axis"),
                    Argument("nu", nu_f, "variance of the component along the axis"),
                ),
                (Output("value", gaussian_log_weight(), "log w(xi); sum it over axes"),),
                "`derive.task` section 6; arXiv 2603.03993, section IV",
                "nu >= 0",
            ),
            Kernel(
                "strong_spike_risk",
                "Bayes risk of one strong spike; one softmax head attains it.",
                SPIKE,
                (Output("value", strong_spike_risk(), "the risk"),),
                "`derive.task` section 6, and `derive.bayes`",
                "nu -> infinity at fixed L",
            ),
            Kernel(
                "linear_spike_risk",
                "Least loss of one linear head on one spike, exact; L/nu for strong ones.",
                SPIKE,
                (Output("value", spike_minimum(activation("linear")).risk, "the loss"),),
                "`derive.single_head`",
                "nu >= 0",
            ),
        ),
    )
