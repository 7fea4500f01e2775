"""Experiment files: a task, an attention layer, a start and the settings of the runs, in TOML."""

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from numeric.errors import NOTHING, ExperimentError, InputError, Verbatim
from numeric.grid import read_grid
from numeric.prior import (
    DiscretePrior,
    GaussianPrior,
    MixturePrior,
    Prior,
    flipped_spike,
    isotropic,
)
from numeric.query_experiment import (
    QueryExperiment,
    QueryFlowSettings,
    query_ascent,
    query_experiment,
    query_task,
)
from numeric.samples import empirical_prior, reason
from numeric.signals import Signals
from numeric.tables import Table
from numeric.task import MOST_HEADS, Attention, State, Task
from numeric.validate import (
    choices_words,
    one_of,
    real_array,
    real_number,
    store,
    whole_number,
)


@dataclass(frozen=True)
class FlowSettings:
    """How to run the order-parameter flow.

    Parameters
    ----------
    eta : float
        Scale of the initial keys, k_h ~ N(0, eta^2 I / D); > 0.
    dimension : int
        Token dimension D that sets the size eta / sqrt(D) of the initial m.
    tau_max : float
        Time tau = gamma * steps at which to stop; > 0.
    kappa : float
        Noise level gamma * D / N_b; >= 0.
    seed : int
        Seed of the initial state; >= 0.

    Raises
    ------
    InputError
        If a setting is outside its range.
    """

    eta: float = 0.1
    dimension: int = 1000
    tau_max: float = 100.0
    kappa: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        store(
            self,
            eta=real_number("eta", self.eta, positive=True),
            dimension=whole_number("dimension", self.dimension, 1),
            tau_max=real_number("tau_max", self.tau_max, positive=True),
            kappa=real_number("kappa", self.kappa, minimum=0),
            seed=whole_number("seed", self.seed, 0),
        )


@dataclass(frozen=True)
class SGDSettings:
    """How to run stochastic gradient descent at finite token dimension.

    Parameters
    ----------
    dimension : int
        Token dimension D.
    batch : int
        Samples N_b of each step.
    step : float, optional
        Step gamma; > 0.
    runs, seed : int
        Number of independent runs, and the seed of them all; >= 0.
    method : {"direct", "reduced"}

    Raises
    ------
    InputError
        If a setting is outside its range.
    """

    dimension: int = 500
    batch: int = 1
    step: float | None = None
    runs: int = 16
    seed: int = 1
    method: str = "direct"

    def __post_init__(self) -> None:
        store(
            self,
            dimension=whole_number("dimension", self.dimension, 1),
            batch=whole_number("batch", self.batch, 1),
            step=None if self.step is None else real_number("step", self.step, positive=True),
            runs=whole_number("runs", self.runs, 1),
            seed=whole_number("seed", self.seed, 0),
            method=one_of("method", self.method, ("direct", "reduced")),
        )


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Parameters
    ----------
    name : str
        Name of the example, or the file's name without its suffix.
    path : Path, optional
        Where the file is; ``None`` for examples and texts.
    task : Task
    attention : Attention
    state : State, optional
        A fixed start; it is completed by `State.check`.
    flow : FlowSettings
    sgd : SGDSettings
    signals : Signals, optional
        The samples whose leading features the prior describes.

    Raises
    ------
    InputError
        If the state does not belong to the task and the attention layer, or a dimension is below
        F + H.
    """

    name: str
    path: Path | None
    task: Task
    attention: Attention
    state: State | None = None
    flow: FlowSettings = FlowSettings()
    sgd: SGDSettings = SGDSettings()
    signals: Signals | None = None

    def __post_init__(self) -> None:
        features = self.task.prior.features
        least = features + self.attention.heads
        whole_number("flow.dimension", self.flow.dimension, least)
        whole_number("sgd.dimension", self.sgd.dimension, least)
        if self.state is not None:
            try:
                store(self, state=self.state.check(self.attention, features))
            except InputError as error:
                name = f"state.{error.name}"
                raise InputError(name, error.found, error.expected) from None

    @property
    def title(self) -> str:
        """The experiment in one line."""
        attention, task = self.attention, self.task
        return (
            f"{self.name}: {attention.name}, H = {attention.heads}, F = {task.prior.features}, "
            f"L = {task.tokens}"
        )


def example_names() -> tuple[str, ...]:
    """Return the names of the examples that come with headflow, sorted."""
    files = (resources.files("numeric") / "examples").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def load_experiment(name_or_path: str | os.PathLike[str]) -> Experiment | QueryExperiment:
    """Load an example by its name, or an experiment file by its path.

    A file with a table [query] is one of the query model.

    Parameters
    ----------
    name_or_path : str or path
        A name among `example_names`; anything else is a path.

    Raises
    ------
    ExperimentError
        If there is no such file, or anything in it is not what it must be; one line that names the
        file, the key, what was found and what is expected.
    """
    text, name, path = read_file(name_or_path)
    return parse_experiment(text, name, "." if path is None else path.parent, path)


def read_file(name_or_path: str | os.PathLike[str]) -> tuple[str, str, Path | None]:
    """Return the text of an example or a file, the experiment's name, and the path of a file.

    Raises
    ------
    ExperimentError
        If there is no such file, or it is no text.
    """
    label = str(name_or_path)
    if label in example_names():
        resource = resources.files("numeric") / "examples" / f"{label}.toml"
        return resource.read_text(encoding="utf-8"), label, None
    expected = f"a TOML file, or an example: {choices_words(label, example_names())}"
    try:
        path = Path(name_or_path)
        content = path.read_bytes()
    except (OSError, ValueError, TypeError) as error:  # a directory, a NUL in the path, no path
        raise ExperimentError(label, "file", reason(error), expected) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {content[error.start]:#04x} at position {error.start}"
        raise ExperimentError(label, "file", Verbatim(found), "UTF-8 text") from None
    return text, path.stem, path


def parse_experiment(
    text: str, name: str, directory: str | os.PathLike[str] = ".", path: Path | None = None
) -> Experiment | QueryExperiment:
    """Build the experiment that a TOML text describes.

    Parameters
    ----------
    text : str
        The content of an experiment file.
    name : str
        Name of the experiment; error messages use it where there is no path.
    directory : path
        Where the sample files that the text names are looked up.
    path : Path, optional
        Where the text comes from.

    Raises
    ------
    ExperimentError
        If anything in the text is not what it must be; see `load_experiment`.
    """
    entries = read_entries(text, name if path is None else str(path))
    return build_experiment(entries, name, directory, path)


def read_entries(text: str, file: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises
    ------
    ExperimentError
        If it is no TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError covers integers of too many digits
        raise ExperimentError(file, "file", reason(error), "TOML") from None


def build_experiment(
    entries: Mapping[str, Any],
    name: str,
    directory: str | os.PathLike[str] = ".",
    path: Path | None = None,
) -> Experiment | QueryExperiment:
    """Build the experiment that the tables of a file describe; see `parse_experiment`.

    A table [sweep] is checked, and is of no effect here.
    """
    file = name if path is None else str(path)
    if "sweep" in entries:
        read_grid(file, entries["sweep"])
        entries = {key: entry for key, entry in entries.items() if key != "sweep"}
    if "query" in entries:
        return Table(file, "", entries).build(
            partial(query_experiment, name, path),
            query=lambda query: query.build(query_task),
            ascent=lambda ascent: ascent.build(query_ascent),
            flow=lambda flow: flow.build(QueryFlowSettings),
        )
    whole: list[Signals] = []
    priors: dict[str, Callable[..., Prior]] = {
        "gaussian": GaussianPrior,
        "discrete": DiscretePrior,
        "mixture": MixturePrior,
        "empirical": partial(empirical_prior, Path(directory), whole),
        "isotropic": isotropic,
        "flipped-spike": flipped_spike,
    }
    found = Table(file, "", entries).build(
        partial(_experiment, name, path),
        task=lambda task: task.build(Task, prior=lambda prior: prior.build_kind(priors)),
        attention=lambda attention: attention.build(_attention),
        state=lambda state: state.build(_state),
        flow=lambda flow: flow.build(FlowSettings),
        sgd=lambda sgd: sgd.build(SGDSettings),
    )
    return replace(found, signals=whole[0]) if whole else found


def _experiment(
    name: str,
    path: Path | None,
    task: Task,
    attention: Attention,
    state: State | None = None,
    flow: FlowSettings = FlowSettings(),
    sgd: SGDSettings = SGDSettings(),
) -> Experiment:
    """Make an experiment of the tables that a file may have."""
    return Experiment(name, path, task, attention, state, flow, sgd)


def _attention(
    heads: object,
    activation: object = None,
    weight: object = None,
    normalization: object = None,
    background: object = None,
    trained: object = None,
) -> Attention:
    """Make an attention layer of a built-in activation, or of one that the file defines."""
    own = {"weight": weight, "normalization": normalization}
    if activation is not None or not any(value is not None for value in own.values()):
        for name, value in own.items():
            if value is not None:
                raise InputError(name, value, "none beside the name of an activation")
        for name, value in (("background", background), ("trained", trained)):
            if value is not None:
                raise InputError(name, value, "none, without a weight of your own")
        return Attention(NOTHING if activation is None else activation, heads)  # type: ignore[arg-type]
    for name, value in own.items():
        if value is None:
            expected = "a text" if name == "weight" else "'none', 'per-head' or 'pooled'"
            raise InputError(name, NOTHING, f"{expected}, to define an activation")
    # The derivation needs SymPy: it is imported for such a file only.
    from derive.errors import DeriveError
    from derive.user import user_attention

    try:
        definition = user_attention(
            weight,
            normalization,
            0 if background is None else background,
            () if trained is None else trained,
        )
        return Attention(definition, heads)  # type: ignore[arg-type]
    except DeriveError as error:
        name, about_entry, rest = str(error).partition(": found ")
        if not about_entry:  # about the weight's derivation
            raise InputError("weight", weight, f"another one ({error})") from None
        found, _, expected = rest.rpartition(", expected ")
        raise InputError(name, Verbatim(found), expected) from None


def _state(m: object, r: object = None, b: object = None, v: object = None) -> State:
    """Make one state, by default with r = 0."""
    alignments = real_array("m", m, (None, None))
    heads = len(alignments)
    if heads > MOST_HEADS:
        raise InputError("m", alignments, f"at most {MOST_HEADS} heads")
    overlaps = np.zeros((heads, heads)) if r is None else real_array("r", r, (heads, heads))
    biases, values = (
        x if x is None else real_array(name, x, (heads,)) for name, x in (("b", b), ("v", v))
    )
    return State(alignments, overlaps, biases, values)
