"""All claims by id."""

from collections.abc import Sequence
from importlib import import_module

from numeric.claims.claim import Claim
from numeric.errors import InputError

IDS = (*(f"A{i}" for i in range(1, 14)), *(f"B{i}" for i in range(1, 5)))


def claims(ids: Sequence[str] = ()) -> tuple[Claim, ...]:
    """Return claims in the order of the papers, all of them if no ids are given.

    Parameters
    ----------
    ids : sequence of str
        Such as "A6"; upper or lower case.

    Raises
    ------
    InputError
        If there is no such claim.
    """
    wanted = [x.upper() for x in ids] or list(IDS)
    for given, name in zip(ids or IDS, wanted, strict=True):
        if name not in IDS:
            raise InputError("ID", given, f"one of {', '.join(IDS)}")
    return tuple(
        import_module(f"numeric.claims.{name.lower()}").CLAIM for name in IDS if name in wanted
    )
