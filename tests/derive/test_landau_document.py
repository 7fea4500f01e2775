"""The printed expansion beyond second order: parsed back, it is that of `derive.landau`."""

import re
from dataclasses import replace
from functools import cache
from math import prod

import pytest
import sympy as sp
from sympy import Expr, Rational, Symbol, exp

from derive import landau
from derive.attention import ACTIVATIONS, Attention
from derive.document import document
from derive.landau import LossExpansion, Terms, expand_loss, score_moment, signal_moment
from derive.landau_document import moment_name, write_landau
from derive.pattern import (
    difference_eigenvalue,
    kappa,
    m_f,
    m_g,
    nu,
    nu_other,
    preference,
)
from derive.stable import written_out
from derive.symbols import H, L, b, chi, nu_f, v
from derive.user import user_attention
from derive.writer import Writer

NAMES = list(ACTIVATIONS)
CURVED = [name for name in NAMES if name != "linear"]
SIXTH = [
    pytest.param(name, 6, marks=[pytest.mark.slow] if name == "softplus" else []) for name in CURVED
]
ORDERS = [*((name, 4) for name in CURVED), *SIXTH]
SYMBOLS = (H, L, b, v, nu, nu_f, nu_other, kappa, landau.share)
LOCALS = {x.name: x for x in (*SYMBOLS, *(landau.derivative(k) for k in range(1, 7)))}
SECTIONS = ("Landau expansion", "Patterns of heads", "Heads part at small finite alignment")


@cache
def text(name: str, order: int = 4) -> str:
    return document(ACTIVATIONS[name], "text", order)


@cache
def latex(name: str, order: int = 4) -> str:
    return document(ACTIVATIONS[name], "latex", order)


@cache
def expansion(name: str, order: int = 4) -> LossExpansion:
    return expand_loss(ACTIVATIONS[name], order)


def section(source: str, title: str) -> str:
    return source.split(f"\n## {title}\n")[1].split("\n## ")[0]


def formulas(source: str) -> dict[str, str]:
    return dict(re.findall(r"^    (.*?) = (.*)$", source, re.MULTILINE))


def parsed(right: str) -> Expr:
    return sp.sympify(right, locals=LOCALS)


def equal(one: Expr, other: Expr) -> bool:
    return sp.expand(sp.together(one - other).as_numer_denom()[0]) == 0


def read_moments(name: str) -> Expr:
    """What ``<q_hh' T_20>`` or ``<(E_0 sigma_1^2)^2>`` says, in the symbols of `derive.landau`."""
    inside = re.fullmatch(r"<(.*)>", name)[1]  # type: ignore[index]
    if "sigma" not in inside:
        overlaps = {"q_hh": landau.q, "q_h'h'": landau.q_prime, "q_hh'": landau.q_pair}
        found = []
        for one in inside.split():
            base, _, power = one.partition("^")
            symbol = overlaps.get(base) or signal_moment(*map(int, base.removeprefix("T_")))
            found.append(symbol ** int(power or 1))
        return prod(found)
    groups = [(inside, "")]
    if inside.startswith("("):
        groups = re.findall(r"\(([^)]*)\)(?:\^(\d))?", inside)
        assert inside == " ".join(f"({x})" + (f"^{n}" if n else "") for x, n in groups)
    found = []
    for one, power in groups:
        kind, *sigmas = one.split()
        powers = {int(k): int(n or 1) for k, n in re.findall(r"sigma_(\d)(?:\^(\d))?", one)}
        assert len(powers) == len(sigmas)
        found.append((int(kind.removeprefix("E_")), powers, int(power or 1)))
    return prod(
        Symbol(f"E{kind}_" + ",".join(f"{k}:{n}" for k, n in sorted(powers.items()))) ** power
        for kind, powers, power in found
    )


def canonical(moments: Expr) -> Expr:
    """One name for what is equal when heads are swapped; trailing zeros do not count."""
    swap = {landau.q: landau.q_prime, landau.q_prime: landau.q}
    for x in moments.free_symbols:
        if x.name.startswith("T"):
            swap[x] = signal_moment(*reversed(landau.indices(x)))
        if x.name.startswith("E") and ":" not in x.name:
            powers = enumerate(landau.indices(x), 1)
            swap[x] = Symbol(f"{x.name[:2]}_" + ",".join(f"{k}:{n}" for k, n in powers if n))
    other = moments.xreplace(swap)
    if any(x.name.startswith("E") for x in moments.free_symbols):
        return other
    return min(moments, other, key=str)


def stated_terms(name: str, order: int) -> dict[int, Terms]:
    """Coefficients in the text, by order."""
    source = section(text(name, order), SECTIONS[0])
    found = {}
    for part in re.split(r"^Order ", source, flags=re.MULTILINE)[1:]:
        prefix = "coefficient of "
        stated = formulas(part)
        assert all(left.startswith(prefix) for left in stated)
        terms = {
            canonical(read_moments(k.removeprefix(prefix))): parsed(x) for k, x in stated.items()
        }
        assert len(terms) == len(stated)
        found[int(part[0])] = terms
    return found


@pytest.mark.parametrize(("name", "order"), ORDERS)
def test_text_states_all_coefficients(name: str, order: int) -> None:
    stated = stated_terms(name, order)
    assert list(stated) == list(range(3, order + 1))
    for k, terms in stated.items():
        expected = {canonical(x): y for x, y in expansion(name, order).terms(k).items()}
        assert set(terms) == set(expected)
        assert all(equal(terms[x], y) for x, y in expected.items())


@pytest.mark.parametrize(("name", "order"), ORDERS)
def test_latex_states_all_coefficients(name: str, order: int) -> None:
    source = section(latex(name, order), SECTIONS[0])
    found = re.findall(
        r"^\$\$\\left\[E\\right\]_\{\\langle (.*?)\\rangle\} = ", source, re.MULTILINE
    )
    assert len(found) == len(set(found)) == sum(map(len, stated_terms(name, order).values()))

    def plain(formula: str) -> str:
        formula = formula.replace(r"\,", " ").replace(r"\mathbb ", "").replace("{", "")
        formula = formula.replace(r"\left(", "(").replace(r"\right)", ")").replace("}", "")
        return f"<{' '.join(formula.replace(chr(92), ' ').split())}>"

    expected = re.findall(r"coefficient of (<.*>) = ", section(text(name, order), SECTIONS[0]))
    assert [plain(x) for x in found] == expected


def test_moments_are_written_as_in_the_field() -> None:
    q, c, other = landau.q, landau.q_pair, landau.q_prime
    assert moment_name(c * q) == ("<q_hh q_hh'>", r"\langle q_{hh}\,q_{hh'}\rangle")
    assert moment_name(other**2) == ("<q_h'h'^2>", r"\langle q_{h'h'}^{2}\rangle")
    assert moment_name(signal_moment(2, 2)) == ("<T_22>", r"\langle T_{22}\rangle")
    one, square = score_moment(1, (2, 1, 0, 0)), score_moment(0, (2, 0, 0, 0)) ** 2
    assert moment_name(one) == (
        "<E_1 sigma_1^2 sigma_2>",
        r"\langle \mathbb E_1\,\sigma_1^2\sigma_2\rangle",
    )
    assert moment_name(square) == (
        "<(E_0 sigma_1^2)^2>",
        r"\langle \left(\mathbb E_0\,\sigma_1^2\right)^{2}\rangle",
    )
    assert "<q_hh T_20>" in text("softmax")
    assert "<E_1 sigma_1^2 sigma_2>" in text("b-softmax")
    assert not re.search(r"T_\d_|E\d_|q'", text("softmax") + text("b-softmax"))


@pytest.mark.parametrize("name", CURVED)
def test_text_states_what_its_symbols_are(name: str) -> None:
    known = expansion(name, 4).functions
    stated = formulas(text(name))
    for symbol, value in known.items():
        difference = parsed(stated[symbol.name]) - written_out(value)
        assert abs(difference.subs({b: Rational(1, 3), L: 5}).evalf()) < 1e-12
    names = {"a", "w1", "w2", "w3", "w4", "w5"} & set(stated)
    assert names == {x.name for x in known}
    here = section(text(name), SECTIONS[0])
    assert ("as in the expansion at the origin" in here) == bool(known)
    pooled = name == "b-softmax"
    assert ("sigma_k = sum_h chi_h^k / H" in here) == pooled
    assert ("T_ij = <(m_h.theta)^i (m_h'.theta)^j>" in here) != pooled


@pytest.mark.parametrize("name", CURVED)
def test_text_states_the_patterns(name: str) -> None:
    source = section(text(name), SECTIONS[1])
    stated = {left: parsed(x) for left, x in formulas(source).items()}
    expected = preference(expansion(name))
    energies = {x: getattr(expected, x) for x in ("one_feature", "single", "mixed")}
    energies |= {
        f"{x} - single": energies[x] - energies["single"] for x in ("mixed", "one_feature")
    }
    assert set(stated) == set(energies)
    assert all(equal(stated[x], energies[x]) for x in energies)
    assert "*(kappa_4 - 3*nu**2)" in formulas(source)["mixed - single"]
    independent = not stated["mixed - single"].has(H)
    assert ("It does not depend on H at fixed |m_h|" in source) == independent
    # With the sum of values at hand the number of heads is of no account.
    total = Symbol("V")
    assert not sp.expand(stated["mixed - single"].subs(v, total / H)).has(H)
    assert ("only through the sum of all head values, H v" in source) == (not independent)


def test_softmax_prefers_mixtures_of_flat_features_where_tokens_are_many() -> None:
    difference = parsed(formulas(section(text("softmax"), SECTIONS[1]))["mixed - single"])
    by_hand = (L - 2) * (L - 1) * (L**2 - 12 * L + 12) * (kappa - 3 * nu**2) / (24 * L**5)
    assert equal(difference, by_hand)
    shown = (
        r"E_4\left[\text{mixed}\right] - E_4\left[\text{single}\right] = \frac{\left(L - 2\right)"
    )
    assert shown in latex("softmax")


@pytest.mark.parametrize("name", CURVED)
def test_text_states_how_heads_part(name: str) -> None:
    stated = formulas(section(text(name), SECTIONS[2]))
    assert stated.pop("eigenvalue") == "lambda_0 + lambda_f m_f^2 + sum_g lambda_g m_g^2"
    zero, own, other = (parsed(stated.pop(f"lambda_{x}")) for x in "0fg")
    assert not stated
    expected = difference_eigenvalue(expansion(name)).subs(nu, nu_f)
    assert equal(zero + own * m_f**2 + other * m_g**2, expected)
    if name in ("softmax", "b-softmax", "softplus"):
        at_origin = formulas(text(name))["eigenvalue, heads apart, along feature f"]
        assert equal(zero, parsed(at_origin))


@pytest.mark.parametrize("name", CURVED)
def test_order_two_leaves_the_sections_out(name: str) -> None:
    source = text(name, 2)
    assert not any(f"## {title}" in source for title in SECTIONS)
    start, end = text(name).split(f"## {SECTIONS[0]}")
    assert source == start + "## Hessian at the origin" + end.split("## Hessian at the origin")[1]


def test_a_linear_weight_has_no_terms_beyond_second_order() -> None:
    for source in (text("linear"), latex("linear"), text("linear", 6)):
        assert section(source, SECTIONS[0]).strip() == "The loss has no terms beyond second order."
        assert not any(f"## {title}" in source for title in SECTIONS[1:])
    fifth = document(Attention("fifth", 1 + chi + chi**5, "none"), "text")
    assert section(fifth, SECTIONS[0]).strip() == "The loss has no terms of orders 3 to 4."


def test_orders_without_terms_and_patterns_of_one_energy_are_said() -> None:
    source = document(Attention("flat", exp(chi**3), "per-head"), "text")
    assert "\nOrder 4: no terms.\n" in source
    assert "Mixtures and single directions have the same energy at this order." in source


@pytest.mark.parametrize("form", ["text", "latex"])
def test_a_weight_without_further_derivatives(form: str) -> None:
    kink = Attention("kink", 1 + chi + sp.Abs(chi) ** 3, "none")
    source = document(kink, form)
    assert not any(f"## {title}" in source for title in SECTIONS)
    assert (
        source.count("\nTo order 4 the loss has no expansion at the origin: the weight lacks ") == 1
    )
    assert "no expansion" not in document(kink, form, 2)


@pytest.mark.slow
def test_several_numbers_in_a_weight_take_seconds() -> None:
    attention = user_attention("expit(3*chi + 0.7)", "per-head", 1)
    write, numbers = Writer("text"), {L: 5, H: 3}
    write_landau(write, attention, 4)
    exact = expand_loss(attention, 4)

    def rational(terms: Terms) -> Terms:
        values = {x: written_out(y).subs(numbers).evalf(30) for x, y in terms.items()}
        return {x: Rational(y) for x, y in values.items()}

    head, pair = (tuple(map(rational, x)) for x in (exact.head, exact.pair))
    expected = preference(replace(exact, head=head, pair=pair, total=exact.total.subs(numbers)))
    difference = parsed(formulas(write.text())["mixed - single"]).subs(numbers)
    moments = {nu: Rational(6, 5), kappa: Rational(7, 3)}
    error = difference - (expected.mixed - expected.single)
    assert abs(error.subs(moments).evalf()) < 1e-12


@pytest.mark.parametrize("order", [3, 8, 4.0, "4", None])
def test_other_orders_are_refused(order: object) -> None:
    with pytest.raises(ValueError, match=r"^order: found .*, expected one of 2, 4, 6$"):
        document(ACTIVATIONS["softmax"], "text", order)  # type: ignore[arg-type]
