"""The README's Python examples run, and its numbers are what they print."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README", "exec"), {})
    printed = [float(x) for x in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", capsys.readouterr().out)]
    stated = [float(x) for x in re.findall(r"0\.\d+", " ".join(re.findall(r"#.*", block)))]
    assert printed
    for number in stated:
        assert np.isclose(printed, number, rtol=1e-6).any(), number


def test_experiment_file_in_the_readme_loads() -> None:
    from numeric.errors import ExperimentError
    from numeric.experiment import parse_experiment
    from numeric.grid import read_grid

    text, sweep, query, own, real = re.findall(
        r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert parse_experiment(text, "readme").attention.heads == 4
    assert parse_experiment(text + sweep, "readme").attention.heads == 4
    grid = read_grid("readme", tomllib.loads(sweep)["sweep"])
    assert grid.seeds == 3 and [len(x.values) for x in grid.axes] == [3, 4, 2]
    assert parse_experiment(query, "readme").task.nuisance == 10_000
    with pytest.raises(ExperimentError, match=r"digits\.npy"):
        parse_experiment(real, "readme")
    task, _, _ = text.partition("[attention]")
    assert parse_experiment(task + own, "readme").attention.name == "user-defined"
