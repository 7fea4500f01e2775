"""Cells of a sweep: computed with one BLAS thread, stored one a file, whole or not at all."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from numeric.errors import ExperimentError, HeadflowError, InputError, Verbatim, describe
from numeric.files import whole
from numeric.labelled import Labelled, Variable, labelled


def compute_cell(i: int, call: Callable[[], object]) -> tuple[int, Labelled | str, bool]:
    """Compute one cell with one BLAS thread: its result or its error, and whether to keep that.

    An error of a kind that would come again is kept, any other is tried anew by the next run.
    """
    from threadpoolctl import threadpool_limits

    try:
        with threadpool_limits(1):
            return i, labelled(call()), True
    except HeadflowError as error:
        words = InputError.__str__(error) if isinstance(error, ExperimentError) else str(error)
        return i, words, True
    except (Exception, SystemExit) as error:
        return i, f"{type(error).__name__}: {describe(Verbatim(_words(error)))}", False


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "without words"


def write_cell(path: Path, found: Labelled | str) -> None:
    """Write a cell, whole or not at all."""
    head: dict[str, Any] = {"error": found} if isinstance(found, str) else {}
    arrays: dict[str, Any] = {}
    if isinstance(found, Labelled):
        head["variables"] = [[name, x.dims, x.meaning] for name, x in found.variables.items()]
        head["labels"] = list(found.labels)
        arrays = {f"v{i}": x.values for i, x in enumerate(found.variables.values())}
        arrays |= {f"l{i}": x for i, x in enumerate(found.labels.values())}
    content = io.BytesIO()
    np.savez(content, head=np.array(json.dumps(head)), **arrays)
    with whole(path) as stream:
        stream.write(content.getvalue())


def read_cell(path: Path) -> Labelled | str | None:
    """Read a cell; None if there is none, or it is damaged."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as content:
            head = json.loads(str(content["head"]))
            if "error" in head:
                return str(head["error"])
            return Labelled(
                {
                    name: Variable(tuple(dims), content[f"v{i}"], meaning)
                    for i, (name, dims, meaning) in enumerate(head["variables"])
                },
                {name: content[f"l{i}"] for i, name in enumerate(head["labels"])},
            )
    except FileNotFoundError:
        return None
    except OSError:
        raise
    except Exception:
        return None  # damaged: it is computed again
