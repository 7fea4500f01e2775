"""Results as arrays with named axes: what a sweep keeps of each cell, and what becomes a dataset.

Axes are called after the field: head, feature (both from 1), other_head, run (from 1), tau, t, step,
alpha, sector, watch. A quantity ``x`` that knows its error comes with ``x_error``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numeric.bayes import Risk
from numeric.errors import InputError
from numeric.flow import Flow
from numeric.loss import Loss
from numeric.minimum import Minimum
from numeric.query import Objective, QueryFlow
from numeric.query_sgd import QueryRuns
from numeric.saddles import Saddle
from numeric.sgd import SGDRuns
from numeric.spectrum import Spectrum

COUNTED = ("head", "other_head", "feature", "run", "point")
"""Axes whose labels are 1, 2, ..."""


@dataclass(frozen=True)
class Variable:
    """One array with named axes.

    Attributes
    ----------
    dims : tuple of str
    values : array
    meaning : str
        What it is, with its unit or scaling.
    """

    dims: tuple[str, ...]
    values: NDArray[Any]
    meaning: str = ""


@dataclass(frozen=True)
class Labelled:
    """Arrays with named axes, and the labels along these.

    Attributes
    ----------
    variables : dict of Variable
    labels : dict of (n,) array
        One for each axis.
    """

    variables: Mapping[str, Variable]
    labels: Mapping[str, NDArray[Any]]

    def prefixed(self, prefix: str) -> "Labelled":
        """Return the same with a prefix to all names of variables, and to those of axes not counted."""
        names = {x: x if x in COUNTED else f"{prefix}_{x}" for x in self.labels}
        return Labelled(
            {
                f"{prefix}_{name}": Variable(tuple(names[y] for y in x.dims), x.values, x.meaning)
                for name, x in self.variables.items()
            },
            {names[x]: values for x, values in self.labels.items()},
        )


def labelled_arrays(
    entries: Mapping[str, tuple[tuple[str, ...], ArrayLike | None, str]],
    labels: Mapping[str, ArrayLike] | None = None,
) -> Labelled:
    """Make labelled arrays of (dims, values, meaning); without values there is no such variable.

    Raises
    ------
    InputError
        If a variable has not one name for each axis, an axis has two lengths, or a name cannot be stored.
    """
    variables: dict[str, Variable] = {}
    found = {name: np.asarray(values) for name, values in (labels or {}).items()}
    for name, (dims, given, meaning) in entries.items():
        if given is None:
            continue
        values = np.asarray(given)
        for word in (name, *dims):
            if not word.strip(". ") or "/" in word or not word.isprintable():
                raise InputError("result", word, "a name without slashes, of letters that print")
        if values.ndim != len(dims) or len(set(dims)) < len(dims):
            raise InputError(name, values, f"an array with the axes {dims}")
        for dim, length in zip(dims, values.shape, strict=True):
            known = found.setdefault(dim, np.arange(1, length + 1))
            if len(known) != length:
                raise InputError(name, values, f"{len(known)} entries along {dim!r}")
        variables[name] = Variable(dims, values, meaning)
    used = {dim for x in variables.values() for dim in x.dims}
    if used & set(variables):
        name = min(used & set(variables))
        raise InputError(name, "an axis", "another name than that of a variable")
    return Labelled(variables, {dim: found[dim] for dim in found if dim in used})


@singledispatch
def labelled(found: object) -> Labelled:
    """Return a result as arrays with named axes.

    Parameters
    ----------
    found : Flow, SGDRuns, Spectrum, Saddle, Loss, Risk, Minimum, QueryFlow, QueryRuns, mapping or number
        A mapping has names of variables, and numbers or ``(dims, values[, meaning])``.

    Raises
    ------
    InputError
        If it is something else.
    """
    if isinstance(found, Mapping):
        return labelled_arrays({str(name): _entry(str(name), x) for name, x in found.items()})
    if np.ndim(found) == 0 and np.asarray(found).dtype.kind in "biuf":  # type: ignore[arg-type]
        return labelled_arrays({"value": ((), float(found), "")})  # type: ignore[arg-type]
    expected = (
        "a Flow, SGDRuns, Spectrum or another result, a number, or a mapping of names to these"
    )
    raise InputError("result", found, expected)


def _entry(name: str, given: Any) -> tuple[tuple[str, ...], ArrayLike, str]:
    """Read a mapping's entry: a number, or (dims, values) and perhaps its meaning."""
    if isinstance(given, tuple):
        dims, values, *rest = given if len(given) in (2, 3) else (None, None)
        if isinstance(dims, tuple | list) and all(isinstance(x, str) for x in dims):
            array = np.asarray(values)
            if array.dtype.kind in "biuf":
                return tuple(dims), array, str(rest[0]) if rest else ""
    elif np.ndim(given) == 0 and np.asarray(given).dtype.kind in "biuf":
        return (), np.asarray(given), ""
    raise InputError(name, given, "a number, or (names of axes, an array of numbers)")


@labelled.register
def _labelled(found: Labelled) -> Labelled:
    return found


@labelled.register
def _loss(found: Loss) -> Labelled:
    return labelled_arrays(
        {
            "loss": ((), found.value, "population loss E"),
            "loss_error": ((), found.error, "absolute error"),
            "dE_dm": (("head", "feature"), found.m, "gradient of E in m"),
            "dE_dr": (("head", "other_head"), found.r, "gradient of E in r, dE = tr(G dr)"),
            "dE_db": (("head",), found.b, "gradient of E in the biases"),
            "dE_dv": (("head",), found.v, "gradient of E in the values"),
            "gradient_error": ((), found.gradient_error, "largest absolute error of an entry"),
        }
    )


@labelled.register
def _risk(found: Risk) -> Labelled:
    return labelled_arrays(
        {
            "bayes_risk": ((), found.value, "Bayes risk, the least loss of any estimator"),
            "bayes_risk_error": ((), found.error, "absolute error"),
        }
    )


@labelled.register
def _flow(found: Flow) -> Labelled:
    return labelled_arrays(
        {
            "loss": (("tau",), found.loss, "population loss E along the flow"),
            "loss_error": ((), found.loss_error, "largest absolute error at checked times"),
            "m": (("tau", "head", "feature"), found.m, "alignments k_h . k*_f"),
            "r": (("tau", "head", "other_head"), found.r, "overlaps of the keys' other parts"),
            "b": (("tau", "head"), found.b, "biases"),
            "v": (("tau", "head"), found.v, "values"),
            "gradient_error": ((), found.gradient_error, "largest absolute error of an entry"),
            "noise_error": ((), found.noise_error, "largest standard error of kappa V"),
            "first_passage": (
                ("feature",),
                np.where(np.isnan(found.first_passage), np.inf, found.first_passage),
                f"first tau at which a feature's norm passes {found.threshold:g}; else infinite",
            ),
        },
        {"tau": found.tau},
    )


@labelled.register
def _sgd(found: SGDRuns) -> Labelled:
    return labelled_arrays(
        {
            "m": (("run", "tau", "head", "feature"), found.m, "alignments k_h . k*_f"),
            "r": (
                ("run", "tau", "head", "other_head"),
                found.r,
                "overlaps of the keys' other parts",
            ),
            "b": (("run", "tau", "head"), found.b, "biases"),
            "v": (("run", "tau", "head"), found.v, "values"),
            "samples": (("tau",), found.samples, "samples used by then"),
            "kappa": ((), found.kappa, "step x D / batch"),
            "passage": (
                ("run", "watch"),
                found.passages if found.watches else None,
                "first tau at which a watched norm passes its threshold; infinite if it does not",
            ),
        },
        {"tau": found.tau, "watch": [x.name for x in found.watches]},
    )


@labelled.register
def _spectrum(found: Spectrum) -> Labelled:
    # Eigenvalues of one sector are told apart by their order.
    names: list[str] = []
    for i, sector in enumerate(found.sectors):
        earlier = found.sectors[:i].count(sector)
        names.append(f"{sector} ({earlier + 1})" if earlier else sector)
    return labelled_arrays(
        {
            "eigenvalue": (("sector",), found.eigenvalues, "Hessian eigenvalue in (m, rho)"),
            "eigenvalue_error": (("sector",), found.errors, "absolute error"),
            "multiplicity": (("sector",), found.multiplicities, "of the eigenvalue"),
            "growth_rate": (
                ("sector",),
                found.growth_rates,
                "minus the eigenvalue, per unit of tau",
            ),
        },
        {"sector": names},
    )


@labelled.register
def _saddle(found: Saddle) -> Labelled:
    place = {
        "loss": ((), found.loss, "population loss E"),
        "loss_error": ((), found.loss_error, "absolute error"),
        **_state(found.state),
        "position_error": ((), found.position_error, "distance to the true saddle, estimated"),
        "index": ((), found.index, "number of unstable directions"),
    }
    spectrum = labelled(found.spectrum)
    place |= {name: (x.dims, x.values, x.meaning) for name, x in spectrum.variables.items()}
    return labelled_arrays(place, spectrum.labels)


@labelled.register
def _minimum(found: Minimum) -> Labelled:
    return labelled_arrays(
        {
            "loss": ((), found.loss, "least loss that was found, an upper bound"),
            "loss_error": ((), found.loss_error, "absolute error"),
            "gap": ((), found.gap, "loss above the Bayes risk"),
            "gap_error": ((), found.gap_error, "absolute error"),
            **_state(found.state),
            "residual": ((), found.residual, "largest entry of r at the end of the descent"),
        }
    )


def _state(state: Any) -> dict[str, tuple[tuple[str, ...], Any, str]]:
    return {
        "m": (("head", "feature"), state.m, "alignments k_h . k*_f"),
        "b": (("head",), state.b, "biases"),
        "v": (("head",), state.v, "values"),
    }


@labelled.register
def _query_flow(found: QueryFlow) -> Labelled:
    return labelled_arrays(
        {"alpha": (("t",), found.alpha, "alignment q . u along the flow")}, {"t": found.t}
    )


@labelled.register
def _query_runs(found: QueryRuns) -> Labelled:
    mean, error = found.final()
    return labelled_arrays(
        {
            "alpha": (("run", "step"), found.alpha, "alignment q . u"),
            "final": ((), mean, "mean of |alpha| at the end"),
            "final_error": ((), error, "half-width of its interval, confidence 0.95"),
            "stuck": ((), found.stuck, "runs that end with |alpha| below 1/2"),
        },
        {"step": found.steps},
    )


def objective_arrays(alpha: NDArray[np.float64], found: Objective) -> Labelled:
    """Return an objective at alignments as arrays along them."""
    names = {"value": ("J", "objective J"), "slope": ("dJ", "J'"), "curvature": ("ddJ", "J''")}
    entries: dict[str, tuple[tuple[str, ...], Any, str]] = {}
    for attribute, (name, meaning) in names.items():
        entries[name] = (("alpha",), getattr(found, attribute), f"{meaning} at an alignment")
        entries[f"{name}_error"] = (
            ("alpha",),
            getattr(found, f"{attribute}_error"),
            "absolute error",
        )
    return labelled_arrays(entries, {"alpha": alpha})
