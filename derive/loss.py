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
(`RELEVANT_WINS`, for A), or any token wins (`ANY_WINS`, for B).
"""

from sympy import Expr, Function, Symbol, diff, exp, expand, factor, horner, powsimp, simplify
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


def stable_powers(expression: Expr) -> Expr:
    """Write powers of ``1 - g0`` by log1p: L may be 10^6 and g0 as small as 1/L."""
    return expression.replace(
        lambda e: e.is_Pow and e.base == 1 - g0, lambda e: exp(e.exp * log1p(-g0))
    )


def score_kernel(order: int) -> Kernel:
    """Return ``g = 1 - exp(-tau)`` and its first `order` derivatives in s = log tau as a kernel.

    They are all that a race needs: ``WINS = g'``, ``WINS_SQUARED = g' - g''``, and derivatives in a
    score follow by the chain rule through the log weight.
    """
    outputs = [Output("g", -expm1(-tau), "1 - exp(-tau): probability to have won by u")]
    expression: Expr = 1 - SURVIVES
    for k in range(1, order + 1):
        expression = expand(tau * diff(expression, tau))
        polynomial = horner(expand(expression / (tau * SURVIVES)), tau)
        outputs.append(
            Output(f"d{k}g", polynomial * tau * SURVIVES, f"derivative {k} of g in log tau")
        )
    return Kernel(
        f"score_functions_{order}",
        f"Race functions of a log weight, and derivatives up to order {order}.",
        (Argument("tau", tau, "token weight times race time, exp(log w - u)"),),
        tuple(outputs),
        REFERENCE,
        "0 <= tau <= 1000; above, every derivative underflows to zero and g to one",
    )


def _race_kernel(name: str, summary: str, integrand: Expr, variables: tuple[Symbol, ...]) -> Kernel:
    meaning = {
        f0: "win density of an irrelevant token",
        f1: "win density of the relevant token",
        g0: "probability that an irrelevant token has won",
        g1: "probability that the relevant token has won",
    }
    inputs = [Argument(str(x).replace("_", ""), x, meaning[x]) for x in variables]
    inputs.append(Argument("L", L, "number of tokens"))
    outputs = [Output("value", stable_powers(integrand), "integrand")]
    outputs += [
        Output(
            f"d_{str(x).replace('_', '')}",
            stable_powers(powsimp(diff(integrand, x))),
            f"derivative in {x}",
        )
        for x in variables
    ]
    return Kernel(name, summary, tuple(inputs), tuple(outputs), REFERENCE, "0 <= g0 < 1, L >= 1")


def race_module() -> Module:
    """Return the kernels that every activation shares."""
    return Module(
        "race",
        "Race integrands of the population loss, shared by all activations.",
        (
            score_kernel(3),
            score_kernel(4),
            _race_kernel(
                "relevant_wins",
                "Integrand of A: the relevant token wins the race.",
                RELEVANT_WINS,
                (f1, g0),
            ),
            _race_kernel(
                "any_wins",
                "Integrand of B: one token wins both races.",
                ANY_WINS,
                (f0, f1, g0, g1),
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
    and ``rest`` collect all other tokens (and heads, when pooled). The result is written with the
    share ``p = w/Z`` and the share-weighted mean slope ``gbar = N/Z``.
    """
    rest, others, total = (Symbol(name, positive=True) for name in ("rest", "others", "Z"))
    weight = exp(Function("ell")(chi, b))
    quotient = (others + slope * weight) / (rest + weight)
    results = []
    for variable in (chi, b):
        change = diff(quotient, variable)
        change = change.subs(rest, total - weight).subs(others, mean_slope * total - slope * weight)
        change = simplify(change).subs(
            Function("ell")(chi, b).diff(variable), attention.derivative(variable)
        )
        change = change.subs(weight, share * total)
        results.append(factor(simplify(value * change)))
    return results[0], results[1]


def score_gradient_kernel(attention: Attention) -> Kernel:
    """Return `score_gradient` as a kernel."""
    in_score, in_bias = score_gradient(attention)
    pooled = attention.normalization == "pooled"
    return Kernel(
        "score_gradient",
        "One sample's loss derivatives in each score, and in each bias before the sum over tokens.",
        (
            Argument("chi", chi, "scores"),
            Argument("b", b, "head biases, broadcast against the scores"),
            Argument("p_hl", share, "attention share w / Z"),
            Argument("g_l", slope, "d(loss) / d a_l"),
            Argument("gbar_h", mean_slope, "sum of p g over what Z sums"),
            Argument("v_h", value, "head values" + (" (1: pooled)" if pooled else "")),
        ),
        (
            Output("in_score", in_score, "d(loss) / d chi_hl"),
            Output("in_bias", in_bias, "token l's part of d(loss) / d b_h"),
        ),
        "`derive.task` section 3, c_hl",
    )


def log_weight_kernel(attention: Attention) -> Kernel:
    """Return the log weight and the derivatives that the chain rule needs."""
    return Kernel(
        "log_weight",
        "Log score weight and its derivatives.",
        (
            Argument("chi", chi, "scores"),
            Argument("b", b, "head biases, broadcast against the scores"),
        ),
        (
            Output("value", attention.log_weight, "log w"),
            Output("d_chi", attention.derivative(chi), "derivative in chi"),
            Output("d_chi_chi", attention.derivative(chi, chi), "second derivative in chi"),
            Output("d_b", attention.derivative(b), "derivative in b"),
        ),
        attention.reference,
    )
