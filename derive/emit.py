"""The one door by which formulas leave SymPy: NumPy kernels, written and compared.

Scalar kernels get one joint common-subexpression elimination over all their outputs, so that a
gradient costs little more than its value. Matrix kernels are printed as they are. The printer is
strict: what has no exact NumPy counterpart is an error, never a comment in the output.
"""

import difflib
import inspect
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import sympy
from sympy import Symbol, cse, numbered_symbols
from sympy.printing.numpy import SciPyPrinter
from sympy.printing.precedence import PRECEDENCE

from derive import spec as spec_module
from derive.attention import ACTIVATIONS, Attention
from derive.bayes import bayes_module
from derive.errors import DeriveError
from derive.gradient import gradient_module
from derive.hessian import origin_kernels
from derive.loss import race_module, score_gradient_kernel, weight_kernel
from derive.noise import noise_module
from derive.spec import Kernel, Module
from derive.stable import log_softplus, softplus

COMMAND = "headflow derive --write"
TARGET = Path(__file__).resolve().parent.parent / "numeric" / "_generated"


_IMPORTS = """from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
"""


class _KernelPrinter(SciPyPrinter):
    """NumPy source, SciPy for special functions; anything else is refused."""

    _default_settings: ClassVar[dict[str, Any]] = {
        **SciPyPrinter._default_settings,
        "fully_qualified_modules": True,
        "strict": True,
    }

    def _module_format(self, fqn: str, register: bool = True) -> str:
        name = super()._module_format(fqn, register)
        if not name.startswith(("numpy.", "scipy.special.")):
            raise DeriveError(f"no NumPy or SciPy counterpart: {name}")
        return name.replace("numpy.", "np.")

    def _print_Pi(self, expr: sympy.Basic) -> str:
        return "np.pi"

    def _print_Exp1(self, expr: sympy.Basic) -> str:
        return "np.e"

    def _print_Trace(self, expr: sympy.Trace) -> str:
        return f"np.trace({self._print(expr.arg)})"

    def _print_MatMul(self, expr: sympy.MatMul) -> str:
        coefficient, factors = expr.as_coeff_matrices()
        product = " @ ".join(self.parenthesize(f, PRECEDENCE["Mul"]) for f in factors)
        if coefficient == 1:
            return product
        return f"{self.parenthesize(coefficient, PRECEDENCE['Mul'])}*({product})"

    def _print_softplus(self, expr: sympy.Basic) -> str:
        return f"np.logaddexp(0.0, {self._print(expr.args[0])})"

    def _print_log_softplus(self, expr: sympy.Basic) -> str:
        x = self._print(expr.args[0])
        # softplus(x) is exp(x) to the last digit below -40.
        return f"np.where({x} < -40, {x}, np.log(np.logaddexp(0.0, np.maximum({x}, -40.0))))"

    def _print_expit(self, expr: sympy.Basic) -> str:
        return f"scipy.special.expit({self._print(expr.args[0])})"

    def _print_softplus_slope(self, expr: sympy.Basic) -> str:
        x = expr.args[0]
        return f"np.exp(-{self._print(softplus(-x))} - {self._print(log_softplus(x))})"

    def _print_Integral(self, expr: sympy.Integral) -> str:
        return self._print_not_supported(expr)

    def _print_not_supported(self, expr: sympy.Basic) -> str:
        raise DeriveError(f"no NumPy or SciPy counterpart of {type(expr).__name__}")

    _print_Function = _print_not_supported


def activation_module(attention: Attention) -> Module:
    """Return everything that is generated for one activation."""
    return Module(
        attention.module,
        f"Kernels of {attention.name} attention.",
        (
            weight_kernel(attention, 2),
            weight_kernel(attention, 4),
            score_gradient_kernel(attention),
            *origin_kernels(attention),
        ),
        (
            ("NAME", attention.name),
            ("NORMALIZATION", attention.normalization),
            ("PARAMETERS", attention.trained),
            ("BACKGROUND", float(attention.background)),
            ("AVERAGED", attention.averaged),
            ("SLOPE", attention.slope),
        ),
    )


def all_modules() -> tuple[Module, ...]:
    """Derive all built-in modules from nothing."""
    shared = (race_module(), gradient_module(), noise_module(), bayes_module())
    return shared + tuple(activation_module(a) for a in ACTIVATIONS.values())


def kernel_source(kernel: Kernel) -> str:
    """Return one kernel as Python source."""
    renamed = {
        a.symbol: Symbol(a.name, **a.symbol.assumptions0)
        for a in kernel.inputs
        if isinstance(a.symbol, Symbol)
    }
    expressions = [o.expression.xreplace(renamed) for o in kernel.outputs]
    if kernel.is_matrix:
        names = {str(a.symbol): a.name for a in kernel.inputs}
        if any(symbol != name for symbol, name in names.items()):
            raise DeriveError(f"{kernel.name}: matrix arguments keep their symbols' names")
        shared: list[tuple[Symbol, sympy.Expr]] = []
    else:
        taken = {a.name for a in kernel.inputs} | {o.name for o in kernel.outputs}
        symbols = (x for x in numbered_symbols("x", real=True) if x.name not in taken)
        shared, expressions = cse(expressions, symbols=symbols, order="canonical")
    printer = _KernelPrinter()
    # Sizes become floats: powers of an integer L would wrap around.
    integer = ", dtype=float"
    lines = [
        f"    {a.name} = np.asarray({a.name}{integer if a.symbol.is_integer else ''})"
        for a in kernel.inputs
    ]
    lines += [f"    {name} = {printer.doprint(value)}" for name, value in shared]
    scalars = {a.symbol for a in kernel.inputs}
    partial = [
        not kernel.is_matrix and o.expression.free_symbols != scalars for o in kernel.outputs
    ]
    if any(partial):
        shapes = ", ".join(f"np.shape({a.name})" for a in kernel.inputs)
        lines.append(f"    shape = np.broadcast_shapes({shapes})")
    annotation = ": Array" if len(kernel.outputs) == 1 else ""
    for output, expression, broadcast in zip(kernel.outputs, expressions, partial, strict=True):
        value = printer.doprint(expression) + (".0" if expression.is_Integer else "")
        lines.append(
            f"    {output.name}{annotation} = "
            + (f"np.broadcast_to({value}, shape)" if broadcast else value)
        )
    operations = sympy.count_ops([value for _, value in shared] + expressions)
    arguments = ", ".join(f"{a.name}: Any" for a in kernel.inputs)
    doc = [
        f'    """{kernel.summary}',
        "",
        f"    Source: {kernel.reference}.",
        f"    Domain: {kernel.domain}.",
        f"    Cost: {operations} operations.",
        *([] if kernel.is_matrix else ["    Arguments broadcast; every result has their shape."]),
        "",
        "    Parameters",
        "    ----------",
    ]
    for a in kernel.inputs:
        doc += [f"    {a.name} : {a.shape}", f"        {a.doc}."]
    doc += ["", "    Returns", "    -------"]
    for o in kernel.outputs:
        doc += [f"    {o.name} : {o.shape}", f"        {o.doc}."]
    doc.append('    """')
    body = "\n".join(doc + lines)
    returns = (
        "Array"
        if len(kernel.outputs) == 1
        else (f"tuple[{', '.join(['Array'] * len(kernel.outputs))}]")
    )
    results = ", ".join(o.name for o in kernel.outputs)
    return f"def {kernel.name}({arguments}) -> {returns}:\n{body}\n    return {results}\n"


def module_source(module: Module) -> str:
    """Return one generated module as Python source."""
    kernels = "\n\n".join(kernel_source(k) for k in module.kernels)
    imports = _IMPORTS
    if "scipy.special." in kernels:
        imports = imports.replace("from numpy.typing", "import scipy.special\nfrom numpy.typing")
    constants = "".join(f"{name} = {value!r}\n" for name, value in module.constants)
    return (
        f'"""{module.summary}\n\nGenerated by `{COMMAND}`; edit the definition in `derive`, not '
        f"this file.\nSpec {module.digest(_emitter_text())}, SymPy {sympy.__version__}.\n"
        f'"""\n\n{imports}{constants}\n\n{kernels}'
    )


def _emitter_text() -> str:
    """Source text of the emitter and of the spec, as part of every hash."""
    return inspect.getsource(sys.modules[__name__]) + inspect.getsource(spec_module)


def _index_source(modules: tuple[Module, ...]) -> str:
    names = sorted(m.name for m in modules)
    table = "".join(f'    "{a.name}": {a.module},\n' for a in ACTIVATIONS.values())
    return (
        f'"""Generated kernels; the activations by name. Written by `{COMMAND}`."""\n\n'
        f"from numeric._generated import {', '.join(names)}\n\n"
        f"ACTIVATIONS = {{\n{table}}}\n\n__all__ = {sorted([*names, 'ACTIVATIONS'])!r}\n"
    )


def render() -> dict[str, str]:
    """Derive everything and return ``{file name: source}``."""
    modules = all_modules()
    files = {f"{m.name}.py": module_source(m) for m in modules}
    return files | {"__init__.py": _index_source(modules)}


def write(target: Path = TARGET) -> list[Path]:
    """Write all generated files and remove any other module; return the paths written.

    Each file is written to a temporary name first, so that none is ever half-written.
    """
    target.mkdir(parents=True, exist_ok=True)
    fresh = render()
    for name, text in fresh.items():
        handle, temporary = tempfile.mkstemp(dir=target, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    for path in target.glob("*.py"):
        if path.name not in fresh:
            path.unlink()
    return [target / name for name in fresh]


def drift(target: Path = TARGET) -> str:
    """Return how the files in `target` differ from a fresh derivation, byte by byte ('' if not)."""
    fresh = render()
    found = {p.name: p.read_bytes() for p in target.glob("*.py")} if target.is_dir() else {}
    report: list[str] = []
    for name in sorted(set(fresh) | set(found)):
        old, new = found.get(name), fresh.get(name)
        if new is not None and old == new.encode():
            continue
        before, after = (old or b"").decode(errors="replace"), new or ""
        report += list(
            difflib.unified_diff(
                before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}"
            )
        ) or [f"{name}: differs in bytes that a diff does not show\n"]
    return "".join(report)
