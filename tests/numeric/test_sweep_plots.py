"""Figures of results: curves, maps, bands, what is left out, and their words."""

import io
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xarray")

from matplotlib.collections import QuadMesh

from numeric import run_sweep
from numeric.errors import InputError
from numeric.sweep_plots import drawn_names, result_figure, selected, variable


def words(figure: Any) -> str:
    texts = [figure.get_suptitle()]
    for ax in figure.axes:
        texts += [ax.get_title(), ax.get_xlabel(), ax.get_ylabel()]
    for legend in figure.legends:
        texts += [legend.get_title().get_text(), *(x.get_text() for x in legend.get_texts())]
    return " | ".join(texts)


def sweep(function: Any, **over: Any) -> Any:
    return run_sweep(function, over)


def test_curves_against_a_swept_number() -> None:
    def cell(nu: float, heads: int) -> Any:
        return {"gap": nu * heads, "gap_error": 0.1}

    found = sweep(cell, nu=[1.0, 2.0, 4.0], heads=[1, 2])
    figure = result_figure(found, "gap")
    (ax,) = figure.axes
    np.testing.assert_allclose(ax.get_lines()[3].get_data(), [[1, 2, 4], [2, 4, 8]])
    assert "nu" in words(figure) and "heads | 1 | 2" in words(figure)
    assert drawn_names(found) == ("gap",)


def test_a_map_over_two_numbers() -> None:
    def cell(nu: float, tokens: int, name: str) -> float:
        return np.nan if tokens == 3 else nu + tokens

    found = sweep(cell, nu=[1.0, 10.0, 100.0, 1000.0], tokens=[2, 3, 4, 5], name=["a", "b"])
    found["value"] = found.value + 1.0 * np.arange(2)  # names differ
    figure = result_figure(found, "value")
    meshes = [x for ax in figure.axes for x in ax.collections if isinstance(x, QuadMesh)]
    assert len(meshes) >= 2 and figure.axes[0].get_xscale() == "log"
    edges = meshes[0].get_coordinates()[0, :, 0]
    np.testing.assert_allclose(edges[1:] / edges[:-1], 10)
    values = np.ma.getdata(meshes[0].get_array())
    assert values.shape == (4, 4) and values[0, 1] == 12 and np.isnan(values[1, 1])


def test_seeds_become_a_band_and_infinite_passages_stay_infinite() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(size=21)

    def cell(seed: int, nu: float) -> Any:
        return {"first_passage": draws[seed] + nu if seed < 12 or nu < 2 else np.inf}

    found = sweep(cell, nu=[1.0, 2.0, 3.0], seed=list(range(21)))
    figure = result_figure(found, "first_passage")
    line = figure.axes[0].get_lines()[0]
    np.testing.assert_allclose(line.get_ydata()[0], np.median(draws) + 1)
    assert np.isfinite(line.get_ydata()).all()  # twelve of 21 pass
    assert "median over seed, 10 to 90 %" in words(figure)


def test_what_changes_nothing_is_left_out_and_said() -> None:
    found = sweep(lambda nu, seed: nu, nu=[1.0, 2.0], seed=[0, 1, 2])
    assert "the same for all labels of seed" in words(result_figure(found, "value"))


def test_time_courses_and_norms() -> None:
    def cell(nu: float) -> Any:
        m = np.arange(24.0).reshape(4, 3, 2) * nu
        return {"m": (("tau", "head", "feature"), m), "m_error": 1e-9}

    found = sweep(cell, nu=[1.0, 2.0])
    assert drawn_names(found) == ("norm",)
    np.testing.assert_allclose(
        variable(found, "norm").sel(nu=2.0, feature=2), np.linalg.norm(found.m[1, :, :, 1], axis=1)
    )
    figure = result_figure(found, "norm")
    assert "time τ" in words(figure) and len(figure.axes) == 2


def test_many_panels_are_cut_and_that_is_said() -> None:
    def cell(a: str, b: str, c: float) -> float:
        return len(a) + 10.0 * len(b) + 100 * c

    names = ["x" * i for i in range(1, 9)]
    figure = result_figure(sweep(cell, a=names, b=names, c=[1.0, 2.0]), "value")
    assert len([ax for ax in figure.axes if ax.axison]) == 6
    assert "the first 6 of 8 panels" in words(figure).replace("\n", " ")


def test_choices() -> None:
    found = sweep(lambda nu, name: nu, nu=[1.0, 2.0, 4.0], name=["a", "b"])
    assert float(selected(found, ["nu=3.9", "name=b"]).value) == 4.0
    for choice in ("nu", "mu=1", "nu=x", "name=c"):
        with pytest.raises(InputError, match="--select"):
            selected(found, [choice])
    with pytest.raises(InputError, match=r"--variable: found 'gap', expected one of 'value'"):
        variable(found, "gap")


def test_a_result_without_axes() -> None:
    figure = result_figure(sweep(lambda: 2.0), "value")
    assert figure.axes[0].get_lines()[0].get_ydata()[0] == 2.0


def test_values_out_of_order_and_odd_names() -> None:
    found = sweep(lambda a, b: a * b * 1.0, a=[4, 1, 3, 2], b=[1000, 100, 10, 1])
    meshes = [x for ax in result_figure(found, "value").axes for x in ax.collections]
    (mesh,) = (x for x in meshes if isinstance(x, QuadMesh) and x.get_array().size == 16)
    np.testing.assert_array_equal(mesh.get_array().reshape(4, 4)[:, 1], [2, 20, 200, 2000])
    labels = [f"$\\foo${i}" for i in range(30)]

    def cell(name: str, quantile: int, seed: int) -> Any:
        return {"a.b": 1.0 * seed + len(name) * quantile + labels.index(name)}

    odd = sweep(cell, name=labels, quantile=[1, 2], seed=[0, 1])
    result_figure(odd, "a.b").savefig(io.BytesIO())
    only = result_figure(selected(odd, ["quantile=1"]), "a.b")
    assert len(only.axes[0].get_xticks()) <= 24
    only.savefig(io.BytesIO())
    flat = sweep(lambda a: {"m": 1.0 * a, "m_error": -1.0}, a=[1, 2])
    result_figure(flat, "m").savefig(io.BytesIO())
    assert drawn_names(flat) == ()


def test_labels_of_colours_are_in_order_and_those_without_values_are_left_out() -> None:
    def course(nu: float) -> Any:
        return {"m": (("tau",), [nu, nu if nu != 2 else np.nan] if nu != 3 else [np.nan] * 2)}

    figure = result_figure(sweep(course, nu=[9.0, 1.0, 3.0, 2.0]), "m")
    assert [x.get_text() for x in figure.legends[0].get_texts()] == ["1", "2", "9"]
    empty = result_figure(sweep(lambda nu: np.inf, nu=[1.0, 2.0]), "value")
    assert "no finite value" in [x.get_text() for x in empty.axes[0].texts]


def test_outer_panels_alone_are_labelled_and_none_without_ticks() -> None:
    def course(heads: int) -> Any:
        return {"loss": (("tau", "sector"), np.full((3, 9), heads))}

    for labels, columns in (([1, 2, 3, 4], 2), ([1, 2, 3, 4, 5], 3)):
        figure = result_figure(sweep(course, heads=labels), "loss")
        axes = [ax for ax in figure.axes if ax.axison]
        named = [bool(ax.get_xlabel()) for ax in axes]
        assert sum(named) == columns and all(named[-columns:])
        for ax, is_named in zip(axes, named, strict=True):
            assert any(x.label1.get_visible() for x in ax.xaxis.get_major_ticks()) == is_named
