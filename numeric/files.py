"""Files and JSON: written whole or not at all, and strict."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def whole(path: Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """Open a file to write under a temporary name, renamed at the end: it is there whole or not at all.

    Parameters
    ----------
    path : Path
    replace : bool
        Whether a file that is there already, perhaps of another process, gives way.

    Raises
    ------
    OSError
        About the path, if it cannot be written: a disk is full, a folder is closed.
    """
    with named(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)
            if replace:
                os.replace(temporary, path)
            else:
                with suppress(FileExistsError):
                    os.link(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Make an error of the system one about this path, whatever temporary name it met."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


@contextmanager
def result_folder(out: Path) -> Iterator[None]:
    """Make the folder of a run's files, whose last one is ``summary.json``.

    Raises
    ------
    OSError
        If the folder cannot be made or written.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out):
        pass  # a folder that cannot be written is found now
    # A summary is the last file that a run writes: one that is there is of a complete run.
    (out / "summary.json").unlink(missing_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # what could not be computed leaves no empty folder
            out.rmdir()


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with whole(path) as stream:
        stream.write(text.encode("utf-8"))


def strict_json(data: Any, indent: int | None = None) -> str:
    """Return strict JSON: arrays as lists, numbers that are not finite as null."""
    return json.dumps(_plain(data), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def code_digest() -> str:
    """Return what identifies the code that computes: our sources, and NumPy and SciPy."""
    import numpy
    import scipy

    found = hashlib.sha256(f"{numpy.__version__} {scipy.__version__}".encode())
    numeric = Path(__file__).parent
    for root in (numeric, numeric.parent / "derive"):
        for path in sorted(root.rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]
