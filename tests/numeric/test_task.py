"""Tasks, attention layers and states: what they accept, refuse and complete."""

import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from numeric._generated import ACTIVATIONS
from numeric.errors import InputError
from numeric.prior import isotropic
from numeric.task import MOST_HEADS, Attention, State, Task
from numeric.validate import real_array, real_number, whole_number

INDEFINITE = np.array([[1.0, 2.0], [2.0, 1.0]])
BAD: dict[str, tuple[Callable[..., object], tuple[Any, ...], str]] = {
    "prior": (Task, (5, "gaussian"), "prior: found 'gaussian'"),
    "activation": (
        Attention,
        ("sotfmax", 2),
        "activation: found 'sotfmax', expected one of 'softmax'",
    ),
    "not a name": (Attention, (["softmax"], 2), "activation: found ['softmax'], expected one of"),
    "no activation": (Attention, (None, 2), "activation: found None, expected one of 'softmax', "),
    "kernels": (Attention, (ACTIVATIONS["erf"], 2), "activation: found <module"),
    "no head": (Attention, ("softmax", 0), "heads: found 0"),
    "half a head": (Attention, ("erf", 1.5), "heads: found 1.5"),
    "heads": (Attention, ("linear", MOST_HEADS + 1), "heads: found 1001, expected a whole number"),
    "state m": (State, ([1, 2], np.eye(2)), "m: found an array of shape (2,)"),
    "state r": (State, (np.ones((2, 1)), 1e-9 * INDEFINITE), "r: found an eigenvalue"),
    "state batch": (State, (np.ones((3, 2, 1)), np.eye(2)), "r: found an array of shape (2, 2)"),
    "state b": (State, (np.ones((2, 1)), np.eye(2), [1]), "b: found an array of shape (1,)"),
    "state v": (
        State,
        (np.ones((2, 1)), np.eye(2), None, [1, np.nan]),
        "v: found an array of shape (2,) with nan at [1]",
    ),
}


@pytest.mark.parametrize(("make", "arguments", "words"), BAD.values(), ids=BAD.keys())
def test_bad_arguments(make: Callable[..., object], arguments: tuple[Any, ...], words: str) -> None:
    with np.errstate(all="raise"), pytest.raises(InputError) as caught:
        make(*arguments)
    assert str(caught.value).startswith(words)
    assert ", expected " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "tokens", [0, -3, 2.5, True, "5", np.nan, np.inf, None, 5j, np.True_, [5], 10**400]
)
def test_bad_tokens(tokens: Any) -> None:
    with pytest.raises(InputError, match=r"^tokens: found .*, expected a whole number >= 1"):
        Task(tokens, isotropic(1, 1))


@pytest.mark.parametrize("tokens", [1, 5.0, np.int8(5), np.float32(5), Fraction(5), 10**6, 10**12])
def test_good_tokens(tokens: Any) -> None:
    task = Task(tokens, isotropic(1, 1))
    assert type(task.tokens) is int
    assert task.tokens == tokens
    assert task.tokens**4 == int(tokens) ** 4
    assert task == Task(int(tokens), isotropic(1, 1))


# Trained parameters, and the value of each of H heads unless values are given.
LAYERS = {
    "softmax": ((), lambda heads: 1 / heads),
    "softmax-v": (("v",), lambda heads: 1 / heads),
    "softmax-1": (("b", "v"), lambda heads: 1.0),
    "b-softmax": (("b",), lambda heads: 1.0),
    "linear": (("v",), lambda heads: 1.0),
    "erf": (("b", "v"), lambda heads: 1.0),
    "softplus": ((), lambda heads: 1 / heads),
}


def test_every_activation_is_here() -> None:
    assert list(ACTIVATIONS) == list(LAYERS)


@pytest.mark.parametrize("heads", [1, 3, 7.0])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, heads: int) -> None:
    attention = Attention(name, heads)
    parameters, value = LAYERS[name]
    assert (attention.name, attention.activation, attention.parameters) == (name, name, parameters)
    assert attention.value == value(heads)
    assert type(attention.heads) is int
    assert attention.kernel is ACTIVATIONS[name]
    copy = pickle.loads(pickle.dumps(attention))
    assert copy == attention == Attention(name, int(heads))
    assert hash(copy) == hash(attention)
    assert attention != Attention(name, 2)


@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
@pytest.mark.parametrize("name", LAYERS)
def test_a_state_is_completed(name: str, batch: tuple[int, ...]) -> None:
    """With biases of zero and the layer's values, whatever the batch; once is enough."""
    attention = Attention(name, 2)
    state = State(np.ones((*batch, 2, 3)), np.zeros((*batch, 2, 2)))
    completed = state.check(attention, 3)
    assert completed.check(attention, 3) == completed
    parameters, value = LAYERS[name]
    initial = {"b": np.zeros((*batch, 2)), "v": np.full((*batch, 2), value(2))}
    for key, values in initial.items():
        found = getattr(completed, key)
        assert (found is not None) == (key in parameters)
        if found is not None:
            np.testing.assert_array_equal(found, values)
            # What is given stays.
            given = State(state.m, state.r, **{key: values + 0.5}).check(attention, 3)
            np.testing.assert_array_equal(getattr(given, key), values + 0.5)
    assert (completed == state) == (not parameters)


@pytest.mark.parametrize(
    ("state", "heads", "features", "words"),
    [
        (State(np.ones((2, 3)), np.eye(2)), 3, 3, "m: found an array of shape (2, 3)"),
        (State(np.ones((2, 3)), np.eye(2)), 2, 2, "m: found an array of shape (2, 3)"),
        (State(np.ones((2, 3)), np.eye(2), b=np.ones(2)), 2, 3, "b: found an array of shape (2,)"),
        (State(np.ones((2, 3)), np.eye(2), v=np.ones(2)), 2, 3, "v: found an array of shape (2,)"),
    ],
)
def test_state_of_another_layer(state: State, heads: int, features: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        state.check(Attention("softmax", heads), features)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("features", [0, 2])
def test_batch(features: int) -> None:
    rng = np.random.default_rng(0)
    m = rng.normal(size=(4, 3, 2, features))
    r = np.einsum("...ij,...kj->...ik", *2 * (rng.normal(size=(4, 3, 2, 2)),))
    batch = State(m, r, b=m.sum(axis=-1), v=r.sum(axis=-1))
    assert batch.batch_shape == (4, 3)
    element = batch.at((-1, np.int64(1)))  # type: ignore[arg-type]
    assert element == State(m[3, 1], r[3, 1], m[3, 1].sum(axis=-1), r[3, 1].sum(axis=-1))
    assert element.batch_shape == ()
    assert element.at(()) == element
    for index in (0, (0, 3), (-5, 0), (0, 0, 0), (0, True), "a"):
        with pytest.raises(InputError, match=r"^index: found "):
            batch.at(index)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^r: found an eigenvalue"):
        State(m[:, 0], np.stack([np.eye(2) * 1e9] * 3 + [-1e-9 * np.eye(2)]))


class Indivisible:
    """Not a number, and no array either."""


@pytest.mark.parametrize(
    "value",
    [
        [True],
        [1, True],
        [1.0, np.True_],
        np.array([True]),
        ["1"],
        np.array(["1"]),
        [None],
        [1j],
        np.array([1j]),
        [10**400],
        [float("inf")],
        np.array([np.longdouble("1e4000")]),
        [[1, 2], [3]],
        [np.ones((2, 2)), np.ones((2, 3))],
        "12",
        None,
        {"a": 1},
        {1.0},
        Indivisible(),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        eval("[" * 80 + "1.0" + "]" * 80),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_real_array_refuses(value: object) -> None:
    with (
        np.errstate(all="raise"),
        pytest.raises(InputError, match=r"^x: found .*, expected finite"),
    ):
        real_array("x", value, (None,))


def test_real_array_accepts() -> None:
    for value in ([1, 2], (1.0, np.float32(2)), np.array([1, 2], dtype=np.uint8), [Fraction(1), 2]):
        kept = real_array("x", value, (2,))
        np.testing.assert_array_equal(kept, [1.0, 2.0])
        assert kept.dtype == np.float64
        assert not kept.flags.writeable
    assert real_array("x", [], (0, 0)).shape == (0, 0)
    assert real_array("x", np.ones((4, 5, 2)), (..., None, 2)).shape == (4, 5, 2)
    with pytest.raises(InputError, match=r"expected finite numbers in shape \(\.\.\., any, 2\)$"):
        real_array("x", [1, 2], (..., None, 2))


@pytest.mark.parametrize("value", [True, "1", None, np.nan, np.inf, 10**400, 1j, [1.0], -1, 0])
def test_real_number_refuses(value: object) -> None:
    with pytest.raises(InputError, match=r"^x: found .*, expected a finite number > 0$"):
        real_number("x", value, positive=True)


def test_real_number_accepts() -> None:
    assert real_number("x", np.float32(0.5), minimum=0.5) == 0.5
    assert type(real_number("x", 3)) is float
    assert whole_number("x", -2, -2, -2) == -2
