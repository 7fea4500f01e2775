"""The Bayes estimator's weight of a position.

A position's posterior weight is ``w(xi) = E_theta exp(theta.xi - |theta|^2/2)`` (`derive.task`
section 6). For a Gaussian component the integral factorizes over the principal axes of its
covariance, and along one axis with mean mu and variance nu it is closed; a mixture sums its
components' weights, and a discrete prior is the limit nu -> 0 of each.
"""

from functools import cache

from sympy import Expr, exp, expand_log, integrate, log, oo, pi, simplify, sqrt

from derive.spec import Argument, Kernel, Module, Output
from derive.symbols import mu_f, nu_f, theta, xi


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
        ),
    )
