"""Tables of an experiment file, read into whatever takes their keys as arguments."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from numeric.errors import NOTHING, ExperimentError, InputError, Verbatim
from numeric.validate import choices_words, one_of

T = TypeVar("T")


class Table:
    """One table of an experiment file; every error about it names the file and the dotted key."""

    def __init__(self, file: str, key: str, entries: object) -> None:
        if not isinstance(entries, dict):
            raise ExperimentError(file, key, entries, "a table")
        self.file, self.key, self.entries = file, key, entries

    def dotted(self, name: str) -> str:
        """Return the full key of an entry."""
        return f"{self.key}.{name}" if self.key else name

    @contextmanager
    def named(self) -> Iterator[None]:
        """Make an error about an argument one about the entry of that name."""
        try:
            yield
        except ExperimentError:
            raise
        except InputError as error:
            key = self.dotted(error.name)
            raise ExperimentError(self.file, key, error.found, error.expected) from None

    def build(self, make: Callable[..., T], **subtables: Callable[["Table"], object]) -> T:
        """Call `make`, whose parameters are exactly the keys this table may have.

        A required parameter without an entry is passed as NOTHING, for its validator to refuse. An
        entry among `subtables` is a table itself, and passed as what the function given there makes
        of it.
        """
        parameters = inspect.signature(make).parameters
        for name in self.entries:
            if name not in parameters:
                expected = choices_words(name, parameters)
                raise ExperimentError(
                    self.file, self.dotted(name), Verbatim("an unknown key"), expected
                )
        arguments: dict[str, object] = {}
        for name, parameter in parameters.items():
            if name in self.entries or parameter.default is parameter.empty:
                entry = self.entries.get(name, NOTHING)
                read = subtables.get(name)
                arguments[name] = (
                    read(Table(self.file, self.dotted(name), entry)) if read else entry
                )
        with self.named():
            return make(**arguments)

    def build_kind(self, kinds: Mapping[str, Callable[..., T]]) -> T:
        """Call the function that the entry ``kind`` selects with the other entries."""
        with self.named():
            kind = one_of("kind", self.entries.get("kind", NOTHING), kinds)
        others = {name: entry for name, entry in self.entries.items() if name != "kind"}
        return Table(self.file, self.key, others).build(kinds[kind])
