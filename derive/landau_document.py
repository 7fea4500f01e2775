"""What a derivation says beyond second order: the loss's expansion, patterns, and how heads part."""

from dataclasses import replace

from sympy import Expr, Function, Integer, Symbol, collect, diff, expand, factor, latex, together

from derive.attention import Attention
from derive.errors import DeriveError
from derive.expansion import factored
from derive.landau import (
    LossExpansion,
    Terms,
    expand_loss,
    indices,
    q,
    q_pair,
    q_prime,
    require_order,
    swapped,
)
from derive.pattern import difference_eigenvalue, m_f, m_g, nu, preference
from derive.stable import written_out
from derive.symbols import H, chi, nu_f
from derive.writer import Writer

# The order that a document's section on the expansion to second order has.
PRINTED = 2
# A space in LaTeX.
_THIN = r"\,"

_OVERLAPS = {
    q: ("q_hh", "q_{hh}"),
    q_prime: ("q_h'h'", "q_{h'h'}"),
    q_pair: ("q_hh'", "q_{hh'}"),
}


def write_landau(write: Writer, attention: Attention, order: int) -> None:
    """Write the sections on the loss beyond second order.

    Parameters
    ----------
    write : Writer
    attention : Attention
    order : {2, 4, 6}
        At 2 there is nothing to add.

    Raises
    ------
    DeriveError
        For another order.
    """
    require_order(order)
    if order == PRINTED:
        return
    try:
        expansion = expand_loss(attention, order)
    except DeriveError:
        write.line(
            f"To order {order} the loss has no expansion at the origin: the weight lacks derivatives "
            "there up to that order."
        )
        return
    terms = {k: expansion.terms(k) for k in range(order + 1)}
    write.section("Landau expansion")
    if not any(terms[k] for k in range(PRINTED + 1, order + 1)):
        linear = not attention.normalized and diff(attention.weight, chi, 2) == 0
        beyond = "beyond second order" if linear else f"of orders 3 to {order}"
        write.line(f"The loss has no terms {beyond}.")
        return
    _moments(write, expansion.pooled)
    _functions(write, attention, expansion)
    for k in range(PRINTED + 1, order + 1):
        _order(write, k, terms[k])
    named, coefficients = _named(expansion, terms)
    _patterns(write, attention, named, coefficients)
    _parting(write, named, coefficients)


def moment_name(moments: Expr) -> tuple[str, str]:
    """Return how a product of moments is written, in plain text and in LaTeX, within < >."""
    first = list(_OVERLAPS)
    powers = sorted(
        moments.as_powers_dict().items(),
        key=lambda x: (first.index(x[0]) if x[0] in first else len(first), str(x)),
    )
    alone = len(powers) == 1 and powers[0][1] == 1
    plain, formula = [], []
    for moment, power in powers:
        text, math = _name(moment)
        if moment.name.startswith("E") and not alone:
            text, math = f"({text})", rf"\left({math}\right)"
        plain.append(text + (f"^{power}" if power > 1 else ""))
        formula.append(math + (f"^{{{power}}}" if power > 1 else ""))
    return f"<{' '.join(plain)}>", rf"\langle {_THIN.join(formula)}\rangle"


def _name(moment: Symbol) -> tuple[str, str]:
    if moment in _OVERLAPS:
        return _OVERLAPS[moment]
    if moment.name.startswith("T"):
        both = "".join(map(str, indices(moment)))
        return f"T_{both}", f"T_{{{both}}}"
    kind = moment.name[1]
    sigmas = [
        f"sigma_{k}" + (f"^{power}" if power > 1 else "")
        for k, power in enumerate(indices(moment), 1)
        if power
    ]
    return (
        f"E_{kind} {' '.join(sigmas)}",
        rf"\mathbb E_{kind}" + _THIN + "".join("\\" + x for x in sigmas),
    )


def _unprimed(moments: Expr) -> Expr:
    """Of two names for the average over pairs of heads, the one that primes fewer of them."""

    def primes(name: Expr) -> tuple[int, int]:
        powers = name.as_powers_dict()
        second = [indices(x)[1] for x in powers if x.name.startswith("T")]
        return powers.get(q_prime, 0), sum(second)

    return min(moments, swapped(moments), key=primes)


def _moments(write: Writer, pooled: bool) -> None:
    write.line(
        "The loss beyond second order in `m` and `sqrt(r)`, for heads of equal bias and value: at each "
        "order the sum of coefficients times moments, `[E]_x` times `x`. Odd orders are there only if "
        "the prior has no symmetry `theta -> -theta`."
    )
    if pooled:
        write.line(
            "`sigma_k` averages over heads; `E_0` and `E_1` average over the scores of another token "
            "and of the relevant one at a given signal, and `<.>` over the signal."
        )
        write.raw(
            "sigma_k = sum_h chi_h^k / H",
            r"\sigma_k = \tfrac1H\sum_h\chi_h^k",
        )
        return
    write.line(
        "In `T_ij` the average `<.>` is over the signal (`i` belongs to head `h`, `j` to `h'`); around a "
        "product of moments it is over all pairs of heads `h`, `h'`, those of a head with itself "
        "included."
    )
    write.raw(
        "q_hh' = m_h.m_h' + r_hh',  T_ij = <(m_h.theta)^i (m_h'.theta)^j>",
        r"q_{hh'} = m_h\cdot m_{h'} + r_{hh'},\qquad T_{ij} = \left\langle(m_h\cdot\theta)^i\,"
        r"(m_{h'}\cdot\theta)^j\right\rangle",
    )


def _functions(write: Writer, attention: Attention, expansion: LossExpansion) -> None:
    """Say what share and derivatives are that depend on the bias."""
    new = {f"w{k}" for k in range(PRINTED + 1, expansion.order + 1)}
    known = [str(x) for x in expansion.functions if str(x) not in new]
    if known:
        verb = "are" if len(known) > 1 else "is"
        write.line(
            f"Here {', '.join(f'`{x}`' for x in known)} {verb} as in the expansion at the origin."
        )
    values = {x: value for x, value in expansion.functions.items() if str(x) in new}
    if values:
        relative = ", relative to the weight," if attention.normalized else ""
        write.line(f"The weight's further derivatives in `chi`{relative} where the score is 0:")
    for symbol, value in values.items():
        write.formula(str(symbol), latex(symbol), together(written_out(value)))


def _order(write: Writer, order: int, terms: Terms) -> None:
    if not terms:
        write.line(f"Order {order}: no terms.")
        return
    write.line(f"Order {order}:")
    written = {_unprimed(moments): x for moments, x in terms.items()}

    def place(moments: Expr) -> tuple[int, str]:
        signal = [x for x in moments.free_symbols if x.name.startswith("T")]
        return sum(sum(indices(x)) for x in signal), str(moments)

    for moments in sorted(written, key=place):
        plain, formula = moment_name(moments)
        write.formula(f"coefficient of {plain}", rf"\left[E\right]_{{{formula}}}", written[moments])
    write.check(f"order {order}")


def _named(
    expansion: LossExpansion, terms: dict[int, Terms]
) -> tuple[LossExpansion, dict[Symbol, Expr]]:
    """The same expansion with a symbol for each coefficient, and what these are.

    Energies are linear in the coefficients; sums over heads are faster without what they are.
    """
    meaning: dict[Symbol, Expr] = {}
    pair: list[Terms] = []
    for k in range(expansion.order + 1):
        names = {moments: Symbol(f"c_{k}_{i}", real=True) for i, moments in enumerate(terms[k])}
        meaning |= {names[moments]: x for moments, x in terms[k].items()}
        pair.append(names)
    none: tuple[Terms, ...] = ({},) * len(pair)
    return replace(expansion, head=none, pair=tuple(pair), total=Integer(1)), meaning


def _put_in(energy: Expr, coefficients: dict[Symbol, Expr]) -> Expr:
    """Put coefficients into an energy that is linear in their symbols, and factor it.

    With several numbers such as exp(7/10) in them the whole would take minutes to factor: parts are.
    """
    numbers = {x for y in coefficients.values() for x in y.atoms(Function) if x.is_number}
    if len(numbers) > 1:
        return collect(expand(energy), list(coefficients), factor).xreplace(coefficients)
    return factored(energy.xreplace(coefficients))


def _patterns(
    write: Writer, attention: Attention, named: LossExpansion, coefficients: dict[Symbol, Expr]
) -> None:
    write.section("Patterns of heads")
    write.line(
        "Signals are independent and symmetric, with variance `nu` and fourth moment `kappa_4` "
        "(`3 nu^2` if Gaussian) along each of two features `e_1`, `e_2`. Heads have one norm `|m_h|`, "
        "sum to zero, and have `r = 0`: all such patterns have the same energy to second order. Three "
        "of them are “one feature”, with half of the heads along each of `+-e_1`; “single”, a quarter "
        "along each of `+-e_1` and `+-e_2`; “mixed”, a quarter along each of `(+-e_1 +-e_2) / sqrt(2)`. "
        "Their energies of fourth order, in units of `|m_h|^4`, are"
    )
    found = preference(named)
    energy = {name: getattr(found, name) for name in ("one_feature", "single", "mixed")}

    def label(name: str) -> str:
        return rf"E_4\left[\text{{{name.replace('_', ' ')}}}\right]"

    for name, value in energy.items():
        write.formula(name, label(name), _put_in(value, coefficients))
    write.line("and they differ by")
    difference = {
        name: _put_in(value - energy["single"], coefficients) for name, value in energy.items()
    }
    for name in ("mixed", "one_feature"):
        left = f"{label(name)} - {label('single')}"
        write.formula(f"{name} - single", left, difference[name])
    mixed = difference["mixed"]
    if mixed == 0:
        write.line("Mixtures and single directions have the same energy at this order.")
        return
    if not mixed.has(H):
        heads = "It does not depend on `H` at fixed `|m_h|`"
    elif attention.normalization == "pooled":
        heads = (
            "It depends on `H` at fixed `|m_h|` only through all heads' share of the denominator"
        )
    else:
        total = "`H v`" if "v" in attention.trained else "`H`"
        heads = (
            f"It depends on `H` at fixed `|m_h|` only through the sum of all head values, {total}"
        )
    write.line(
        "Mixtures are preferred to single directions where the difference “mixed” - “single” is "
        "negative. It is proportional to `kappa_4 - 3 nu^2`, so that a Gaussian prior of equal variances "
        "does not decide between them at this order (nor at any: rotations of its features leave the "
        "loss as it is). "
        f"{heads}; at fixed norm `N = sum_h |m_h|^2` the loss differs by it times `N^2 / H^2`."
    )


def _parting(write: Writer, named: LossExpansion, coefficients: dict[Symbol, Expr]) -> None:
    write.section("Heads part at small finite alignment")
    write.line(
        "All heads have one small `m = (m_f, m_g, ...)` and `r = 0`; signals are independent and "
        "symmetric, with variances `nu_f`, `nu_g` and fourth moment `kappa_4` along feature `f`. The "
        "Hessian's eigenvalue for displacements along `f` that sum to zero over heads is, to second "
        "order in `m` (arXiv 2603.03993, Lemma A.11, for softmax), with a term of every other feature "
        "`g`:"
    )
    write.raw(
        "eigenvalue = lambda_0 + lambda_f m_f^2 + sum_g lambda_g m_g^2",
        r"\lambda = \lambda_0 + \lambda_f m_f^2 + \sum_{g\ne f}\lambda_g m_g^2",
    )
    eigenvalue = difference_eigenvalue(named)
    parts = {
        "0": eigenvalue.subs({m_f: 0, m_g: 0}),
        "f": eigenvalue.coeff(m_f, 2),
        "g": eigenvalue.coeff(m_g, 2),
    }
    for name, part in parts.items():
        write.formula(
            f"lambda_{name}",
            rf"\lambda_{name}",
            _put_in(part, coefficients).xreplace({nu: nu_f}),
        )
