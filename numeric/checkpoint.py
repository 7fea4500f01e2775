"""Folders in which a simulation keeps what is done, so that it can go on after an interruption.

One file for the call, ``run.json``, and one for each group of runs, written whole under a temporary name
and renamed: whatever stops the program, there is a state to go on from.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from numeric.activation import UserActivation
from numeric.descent import Descent
from numeric.errors import InputError, Verbatim
from numeric.files import whole
from numeric.task import State
from numeric.validate import whole_number

EVERY = 1.0
"""Seconds between two writings, or more, so that they take a small part of the time."""

PATIENCE = 20.0


def digest(descent: Descent, state: State, steps: NDArray[np.int64], *others: object) -> str:
    """Return what identifies a call: nothing that its results depend on is left out.

    Parameters
    ----------
    descent : Descent
    state : State
        Where the runs start.
    steps : (n,) array of int
        When they are recorded.
    others
        Whatever else counts, with an exact ``repr``.
    """
    prior, attention = descent.task.prior, descent.attention
    activation = attention.activation
    if isinstance(activation, UserActivation):
        activation = activation.source
    words = [np.__version__, descent.task.tokens, type(prior).__name__, activation, attention.heads]
    words += [descent.dimension, descent.batch, descent.step, descent.target, *others]
    arrays = [*prior.components(), state.m, state.r, state.b, state.v, steps]
    for x in descent.watches:
        arrays.append(x.rows)
    found = hashlib.sha256(repr(words).encode())
    for array in arrays:
        if array is not None:
            found.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


class Checkpoint:
    """The folder of one call.

    Parameters
    ----------
    folder : path
        Made if need be.
    key : str
        The call's `digest`.
    group : int
        Runs of a group; those of an earlier call that did not end are kept.

    Raises
    ------
    InputError
        If the folder belongs to another call, or to nothing of the kind.
    OSError
        If it cannot be written.
    """

    def __init__(self, folder: str | Path, key: str, group: int) -> None:
        if not isinstance(folder, str | Path) or not str(folder) or "\0" in str(folder):
            raise InputError("checkpoint", folder, "the path of a folder")
        self.folder, self.key = Path(folder), key
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "run.json"
        if not settings.exists() and not any(self.folder.glob("runs-*.npz")):
            with whole(settings, replace=False) as stream:
                stream.write((json.dumps({"key": key, "group": group}) + "\n").encode())
        try:
            found = json.loads(settings.read_text(encoding="utf-8"))
            same, self.group = found["key"] == key, whole_number("group", found["group"], 1)
        except (OSError, ValueError, KeyError, TypeError):
            same = False
        if not same:
            expected = "an empty folder, or one of the same simulation"
            raise InputError("checkpoint", Verbatim(f"another in {self.folder}"), expected)

    def of(self, first: int) -> "GroupStore":
        """Return what is stored of the group that begins with some run."""
        return GroupStore(self.folder / f"runs-{first}.npz", self.key)


class GroupStore:
    """The file of one group of runs, of the call with some key."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self._next = time.monotonic() + EVERY

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() >= self._next

    def load(self) -> dict[str, Any] | None:
        """Return the arrays that were saved, if any.

        Raises
        ------
        InputError
            If the file cannot be read.
        """
        if not self.path.exists():
            return None
        try:
            with np.load(self.path, allow_pickle=False) as stored:
                arrays = dict(stored)
        except Exception:
            raise self.unreadable from None
        if str(arrays.get("key")) != self.key:
            raise self.unreadable
        return arrays

    @property
    def unreadable(self) -> InputError:
        """What to raise of a file that is damaged, or not of this call."""
        found = Verbatim(f"{self.path.name}, which cannot be used")
        return InputError("checkpoint", found, "a file of this simulation")

    def save(self, arrays: dict[str, Any]) -> None:
        """Write arrays, whole or not at all."""
        began = time.monotonic()
        with whole(self.path) as stream:
            np.savez(stream, key=np.array(self.key), **arrays)
        now = time.monotonic()
        self._next = now + max(EVERY, PATIENCE * (now - began))


def streams(rngs: list[Generator]) -> NDArray[np.str_]:
    """Return the states of generators as text."""
    return np.array([json.dumps(rng.bit_generator.state) for rng in rngs])


def restore_streams(rngs: list[Generator], states: NDArray[np.str_]) -> None:
    """Set generators to states that were saved."""
    for rng, state in zip(rngs, states.tolist(), strict=True):
        rng.bit_generator.state = json.loads(state)
