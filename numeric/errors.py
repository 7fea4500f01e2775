"""The errors headflow raises, and the one-line wording they share.

Every error derives from `HeadflowError`, which is also a `ValueError`. An error about an input
names the input, says what was found and what would have been right.
"""

import numpy as np

_LONGEST = 100
_HEAD, _TAIL = 65, 25  # what is kept of a longer text


class Verbatim(str):
    """A text that `describe` shows as it stands, without quotes."""

    def __repr__(self) -> str:
        return str(self)


NOTHING = Verbatim("nothing")
"""What is found where a required value is absent."""


def one_line(text: str) -> str:
    """Return `text` with every run of blanks and unprintable characters made one space."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def describe(value: object) -> Verbatim:
    """Describe a value in one short line.

    Parameters
    ----------
    value : object
        Anything. Arrays are described by shape and first entry that is not finite, other values
        by their ``repr``, cut in the middle where it is long.

    Returns
    -------
    Verbatim
        At most 100 printable characters; ``describe(describe(x)) == describe(x)``.
    """
    text = one_line(_array_words(value) if isinstance(value, np.ndarray) else _safe_repr(value))
    return Verbatim(text if len(text) <= _LONGEST else f"{text[:_HEAD]}...{text[-_TAIL:]}")


def _safe_repr(value: object) -> str:
    try:
        return repr(value.item() if isinstance(value, np.generic) else value)
    except Exception:
        return f"a value of type {type(value).__name__}"


def _array_words(array: np.ndarray) -> str:
    words = f"an array of shape {array.shape}"
    if array.dtype.kind not in "iuf":
        return f"{words} and type {array.dtype}"
    bad = np.argwhere(~np.isfinite(array))
    return f"{words} with {array[tuple(bad[0])]} at {bad[0].tolist()}" if len(bad) else words


class HeadflowError(ValueError):
    """Base of every error headflow raises on purpose."""


class InputError(HeadflowError):
    """An argument is not what it must be.

    Parameters
    ----------
    name : str
        The argument's name.
    found : object
        The offending value; it is kept as its description (see `describe`).
    expected : str
        What would have been right.
    """

    def __init__(self, name: str, found: object, expected: str) -> None:
        self.name = name
        self.found = describe(found)
        self.expected = expected
        super().__init__(name, self.found, expected)  # args rebuild the error when it is unpickled

    def __str__(self) -> str:
        name = describe(Verbatim(self.name))
        return f"{name}: found {self.found}, expected {one_line(self.expected)}"


class ExperimentError(InputError):
    """An entry of an experiment file is not what it must be.

    Parameters
    ----------
    file : str
        The file, as the user named it.
    name : str
        The dotted key, such as ``task.prior.covariance``; ``file`` for the file as a whole.
    found : object
        The offending value.
    expected : str
        What would have been right.
    """

    def __init__(self, file: str, name: str, found: object, expected: str) -> None:
        super().__init__(name, found, expected)
        self.file = file
        self.args = (file, *self.args)

    def __str__(self) -> str:
        return f"{one_line(self.file)}: {super().__str__()}"


class QuadratureError(HeadflowError):
    """A quadrature cannot reach the accuracy asked for."""


class FlowError(HeadflowError):
    """The order-parameter flow cannot be continued."""


class SimulationError(HeadflowError):
    """A finite-dimension simulation cannot be continued."""
