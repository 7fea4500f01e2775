"""Activations from an experiment file's table: what is read, and the one line for what is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sympy import Integer, Rational, exp, log, tanh

from derive.attention import ACTIVATIONS, Attention
from derive.errors import DeriveError
from derive.stable import softplus
from derive.symbols import b, chi
from derive.user import read_attention, user_attention


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("exp(chi)", "per-head"), (exp(chi), "per-head", Integer(0), ())),
        (("exp(chi + b)", "pooled", 0, ["b"]), (exp(chi + b), "pooled", Integer(0), ("b",))),
        (("1 + chi", "none", 0, ["v"]), (1 + chi, "none", Integer(0), ("v",))),
        (("2 + tanh(b*chi)", "none", 0.0, ("v", "b")), (2 + tanh(b * chi), "none", 0, ("v", "b"))),
        (("exp(chi)", "per-head", 0.1), (exp(chi), "per-head", Rational(1, 10), ())),
        (("exp(chi)", "pooled", 2.5e-3), (exp(chi), "pooled", Rational(1, 400), ())),
        (("exp(chi)", "per-head", 1e9), (exp(chi), "per-head", Integer(10) ** 9, ())),
        (
            ("log(1 + exp(chi + b))", "per-head", 1, ["b"]),
            (softplus(chi + b), "per-head", Integer(1), ("b",)),
        ),
    ],
)
def test_good_tables(given: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    found = user_attention(*given)
    assert found == Attention("user-defined", *expected, reference="the experiment file")
    assert found.background.is_Rational


SHOWN = "expected 0, or a number from 1e-09 to 1e+09"
# Arguments and how the message begins and ends.
BAD: list[tuple[tuple[Any, ...], str, str]] = [
    (("exp(chi)", "softmax"), "normalization: found 'softmax'", "'none', 'per-head', 'pooled'"),
    (("exp(chi)", None), "normalization: found None", "'pooled'"),
    (("exp(chi)", ["pooled"]), "normalization: found ['pooled']", "'pooled'"),
    (("exp(chi)", "none\n"), "normalization: found 'none\\n'", "'pooled'"),
    ((5, "none"), "weight: found ", "expected a text"),
    ((None, "none"), "weight: found ", "expected a text"),
    (("exp(chi", "none"), "weight: found ", ""),
    (("", "none"), "weight: found ", ""),
    (("5", "none"), "weight: found ", "an expression in chi"),
    (("__import__('os')", "none"), "weight: found ", ""),
    (("exp(chi + b)", "pooled"), "trained: found []", "exactly when the weight contains b"),
    (("exp(chi)", "pooled", 0, ["b"]), "trained: found ['b']", "when the weight contains b"),
    (("exp(chi)", "pooled", 0, ["v"]), "trained: found ['v']", "different ones of ['b']"),
    (("exp(chi)", "none", 0, ["v", "v"]), "trained: found ['v', 'v']", "['b', 'v']"),
    (("exp(chi)", "none", 0, "v"), "trained: found 'v'", "a list of names among 'b' and 'v'"),
    (("exp(chi)", "none", 0, [1]), "trained: found [1]", "a list of names among 'b' and 'v'"),
    (("exp(chi)", "none", 0, {"v": 1}), "trained: found {'v': 1}", "among 'b' and 'v'"),
    (("exp(chi)", "per-head", "1"), "background: found '1'", "a number >= 0"),
    (("exp(chi)", "per-head", True), "background: found True", "a number >= 0"),
    (("exp(chi)", "per-head", None), "background: found None", "a number >= 0"),
    (("exp(chi)", "per-head", [1]), "background: found [1]", "a number >= 0"),
    (("exp(chi)", "per-head", -1), "background: found -1", SHOWN),
    (("exp(chi)", "per-head", -1e-300), "background: found -1e-300", SHOWN),
    (("exp(chi)", "per-head", 1.1e100), "background: found 1.1e+100", SHOWN),
    (("exp(chi)", "per-head", 10**400), "background: found 1000", SHOWN),
    (("exp(chi)", "per-head", float("inf")), "background: found inf", SHOWN),
    (("exp(chi)", "per-head", float("nan")), "background: found nan", SHOWN),
    (("exp(chi)", "none", 1), "background: found 1", "since nothing is normalized"),
]


@pytest.mark.parametrize(("given", "words", "wanted"), BAD, ids=range(len(BAD)))
def test_bad_tables(given: tuple[Any, ...], words: str, wanted: str) -> None:
    with pytest.raises(DeriveError) as caught:
        user_attention(*given)
    line = str(caught.value)
    assert line.startswith(words)
    assert line.endswith(wanted)
    assert ", expected " in line
    assert line.isprintable() and len(line) < 300


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_files(tmp_path: Path) -> None:
    """Only the [attention] table is read, so a file may lack the rest."""
    own = 'weight = "1 + tanh(chi)**2"\nnormalization = "pooled"\nbackground = 0.5\n'
    for text, expected in (
        ('[attention]\nactivation = "erf"\nheads = "many"\n', ACTIVATIONS["erf"]),
        ("[attention]\n" + own, user_attention("1 + tanh(chi)**2", "pooled", 0.5)),
        ("\ufeff[attention]\n" + own, user_attention("1 + tanh(chi)**2", "pooled", 0.5)),
        (
            '[attention]\nweight = "exp(b*chi)"\nnormalization = "none"\ntrained = ["b", "v"]\n',
            user_attention("exp(b*chi)", "none", 0, ["b", "v"]),
        ),
        (
            '[attention]\r\nweight = "log(1 + exp(chi))"\r\nnormalization = "per-head"\r\n',
            Attention(
                "user-defined", log(1 + exp(chi)), "per-head", reference="the experiment file"
            ),
        ),
    ):
        path = write(tmp_path, text)
        if expected.name == "user-defined":
            expected = replace(expected, reference=f"the experiment file {path.name}")
        assert read_attention(path) == expected
        assert read_attention(str(path)) == expected


BAD_FILES = [
    ("", "attention: found None, expected a table"),
    ("attention = 5", "attention: found 5, expected a table"),
    ("[[attention]]\nheads = 1", "attention: found [{'heads': 1}], expected a table"),
    ("[attention]", "attention.activation: found None, expected a name"),
    ("[attention]\nactivation = 3", "attention.activation: found 3, expected a name"),
    ('[attention]\nactivation = "sofmax"', "attention.activation: found 'sofmax', expected one of"),
    (
        '[attention]\nactivation = "erf"\nweight = "chi"',
        "attention.activation: found 'erf' and a weight, expected a name, or else a weight",
    ),
    (
        '[attention]\nweight = "chi"',
        "attention.normalization: found nothing, expected 'none',",
    ),
    ('[attention]\nnormalization = "none"', "attention.weight: found nothing, expected a text"),
    ("[attention]\nbackground = 1", "attention.weight: found nothing, expected a text"),
    ('[attention]\ntrained = ["b"]', "attention.weight: found nothing, expected a text"),
    (
        '[attention]\nweight = "chi+"\nnormalization = "none"',
        "attention.weight: found ",
    ),
    (
        '[attention]\nweight = "exp(chi)"\nnormalization = "pooled"\nbackground = -1',
        "attention.background: found -1, expected",
    ),
    ("[attention\n", "found "),
    ("a = \x00", "found "),
    ("a = " + "[" * 10_000, "found "),
    ("a = " + "9" * 5000, "found "),
]


@pytest.mark.parametrize(("text", "words"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_bad_files(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DeriveError) as caught:
        read_attention(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: {words}")
    assert line.isprintable()
    assert caught.value.__cause__ is None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(bytes(range(128, 256)))
    for path, reason in (
        (tmp_path / "nothing.toml", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "bytes.toml", "codec can't decode"),
        ("a\0b.toml", "null byte"),
    ):
        with pytest.raises(DeriveError, match=f"found .*{reason}.*, expected a TOML file$"):
            read_attention(path)
