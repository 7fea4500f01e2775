"""Activations: what a definition accepts, what it refuses and what the messages say."""

import dataclasses

import pytest
from sympy import Symbol, exp, log, sin

from derive.attention import ACTIVATIONS, Attention, activation
from derive.errors import DeriveError
from derive.symbols import b, chi, tau, theta


def test_built_in_weights_are_those_of_the_model() -> None:
    assert exp(activation("softmax").log_weight) == exp(chi)
    assert exp(activation("b-softmax").log_weight) == exp(b + chi)
    assert activation("softmax").normalization == "per-head"
    assert activation("b-softmax").normalization == "pooled"
    assert activation("softmax").trained == ()
    assert activation("b-softmax").trained == ("b",)


def test_table_is_keyed_by_name_and_module_names_are_identifiers() -> None:
    modules = [a.module for a in ACTIVATIONS.values()]
    assert [a.name for a in ACTIVATIONS.values()] == list(ACTIVATIONS)
    assert all(name.isidentifier() for name in modules)
    assert len(set(modules)) == len(modules)
    assert activation("b-softmax").module == "b_softmax"


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(DeriveError) as caught:
        activation("sofmax")
    message = str(caught.value)
    assert "'sofmax'" in message
    assert all(name in message for name in ("softmax", "b-softmax"))
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_errors_are_value_errors() -> None:
    assert issubclass(DeriveError, ValueError)


@pytest.mark.parametrize("normalization", ["softmax", "", "Pooled", None])
def test_unknown_normalization(normalization: str) -> None:
    with pytest.raises(DeriveError, match=r"^normalization: .*'per-head', 'pooled'"):
        Attention("x", chi, normalization)


@pytest.mark.parametrize(
    "foreign",
    [tau, theta, Symbol("chi"), Symbol("b", positive=True), Symbol("zeta_3", real=True)],
    ids=["tau", "theta", "chi without assumptions", "positive b", "new"],
)
def test_foreign_symbols_are_named(foreign: Symbol) -> None:
    with pytest.raises(DeriveError, match=rf"^log_weight: .*'{foreign}'.*only chi and b$"):
        Attention("x", chi + foreign, "per-head")


def test_foreign_symbols_are_listed_in_order() -> None:
    with pytest.raises(DeriveError, match=r"\['tau', 'theta'\]"):
        Attention("x", chi + theta * tau, "pooled")


@pytest.mark.parametrize("weight", [chi, chi**2, log(1 + exp(chi))])
def test_trained_bias_must_be_in_the_weight(weight: Symbol) -> None:
    with pytest.raises(DeriveError, match=r"^trained: .*'b' exactly when the weight contains b$"):
        Attention("x", weight, "pooled", trained=("b",))


def test_bias_in_the_weight_must_be_trained() -> None:
    with pytest.raises(DeriveError, match=r"^trained: found \(\)"):
        Attention("x", chi + b, "per-head")


@pytest.mark.parametrize("trained", [("v",), ("b", "b"), ("b", "k")])
def test_trained_is_a_subset_of_the_known_parameters(trained: tuple[str, ...]) -> None:
    with pytest.raises(DeriveError, match=r"^trained: "):
        Attention("x", chi + b if "b" in trained else chi, "pooled", trained=trained)


def test_derivatives_of_the_log_weight() -> None:
    attention = Attention("x", b * chi**3 + sin(chi), "per-head", trained=("b",))
    assert attention.derivative(chi).subs({chi: 2, b: 5}).evalf() == pytest.approx(
        5 * 12 - 0.4161468365471424
    )
    assert attention.derivative(chi, chi, chi).subs({chi: 0, b: 5}) == 6 * 5 - 1
    assert attention.derivative(b) == chi**3
    assert attention.derivative(b, chi) == 3 * chi**2
    assert attention.derivative(b, b) == 0


def test_a_definition_is_frozen_and_comparable() -> None:
    attention = Attention("x", chi, "per-head")
    assert attention == Attention("x", chi, "per-head")
    assert attention != Attention("x", chi, "pooled")
    with pytest.raises(dataclasses.FrozenInstanceError):
        attention.name = "y"  # type: ignore[misc]
