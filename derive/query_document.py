"""The derivation of the query model, readable."""

from collections.abc import Mapping

from sympy import Derivative, Expr, Function, Symbol, diff, log

from derive.query import (
    NAMES,
    REFERENCE,
    alpha,
    objective_kernel,
    token_functions,
    token_kernel,
)
from derive.query_expansion import concentrated_growth, growth_expansion
from derive.symbols import tau
from derive.writer import Writer

SIGNS = ((False, "each informative token with a sign of its own"), (True, "one sign for all"))


def query_document(form: str = "latex", checks: Mapping[str, str] | None = None) -> str:
    """Return the derivation of the query model.

    Parameters
    ----------
    form : {"latex", "text", "html"}
    checks : dict of str, optional
        See `derive.document.document`.
    """
    write = Writer(form, checks)
    _model(write)
    _race(write)
    _flow(write)
    _growth(write)
    return write.text()


def _model(write: Writer) -> None:
    write.title("One query recovering a signal")
    write.line(f"Reference: {REFERENCE.split(',')[0]}.")
    write.section("Task")
    write.line(
        "Of `n = n_I + n_0` tokens in `d` dimensions, `n_I` carry a unit vector `u` with a fair sign "
        "`s_i = +-1`, and `n_0` carry nothing. A query `q` of unit length scores them; `a_i` is the "
        "softmax of the scores."
    )
    write.raw(
        "x_i = s_i theta u + z_i (informative),  x_i = z_i (others),  z_i ~ N(0, sigma^2 I_d),  "
        "a_i = exp(beta q.x_i) / sum_j exp(beta q.x_j)",
        r"x_i = s_i\theta u + z_i\ \text{(informative)},\qquad x_i = z_i\ \text{(others)},\qquad "
        r"z_i\sim N(0, \sigma^2 I_d),\qquad a_i = \frac{e^{\beta q\cdot x_i}}"
        r"{\sum_j e^{\beta q\cdot x_j}}",
    )
    write.raw(
        "o = sum_i a_i x_i,  J(q) = (1/2) E |o|^2,  alpha = q.u",
        r"o = \sum_i a_i x_i,\qquad J(q) = \tfrac12\,\mathbb E|o|^2,\qquad \alpha = q\cdot u",
    )
    write.section("Objective by symmetry")
    write.line(
        "Along `q` a token has the coordinate `Y_i = q.x_i`, of law `N(s_i theta alpha, sigma^2)`, which "
        "decides on its weight. What is orthogonal to `q` does not depend on the weights: a mean "
        "`s_i theta sqrt(1 - alpha^2)` along one direction, noise in `d - 1`. So `J` depends on `alpha` "
        "alone:"
    )
    write.raw(
        "2 J = E (sum_i a_i Y_i)^2 + theta^2 (1 - alpha^2) E (sum_I a_i s_i)^2 + (d - 1) sigma^2 "
        "E sum_i a_i^2",
        r"2J = \mathbb E\left(\sum_i a_iY_i\right)^2 + \theta^2(1-\alpha^2)\,"
        r"\mathbb E\left(\sum_{i\in I} a_is_i\right)^2 + (d-1)\sigma^2\,\mathbb E\sum_i a_i^2",
    )


def _race(write: Writer) -> None:
    write.section("One integral over a race time")
    write.line(
        "With `1/Z^2 = int_0^inf t exp(-t Z) dt`, `t = exp(-u)`, tokens are independent under the "
        "integral, whatever their number. With `tau = exp(beta y - u)`, the functions of one token of "
        "coordinate `y` are"
    )
    for name, function in zip(NAMES, token_functions(tau), strict=True):
        write.formula(name, name, function)
    write.line(
        "and `sw` is `w` times the sign. Below they stand for their means over an uninformative token "
        "(index 0), or an informative one (`I`), which depend on `alpha`; a derivative in `alpha` is one "
        "in `y` under the mean, such as"
    )
    slope = next(x for x in token_kernel().outputs if x.name == "g1")
    write.formula("dg/dy", r"\frac{dg}{dy}", slope.expression)
    write.formula("dJ/du", r"\frac{dJ}{du}", objective_kernel().outputs[0].expression.rewrite(log))


def field_slope() -> Expr:
    """Return the derivative in alpha of the field ``(1 - alpha^2) J'(alpha)``."""
    objective = Function("J")(alpha)
    return diff((1 - alpha**2) * diff(objective, alpha), alpha)


def _flow(write: Writer) -> None:
    write.section("Flow on the sphere, fixed points, stability")
    write.line(
        "The gradient along the sphere is `J'(alpha) (u - alpha q)`. In the limit of small steps, with "
        "their sum for time,"
    )
    write.raw(
        "dq/dt = J'(alpha) (u - alpha q),  d alpha/dt = (1 - alpha^2) J'(alpha)",
        r"\dot q = J'(\alpha)\,(u - \alpha q),\qquad \dot\alpha = (1-\alpha^2)\,J'(\alpha)",
    )
    write.line(
        "Signs are fair, so `J` is even: `alpha = 0` is a fixed point, as are `alpha = +-1` and other "
        "zeros of `J'`. A displacement grows with the derivative of the field,"
    )
    slope = field_slope()
    write.formula("rate", r"\text{rate}(\alpha)", slope)
    write.formula("rate at 0", r"\text{rate}(0)", _at(slope, 0))
    write.formula("rate at 1", r"\text{rate}(1)", _at(slope, 1))
    write.line(
        "The query leaves `alpha = 0` if `J''(0) > 0`, from `alpha = d^(-1/2)` in a time of about "
        "`log(d) / (2 J''(0))`. It stays at `+-u` if `J'(1) > 0`, where `q - u` decays at half the rate "
        "of `1 - alpha`."
    )


def _at(slope: Expr, point: int) -> Expr:
    """The field's derivative at a fixed point where alpha is a number: J' and J'' by name."""
    objective = Function("J")(alpha)
    second, first = Derivative(objective, (alpha, 2)), Derivative(objective, alpha)
    names = [Symbol(f"J{mark}({point})") for mark in ("''", "'")]
    found = slope.subs(second, names[0]).subs(first, names[1] if point else 0)
    return found.subs(alpha, point)


def _growth(write: Writer) -> None:
    write.section("Growth at the equator")
    write.line(
        "`J''(0)` to second order in `beta` (there is no odd order). `Z`, its derivative and `Z(2 beta)` "
        "are polynomials in power sums `sum_i s_i^e Y_i^k`, whose mean products are sums over which "
        "tokens coincide:"
    )
    for shared, words in SIGNS:
        left = rf"J''(0)\big|_{{\text{{{words}}}}}"
        write.formula(f"J''(0), {words}", left, growth_expansion(shared))
    write.line(
        "For noise `sigma = d^(-1/2)` and `d -> inf` scores lose their noise, and this is exact in "
        "`beta`:"
    )
    for shared, words in SIGNS:
        left = rf"J''(0)\big|_{{\text{{{words}}}}}"
        write.formula(f"J''(0) at large d, {words}", left, concentrated_growth(shared))
    write.line(
        "With one sign for all it is negative, and the equator attracts, where "
        "`theta^2 n_I (n_I - 2 n_0) > n`."
    )
