"""Samples in files, and the priors that they make."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from numeric.errors import InputError, Verbatim
from numeric.prior import Prior, empirical
from numeric.signals import Signals, condensed, real_signals
from numeric.validate import points


def empirical_prior(
    directory: Path,
    whole: list[Signals],
    file: object,
    features: object = None,
    variance: object = None,
    centred: object = None,
    components: object = None,
) -> Prior:
    """Make the prior of the samples in a file, or of their leading features.

    Parameters
    ----------
    directory : Path
        Where the file is.
    whole : list
        Receives the samples of which features were taken.
    file : str
        Name of an .npy or .csv file.
    features, variance, centred
        See `real_signals`; without `features` samples are amplitudes.
    components : int, optional
        See `condensed`.

    Raises
    ------
    InputError
        If an argument is not as above, or the file cannot be read.
    """
    if not isinstance(file, str) or Path(file).suffix not in _READERS:
        raise InputError("file", file, "the name of a .npy or .csv file of samples")
    try:
        with warnings.catch_warnings(action="ignore"):
            samples = _READERS[Path(file).suffix](directory / file)
    except InputError:
        raise
    except Exception as error:
        found = Verbatim(f"{file!r}: {reason(error)}")
        raise InputError("file", found, "a readable .npy or .csv file of samples") from None
    samples = points("file", samples)
    prior: Prior
    if features is None:
        for name, value in (("variance", variance), ("centred", centred)):
            if value is not None:
                raise InputError(name, value, "none, without a number of features")
        prior = empirical(samples)
    else:
        kept = True if centred is None else centred
        signals = real_signals(samples, features, variance=variance, centred=kept)  # type: ignore[arg-type]
        whole.append(signals)
        prior = signals.prior
    return prior if components is None else condensed(prior, components)  # type: ignore[arg-type]


def _read_npy(path: Path) -> object:
    with path.open("rb") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _read_csv(path: Path) -> object:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        if line.strip():
            try:
                rows.append([float(cell) for cell in line.split(",")])
            except ValueError:
                found = Verbatim(f"{line!r} in line {number} of {path.name}")
                expected = "numbers separated by commas in every line, no header line"
                raise InputError("file", found, expected) from None
    return rows


_READERS: dict[str, Callable[[Path], object]] = {".npy": _read_npy, ".csv": _read_csv}


def reason(error: Exception) -> Verbatim:
    """Return the bare message of an error, as something that was found."""
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Verbatim(words[:1].lower() + words[1:])
