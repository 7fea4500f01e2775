"""Wording, hierarchy and pickling of the errors."""

import pickle

import numpy as np
import pytest

from numeric.errors import (
    NOTHING,
    ExperimentError,
    FlowError,
    HeadflowError,
    InputError,
    QuadratureError,
    SimulationError,
    Verbatim,
    describe,
    one_line,
)


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a", "'a'"),
        (Verbatim("a\nb"), "a b"),
        (NOTHING, "nothing"),
        (True, "True"),
        (np.float64(2.5), "2.5"),
        (np.zeros((2, 3)), "an array of shape (2, 3)"),
        (np.array(["x"]), "an array of shape (1,) and type <U1"),
        (np.array([[0, 1], [np.inf, np.nan]]), "an array of shape (2, 2) with inf at [1, 0]"),
        (np.array(np.nan), "an array of shape () with nan at []"),
        (1 << 100_000, "a value of type int"),
        (Unprintable(), "a value of type Unprintable"),
    ],
    ids=range(11),
)
def test_describe(value: object, words: str) -> None:
    assert describe(value) == words
    assert describe(describe(value)) == words


def test_long_values_are_cut_in_the_middle() -> None:
    words = describe(10**400)
    assert len(words) <= 100
    assert words.startswith("1000")
    assert words.endswith("000")
    assert "..." in words


@pytest.mark.parametrize("text", ["a\nb", "a\r\n  b", "a\u2028b", "a\x1b\x00\x85b", " a\ud800b\t"])
def test_one_line(text: str) -> None:
    assert one_line(text) == "a b"


def test_input_error() -> None:
    error = InputError("tokens", "5", "a whole number >= 1")
    assert str(error) == "tokens: found '5', expected a whole number >= 1"
    assert (error.name, error.found, error.expected) == ("tokens", "'5'", "a whole number >= 1")


def test_experiment_error() -> None:
    error = ExperimentError("a\nb.toml", "task.x\ny", NOTHING, "a\ntable")
    assert str(error) == "a b.toml: task.x y: found nothing, expected a table"


@pytest.mark.parametrize(
    "error",
    [
        InputError("a", np.ones(2), "b"),
        ExperimentError("f", "a", "x", "b"),
        QuadratureError("q"),
        FlowError("f"),
        SimulationError("s"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_is_a_value_error_and_survives_pickling(error: HeadflowError) -> None:
    assert isinstance(error, HeadflowError)
    assert isinstance(error, ValueError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
