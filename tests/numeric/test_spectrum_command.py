"""The command `headflow spectrum` at every place: what it prints, in text and JSON, and draws."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numeric.cli import main
from numeric.experiment import Experiment, load_experiment
from numeric.flow import integrate_flow
from numeric.ladder import saddle_ladder
from numeric.saddles import unspecialized_saddle
from numeric.spectrum import Spectrum, hessian_spectrum
from tests.numeric import command_line

Capture = command_line.Capture
STATE = "[state]\nm = [[0.02], [-0.012]]\nr = [[1e-4, 0.0], [0.0, 1e-4]]\n"
SMALL = f"""\
[task]
tokens = 5
[task.prior]
kind = "gaussian"
mean = [0.0]
covariance = [[4.0]]
[attention]
activation = "softmax"
heads = 2
{STATE}[flow]
eta = 0.3
dimension = 50
tau_max = 2.0
kappa = 0.0
seed = 5
"""
SPECTRUM = {
    *("point", "sectors", "multiplicities", "eigenvalues"),
    *("errors", "growth_rates", "index"),
}
RUNG = {
    *("learned", "index", "m", "loss", "next"),
    *("rate", "waiting", "passage", "flow"),
}
PLACES = ("--at origin", "--at unspecialized", "--at state", "--at ladder", "--along flow")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def entries(capsys: Capture, *argv: object) -> dict[str, Any]:
    return command_line.entries(capsys, "spectrum", *argv)


def text(capsys: Capture, *argv: object) -> str:
    capsys.readouterr()
    assert main(["spectrum", *map(str, argv)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.startswith(f"{Path(str(argv[0])).stem}: ")
    rows = [line for line in out.splitlines() if "   " in line and "(leading)" not in line]
    assert rows
    return out


def refused(capsys: Capture, *argv: object) -> str:
    return command_line.refused(capsys, "spectrum", *argv)


def place_of(experiment: Experiment, at: str) -> Spectrum:
    task, attention = experiment.task, experiment.attention
    if at == "unspecialized":
        return unspecialized_saddle(task, attention).spectrum
    return hessian_spectrum(task, attention, experiment.state if at == "state" else None)


def same(found: dict[str, Any], expected: Spectrum) -> None:
    """Entries are those of a spectrum, and all are finite."""
    assert found["point"] == expected.point
    assert found["sectors"] == list(expected.sectors)
    assert found["index"] == expected.index
    for name in ("eigenvalues", "errors", "growth_rates", "multiplicities"):
        assert np.array_equal(found[name], getattr(expected, name)), name
        assert np.isfinite(found[name]).all()


@pytest.mark.parametrize("at", ["origin", "unspecialized", "state"])
@pytest.mark.parametrize("dimension", [None, 40])
def test_one_spectrum(at: str, dimension: int | None, small: Path, capsys: Capture) -> None:
    expected = place_of(load_experiment(small), at)
    options = ["--at", at] if dimension is None else ["--at", at, "--dimension", dimension]
    if dimension is not None:
        expected = expected.lifted(dimension)
        assert expected.multiplicities.sum() == dimension * 2
    found = entries(capsys, small, *options)
    if at == "unspecialized":
        expected = replace(expected, point=at)
    extra = {"head", "loss", "position_error"} if at == "unspecialized" else set()
    assert set(found) == SPECTRUM | extra
    same(found, expected)
    shown = text(capsys, small, *options)
    assert f"unstable directions: {expected.index}" in shown
    assert (f"keys in D = {dimension} dimensions" in shown) == (dimension is not None)
    for sector, value in zip(expected.sectors, expected.eigenvalues, strict=True):
        lines = [x for x in shown.splitlines() if x.startswith(sector + " ")]
        assert f"{value:.8g}" in " ".join(lines).split()


def test_the_unspecialized_saddle_with_a_mean(small: Path, capsys: Capture) -> None:
    small.write_text(SMALL.replace("mean = [0.0]", "mean = [1.0]"))
    experiment = load_experiment(small)
    saddle = unspecialized_saddle(experiment.task, experiment.attention)
    found = entries(capsys, small, "--at", "unspecialized")
    assert found["head"] == {"m": saddle.state.m[0].tolist()} and found["head"]["m"][0] > 0.1
    assert (found["loss"], found["position_error"]) == (saddle.loss, saddle.position_error)
    shown = text(capsys, small, "--at", "unspecialized")
    assert "all heads alike" in shown and f"m = ({saddle.state.m[0, 0]:.6g})" in shown
    assert "note: the mean signal is not zero" in text(capsys, small, "--at", "origin")
    assert "no mean signal" in refused(capsys, small, "--at", "ladder")


def test_residual_sectors_are_counted_once_without_a_dimension(
    small: Path, capsys: Capture
) -> None:
    assert entries(capsys, small)["multiplicities"] == [1, 1, 1, 1]
    many = entries(capsys, small, "--dimension", 100)
    residual = [x.endswith("residual") for x in many["sectors"]]
    assert np.array_equal(np.array(many["multiplicities"])[residual], [99, 99])


@pytest.mark.parametrize("place", PLACES[:3] + PLACES[4:])
@pytest.mark.parametrize("dimension", [0, -3])
def test_too_small_a_dimension(place: str, dimension: int, small: Path, capsys: Capture) -> None:
    words = refused(capsys, small, *place.split(), f"--dimension={dimension}")
    assert f"dimension: found {dimension}, expected a whole number >= " in words


def test_the_keys_need_their_own_dimensions(small: Path, capsys: Capture) -> None:
    """One feature and two heads span three dimensions; the origin spans the feature alone."""
    assert ">= 3" in refused(capsys, small, "--at", "state", "--dimension", 2)
    assert entries(capsys, small, "--at", "state", "--dimension", 3)["sectors"]
    assert entries(capsys, small, "--at", "origin", "--dimension", 1)["multiplicities"] == [1, 1]
    assert main(["spectrum", str(small), "--dimension", "2.5"]) == 2
    assert "usage: headflow" in capsys.readouterr().err


def test_ladder(small: Path, capsys: Capture) -> None:
    experiment = load_experiment(small)
    assert experiment.state is not None
    rungs = saddle_ladder(experiment.state, experiment.task, experiment.attention)
    found = entries(capsys, small, "--at", "ladder")
    assert set(found) == {"rungs"} and len(found["rungs"]) == len(rungs) == 2
    for step, rung in zip(found["rungs"], rungs, strict=True):
        assert set(step) == RUNG
        assert (step["learned"], step["next"]) == (list(rung.learned), rung.feature)
        assert step["rate"] == rung.rate and np.array_equal(step["m"], rung.state.m)
        for name in ("waiting", "passage"):
            value = getattr(rung, name)
            assert step[name] == (value if np.isfinite(value) else None)
    first, last = found["rungs"]
    assert first["passage"] == pytest.approx(first["flow"], rel=5e-3)
    # At the origin both the mean and the difference grow along the feature.
    assert (first["index"], first["loss"]) == (2, pytest.approx(0.8, abs=1e-9))
    assert (last["passage"], last["waiting"], last["flow"], last["next"]) == (None,) * 4
    shown = text(capsys, small, "--at", "ladder")
    assert "state: the file's" in shown and "note:" not in shown
    row = next(x for x in shown.splitlines() if x.startswith("none "))
    assert row.split()[1:4] == ["2", "1", f"{rungs[0].rate:.6g}"]
    assert f"{rungs[0].waiting:.5g} ({rungs[0].leading:.5g})" in row
    assert row.split()[-2] == f"{rungs[0].passage:.6g}"
    assert float(row.split()[-1]) == pytest.approx(first["flow"], rel=1e-5)


@pytest.mark.parametrize(
    "options", ["--at ladder --dimension 1", "--at ladder --along flow", "--at origin --along flow"]
)
def test_options_without_effect_are_refused(options: str, small: Path, capsys: Capture) -> None:
    refused(capsys, small, *options.split())


def test_a_note_where_keys_are_not_small(small: Path, capsys: Capture) -> None:
    small.write_text(SMALL.replace("1e-4", "0.09"))
    words = text(capsys, small, "--at", "ladder")
    assert "alignments and overlaps below 0.02, and these are not" in words


def test_along_a_flow(small: Path, capsys: Capture) -> None:
    experiment = load_experiment(small)
    assert experiment.state is not None
    found = entries(capsys, small, "--along", "flow", "--dimension", 30)
    assert set(found) == {"tau", "loss", "spectra"}
    path = integrate_flow(experiment.state, experiment.task, experiment.attention, found["tau"])
    assert np.array_equal(found["loss"], path.loss)
    assert (found["tau"][0], found["tau"][-1], len(found["tau"])) == (0.0, 2.0, 25)
    for i in (0, 12, 24):
        assert set(found["spectra"][i]) == SPECTRUM
        there = hessian_spectrum(experiment.task, experiment.attention, path.states.at(i))
        same(found["spectra"][i], there.lifted(30))
    shown = text(capsys, small, "--along", "flow", "--dimension", 30)
    head = next(i for i, x in enumerate(shown.splitlines()) if x.startswith("tau "))
    rows = shown.splitlines()[head + 1 :]
    assert len(rows) == 25
    for row, spectrum in zip(rows, found["spectra"], strict=True):
        assert int(row.split()[2]) == spectrum["index"]
        assert float(row.split()[3]) == pytest.approx(min(spectrum["eigenvalues"]), rel=1e-5)


@pytest.mark.parametrize("place", PLACES)
def test_figures(place: str, small: Path, capsys: Capture) -> None:
    target = small.with_name("figure.svg")
    out = text(capsys, small, *place.split(), "--plot", target)
    assert out.endswith(f"\nfigure: {target}\n")
    assert ET.parse(target).getroot().tag.endswith("svg")
    assert "plot: found" in refused(capsys, small, *place.split(), "--plot", "figure.bmp")


@pytest.mark.parametrize("option", [["--at", "there"], ["--along", "sgd"]])
def test_other_places_are_usage_errors(option: list[str], small: Path, capsys: Capture) -> None:
    assert main(["spectrum", str(small), *option]) == 2
    assert "invalid choice" in capsys.readouterr().err
