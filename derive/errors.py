"""Errors of the symbolic side."""


class DeriveError(ValueError):
    """A definition or specification that cannot be derived from; one line, names the culprit."""
