"""Derived formulas pass their numerical checks; formulas that are wrong do not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sympy import Integer, exp

from derive.attention import ACTIVATIONS, Attention
from derive.document import document
from derive.landau import LossExpansion
from derive.query_document import query_document
from derive.symbols import chi
from numeric import formula_checks as room
from numeric import verified
from numeric.cli import main
from numeric.formula_checks import formula_checks
from numeric.landau_checks import landau_checks
from numeric.query_formula_checks import PROBLEM, query_formula_checks
from numeric.verified import coefficient_check, problem_of, slope_check, words_of


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_all_formulas_agree_and_are_printed(name: str) -> None:
    found = formula_checks(ACTIVATIONS[name])
    assert all(x.check.passed for x in found), [x.words for x in found if not x.check.passed]
    assert len(found) >= 13
    problem = problem_of(ACTIVATIONS[name])
    text = document(ACTIVATIONS[name], "text", checks=words_of(found, problem))
    assert all(f"Check: {x.words.replace('`', '')}" in text for x in found)
    for trained in "bv":
        assert (f"{trained} = 0." in problem) == (trained in ACTIVATIONS[name].trained)


def test_the_query_models_formulas_agree() -> None:
    found = query_formula_checks()
    assert len(found) == 7 and all(x.check.passed for x in found)
    text = query_document("text", words_of(found, PROBLEM))
    assert all(f"Check: {x.words.replace('`', '')}" in text for x in found)
    assert "made at n_I = 3, n_0 = 5, d = 4, theta" in text and "L = " not in text


def test_a_users_activation_is_checked() -> None:
    found = formula_checks(Attention("mine", exp(chi / 2) + 1, "per-head"))
    assert len(found) >= 13 and all(x.check.passed for x in found)


def wrong(monkeypatch: pytest.MonkeyPatch, target: str, change: Any) -> None:
    module, name = target.rsplit(".", 1)
    original = getattr(__import__(module, fromlist=[name]), name)
    monkeypatch.setattr(target, lambda *x, **y: change(original(*x, **y)))


def of_order(expansion: LossExpansion, order: int) -> LossExpansion:
    """Return the expansion with the terms of this order in B wrong by one in a thousand."""
    wrong = {x: y * Integer(1001) / 1000 for x, y in expansion.pair[order].items()}
    pair = tuple(wrong if k == order else x for k, x in enumerate(expansion.pair))
    return replace(expansion, pair=pair)


@pytest.mark.parametrize(
    ("check", "target", "change", "formula"),
    [
        ("weights", "numeric.formula_checks.attention_weights", lambda x: (x[0], 1.001 * x[1]), "a_l"),
        ("weights", "numeric.formula_checks.score_gradient", lambda x: (-x[0], *x[1:]),
         "d(loss)/d chi_hl"),
        ("loss", "numeric.formula_checks.population_loss", lambda x: replace(x, value=1.01 * x.value),
         "E"),
        ("loss", "numeric.formula_checks.population_loss", lambda x: replace(x, m=1.001 * x.m), "dE/dm"),
        ("expansion", "derive.document.origin_noise", lambda x: x * 2, "V_hh' at 0"),
        ("hessian", "derive.hessian.sector_eigenvalues", lambda x: {k: -y for k, y in x.items()},
         "eigenvalue, heads apart, along feature f"),
        ("landau", "derive.pattern.difference_eigenvalue", lambda x: x * Integer(101) / 100,
         "lambda_f"),
        ("landau", "derive.pattern.preference", lambda x: replace(x, mixed=x.mixed * 2),
         "mixed - single"),
        ("landau", "derive.landau.expand_loss", lambda x: of_order(x, 3), "order 3"),
        ("landau", "derive.landau.expand_loss", lambda x: of_order(x, 4), "order 4"),
        ("bayes", "numeric.formula_checks.log_bayes_weight", lambda x: x + 1e-6, "log w(xi)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(
    check: str, target: str, change: Any, formula: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = room.landau_checks if check == "landau" else getattr(room, f"_of_{check}")
    monkeypatch.setattr(room, "CHECKS", (checks,))
    right = {x.formula: x for x in formula_checks(ACTIVATIONS["softmax"])}
    wrong(monkeypatch, target, change)
    found = {x.formula: x for x in formula_checks(ACTIVATIONS["softmax"])}
    assert right[formula].check.passed and not found[formula].check.passed
    assert "DISAGREES" in found[formula].words


def test_what_cannot_be_computed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> Any:
        raise verified.derive_error()("no")

    monkeypatch.setattr(room, "CHECKS", (fails, room._of_bayes))
    assert [x.formula for x in formula_checks(ACTIVATIONS["softmax"])] == ["log w(xi)"]


def test_oracles() -> None:
    assert slope_check(12.0, lambda h: (2 + h) ** 3, 1e-12).passed
    assert not slope_check(12.0001, lambda h: (2 + h) ** 3, 1e-12).passed
    values = [3 * x**2 - 7 * x**4 + x**6 for x in verified.SCALES]
    assert coefficient_check(3.0, verified.SCALES, values, 2, 1e-15).passed
    assert not coefficient_check(3.001, verified.SCALES, values, 2, 1e-15).passed


def test_documents_with_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["derive", "--document", str(tmp_path), "linear", "query"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{tmp_path / 'linear.md'}, {tmp_path / 'linear.html'}; ")
    assert "formulas checked" in said[1]
    names = {"linear.md", "linear.html", "query.md", "query.html"}
    assert {x.name for x in tmp_path.iterdir()} == names
    for name in names:
        text = (tmp_path / name).read_text()
        assert text.count("Check: ") >= 7 and "DISAGREES" not in text
    assert "at $L = 4$, $H = 2$, $v = 0.3$ and" in (tmp_path / "linear.md").read_text()
    own = tmp_path / "linear.toml"
    own.write_text('[attention]\nweight = "exp(chi)"\nnormalization = "per-head"\nheads = 1\n')
    for names in ([str(own), "linear"], ["linear", "linear"]):  # one would overwrite the other
        assert main(["derive", "--document", str(tmp_path), *names]) == 2
        assert "NAME: found" in capsys.readouterr().err
    (tmp_path / "taken").write_text("x")
    assert main(["derive", "--document", str(tmp_path / "taken"), "linear"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_check_that_fails_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch, "numeric.formula_checks.log_bayes_weight", lambda x: x + 1e-6)
    assert main(["derive", "--document", str(tmp_path), "linear"]) == 1
    assert "some DISAGREE" in capsys.readouterr().out
    assert "DISAGREES" in (tmp_path / "linear.md").read_text()


def test_steep_weights_are_checked_at_smaller_scales() -> None:
    """Where exp(8 chi) varies, scales made for exp(chi) are beyond its series."""
    steep = Attention("steep", exp(8 * chi), "per-head")
    assert verified.scales_of(steep) == pytest.approx(verified.SCALES / 8)
    assert verified.scales_of(ACTIVATIONS["linear"]) == pytest.approx(verified.SCALES)
    found = list(landau_checks(steep))
    assert len(found) == 5 and all(x.check.passed for x in found)
