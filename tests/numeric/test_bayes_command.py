"""``headflow minima``, ``heads``, ``prune``, ``outcomes``, ``plant``: JSON, text, figures, refusals."""

from pathlib import Path

import numpy as np
import pytest

from numeric.cli import main
from tests.numeric.command_line import Capture, entries, refused

SIGNS = """
[task]
tokens = 4
[task.prior]
kind = "flipped-spike"
directions = [[1.5]]
[attention]
activation = "b-softmax"
heads = 2
[flow]
tau_max = 20.0
[sgd]
dimension = 40
runs = 3
"""


@pytest.fixture
def signs(tmp_path: Path) -> Path:
    path = tmp_path / "signs.toml"
    path.write_text(SIGNS)
    return path


@pytest.fixture
def real(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    np.save(tmp_path / "samples.npy", rng.normal(size=(50, 4)) * [3.0, 2.0, 0.5, 0.2])
    text = SIGNS.replace('kind = "flipped-spike"', 'kind = "empirical"')
    text = text.replace(
        "directions = [[1.5]]", 'file = "samples.npy"\nfeatures = 2\nvariance = 6.0\ncomponents = 3'
    )
    path = tmp_path / "real.toml"
    path.write_text(text.replace("b-softmax", "softmax").replace("runs = 3", "runs = 2"))
    return path


def test_minima(signs: Path, capsys: Capture, tmp_path: Path) -> None:
    one = entries(capsys, "minima", signs, "--starts", 2)
    assert abs(one["minima"]["b-softmax"]["gap"]) < 1e-8
    both = entries(capsys, "minima", signs, "--starts", 2, "--activations", "softmax", "linear")
    assert list(both["minima"]) == ["softmax", "linear"]
    found = both["minima"]["softmax"]
    assert found["gap"] > 0.05 and found["index"] == 0 and found["stiffness"] > 0
    assert both["minima"]["linear"]["loss"] == pytest.approx(0.75)
    figure = tmp_path / "minima.svg"
    assert main(["minima", str(signs), "--starts", "1", "--plot", str(figure)]) == 0
    assert "gap to Bayes" in capsys.readouterr().out
    assert "Bayes risk" in figure.read_text()


def test_sweeps(signs: Path, capsys: Capture, tmp_path: Path) -> None:
    figure = tmp_path / "curves.svg"
    argv = [
        "minima",
        str(signs),
        "--starts",
        "1",
        "--activations",
        "softmax",
        "--plot",
        str(figure),
    ]
    assert main([*argv, "--signal", "0.5", "1", "2"]) == 0
    assert "least losses found" in capsys.readouterr().out
    assert "factor of all signals" in figure.read_text()
    found = entries(capsys, *argv[:6], "--tokens", 2, 8)
    assert found["quantity"] == "tokens" and len(found["losses"]["softmax"]) == 2
    found = entries(capsys, *argv[:6], "--heads", 1, 2)
    assert found["values"] == [1.0, 2.0]
    assert (np.array(found["gaps"]["softmax"]) > 0).all()


def test_heads(signs: Path, capsys: Capture, tmp_path: Path) -> None:
    figure = tmp_path / "heads.svg"
    assert main(["heads", str(signs), "--starts", "1", "--plot", str(figure)]) == 0
    assert "2 heads of b-softmax: the gap is at most 0.01" in capsys.readouterr().out
    assert "number of heads H" in figure.read_text()
    found = entries(capsys, "heads", signs, "--most", 1, "--starts", 1)
    assert found["needed"] is None and len(found["gaps"]) == 1


def test_prune(signs: Path, capsys: Capture, tmp_path: Path) -> None:
    found = entries(capsys, "prune", signs, "--cost", 0.0)
    assert found["as_they_are"]["removable"] == 0 and len(found["trained_again"]["losses"]) == 2
    signs.write_text(SIGNS + "[state]\nm = [[1.5], [1.5]]\nb = [0.0, 0.0]\n")
    found = entries(capsys, "prune", signs, "--at", "state")
    assert found["as_they_are"]["removable"] == 1
    figure = tmp_path / "prune.svg"
    assert main(["prune", str(signs), "--plot", str(figure)]) == 0
    assert "heads left" in capsys.readouterr().out and "heads left" in figure.read_text()


def test_outcomes(signs: Path, capsys: Capture, tmp_path: Path) -> None:
    figure = tmp_path / "outcomes.svg"
    argv = ["outcomes", str(signs), "--runs", "2"]
    assert main([*argv, "--plot", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "lowest: " in out and "population loss" in figure.read_text()
    found = entries(capsys, *argv, "--method", "sgd")
    assert found["method"] == "sgd" and np.shape(found["m"]) == (2, 2, 1)
    assert found == entries(capsys, *argv, "--method", "sgd", "--workers", 2)


def test_plant(real: Path, capsys: Capture, tmp_path: Path) -> None:
    figure = tmp_path / "plant.svg"
    argv = ["plant", str(real), "--most", "1"]
    assert main([*argv, "--plot", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "50 samples of 4 numbers" in out and "order as predicted in" in out
    assert "within 15 %" in figure.read_text()
    found = entries(capsys, *argv, "--workers", 2)
    assert np.shape(found["predicted"]) == np.shape(found["observed"]) == (2, 2)
    assert found["variances"][0] == pytest.approx(6.0)
    assert f"order as predicted in {sum(found['order_right'])} of 2 runs" in out


def test_refusals(signs: Path, real: Path, capsys: Capture) -> None:
    assert "--activations" in refused(capsys, "minima", signs, "--activations", "linear", "linear")
    assert "activation: found 'relu'" in refused(capsys, "minima", signs, "--activations", "relu")
    assert "starts: " in refused(capsys, "minima", signs, "--starts", -1)
    assert "--signal: " in refused(capsys, "minima", signs, "--signal", 2, 1)
    assert "max_gap: " in refused(capsys, "heads", signs, "--max-gap", -1)
    assert "most: " in refused(capsys, "heads", signs, "--most", 0)
    assert "cost: " in refused(capsys, "prune", signs, "--cost", -1)
    assert "--at" in refused(capsys, "prune", signs, "--at", "state")
    assert "runs: " in refused(capsys, "outcomes", signs, "--runs", 0)
    assert "task.prior: " in refused(capsys, "plant", signs)
    for old, new, word in (
        ("features = 2", "features = 9", "task.prior.features: found 9"),
        ("features = 2\n", "", "task.prior.variance: found 6.0"),
        ("variance = 6.0", "variance = 0", "task.prior.variance: "),
        ("components = 3", "components = 0", "task.prior.components: "),
        ("components = 3", "centred = 1", "task.prior.centred: "),
        ("dimension = 40", "dimension = 5", "dimension: found 5, expected a whole number"),
    ):
        text = real.read_text()
        assert old in text
        other = real.with_name("other.toml")
        other.write_text(text.replace(old, new))
        assert word in refused(capsys, "plant", other)
