"""Kernel specs: unknown and duplicate names are refused, and the digest sees every change."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sympy import MatrixSymbol, Symbol, Trace, exp

import derive
from derive.errors import DeriveError
from derive.spec import Argument, Kernel, Module, Output
from derive.symbols import F, H, m, r

ROOT = Path(derive.__file__).resolve().parent.parent
x, y = Symbol("x", real=True), Symbol("y", real=True)
X, Y = Argument("x", x, "first"), Argument("y", y, "second")
SUM = Output("sum", x + exp(y), "x plus e^y")


def kernel(**changes: object) -> Kernel:
    base = Kernel("k", "A kernel.", (X, Y), (SUM,), "nowhere", "everywhere")
    return dataclasses.replace(base, **changes)


def module(**changes: object) -> Module:
    return Module("mod", "A module.", (kernel(**changes),), (("NAME", "n"),))


def test_a_sound_spec_is_accepted_and_frozen() -> None:
    spec = kernel()
    assert not spec.is_matrix
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "symbol",
    [Symbol("z", real=True), Symbol("y"), Symbol("y", positive=True), MatrixSymbol("W", 2, 2)],
    ids=["new", "without assumptions", "with others", "matrix"],
)
def test_unknown_symbols_are_refused_by_name(symbol: Symbol) -> None:
    expression = Trace(symbol) if isinstance(symbol, MatrixSymbol) else x * symbol
    name = symbol.name
    with pytest.raises(DeriveError, match=rf"^k\.bad: unknown symbols {name}$"):
        kernel(outputs=(SUM, Output("bad", expression, "uses a global")))


def test_unknown_symbols_are_listed_in_order() -> None:
    d, c = Symbol("d"), Symbol("c")
    with pytest.raises(DeriveError, match=r"^k\.bad: unknown symbols c, d$"):
        kernel(outputs=(Output("bad", d + x * c, "uses globals"),))


def test_sizes_of_known_matrices_are_no_unknowns() -> None:
    arguments = (Argument("m", m, "alignments"), Argument("r", r, "overlap"))
    spec = kernel(inputs=arguments, outputs=(Output("out", m.T * r * m, "a product"),))
    assert spec.is_matrix
    with pytest.raises(DeriveError, match=r"unknown symbols .*K"):
        foreign = MatrixSymbol("W", Symbol("K", integer=True), F)
        kernel(inputs=arguments, outputs=(Output("out", foreign, "other size"),))


@pytest.mark.parametrize("expression", [H * Trace(r), Trace(m * m.T) / F], ids=["H", "F"])
def test_a_size_that_is_no_input_is_refused_as_a_number(expression: object) -> None:
    arguments = (Argument("m", m, "alignments"), Argument("r", r, "overlap"))
    with pytest.raises(DeriveError, match="unknown symbols"):
        kernel(inputs=arguments, outputs=(Output("out", expression, "average"),))


@pytest.mark.parametrize(
    ("inputs", "outputs", "name"),
    [
        ((X, X), (SUM,), "x"),
        ((X, Argument("x", y, "same name")), (Output("o", x, ""),), "x"),
        ((X, Argument("z", x, "same symbol")), (SUM,), "x"),
        ((Argument("p", x, ""), Argument("q", x, "")), (Output("o", x, ""),), "x"),
        ((X, Argument("z", Symbol("x"), "same letter")), (SUM,), "x"),
        ((X, Y), (SUM, SUM), "sum"),
        ((X, Y), (Output("y", x, "an input's name"),), "y"),
        ((X, Argument("y2", y, "")), (Output("y", x, "an input's symbol"),), "y"),
        ((X, Y, X, Y), (SUM,), "x, y"),
    ],
)
def test_duplicates_are_refused_by_name(
    inputs: tuple[Argument, ...], outputs: tuple[Output, ...], name: str
) -> None:
    with pytest.raises(DeriveError, match=f"^k: {name} declared twice$"):
        kernel(inputs=inputs, outputs=outputs)


CHANGES = {
    "kernel name": {"name": "k2"},
    "summary": {"summary": "Another kernel."},
    "reference": {"reference": "somewhere"},
    "domain": {"domain": "x > 0"},
    "order of inputs": {"inputs": (Y, X)},
    "input name": {"inputs": (Argument("x1", x, "first"), Y)},
    "input doc": {"inputs": (Argument("x", x, "1st"), Y)},
    "input shape": {"inputs": (Argument("x", x, "first", "(H,)"), Y)},
    "expression": {"outputs": (Output("sum", x + exp(-y), "x plus e^y"),)},
    "output name": {"outputs": (Output("total", x + exp(y), "x plus e^y"),)},
    "output doc": {"outputs": (Output("sum", x + exp(y), "a sum"),)},
    "output shape": {"outputs": (Output("sum", x + exp(y), "x plus e^y", "()"),)},
    "one more output": {"outputs": (SUM, Output("product", x * y, "xy"))},
}


def test_every_change_of_the_definition_changes_the_digest() -> None:
    digests = {name: module(**change).digest("emitter") for name, change in CHANGES.items()}
    digests["none"] = module().digest("emitter")
    digests["emitter text"] = module().digest("emitter, edited")
    digests["module name"] = Module("mod2", "A module.", (kernel(),), (("NAME", "n"),)).digest(
        "emitter"
    )
    digests["constants"] = Module("mod", "A module.", (kernel(),), (("NAME", "o"),)).digest(
        "emitter"
    )
    digests["two kernels"] = Module(
        "mod", "A module.", (kernel(), kernel(name="k2")), (("NAME", "n"),)
    ).digest("emitter")
    assert len(set(digests.values())) == len(digests)
    assert all(len(d) == 16 and int(d, 16) >= 0 for d in digests.values())


def test_assumptions_are_part_of_the_digest() -> None:
    positive = Symbol("x", positive=True)
    changed = module(
        inputs=(Argument("x", positive, "first"), Y),
        outputs=(Output("sum", positive + exp(y), "x plus e^y"),),
    )
    assert changed.digest("emitter") != module().digest("emitter")


def test_equal_definitions_have_equal_digests() -> None:
    assert module().digest("emitter") == module().digest("emitter")


PROGRAM = """
from sympy import symbols, MatrixSymbol, Trace
from derive.spec import Argument, Kernel, Module, Output
from derive.attention import ACTIVATIONS
from derive.loss import race_module, score_gradient_kernel
xs = symbols("a:z", real=True)
scalar = Kernel("k", "s", tuple(Argument(str(x), x, "d") for x in xs),
                (Output("out", sum(x * y for x, y in zip(xs, xs[1:])), "d"),), "ref")
A, B, C = (MatrixSymbol(n, 3, 3) for n in "ABC")
matrix = Kernel("l", "s", tuple(Argument(str(x), x, "d") for x in (A, B, C)),
                (Output("out", A * B + C.T + B, "d"), Output("t", Trace(C) * Trace(A), "d")), "ref")
print(Module("m", "s", (scalar, matrix)).digest(""), race_module().digest(""),
      Module("n", "s", tuple(map(score_gradient_kernel, ACTIVATIONS.values()))).digest(""))
"""


def test_digest_does_not_depend_on_the_hash_seed() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "4242")
    ]
    answers = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert len(set(answers)) == 1
    assert len(answers[0].split()) == 3
