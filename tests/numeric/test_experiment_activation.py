"""Experiment files with an activation of their own: what loads, and the one line for what does not."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.user import user_attention
from numeric.activation import UserActivation
from numeric.cli import main
from numeric.errors import ExperimentError
from numeric.experiment import load_experiment, parse_experiment
from numeric.loss import population_loss
from numeric.task import Attention

VALID = """\
[task]
tokens = 3
prior = { kind = "isotropic", features = 1, variance = 2.0 }
[attention]
weight = "exp(2*chi + b)"
normalization = "per-head"
background = 0.5
trained = ["b", "v"]
heads = 2
[state]
m = [[0.4], [-0.2]]
r = [[0.2, 0.0], [0.0, 0.1]]
b = [0.1, -0.3]
v = [0.7, 0.2]
[flow]
dimension = 10
[sgd]
dimension = 10
"""
OWN = VALID[VALID.index("weight") : VALID.index("heads")]
STATE = VALID[VALID.index("[state]") : VALID.index("[flow]")]


def own(lines: str, state: str = "") -> str:
    """The valid file with other lines, separated by semicolons, for the activation and no state."""
    return VALID.replace(OWN, lines.replace("; ", "\n") + "\n").replace(STATE, state)


def test_everything_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(VALID)
    loaded = load_experiment(tmp_path / "mine.toml")
    definition = user_attention("exp(2*chi + b)", "per-head", 0.5, ["b", "v"])
    assert loaded.attention == Attention(definition, 2)
    assert isinstance(loaded.attention.activation, UserActivation)
    assert loaded.attention.activation.definition == definition
    assert (loaded.attention.name, loaded.attention.parameters) == ("user-defined", ("b", "v"))
    assert loaded.state is not None
    assert loaded.state.v is not None
    assert loaded.state.v.tolist() == [0.7, 0.2]
    assert loaded == load_experiment(tmp_path / "mine.toml")
    loss = population_loss(loaded.state, loaded.task, loaded.attention)
    # 2 chi is softmax-1 of doubled keys; a background of 1/2 is a bias of log 2.
    text = own('activation = "softmax-1"', STATE).replace("[[0.4], [-0.2]]", "[[0.8], [-0.4]]")
    text = text.replace("[[0.2, 0.0], [0.0, 0.1]]", "[[0.8, 0.0], [0.0, 0.4]]")
    text = text.replace("[0.1, -0.3]", str([0.1 + math.log(2), -0.3 + math.log(2)]))
    same = parse_experiment(text, "x")
    assert same.state is not None
    expected = population_loss(same.state, same.task, same.attention)
    assert loss.value == pytest.approx(expected.value, abs=1e-8)


def test_what_is_left_out_has_a_default() -> None:
    plain = parse_experiment(own('weight = "1 + chi"; normalization = "none"'), "x").attention
    assert plain == Attention(user_attention("1 + chi", "none"), 2)
    assert (plain.parameters, plain.value) == ((), 1.0)
    state = STATE[: STATE.index("b =")]
    started = parse_experiment(own(OWN.strip().replace("\n", "; "), state), "x").state
    assert started is not None and started.b is not None and started.v is not None
    assert (started.b.tolist(), started.v.tolist()) == ([0, 0], [1, 1])
    for entry, found in (
        ("trained = []", r"trained: found \[\]"),
        ("background = 0", "background: found 0"),
    ):
        with pytest.raises(ExperimentError, match=rf"attention\.{found}, expected none"):
            parse_experiment(own(f'activation = "softmax-v"; {entry}'), "x")


# Lines of [attention] | key | start of what was found | a part of what is expected.
BAD = """
# none | activation | nothing | one of 'softmax', 'softmax-v', 'softmax-1'
activation = "user-defined" | activation | 'user-defined' | one of 'softmax'
activation = "erf"; weight = "chi" | weight | 'chi' | none beside the name of an activation
activation = "erf"; normalization = "none" | normalization | 'none' | none beside the name
activation = "erf"; background = 1 | background | 1 | none, without a weight of your own
activation = "erf"; trained = ["b"] | trained | ['b'] | none, without a weight of your own
weight = "chi" | normalization | nothing | 'none', 'per-head' or 'pooled', to define an activation
normalization = "none" | weight | nothing | a text, to define an activation
background = 1 | background | 1 | none, without a weight of your own
weight = 5; normalization = "none" | weight | |
weight = true; normalization = "none" | weight | |
weight = ["chi"]; normalization = "none" | weight | |
weight = ""; normalization = "none" | weight | |
weight = "exp(chi"; normalization = "none" | weight | |
weight = "exp(x)"; normalization = "none" | weight | |
weight = "exp(chi) 2"; normalization = "none" | weight | |
weight = "chi.real"; normalization = "none" | weight | |
weight = "__import__('os')"; normalization = "none" | weight | |
weight = "lambda: chi"; normalization = "none" | weight | |
weight = "sqrt(chi)"; normalization = "none" | weight | |
weight = "1/chi"; normalization = "none" | weight | |
weight = "7"; normalization = "none" | weight | | chi
weight = "chi**1e9"; normalization = "none" | weight | |
weight = "chi"; normalization = "head" | normalization | 'head' | one of 'none', 'per-head', 'pooled'
weight = "chi"; normalization = 1 | normalization | 1 | one of 'none', 'per-head', 'pooled'
weight = "chi"; normalization = "none"; background = 1 | background | 1 | 0, since nothing is norm
weight = "exp(chi)"; normalization = "pooled"; background = -1 | background | -1 | 0, or a number from
weight = "exp(chi)"; normalization = "pooled"; background = inf | background | inf | 0, or a number from
weight = "exp(chi)"; normalization = "pooled"; background = nan | background | nan | 0, or a number from
weight = "exp(chi)"; normalization = "pooled"; background = "1" | background | '1' | a number
weight = "exp(chi)"; normalization = "pooled"; background = true | background | True | a number
weight = "exp(chi)"; normalization = "pooled"; trained = ["v"] | trained | ['v'] | ones of ['b']
weight = "exp(chi)"; normalization = "pooled"; trained = ["b"] | trained | ['b'] | weight contains b
weight = "exp(chi+b)"; normalization = "pooled" | trained | [] | weight contains b
weight = "exp(chi+b)"; normalization = "none"; trained = "b" | trained | 'b' | a list of names
weight = "exp(chi)"; normalization = "none"; trained = [1] | trained | [1] | a list of names
weight = "exp(chi)"; normalization = "none"; trained = ["v", "v"] | trained | ['v', 'v'] | different
weight = "exp(chi)"; normalization = "none"; name = "mine" | name | an unknown key | one of 'heads'
wieght = "exp(chi)"; normalization = "none" | wieght | an unknown key | did you mean 'weight'?
weight = "abs(chi)"; normalization = "none" | weight | |
weight = "chi**2"; normalization = "per-head" | weight | 'chi**2' | another one (user-defined: the
"""


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")]


@pytest.mark.parametrize("row", BAD.strip().splitlines())
def test_bad_entries_give_one_line(
    row: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As errors, and as what the command prints before it returns 2."""
    lines, key, found, wanted = cells(row)
    path = tmp_path / "bad.toml"
    path.write_text(own(lines))
    with warnings.catch_warnings(action="error"), pytest.raises(ExperimentError) as caught:
        load_experiment(path)
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.startswith(f"{path}: attention.{key}: found {found}"), line
    assert wanted in line.partition(", expected ")[2], line
    assert caught.value.__cause__ is None
    for command in ("loss", "run"):
        assert (
            main([command, str(path), *(["--out", str(tmp_path)] if command == "run" else [])]) == 2
        )
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"headflow: error: {line}\n")


@pytest.mark.parametrize(
    ("state", "key", "found"),
    [
        ("v = [1.0]", "state.v", "an array of shape (1,)"),
        ("v = [1.0, nan]", "state.v", "an array of shape (2,) with nan at [1]"),
        ("b = [[0.0], [0.0]]", "state.b", "an array of shape (2, 1)"),
        ("v = 3", "state.v", "an array of shape ()"),
    ],
)
def test_bad_values_of_a_state(state: str, key: str, found: str) -> None:
    head = STATE[: STATE.index("b =")]
    with pytest.raises(ExperimentError) as caught:
        parse_experiment(own(OWN.strip().replace("\n", "; "), head + state + "\n"), "bad")
    assert str(caught.value).startswith(f"bad: {key}: found {found}, expected ")


def test_values_and_biases_belong_to_what_is_trained() -> None:
    text = own('weight = "exp(chi + b)"; normalization = "pooled"; trained = ["b"]', STATE)
    with pytest.raises(
        ExperimentError, match=r"^bad: state\.v: found .*, expected none, since user"
    ):
        parse_experiment(text, "bad")


VALUES = [1, -1, 0.5, True, "", "none", "per-head", "pooled", "exp(chi)", [], ["b"], ["v"], {}]
VALUES += [float("inf"), "erf", "exp(chi + b)", 10**30]
KEYS = ("activation", "weight", "normalization", "background", "trained", "heads", "state")


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | list):
        return str(value).replace("'", '"') if value != "" else '""'
    return "{}" if value == {} else str(value)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)))
def test_any_table_loads_or_gives_one_line(table: dict[str, Any]) -> None:
    def line(key: str, value: Any) -> str:
        return f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {toml(value)}"

    lines = "\n".join(line(key, value) for key, value in table.items())
    text = VALID.replace(OWN + "heads = 2", lines).replace(STATE, "")
    with warnings.catch_warnings(action="error"), np.errstate(all="raise"):
        try:
            parse_experiment(text, "fuzz")
        except ExperimentError as error:
            assert len(str(error).splitlines()) == 1
            assert str(error).startswith("fuzz: ")
            assert ": found " in str(error).partition(", expected ")[0]
