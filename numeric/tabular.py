"""Results that a notebook shows as a table."""

from abc import ABC, abstractmethod
from html import escape


class Tabular(ABC):
    """A result with rows; the first one names the columns."""

    @abstractmethod
    def rows(self) -> list[list[str]]:
        """Return the table, its head first."""

    def _repr_html_(self) -> str:
        head, *body = self.rows()
        lines = ["".join(f"<th>{escape(x)}</th>" for x in head)]
        lines += ["".join(f"<td>{escape(x)}</td>" for x in row) for row in body]
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<p>{escape(self.summary())}</p><table>{table}</table>"

    def summary(self) -> str:
        """Return what stands above the table."""
        return repr(self).strip("<>")
