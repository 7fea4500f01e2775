"""The noise matrix in race form, where all weights share one denominator.

With ``a_l = v p_l``, p_l the share of token l's weight in ``Z`` (all weights and the background), and
``s_hl`` the derivative of that weight's logarithm in ``chi_hl``, the chain rule of `derive.loss` gives

    c_hl = 2 v p_l s_hl (v p_l - 1{l = eps} - v Q + p_eps),        Q = sum_k p_k^2,

and ``V_hh' = E sum_l c_hl c_h'l`` (`derive.task` section 3) is a sum of terms ``p_l^i p_eps^j Q^k``. Of
degree n in the shares, one is a race integral as in `derive.loss`, with

    1/Z^n = int_0^inf t^(n - 1)/(n - 1)! exp(-t Z) dt,

in which powers of the independent ``tau = t w`` replace those of the shares. Sums over tokens that may
or may not be the same are derivatives of a generating function, a product over tokens of ``E exp(-tau +
y tau^2)``, and for the relevant one of ``E exp(-tau + y tau^2 + z tau)``: ``d/dy`` makes a Q, ``d/dz`` a
p_eps. That leaves token moments:

    T0_j, T1_j    E tau^j exp(-tau) of any other and of the relevant token
    U0_j, U1_j    E s_h s_h' tau^j exp(-tau), the same with the slopes of the token that is noisy
"""

from math import factorial

from sympy import Expr, Poly, Symbol, collect, diff, expand, factor, symbols

from derive.loss import g0, stable_powers
from derive.spec import Argument, Kernel, Module, Output
from derive.symbols import L, v

y, z = symbols("y z", real=True)
share, is_relevant, relevant_share, share_squares = symbols("p_l i_l p_eps Q", real=True)
SHARES = (share, is_relevant, relevant_share, share_squares)
SQUARE = (v * share - is_relevant - v * share_squares + relevant_share) ** 2


def moment(kind: str, power: int) -> Symbol:
    """Return the symbol of a token moment, kind T0, T1, U0 or U1."""
    return Symbol(f"{kind}_{power}", real=True)


def _generating(kind: str, power: int) -> Expr:
    """Return a token's generating function times ``tau^power``, as far as it is needed."""
    terms = []
    for j in range(3):
        for k in range(3 if kind.endswith("1") else 1):
            scale = factorial(j) * factorial(k)
            terms.append(moment(kind, power + 2 * j + k) * y**j * z**k / scale)
    return sum(terms[1:], start=terms[0])


def noise_integrand() -> Expr:
    """Return dV/du without the background's factor, linear in the moments U0_j and U1_j."""
    relevant, other = _generating("T1", 0), _generating("T0", 0)
    total = 0
    for (i, marked, j, k), coefficient in Poly(SQUARE, *SHARES).terms():
        product = _generating("U1", i + 2) * other ** (L - 1)
        if not marked:
            product += (L - 1) * _generating("U0", i + 2) * relevant * other ** (L - 2)
        term = diff(diff(product, y, k), z, j).subs({y: 0, z: 0})
        total += coefficient * term / factorial(i + 2 + j + 2 * k - 1)
    return 4 * v**2 * total


def _by_survivors(expression: Expr) -> Expr:
    """Sort by how many other tokens only survive: falling factorials of L - 1 then stay factors."""
    survives = moment("T0", 0)
    parts = collect(expand(expression * survives ** (1 - L)), survives, evaluate=False)
    result = sum(factor(part) * survives ** (L - 1) * power for power, part in parts.items())
    return stable_powers(result.subs(survives, 1 - g0))


def noise_kernel() -> Kernel:
    """Return the coefficients of U0_j and U1_j in `noise_integrand` as a kernel."""
    integrand = noise_integrand()
    moments = sorted(integrand.free_symbols - {L, v, moment("T0", 0)}, key=str)
    meaning = {
        x: f"tau^{str(x)[3]} exp(-tau) of {('an irrelevant', 'the relevant')[int(str(x)[1])]} token"
        for x in moments
    }
    inputs = [Argument(str(x), x, f"E {meaning[x]}") for x in moments if str(x)[0] == "T"]
    return Kernel(
        "noise_coefficients",
        "Integrand of the noise matrix: what each moment with slopes is multiplied by.",
        (
            Argument("g0", g0, "probability that an irrelevant token has won"),
            *inputs,
            Argument("L", L, "number of tokens"),
            Argument("v", v, "head value"),
        ),
        tuple(
            Output(
                f"in_{x}", _by_survivors(diff(integrand, x)), f"coefficient of E s s' {meaning[x]}"
            )
            for x in moments
            if str(x)[0] == "U"
        ),
        "`derive.task` section 3, V of weights that share one denominator",
        "0 <= g0 < 1, L >= 1",
    )


def noise_module() -> Module:
    """Return the kernel of the noise matrix that all activations with one race share."""
    return Module("noise", "Race integrand of the noise matrix.", (noise_kernel(),))
