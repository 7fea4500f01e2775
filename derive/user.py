"""An activation of the user's own, from the entries of an experiment file's ``[attention]`` table.

The weight's text is read by `derive.parser`; nothing from a file is ever evaluated as code.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from sympy import Expr, Rational

from derive.attention import LEAST, NORMALIZATIONS, Attention, activation
from derive.errors import DeriveError
from derive.parser import parse_weight

KEYS = ("weight", "normalization", "background", "trained")


def user_attention(
    weight: object, normalization: object, background: object = 0, trained: object = ()
) -> Attention:
    """Return the activation that plain values describe.

    Parameters
    ----------
    weight : str
        Score weight, such as ``"log(1 + exp(chi + b))"``; see `derive.parser.parse_weight`.
    normalization : {"none", "per-head", "pooled"}
    background : number
        Constant in the denominator: 0, or from 1e-9 to 1e9.
    trained : list of str
        Among ``"b"`` and ``"v"``; b is trained exactly when the weight contains it.

    Raises
    ------
    DeriveError
        If a value is not as above; one line that begins with its name.
    """
    if normalization not in NORMALIZATIONS:
        expected = ", ".join(map(repr, NORMALIZATIONS))
        raise DeriveError(
            f"normalization: found {_shown(normalization)}, expected one of {expected}"
        )
    if not isinstance(trained, list | tuple) or not all(isinstance(x, str) for x in trained):
        raise DeriveError(
            f"trained: found {_shown(trained)}, expected a list of names among 'b' and 'v'"
        )
    return Attention(
        "user-defined",
        parse_weight(weight),  # type: ignore[arg-type]
        str(normalization),
        _number(background),
        tuple(trained),
        reference="the experiment file",
    )


def read_attention(path: str | Path) -> Attention:
    """Return the activation of an experiment file, built-in or the user's own.

    Raises
    ------
    DeriveError
        If the file cannot be read or its ``[attention]`` table does not define an activation.
    """
    table = _entries(path).get("attention")
    if not isinstance(table, Mapping):
        raise DeriveError(f"{path}: attention: found {_shown(table)}, expected a table")
    given = {key: table[key] for key in KEYS if key in table}
    name = table.get("activation")
    try:
        if given and name is None:
            missing = [key for key in KEYS[:2] if key not in given]
            if missing:
                expected = {
                    "weight": "a text",
                    "normalization": ", ".join(map(repr, NORMALIZATIONS)),
                }
                raise DeriveError(f"{missing[0]}: found nothing, expected {expected[missing[0]]}")
            reference = f"the experiment file {Path(path).name}"
            return replace(user_attention(**given), reference=reference)
        if given or not isinstance(name, str):
            found = f"{_shown(name)} and a weight" if given else _shown(name)
            raise DeriveError(f"activation: found {found}, expected a name, or else a weight")
        return activation(name)
    except DeriveError as error:
        raise DeriveError(f"{path}: attention.{error}") from None


def is_query(path: str | Path) -> bool:
    """Return whether an experiment file is one of the query model.

    Raises
    ------
    DeriveError
        If the file cannot be read.
    """
    return "query" in _entries(path)


def _entries(path: str | Path) -> dict[str, object]:
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise DeriveError(f"{path}: found {reason}, expected a TOML file") from None


def _number(value: object) -> Expr:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DeriveError(f"background: found {_shown(value)}, expected a number >= 0")
    least, most = float(LEAST), float(1 / LEAST)
    if not (value == 0 or least <= value <= most):
        raise DeriveError(
            f"background: found {_shown(value)}, expected 0, or a number from {least:g} to {most:g}"
        )
    exact = Fraction(repr(value))
    return Rational(exact.numerator, exact.denominator)


def _shown(value: object) -> str:
    """A short line about a value from a file."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:40] + "..." + text[-15:]
