"""The one thing that crosses from `derive` to `numeric`: a frozen, ordered, named kernel spec.

A spec lists inputs (symbol, shape, meaning) and outputs (name, expression). Scalar symbols stand for
arrays that broadcast together; matrix symbols stand for arrays with the shape they declare. Unknown
and duplicate symbols are refused here, so a generated kernel cannot silently read a global.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from keyword import iskeyword

from sympy import Basic, I, Integer, MatrixSymbol, Symbol, nan, oo, srepr, zoo

from derive.errors import DeriveError

# Names that a generated function uses itself.
RESERVED = {"np", "scipy", "shape", "Any", "Array", "NDArray"}


@dataclass(frozen=True)
class Argument:
    """An input of a kernel: its Python name, symbol, shape and meaning."""

    name: str
    symbol: Symbol | MatrixSymbol
    doc: str
    shape: str = "array"


@dataclass(frozen=True)
class Output:
    """An output of a kernel."""

    name: str
    expression: Basic
    doc: str
    shape: str = "array"


@dataclass(frozen=True)
class Kernel:
    """One generated function.

    Parameters
    ----------
    name : str
        Function name.
    summary : str
        First line of the docstring.
    inputs : tuple of Argument
    outputs : tuple of Output
    reference : str
        Source equation.
    domain : str
        Where the formula holds.

    Raises
    ------
    DeriveError
        If a name or symbol appears twice, or an output uses a symbol that is no input.
    """

    name: str
    summary: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    reference: str
    domain: str = "all real inputs"

    def __post_init__(self) -> None:
        names = Counter(
            [a.name for a in self.inputs]
            + [str(a.symbol) for a in self.inputs if str(a.symbol) != a.name]
            + [o.name for o in self.outputs]
        )
        for name in (self.name, *(a.name for a in self.inputs), *(o.name for o in self.outputs)):
            if not name.isidentifier() or iskeyword(name) or name in RESERVED:
                raise DeriveError(f"{self.name}: {name!r} cannot be a name in a kernel")
        twice = sorted(n for n, count in names.items() if count > 1)
        if twice:
            raise DeriveError(f"{self.name}: {', '.join(twice)} declared twice")
        known = {a.symbol for a in self.inputs}
        # Give matrices numbers for sizes: a size that is left is used as a number.
        sizes = {x for k in known if isinstance(k, MatrixSymbol) for x in k.shape}
        numbers = {x: Integer(i) for i, x in enumerate(sorted(sizes - known, key=str), start=2)}
        plain = {
            k: MatrixSymbol(k.name, *(numbers.get(x, x) for x in k.shape))
            for k in known
            if isinstance(k, MatrixSymbol)
        }
        for output in self.outputs:
            found = output.expression.xreplace(plain).atoms(Symbol, MatrixSymbol)
            unknown = sorted(map(str, found - known - set(plain.values())))
            if output.expression.has(I, oo, zoo, nan):
                raise DeriveError(f"{self.name}.{output.name}: complex or infinite constant")
            if unknown:
                raise DeriveError(
                    f"{self.name}.{output.name}: unknown symbols {', '.join(unknown)}"
                )

    @property
    def is_matrix(self) -> bool:
        """Whether the kernel works on whole matrices instead of elementwise."""
        return any(isinstance(a.symbol, MatrixSymbol) for a in self.inputs)


@dataclass(frozen=True)
class Module:
    """One generated module: constants and kernels, in order."""

    name: str
    summary: str
    kernels: tuple[Kernel, ...]
    constants: tuple[tuple[str, object], ...] = field(default=())

    def digest(self, emitter: str) -> str:
        """Return a hash of the model definition and of the emitter's source text."""
        text = [self.name, self.summary, repr(self.constants), emitter]
        for kernel in self.kernels:
            text += [kernel.name, kernel.summary, kernel.reference, kernel.domain]
            text += [f"{a.name}|{srepr(a.symbol)}|{a.doc}|{a.shape}" for a in kernel.inputs]
            text += [f"{o.name}|{o.expression}|{o.doc}|{o.shape}" for o in kernel.outputs]
        return hashlib.sha256("\n".join(text).encode()).hexdigest()[:16]
