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
from derive.expansion import INVARIANTS, first, second, share
from derive.symbols import H, L, b, chi, mu_f, nu_f, v, xi

ROOT = Path(derive.__file__).resolve().parent.parent
NAMES = list(ACTIVATIONS)
LOCALS = {str(x): x for x in (H, L, b, v, chi, nu_f, mu_f, xi, share, first, second)}


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
SLOPE = 1 / (2 * sp.log(2))
# Per-head weights without a background, by w'/w and w''/w at zero score; values add up to V.
PER_HEAD = {"softmax": (1, 1, 1), "softmax-v": (1, 1, H * v), "softplus": (SLOPE, SLOPE / 2, 1)}


def per_head(slope: Expr, curvature: Expr, total: Expr) -> dict[str, Expr]:
    return {
        "mbar_mu": -2 * total * slope,
        "avg_mMm": -total * (curvature - 2 * slope**2 / L),
        "mbar_M_mbar": total**2 * slope**2 / L,
        "mbar_mbar": total**2 * slope**2,
        "rbar": total**2 * slope**2,
    }


COEFFICIENTS = {name: per_head(*numbers) for name, numbers in PER_HEAD.items()} | {
    "b-softmax": {
        "mbar_mu": -2,
        "avg_mMm": -1,
        "mbar_M_mbar": 3 / L,
        "mbar_mbar": 1,
        "rbar": 1,
    },
    # Not a fluctuation about a sum of one: (1 - a_eps)^2 with a_eps = H v + v sum_h chi_h.
    "linear": {
        "mbar_mu": -2 * (1 - H * v) * H * v / FACTOR,
        "mbar_M_mbar": (H * v) ** 2 / FACTOR,
        "mbar_mbar": L * (H * v) ** 2 / FACTOR,
        "rbar": L * (H * v) ** 2 / FACTOR,
    },
}
DIFFERENCE = {
    "softmax": 1 - 2 / L,
    "softmax-v": H * v * (1 - 2 / L),
    "softplus": SLOPE / 2 - 2 * SLOPE**2 / L,
    "b-softmax": sp.Integer(1),
    "linear": sp.Integer(0),
}
AT_ZERO = {"softmax-v": (1 - H * v / L) ** 2 + (L - 1) * (H * v / L) ** 2}
AT_ZERO["linear"] = (1 - H * v) ** 2 + (L - 1) * (H * v) ** 2


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_text_states_the_expansion_of_the_model(name: str) -> None:
    stated = [k for k in formulas(text(name)) if re.match("coefficient of [^<]", k)]
    assert set(stated) == {f"coefficient of {x}" for x in COEFFICIENTS[name]}
    assert sp.simplify(parsed(name, "E at 0") - AT_ZERO.get(name, 1 - 1 / L)) == 0
    for invariant, factor in COEFFICIENTS[name].items():
        assert sp.simplify(parsed(name, f"coefficient of {invariant}") - FACTOR * factor) == 0


def test_text_states_the_expansion_in_functions_of_the_bias() -> None:
    """Of erf and softmax-1: their share, slope and curvature, and one coefficient each."""
    assert sp.simplify(parsed("erf", "a") - (1 + sp.erf(b))) == 0
    assert sp.simplify(parsed("erf", "w1") - 2 * sp.exp(-(b**2)) / sp.sqrt(sp.pi)) == 0
    assert sp.simplify(parsed("erf", "w2") + 4 * b * sp.exp(-(b**2)) / sp.sqrt(sp.pi)) == 0
    assert sp.simplify(parsed("softmax-1", "a") - 1 / (L + sp.exp(-b))) == 0
    assert not {"w1", "w2"} & set(formulas(text("softmax-1")))
    total = H * v * share
    for name, slope in (("erf", first), ("softmax-1", share * (1 - share))):
        uniform = (1 - total) ** 2 + (L - 1) * total**2
        assert sp.simplify(parsed(name, "E at 0") - uniform) == 0
        # Along the mean signal a_eps moves by its slope, and so do the others through the denominator.
        back = share**2 if name == "softmax-1" else 0
        along = -2 * (1 - total) * H * v * slope - 2 * (L - 1) * total * H * v * back
        assert sp.simplify(parsed(name, "coefficient of mbar_mu") - along) == 0


def _noise_of_samples(name: str, tokens: int, heads: int, bias: Expr, value: Expr) -> sp.Matrix:
    """``sum_l c_hl c_h'l`` where all scores are zero, by calculus in the scores of all tokens."""
    scores = sp.Matrix(heads, tokens, sp.symbols(f"x:{heads * tokens}"))
    weights = scores.applyfunc(lambda x: WEIGHTS[name].subs({chi: x, b: bias}))
    if name == "b-softmax":
        a = [sum(weights.col(k)) / sum(weights) for k in range(tokens)]
    else:
        background = 1 if name == "softmax-1" else 0
        over = [
            1 if name in ("linear", "erf") else background + sum(weights.row(h))
            for h in range(heads)
        ]
        a = [value * sum(weights[h, k] / over[h] for h in range(heads)) for k in range(tokens)]
    loss = (1 - a[0]) ** 2 + sum(x**2 for x in a[1:])
    c = scores.applyfunc(lambda x: sp.diff(loss, x).subs(dict.fromkeys(scores, 0)))
    return c * c.T


@pytest.mark.parametrize(("tokens", "heads"), [(2, 2), (3, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_text_states_the_noise_at_the_origin(name: str, tokens: int, heads: int) -> None:
    bias, value = Rational(1, 3), Rational(2, 7)
    if "v" not in TRAINED.get(name, ""):
        value = Rational(1, heads)
    found = parsed(name, "V_hh' at 0")
    known = [x for x in (share, first) if x in found.free_symbols]
    found = found.subs({x: parsed(name, str(x)) for x in known})
    found = found.subs({L: tokens, H: heads, b: bias, v: value})
    expected = _noise_of_samples(name, tokens, heads, bias, value)
    assert all(abs(sp.N(x - found, 40)) < 1e-30 for x in expected)
    assert found.is_positive


def test_softmax_feels_the_noise_of_the_model() -> None:
    model = (4 / (H * L) ** 2) * (1 - 1 / L)
    assert sp.simplify(parsed("softmax", "V_hh' at 0") - model) == 0
    assert r"V_{hh'}(0) = \frac{4 \left(L - 1\right)}{H^{2} L^{3}}" in latex("softmax")


@pytest.mark.parametrize("name", NAMES)
def test_text_states_growth_rates_and_eigenvalues(name: str) -> None:
    apart = parsed(name, "growth rate, heads apart, along feature f")
    if name in DIFFERENCE:
        assert sp.simplify(apart - 2 / H * FACTOR * DIFFERENCE[name] * nu_f) == 0
        assert parsed(name, "eigenvalue, heads apart, a residual direction") == 0
    for sector in ("all heads alike, along feature f", "heads apart, along feature f"):
        rate, value = (parsed(name, f"{kind}, {sector}") for kind in ("growth rate", "eigenvalue"))
        assert sp.simplify(rate + value) == 0
    if name in ("softmax", "b-softmax"):
        residual = parsed(name, "eigenvalue, all heads alike, a residual direction")
        assert sp.simplify(residual - 2 / H * FACTOR) == 0


@pytest.mark.parametrize("name", ["softmax-v", "softmax-1", "linear", "erf"])
def test_text_states_the_rates_where_trained_values_rest(name: str) -> None:
    a = {"softmax-v": 1 / L, "linear": 1}.get(name, share)
    resting = parsed(name, "v")
    assert sp.simplify(resting - 1 / (H * L * a)) == 0
    for sector in ("all heads alike, along feature f", "heads apart, along feature f"):
        anywhere = parsed(name, f"growth rate, {sector}")
        at_rest = parsed(name, f"growth rate, {sector}, at rest")
        assert sp.simplify(anywhere.subs(v, resting) - at_rest) == 0
    assert "at rest" not in text("softmax") + text("b-softmax") + text("softplus")


@pytest.mark.parametrize("name", NAMES)
def test_text_states_the_bayes_weight(name: str) -> None:
    # theta ~ N(1/2, 2), xi = 3: complete the square in the exponent by hand.
    value = parsed(name, "log w(xi)").subs({mu_f: Rational(1, 2), nu_f: 2, xi: 3})
    by_hand = (3 + Rational(1, 4)) ** 2 / (2 * Rational(3, 2)) - Rational(1, 16) - sp.log(3) / 2
    assert sp.simplify(value - by_hand) == 0


WEIGHTS = {
    "softmax": sp.exp(chi),
    "softmax-v": sp.exp(chi),
    "softmax-1": sp.exp(chi + b),
    "b-softmax": sp.exp(chi + b),
    "linear": 1 + chi,
    "erf": 1 + sp.erf(chi + b),
    "softplus": sp.log(1 + sp.exp(chi)),
}
ATTENTION = {
    "softmax-1": "sum_h v_h w_hl / (1 + sum_l' w_hl')",
    "b-softmax": "sum_h w_hl / sum_h'l' w_h'l'",
    "linear": "sum_h v_h w_hl",
    "erf": "sum_h v_h w_hl",
}
TRAINED = {
    "softmax-v": "v",
    "softmax-1": "bv",
    "b-softmax": "b",
    "linear": "v",
    "erf": "bv",
}


@pytest.mark.parametrize("name", NAMES)
def test_text_states_definitions_and_flow(name: str) -> None:
    source = text(name)
    stated = formulas(source)
    assert source.startswith(f"# {name} attention\n")
    assert sp.simplify(parsed(name, "w(chi, b)") - WEIGHTS[name]) == 0
    assert stated["a_l"] == ATTENTION.get(name, "sum_h v_h w_hl / sum_l' w_hl'")
    values = {"softmax": "1/H", "softmax-v": "1/H", "softplus": "1/H", "b-softmax": None}
    assert stated.get("v_h") == values.get(name, "1")
    assert "E = 1 - 2 A + B" in source
    assert "dm/dtau = -dE/dm,  dr/dtau = -2 (G r + r G) + kappa V" in source
    for x in "bv":
        assert (f"d{x}/dtau = -dE/d{x}" in source) == (x in TRAINED.get(name, ""))
    assert ("dE/dv_h" in stated) == ("v" in TRAINED.get(name, ""))
    pooled = name == "b-softmax"
    assert ("A = sum_h v_h A_h,  B = sum_hh' v_h v_h' B_hh'" in source) == (not pooled)
    ends = {"b-softmax": "w(0, b_h)", "softmax": "v_h", "softmax-1": None, "erf": None}
    weights = re.search(
        r"enter averages with weights proportional to (.*)\.$", source, re.MULTILINE
    )
    assert (weights and weights[1]) == ends.get(name, "v_h")


f_0, f_1, g_0, g_1, u = sp.symbols("f_0 f_1 g_0 g_1 u")


@pytest.mark.parametrize("name", NAMES)
def test_text_states_the_races(name: str) -> None:
    stated = formulas(text(name))
    if name in ("linear", "erf"):
        assert not any("/du" in left for left in stated)
        assert stated["A_h"] == "E_1 w_h,  B_hh' = E_1 w_h w_h' + (L - 1) E_0 w_h w_h'"
        return
    lost = sp.exp(-sp.exp(-u)) if name == "softmax-1" else 1
    wins = f_1 * (1 - g_0) ** (L - 1)
    left = "dA/du" if name == "b-softmax" else "dA_h/du"
    assert sp.simplify(parsed(name, left) - lost * wins) == 0
    if name == "b-softmax":
        return
    both = stated["d^2B_hh'/du du'"].replace("u'", "s")
    lost = sp.exp(-sp.exp(-u) - sp.exp(-sp.Symbol("s"))) if name == "softmax-1" else 1
    any_wins = wins + (L - 1) * f_0 * (1 - g_1) * (1 - g_0) ** (L - 2)
    assert sp.simplify(sp.sympify(both, locals=LOCALS) - lost * any_wins) == 0


@pytest.mark.parametrize("name", NAMES)
def test_text_states_what_a_sample_feels(name: str) -> None:
    found = parsed(name, "d(loss)/d chi_hl")
    slope, mean_slope, p = sp.symbols("gamma_l gbar p_hl")
    value = 1 if name == "b-softmax" else sp.Symbol("v_h")
    ratio = {
        "linear": 1,
        "erf": 2 * sp.exp(-((b + chi) ** 2)) / sp.sqrt(sp.pi),
        "softplus": 1 / (1 + sp.exp(-chi)) / sp.log(1 + sp.exp(chi)),
    }.get(name, 1)
    share_and_slope = slope if name in ("linear", "erf") else p * (slope - mean_slope)
    assert sp.simplify(found - value * share_and_slope * ratio) == 0


def test_text_states_the_minimum_on_a_fixed_spike() -> None:
    m, r, A, B = sp.symbols("m r A B")
    assert sp.simplify(parsed("linear", "E_min") - L * (L - 1) / (L**2 + nu_f * (L - 1))) == 0
    assert sp.simplify(parsed("linear", "m_min") - sp.sqrt(nu_f) * (L - 1) / L) == 0
    assert sp.simplify(parsed("linear", "v_min") - L / (L**2 + nu_f * (L - 1))) == 0
    excess = parsed("linear", "E - E_min")
    best = parsed("linear", "m_min")
    assert sp.simplify(excess.subs({r: 0, v: A / B, m: best})) == 0
    c, q = sp.symbols("c q")
    assert sp.simplify(parsed("linear", "E w^2") - ((1 + c) ** 2 + q)) == 0
    assert sp.simplify(parsed("erf", "E w") - 1 - sp.erf((b + c) / sp.sqrt(1 + 2 * q))) == 0
    for name in NAMES:
        assert ("## One head on a fixed spike" in text(name)) == (name in ("linear", "erf"))
        assert ("E_min" in formulas(text(name))) == (name == "linear")
        assert ("owens_t(h, a)" in text(name)) == (name == "erf")


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
    assert r"\frac{w_{h\ell}}{1 + \sum_{\ell'} w_{h\ell'}}" in latex("softmax-1")
    assert r"e^{- e^{- u}}" in latex("softmax-1")
    assert r"T\left(" in latex("erf")
    assert r"E_{\min} = \frac{L \left(L - 1\right)}{L^{2} + L \nu_f - \nu_f}" in latex("linear")
    for name in NAMES:
        for x in "bv":
            stated = rf"\dot {x} = -\partial_{x} E" in latex(name)
            assert stated == (x in TRAINED.get(name, ""))
        assert r"E = 1 - 2A + B" in latex(name)
        last = r"v_h$$" if name == "linear" else r"$$"
        assert r"\partial\chi_{h\ell}} = " in latex(name)
        assert last in latex(name)


@pytest.mark.parametrize("name", NAMES)
def test_latex_is_balanced_and_has_a_formula_for_each_of_the_text(name: str) -> None:
    math = re.findall(r"^\$\$(.*)\$\$$", latex(name), re.MULTILINE)
    inline = re.findall(r"(?<!\$)\$([^$\n]+)\$(?!\$)", latex(name))
    assert latex(name).count("$") == 4 * len(math) + 2 * len(inline)
    for formula in [*math, *inline]:
        assert formula.count("{") == formula.count("}")
        assert formula.count(r"\left") == formula.count(r"\right")
    assert len(math) == len(re.findall(r"^    ", text(name), re.MULTILINE))
    headings = [
        re.findall(r"^#+ .*$", source, re.MULTILINE) for source in (latex(name), text(name))
    ]
    assert headings[0] == headings[1]
    closed = name in ("linear", "erf")
    beyond = 1 if name == "linear" else 3
    assert len(headings[0]) == len(set(headings[0])) == 8 + closed + beyond


@pytest.mark.parametrize("name", NAMES)
def test_no_unresolved_names(name: str) -> None:
    unresolved = re.compile(r"log1p|expm1|Subs|Derivative|ell\(|<class|Function|None|zoo|nan\b")
    assert not unresolved.search(latex(name) + text(name))
    math = " ".join(re.findall(r"\$\$(.*)\$\$", latex(name)))
    words = re.sub(r"\\(text|mathrm|operatorname)\{[^}]*\}|\\[a-zA-Z]+", " ", math)
    # What is left are one-letter symbols, differentials and products written without a space.
    left = set(re.findall(r"[a-zA-Z]{2,}", words))
    assert left <= {"du", "dx", "dA", "dB", "hf", "hh", "ij", "Gr", "rG", "vA"}
    assert not any(str(x) in math for x in INVARIANTS if str(x) != "rbar")


def test_user_defined_activations_have_a_document() -> None:
    weight = sp.exp(chi + chi**2 / 3)
    attention = Attention("bent", weight, "pooled", Rational(3, 2), reference="a `notebook")
    source = document(attention, "text")
    assert "# bent attention" in source
    assert "Reference: a 'notebook." in source
    assert formulas(source)["w(chi, b)"] == "exp(chi**2/3 + chi)"
    assert formulas(source)["a_l"] == "sum_h w_hl / (3/2 + sum_h'l' w_h'l')"
    assert formulas(source)["dB/du"].endswith("*exp(-3*exp(-u)/2)")
    assert document(attention, "latex").count("$$") == 2 * len(re.findall(r"^    ", source, re.M))


def test_unknown_forms_are_refused() -> None:
    with pytest.raises(ValueError, match="pdf"):
        document(ACTIVATIONS["softmax"], "pdf")


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
    for start in seeds[::2]:
        runs = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", PROGRAM, name, *forms],
                env=os.environ
                | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
                stdout=subprocess.PIPE,
                encoding="utf-8",
            )
            for seed in seeds
            if start <= seed < start + 2
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
