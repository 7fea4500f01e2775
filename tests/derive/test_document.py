"""The readable derivation: its formulas, parsed back, are the model's; its text is reproducible."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import sympy as sp
from sympy import Expr, Rational

import derive
from derive.attention import ACTIVATIONS, Attention
from derive.document import document
from derive.expansion import INVARIANTS
from derive.symbols import H, L, chi, mu_f, nu_f, xi

ROOT = Path(derive.__file__).resolve().parent.parent
NAMES = list(ACTIVATIONS)
LOCALS = {"H": H, "L": L, "nu_f": nu_f, "mu_f": mu_f, "xi": xi}


@cache
def text(name: str) -> str:
    return document(ACTIVATIONS[name], "text")


@cache
def latex(name: str) -> str:
    return document(ACTIVATIONS[name], "latex")


def formulas(source: str) -> dict[str, str]:
    """Return the indented ``left = right`` lines of a plain text."""
    lines = re.findall(r"^    (.*?) = (.*)$", source, re.MULTILINE)
    return dict(lines)


def parsed(name: str, left: str) -> Expr:
    return sp.sympify(formulas(text(name))[left], locals=LOCALS)


FACTOR = (1 / L) * (1 - 1 / L)
COEFFICIENTS = {
    "softmax": {
        "mbar_mu": -2,
        "avg_mMm": -(1 - 2 / L),
        "mbar_M_mbar": 1 / L,
        "mbar_mbar": 1,
        "rbar": 1,
    },
    "b-softmax": {
        "mbar_mu": -2,
        "avg_mMm": -1,
        "mbar_M_mbar": 3 / L,
        "mbar_mbar": 1,
        "rbar": 1,
    },
}
DIFFERENCE = {"softmax": 1 - 2 / L, "b-softmax": sp.Integer(1)}


@pytest.mark.parametrize("name", NAMES)
def test_text_states_the_expansion_of_the_model(name: str) -> None:
    stated = {k: v for k, v in formulas(text(name)).items() if k.startswith("coefficient of ")}
    assert set(stated) == {f"coefficient of {x}" for x in COEFFICIENTS[name]}
    assert sp.simplify(parsed(name, "E at 0") - (1 - 1 / L)) == 0
    for invariant, factor in COEFFICIENTS[name].items():
        assert sp.simplify(parsed(name, f"coefficient of {invariant}") - FACTOR * factor) == 0


@pytest.mark.parametrize("name", NAMES)
def test_text_states_growth_rates_and_eigenvalues(name: str) -> None:
    apart = parsed(name, "growth rate, heads apart, along feature f")
    assert sp.simplify(apart - 2 / H * FACTOR * DIFFERENCE[name] * nu_f) == 0
    for sector in ("all heads alike, along feature f", "heads apart, along feature f"):
        rate, value = (parsed(name, f"{kind}, {sector}") for kind in ("growth rate", "eigenvalue"))
        assert sp.simplify(rate + value) == 0
    residual = parsed(name, "eigenvalue, all heads alike, a residual direction")
    assert sp.simplify(residual - 2 / H * FACTOR) == 0
    assert parsed(name, "eigenvalue, heads apart, a residual direction") == 0


@pytest.mark.parametrize("name", NAMES)
def test_text_states_the_bayes_weight(name: str) -> None:
    # theta ~ N(1/2, 2), xi = 3: complete the square in the exponent by hand.
    value = parsed(name, "log w(xi)").subs({mu_f: Rational(1, 2), nu_f: 2, xi: 3})
    by_hand = (3 + Rational(1, 4)) ** 2 / (2 * Rational(3, 2)) - Rational(1, 16) - sp.log(3) / 2
    assert sp.simplify(value - by_hand) == 0


def test_text_states_definitions_and_flow() -> None:
    softmax, pooled = text("softmax"), text("b-softmax")
    assert softmax.startswith("# softmax attention\n")
    assert pooled.startswith("# b-softmax attention\n")
    assert formulas(softmax)["log w(chi, b)"] == "chi"
    assert formulas(pooled)["log w(chi, b)"] == "b + chi"
    for source in (softmax, pooled):
        assert "E = 1 - 2 A + B" in source
        assert "dm/dtau = -dE/dm,  dr/dtau = -2 (G r + r G) + kappa V" in source
        assert formulas(source)["d(loss)/d chi_hl"] == "p_hl*v_h*(gamma_l - gbar)"
        assert formulas(source)["dA/du"] == "f_1*(1 - g_0)**(L - 1)"
    assert "db/dtau" in pooled
    assert "db/dtau" not in softmax
    assert "a_l = (1/H) sum_h w_hl / sum_l' w_hl'" in softmax
    assert "a_l = sum_h w_hl / sum_h'l' w_h'l'" in pooled
    assert "softmax(b)" in pooled
    assert "softmax(b)" not in softmax


def test_latex_states_the_same() -> None:
    assert r"\left[E\right]_{\bar m\cdot\mu} = - \frac{2 \left(L - 1\right)}{L^{2}}" in latex(
        "softmax"
    )
    assert (
        r"\text{growth rate}\left[\text{heads apart, along feature f}\right] = "
        r"\frac{2 \nu_f \left(L - 2\right) \left(L - 1\right)}{H L^{3}}"
    ) in latex("softmax")
    assert r"\left[E\right]_{\bar m^{\mathsf T} M\bar m} = \frac{3 \left(L - 1\right)}{L^{3}}" in (
        latex("b-softmax")
    )
    assert r"\dot b = -\partial_b E" in latex("b-softmax")
    assert r"\dot b" not in latex("softmax")
    for name in NAMES:
        assert r"E = 1 - 2A + B" in latex(name)
        assert r"= p_{h\ell} v_h \left(\gamma_\ell - \bar\gamma\right)$$" in latex(name)


@pytest.mark.parametrize("name", NAMES)
def test_latex_is_balanced_and_has_a_formula_for_each_of_the_text(name: str) -> None:
    math = re.findall(r"^\$\$(.*)\$\$$", latex(name), re.MULTILINE)
    assert latex(name).count("$") == 4 * len(math)
    for formula in math:
        assert formula.count("{") == formula.count("}")
        assert formula.count(r"\left") == formula.count(r"\right")
    assert len(math) == len(re.findall(r"^    ", text(name), re.MULTILINE))
    headings = [
        re.findall(r"^#+ .*$", source, re.MULTILINE) for source in (latex(name), text(name))
    ]
    assert headings[0] == headings[1]
    assert len(headings[0]) == len(set(headings[0])) == 7


@pytest.mark.parametrize("name", NAMES)
def test_no_unresolved_names(name: str) -> None:
    unresolved = re.compile(r"log1p|expm1|Subs|Derivative|ell\(|<class|Function|None|zoo|nan\b")
    assert not unresolved.search(latex(name) + text(name))
    math = " ".join(re.findall(r"\$\$(.*)\$\$", latex(name)))
    words = re.sub(r"\\(text|mathrm|operatorname)\{[^}]*\}|\\[a-zA-Z]+", " ", math)
    # What is left are one-letter symbols, differentials and the products of G and r.
    left = set(re.findall(r"[a-zA-Z]{2,}", words))
    assert left <= {"du", "dv", "dA", "dB", "hh", "Gr", "rG"}
    assert not any(str(x) in math for x in INVARIANTS if str(x) != "rbar")


def test_user_defined_activations_have_a_document() -> None:
    attention = Attention("bent", chi + chi**2 / 3, "per-head", reference="a notebook")
    source = document(attention, "text")
    assert "# bent attention" in source
    assert "Reference: a notebook." in source
    assert "log w(chi, b) = chi**2/3 + chi" in source


def test_unknown_forms_are_refused() -> None:
    with pytest.raises(ValueError, match="html"):
        document(ACTIVATIONS["softmax"], "html")


PROGRAM = """
import sys
from derive.attention import activation
from derive.document import document
for form in sys.argv[2:]:
    print(document(activation(sys.argv[1]), form))
"""


def _documents(name: str, forms: tuple[str, ...], seeds: range) -> list[str]:
    """Documents printed by fresh processes, two at a time."""
    answers = []
    for first in seeds[::2]:
        runs = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", PROGRAM, name, *forms],
                env=os.environ
                | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
                stdout=subprocess.PIPE,
                encoding="utf-8",
            )
            for seed in seeds
            if first <= seed < first + 2
        ]
        answers += [run.communicate()[0] for run in runs]
        assert [run.returncode for run in runs] == [0] * len(runs)
    return answers


def test_documents_do_not_depend_on_the_hash_seed() -> None:
    answers = _documents("b-softmax", ("latex",), range(2))
    assert answers == [f"{latex('b-softmax')}\n"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_hash_seeds_print_the_same_documents(name: str) -> None:
    answers = _documents(name, ("latex", "text"), range(1, 11))
    assert answers == [f"{latex(name)}\n{text(name)}\n"] * 10
