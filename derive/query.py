"""Signal-subspace recovery by one query: population objective by symmetry, and its derivatives.

Of n tokens in R^d, n_I are informative, ``x_i = s_i theta u + z_i`` with a unit vector u and fair signs
s_i (one for each token, or one that all share), and n_0 are not, ``x_i = z_i``; ``z_i ~ N(0, sigma^2
I_d)``. The query q on the unit sphere has ``alpha = q.u``; scores are ``beta Y_i``, ``Y_i = q.x_i``,
weights a_i their softmax, and ``J = (1/2) E |sum_i a_i x_i|^2``.

Along q a token has ``Y_i ~ N(s_i theta alpha, sigma^2)``. Orthogonal to q it is independent of the
weights: its mean ``s_i theta sqrt(1 - alpha^2)`` lies along one direction, its noise in d - 1. So

    2 J = E (sum a_i Y_i)^2 + theta^2 (1 - alpha^2) E (sum_I a_i s_i)^2 + (d - 1) sigma^2 E sum a_i^2 .

With ``1/Z^2 = int t exp(-t Z) dt``, ``t = exp(-u)``, tokens are independent under the integral, as in
`derive.loss`: with ``tau = t exp(beta Y)`` each term is an integral over u of a product of one-token
means of

    g = 1 - exp(-tau),   tau exp(-tau),   tau^2 exp(-tau),   Y tau exp(-tau),   Y^2 tau^2 exp(-tau) ,

whatever the number of tokens. alpha enters by the mean of an informative token's Y: a derivative in alpha
is one in Y under the mean. Source: arXiv 2606.22406.
"""

from functools import cache

from sympy import Expr, Function, Symbol, diff, exp, factor
from sympy.codegen.cfunctions import expm1, log1p

from derive.spec import Argument, Kernel, Output
from derive.symbols import tau

REFERENCE = "arXiv 2606.22406, and `derive.query`"

y = Symbol("y", real=True)
beta = Symbol("beta", nonnegative=True)
alpha = Symbol("alpha", real=True)
theta = Symbol("theta", nonnegative=True)
sigma = Symbol("sigma", nonnegative=True)
n_0, n_I, d = (Symbol(name, nonnegative=True, integer=True) for name in ("n_0", "n_I", "d"))

NAMES = ("g", "w", "ww", "yw", "yyww")
MEANINGS = (
    "1 - exp(-tau)",
    "tau exp(-tau)",
    "tau^2 exp(-tau)",
    "Y tau exp(-tau)",
    "Y^2 tau^2 exp(-tau)",
)


def token_functions(t: Expr) -> tuple[Expr, ...]:
    """The one-token functions, as functions of Y where ``t = tau(Y)``."""
    e = exp(-t)
    return 1 - e, t * e, t**2 * e, y * t * e, y**2 * t**2 * e


@cache
def token_kernel() -> Kernel:
    """Return the one-token functions and their first two derivatives in Y."""
    T = Function("tau")(y)
    outputs = []
    for name, meaning, function in zip(NAMES, MEANINGS, token_functions(T), strict=True):
        expression = function
        for k in range(3):
            if k:
                expression = diff(expression, y).subs(diff(T, y), beta * T)
            plain = expression.subs(T, tau)
            value = -expm1(-tau) if name == "g" and not k else factor(plain)
            doc = meaning if not k else f"derivative {k} in Y of {meaning}"
            outputs.append(Output(f"{name}{k or ''}", value, doc))
    return Kernel(
        "token_functions",
        "What one token enters the objective by, and derivatives in its coordinate along the query.",
        (
            Argument("tau", tau, "race time times weight, exp(beta Y - u)"),
            Argument("y", y, "coordinate Y along the query"),
            Argument("beta", beta, "inverse temperature"),
        ),
        tuple(outputs),
        REFERENCE,
        "0 <= tau <= 1000; above, all but g underflow to zero",
    )


# What the objective needs: means over an uninformative token, and over an informative one and its sign.
NEEDED = ("g", "ww", "yw", "yyww")
SIGNED = (*NEEDED, "sw")
NULL = tuple(Symbol(f"{name}_0", real=True) for name in NEEDED)


@cache
def objective_kernel() -> Kernel:
    """Return the integrand of J over u, and its first two derivatives in alpha."""
    informative = {name: Function(name)(alpha) for name in SIGNED}
    symbols = {name: [Symbol(f"{name}_I{k or ''}", real=True) for k in range(3)] for name in SIGNED}
    g0, ww0, yw0, yyww0 = NULL
    g, ww, yw, yyww, sw = (informative[name] for name in SIGNED)
    survive = exp(n_0 * log1p(-g0) + n_I * log1p(-g))
    first, one = 1 - g0, 1 - g
    along = (
        n_0 * (n_0 - 1) * (yw0 / first) ** 2
        + n_0 * yyww0 / first
        + 2 * n_0 * n_I * yw0 / first * yw / one
        + n_I * (n_I - 1) * (yw / one) ** 2
        + n_I * yyww / one
    )
    means = theta**2 * (1 - alpha**2) * (n_I * (n_I - 1) * (sw / one) ** 2 + n_I * ww / one)
    noise = (d - 1) * sigma**2 * (n_0 * ww0 / first + n_I * ww / one)
    integrand = survive * (along + means + noise) / 2
    outputs = []
    for k, doc in enumerate(("J", "dJ/dalpha", "d^2J/dalpha^2")):
        expression = diff(integrand, alpha, k) if k else integrand
        pairs = [
            (diff(informative[name], alpha, j) if j else informative[name], symbols[name][j])
            for name in SIGNED
            for j in range(k, -1, -1)
        ]
        outputs.append(Output(f"j{k or ''}", expression.subs(pairs), f"integrand of {doc}"))
    arguments = [
        Argument("n_0", n_0, "number of uninformative tokens"),
        Argument("n_I", n_I, "number of informative tokens"),
        Argument("d", d, "dimension"),
        Argument("sigma", sigma, "noise of a coordinate"),
        Argument("theta", theta, "signal"),
        Argument("alpha", alpha, "alignment q.u"),
    ]
    means_of = dict(zip(NAMES, MEANINGS, strict=True)) | {"sw": "s tau exp(-tau)"}
    arguments += [
        Argument(str(x), x, f"mean of {means_of[name]}, uninformative token")
        for x, name in zip(NULL, NEEDED, strict=True)
    ]
    for name in SIGNED:
        for k, x in enumerate(symbols[name]):
            which = f"informative token; derivative {k} in alpha" if k else "informative token"
            arguments.append(Argument(str(x), x, f"mean of {means_of[name]}, {which}"))
    return Kernel(
        "objective",
        "Integrands over the race time u of J and its first two derivatives in alpha.",
        tuple(arguments),
        tuple(outputs),
        REFERENCE,
        "g < 1",
    )
