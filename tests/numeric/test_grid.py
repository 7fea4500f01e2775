"""Tables [sweep]: lists, ranges, seeds, names of axes, and what is refused."""

from typing import Any

import numpy as np
import pytest

from numeric.errors import ExperimentError, InputError
from numeric.grid import Axis, axis_names, canonical, check_axes, read_grid, replaced, with_seeds


def values(entry: object) -> tuple[Any, ...]:
    (axis,) = read_grid("f", {"task": {"tokens": entry}}).axes
    assert axis.keys == ("task.tokens",)
    return axis.values


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ([3, 5], (3, 5)),
        ([[1.0], [2.0]], ([1.0], [2.0])),
        ({"first": 1, "last": 4}, (1, 2, 3, 4)),
        ({"first": 4, "last": 1, "step": -1}, (4, 3, 2, 1)),
        ({"first": 1, "last": 2, "step": 0.25}, (1.0, 1.25, 1.5, 1.75, 2.0)),
        ({"first": 0.0, "last": 0.3, "step": 0.1}, (0.0, 0.1, 0.2, 0.1 + 0.1 + 0.1)),
        ({"first": 1.0, "last": 4.0, "count": 3}, (1.0, 2.5, 4.0)),
        ({"first": 2, "last": 2, "count": 1}, (2,)),
        (
            {"first": 100, "last": 10**6, "count": 5, "spacing": "log"},
            (10**2, 10**3, 10**4, 10**5, 10**6),
        ),
        ({"first": 1, "last": 100, "count": 4, "spacing": "log", "whole": True}, (1, 5, 22, 100)),
        ({"first": 1, "last": 3, "count": 5, "whole": True}, (1, 2, 3)),
    ],
)
def test_values(entry: object, expected: tuple[Any, ...]) -> None:
    found = values(entry)
    assert found == pytest.approx(expected) if isinstance(expected[0], float) else found == expected
    assert [type(x) for x in found] == [type(x) for x in expected]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (3, r"sweep\.task\.tokens: found 3, expected a list, or a range"),
        ([], r"sweep\.task\.tokens: found \[\], expected at least one value"),
        ({}, r"sweep\.task\.tokens: found \{\}, expected a list"),
        ({"first": 1}, r"sweep\.task\.tokens\.last: found nothing"),
        ({"first": 1, "last": "x"}, r"tokens\.last: found 'x', expected a finite number"),
        ({"first": 1, "last": 4, "count": 0}, r"tokens\.count: found 0"),
        ({"first": 1, "last": 4, "count": 1}, r"tokens\.count: found 1, expected at least 2"),
        (
            {"first": 1, "last": 4, "count": 2, "step": 1},
            r"tokens\.step: found 1, expected none beside",
        ),
        ({"first": 1, "last": 4, "step": 0}, r"tokens\.step: found 0\.0"),
        ({"first": 1, "last": 4, "step": -1}, r"tokens\.step: found -1\.0"),
        ({"first": 0, "last": 4, "count": 2, "spacing": "log"}, r"tokens\.first: found 0\.0"),
        ({"first": 1, "last": 4, "spacing": "log"}, r"tokens\.count: found nothing"),
        ({"first": 1, "last": 4, "spacing": "cubic"}, r"tokens\.spacing: found 'cubic'"),
        ({"first": 1, "last": 4, "whole": 1}, r"tokens\.whole: found 1, expected true or false"),
        ({"first": 1, "last": 4, "many": 1}, r"tokens\.many: found an unknown key"),
        ({"first": 1, "last": 1e30}, r"tokens\.step: found 1\.0"),
        ({"first": 1, "last": float("nan")}, r"tokens\.last: found nan"),
    ],
)
def test_bad_values_are_refused_in_one_line(entry: object, words: str) -> None:
    with pytest.raises(ExperimentError, match=words) as error:
        values(entry)
    assert "\n" not in str(error.value) and str(error.value).startswith("f: ")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"compute": 3}, r"sweep\.compute: found 3, expected names"),
        ({"seeds": -1}, r"sweep\.seeds: found -1"),
        ({"seeds": True}, r"sweep\.seeds: found True"),
        ([1], r"sweep: found \[1\], expected a table"),
        (
            {"a": {"first": 1, "last": 2000}, "b": {"first": 1, "last": 2000}},
            r"sweep: found 4000000 cells",
        ),
    ],
)
def test_bad_tables_are_refused(entries: Any, words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        read_grid("f", entries)


def test_names_are_the_shortest_clear_ends() -> None:
    def names(*keys: str, taken: tuple[str, ...] = ()) -> tuple[str, ...]:
        return axis_names(tuple(Axis((key,), (1,)) for key in keys), taken)

    assert names("task.tokens", "attention.heads") == ("tokens", "heads")
    assert names("flow.dimension", "sgd.dimension") == ("flow.dimension", "sgd.dimension")
    assert names("task.prior.covariance.0.0", "task.prior.covariance.1.1") == (
        "covariance.0.0", "covariance.1.1",
    )  # fmt: skip
    assert names("flow.alpha", taken=("alpha",)) == ("flow.alpha",)
    assert axis_names((Axis(("flow.seed", "sgd.seed"), (0, 1)),)) == ("seed",)


def test_seeds_count_from_the_files() -> None:
    grid = read_grid("f", {"seeds": 3})
    assert with_seeds(grid, {})[0] == Axis(("flow.seed", "sgd.seed"), (0, 1, 2))
    assert with_seeds(grid, {"flow": {"seed": 7}})[0].values == (7, 8, 9)
    assert with_seeds(grid, {"query": {}})[0] == Axis(("ascent.seed",), (1, 2, 3))
    assert with_seeds(read_grid("f", {}), {}) == ()
    with pytest.raises(InputError, match=r"none beside a sweep of flow"):
        with_seeds(read_grid("f", {"seeds": 1, "flow": [{"seed": 3}]}), {})
    both = read_grid("f", {"seeds": 3, "flow": {"seed": [1]}})
    with pytest.raises(
        InputError, match=r"sweep\.seeds: found 3, expected none beside a sweep of flow\.seed"
    ):
        with_seeds(both, {})


def test_values_take_their_places() -> None:
    entries = {"task": {"prior": {"covariance": [[1.0, 0.0], [0.0, 2.0]]}}}
    found = replaced(entries, "task.prior.covariance.1.1", 5.0)
    assert found["task"]["prior"]["covariance"] == [[1.0, 0.0], [0.0, 5.0]]
    assert entries["task"]["prior"]["covariance"][1][1] == 2.0
    assert replaced(entries, "flow.eta", 0.3)["flow"] == {"eta": 0.3}
    for key in (
        "task.prior.covariance.01.1",
        "task.prior.covariance.²",
        "task.prior.covariance.2.1",
        "task.prior.covariance.x",
        "task.prior.covariance.0.0.0",
    ):
        with pytest.raises(InputError, match=r"^sweep\.task\.prior\.covariance"):
            replaced(entries, key, 1.0)


def test_no_key_sets_what_another_one_sets() -> None:
    def axes(*keys: str, count: int = 2) -> tuple[Axis, ...]:
        return tuple(Axis((key,), tuple(range(count))) for key in keys)

    assert check_axes(axes("task.tokens", "task.token", "flow.eta"))
    for keys in (("task", "task.tokens"), ("a.0.0", "a"), ("a.b", "a.b")):
        with pytest.raises(InputError, match="swept, too, expected one of the two"):
            check_axes(axes(*keys))
    with pytest.raises(InputError, match="found 1002001 cells"):
        check_axes(axes("a", "b", count=1001))


def test_values_are_told_apart_by_type_and_content() -> None:
    values = [1, 1.0, True, "1", (1, 2), [1, 2], {"1": 1}, {1: 1}, None, np.arange(2), np.arange(3)]
    texts = [canonical(x) for x in [*values, b"1"]]
    assert len(set(texts)) == len(texts)
    assert canonical({"a": 1, "b": [2.5]}) == canonical({"b": [2.5], "a": 1})
    large = np.zeros(5000)
    assert canonical(large) != canonical(large + 1) and canonical(large) == canonical(large.copy())
    with pytest.raises(InputError, match="expected what can be pickled"):
        canonical([lambda x: x])
