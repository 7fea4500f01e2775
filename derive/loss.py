"""The population loss in race form, and what one sample's loss feels at each score.

The loss of `derive.task` section 1 is ``E = 1 - 2 A + B`` with ``A = E a_eps``, ``B = E sum_l
a_l^2``. Writing every denominator as a Laplace integral over the race time ``t = exp(-u)``,

    1/Z = int_0^inf exp(-t Z) dt,        1/Z^2 = int_0^inf t exp(-t Z) dt,

makes the tokens independent under the integral (`derive.task` section 4). A token enters through
its log weight measured from the time, ``s = log w - u``, or ``tau = e^s = t w``:

    exp(-tau)                 it has not won by time t
    tau exp(-tau)             it wins at time t (per unit of u)
    tau^2 exp(-tau)           the same for the squared denominator

so each integral has one of two integrands, whatever the activation: only the relevant token wins
(`RELEVANT_WINS`, for A), or any token wins (`ANY_WINS`, for B). A background c is a racer that no
token beats: a factor ``exp(-c t)``. Without normalization there is no race; with ``exp(-tau)`` and t
replaced by one, the same integrands are the moments ``E w`` and ``E w w'``.
"""

from itertools import combinations_with_replacement

from sympy import (
    Add,
    Expr,
    Function,
    Integer,
    Symbol,
    collect,
    diff,
    exp,
    expand,
    factor,
    horner,
    simplify,
)
from sympy.codegen.cfunctions import expm1, log1p

from derive.attention import Attention
from derive.spec import Argument, Kernel, Module, Output
from derive.symbols import L, b, chi, tau

REFERENCE = "`derive.task` section 4 (race integrals), from arXiv 2603.03993, Prop. III.2"

f0, f1, g0, g1 = (Symbol(name, real=True) for name in ("f_0", "f_1", "g_0", "g_1"))

SURVIVES = exp(-tau)
WINS = tau * SURVIVES
WINS_SQUARED = tau**2 * SURVIVES

RELEVANT_WINS = f1 * (1 - g0) ** (L - 1)
ANY_WINS = RELEVANT_WINS + (L - 1) * f0 * (1 - g1) * (1 - g0) ** (L - 2)


X = Function("x")(chi, b)
# A token's weight times race time and its derivatives in the score and the bias.
x0, x_b = Symbol("x_0", real=True), Symbol("x_b", real=True)
x_k = [x0, *(Symbol(f"x_{k}", real=True) for k in range(1, 5))]


def stable_powers(expression: Expr) -> Expr:
    """Write powers of ``1 - g0`` by log1p: L may be 10^6 and g0 as small as 1/L."""
    return expression.replace(
        lambda e: e.is_Pow and e.base == 1 - g0, lambda e: exp(e.exp * log1p(-g0))
    )


def score_kernel() -> Kernel:
    """Return ``g = 1 - exp(-tau)`` and `WINS_SQUARED` with derivatives in s = log tau as a kernel.

    They are all that a race needs: ``WINS = g'``, and derivatives in a score follow by the chain rule
    through the log weight. `WINS_SQUARED` is ``g' - g''``, whose digits cancel where tau is small.
    """
    outputs = [Output("g", -expm1(-tau), "1 - exp(-tau): probability to have won by u")]
    for name, expression, meaning, orders in (
        ("g", 1 - SURVIVES, "", range(1, 4)),
        ("s", WINS_SQUARED, "tau^2 exp(-tau): win, squared denominator", range(3)),
    ):
        for k in range(orders.stop):
            if k in orders:
                polynomial = horner(expand(expression / (tau * SURVIVES)), tau)
                label = f"derivative {k} of {name} in log tau" if k else meaning
                value = polynomial * tau * SURVIVES
                outputs.append(Output(f"d{k}{name}" if k else name, value, label))
            expression = expand(tau * diff(expression, tau))
    return Kernel(
        "score_functions",
        "Race functions of a log weight, with derivatives.",
        (Argument("tau", tau, "token weight times race time, exp(log w - u)"),),
        tuple(outputs),
        REFERENCE,
        "0 <= tau <= 1000; above, every derivative underflows to zero and g to one",
    )


def head_kernel(normalized: bool, order: int) -> Kernel:
    """Return what one head's score enters a race by, with derivatives in score and bias, as a kernel.

    Parameters
    ----------
    normalized : bool
        Whether there is a race; else the functions are those of plain moments.
    order : int
        Derivatives in the score. The first two come with the one in the bias.
    """
    e = exp(-X) if normalized else Integer(1)
    named = [("e", e, "not won"), ("f", X * e, "win")]
    if order > 2 or not normalized:
        # With a race, heads on their own have `score_kernel`.
        named.append(("s", X**2 * e, "win, squared denominator"))

    def plain(expression: Expr) -> Expr:
        slopes = [(diff(X, chi, k), x_k[k]) for k in range(order, 0, -1)]
        return expression.subs([*slopes, (diff(X, b), x_b), (X, x0)])

    outputs = [Output("g", -expm1(-x0) if normalized else Integer(0), "probability to have won")]
    for name, expression, meaning in named:
        for k in range(order + 1):
            value = plain(diff(expression, chi, k) if k else expression)
            label = f"derivative {k} in the score of {name}" if k else meaning
            outputs.append(Output(f"{name}{k or ''}", factored(value), label))
        if order == 2:
            value = plain(diff(expression, b))
            outputs.append(
                Output(f"{name}_b", factored(value), f"derivative in the bias of {name}")
            )
    inputs = [Argument("x0", x0, "weight times race time")]
    inputs += [
        Argument(f"x{k}", x_k[k], f"its derivative {k} in the score") for k in range(1, order + 1)
    ]
    if order == 2:
        inputs.append(Argument("x_b", x_b, "its derivative in the bias"))
    return Kernel(
        f"{'race' if normalized else 'moment'}_functions_{order}",
        f"Race functions of one score and derivatives up to order {order}."
        if normalized
        else f"Moment functions of one score (no race) and derivatives up to order {order}.",
        tuple(inputs),
        tuple(outputs),
        REFERENCE,
        "0 <= x0 <= 1000" if normalized else "all real inputs",
    )


def factored(expression: Expr) -> Expr:
    """Take the common exponential out of a sum."""
    e = exp(-x0)
    if not expression.has(e):
        return expression
    return e * expand(expression / e)


def race_derivative(integrand: Expr, variables: tuple[Symbol, ...]) -> Expr:
    """Differentiate an integrand, with each power of ``1 - g0`` in one piece."""
    lost = Symbol("s_0", positive=True)
    result = integrand.xreplace({1 - g0: lost})
    for x in variables:
        result = -diff(result, lost) if x == g0 else diff(result, x)
    terms = (simplify(term) for term in Add.make_args(result.expand()))
    grouped = collect(sum(terms, start=Integer(0)), (f0, f1), evaluate=False)
    result = sum((x * factor(term) for x, term in grouped.items()), start=Integer(0))
    return result.subs(lost, 1 - g0)


def _race_kernel(
    name: str, summary: str, integrand: Expr, variables: tuple[Symbol, ...], order: int = 1
) -> Kernel:
    meaning = {
        f0: "win density of an irrelevant token",
        f1: "win density of the relevant token",
        g0: "probability that an irrelevant token has won",
        g1: "probability that the relevant token has won",
    }
    inputs = [Argument(str(x).replace("_", ""), x, meaning[x]) for x in variables]
    inputs.append(Argument("L", L, "number of tokens"))
    outputs = [Output("value", stable_powers(integrand), "integrand")]
    along: list[tuple[Symbol, ...]] = [(x,) for x in variables]
    if order == 2:
        along += list(combinations_with_replacement(variables, 2))
    for x in along:
        names = [str(y).replace("_", "") for y in x]
        derivative = stable_powers(race_derivative(integrand, x))
        outputs.append(
            Output("_".join(["d", *names]), derivative, f"derivative in {', '.join(names)}")
        )
    return Kernel(name, summary, tuple(inputs), tuple(outputs), REFERENCE, "0 <= g0 < 1, L >= 1")


def race_module() -> Module:
    """Return the kernels that every activation shares."""
    return Module(
        "race",
        "Race integrands of the population loss, shared by all activations.",
        (
            score_kernel(),
            *(head_kernel(kind, order) for kind in (True, False) for order in (2, 4)),
            *(
                _race_kernel(f"{name}{suffix}", summary, integrand, variables, order)
                for name, summary, integrand, variables in (
                    (
                        "relevant_wins",
                        "Integrand of A: the relevant token wins the race.",
                        RELEVANT_WINS,
                        (f1, g0),
                    ),
                    (
                        "any_wins",
                        "Integrand of B: one token wins both races.",
                        ANY_WINS,
                        (f0, f1, g0, g1),
                    ),
                )
                for suffix, order in (("", 1), ("_2", 2))
            ),
        ),
    )


# One sample. g_l = d(loss)/d a_l; the tokens other than l' enter a ratio through two sums.
share, slope, mean_slope, value = (
    Symbol(name, real=True) for name in ("p_hl", "g_l", "gbar_h", "v_h")
)


def score_gradient(attention: Attention) -> tuple[Expr, Expr]:
    """Return one sample's loss derivatives in a score and in its head's bias (that token's share).

    With ``Z = rest + w(chi)`` and ``N = others + g w(chi)`` the loss varies as ``d(N/Z)``: ``others``
    and ``rest`` collect all other tokens (and heads, when pooled; and the background). The result is
    written with the share ``p = w/Z`` and the share-weighted mean slope ``gbar = N/Z``. Without
    normalization the loss varies as ``d N``.
    """
    rest, others, total = (Symbol(name, positive=True) for name in ("rest", "others", "Z"))
    weight = Function("w", positive=True)(chi, b)
    along = attention.derivatives(1)
    results = []
    for variable, ratio in zip((chi, b), along, strict=True):
        if not attention.normalized:
            results.append(value * slope * ratio)
            continue
        change = diff((others + slope * weight) / (rest + weight), variable)
        change = change.subs(rest, total - weight).subs(others, mean_slope * total - slope * weight)
        change = simplify(change).subs(diff(weight, variable), Symbol("q") * weight)
        change = factor(simplify(change.subs(weight, share * total)))
        results.append(value * change.subs(Symbol("q"), ratio))
    return results[0], results[1]


def score_gradient_kernel(attention: Attention) -> Kernel:
    """Return `score_gradient` as a kernel."""
    in_score, in_bias = score_gradient(attention)
    return Kernel(
        "score_gradient",
        "One sample's loss derivatives in each score, and in each bias before the sum over tokens.",
        (
            Argument("chi", chi, "scores"),
            Argument("b", b, "head biases, broadcast against the scores"),
            Argument("p_hl", share, "attention share w / Z"),
            Argument("g_l", slope, "d(loss) / d a_l"),
            Argument("gbar_h", mean_slope, "sum of p g over what Z sums"),
            Argument("v_h", value, "head values (1 if pooled)"),
        ),
        (
            Output("in_score", in_score, "d(loss) / d chi_hl"),
            Output("in_bias", in_bias, "token l's part of d(loss) / d b_h"),
        ),
        "`derive.task` section 3, c_hl",
    )


def weight_kernel(attention: Attention, order: int) -> Kernel:
    """Return the score weight with its derivatives; a normalized one as its logarithm.

    The first two derivatives in the score come with the one in the bias.
    """
    *along, in_bias = attention.derivatives(order)
    relative = "relative " if attention.normalized else ""
    outputs = [
        Output("value", attention.log_weight, "log w")
        if attention.normalized
        else Output("value", attention.weight, "w")
    ]
    outputs += [
        Output(f"d{k}", x, f"{relative}derivative {k} of w in chi") for k, x in enumerate(along, 1)
    ]
    if order == 2:
        outputs.append(Output("d_b", in_bias, f"{relative}derivative of w in b"))
    return Kernel(
        f"weight_functions_{order}",
        f"Score weight and its {relative}derivatives up to order {order}.",
        (
            Argument("chi", chi, "scores"),
            Argument("b", b, "head biases, broadcast against the scores"),
        ),
        tuple(outputs),
        attention.reference or "`derive.task` section 2",
    )
