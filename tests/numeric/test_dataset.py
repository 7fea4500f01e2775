"""Datasets come back from files as they were; what is no result is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xarray = pytest.importorskip("xarray")

from numeric import (  # noqa: E402
    Attention,
    State,
    Task,
    integrate_flow,
    isotropic,
    load_result,
    run_sweep,
    save_result,
    to_dataset,
)
from numeric.errors import InputError  # noqa: E402


def result() -> Any:
    def cell(tokens: int, name: str) -> Any:
        if tokens == 7 and name == "b":
            raise InputError("tokens", 7, "another number")
        return {
            "x": tokens + 0.1,
            "x_error": 1e-9 * tokens,
            "curve": (("t",), np.arange(3.0), "of t"),
        }

    return run_sweep(cell, {"tokens": [5, 7], "name": ["a", "b"]})


def test_a_flow_as_a_dataset() -> None:
    task, layer = Task(4, isotropic(2, 3.0)), Attention("softmax", 2)
    flow = integrate_flow(State(0.1 * np.eye(2), 0.01 * np.eye(2)), task, layer, 2.0)
    found = to_dataset(flow, experiment="text")
    assert found.m.sel(head=1, feature=2).dims == ("tau",)
    np.testing.assert_array_equal(found.m.values, flow.m)
    assert found.attrs["experiment"] == "text" and "numpy" in json.loads(found.attrs["versions"])
    assert found.loss.attrs["largest_error"] == flow.loss_error
    assert found.loss.attrs["ancillary_variables"] == "loss_error"
    with pytest.raises(InputError, match="result: found"):
        to_dataset("flow")


@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
def test_files_keep_everything(name: str, tmp_path: Path) -> None:
    found = result()
    for _ in range(2):  # the second time it replaces the first
        save_result(found, tmp_path / name)
        again = load_result(tmp_path / name)
        assert again.identical(found)
        for variable in found.variables:
            assert again[variable].values.tobytes() == found[variable].values.tobytes()
        assert [x.name for x in tmp_path.iterdir()] == [name]
    (failed,) = json.loads(again.attrs["failed"])
    assert failed == {
        "cell": {"tokens": 7, "name": "b"}, "error": "tokens: found 7, expected another number",
    }  # fmt: skip
    assert np.isnan(again.x.sel(tokens=7, name="b"))
    assert again.x.attrs["largest_error"] == 1e-9 * 7


def test_a_folder_stands_for_its_result(tmp_path: Path) -> None:
    found = result()
    save_result(found, tmp_path / "result.zarr")
    assert load_result(tmp_path).identical(found)


def test_equal_results_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.nc", "b.nc"):
        save_result(result(), tmp_path / name)
    assert (tmp_path / "a.nc").read_bytes() == (tmp_path / "b.nc").read_bytes()


def test_what_is_no_place_for_a_result_is_refused(tmp_path: Path) -> None:
    found = result()
    (tmp_path / "folder.nc").mkdir()
    (tmp_path / "file.zarr").write_text("x")
    (tmp_path / "other.zarr").mkdir()
    (tmp_path / "other.zarr" / "precious").write_text("x")
    for name in ("x.txt", "x", "folder.nc", "file.zarr", "other.zarr"):
        with pytest.raises(InputError, match=r"^path: found"):
            save_result(found, tmp_path / name)
    assert (tmp_path / "other.zarr" / "precious").read_text() == "x"
    with pytest.raises(OSError) as error:
        save_result(found, tmp_path / "none" / "x.nc")
    assert str(error.value.filename) == str(tmp_path / "none" / "x.nc")


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "x.nc"
    save_result(result(), whole)
    (tmp_path / "cut.nc").write_bytes(whole.read_bytes()[:1000])
    (tmp_path / "text.nc").write_text("no dataset")
    xarray.Dataset({"x": 1.0}).to_netcdf(tmp_path / "foreign.nc", engine="h5netcdf")
    (tmp_path / "empty").mkdir()
    for name in ("none.nc", "cut.nc", "text.nc", "foreign.nc", "empty", "x", ""):
        with pytest.raises(InputError, match=r"^RESULT: found") as error:
            load_result(tmp_path / name)
        assert "\n" not in str(error.value)
    assert load_result(whole).x.shape == (2, 2)
