"""Kernels as source: strict printing, costs and shapes; the numbers that they return."""

import ast
import importlib
import re
from collections.abc import Callable

import numpy as np
import pytest
import sympy as sp
from sympy import MatrixSymbol, Symbol, exp, sqrt

from derive.attention import ACTIVATIONS
from derive.emit import TARGET, all_modules, kernel_source, module_source
from derive.errors import DeriveError
from derive.spec import Argument, Kernel, Module, Output
from derive.symbols import F, H

MODULES = {module.name: module for module in all_modules()}
KERNELS = [(name, kernel) for name, module in MODULES.items() for kernel in module.kernels]
ELEMENTWISE = [pair for pair in KERNELS if not pair[1].is_matrix]
x, y = Symbol("x", real=True), Symbol("y", real=True)


def names(pair: object) -> str:
    return pair if isinstance(pair, str) else getattr(pair, "name", "")


def small(*expressions: sp.Basic, inputs: tuple[Symbol, ...] = (x, y)) -> Kernel:
    return Kernel(
        "k",
        "A kernel.",
        tuple(Argument(str(s), s, f"input {s}") for s in inputs),
        tuple(Output(f"out{i}", e, f"output {i}") for i, e in enumerate(expressions)),
        "nowhere",
    )


def compiled(kernel: Kernel) -> Callable:
    scope: dict = {}
    exec(module_source(Module("module", "A module.", (kernel,))), scope)
    return scope[kernel.name]


@pytest.mark.parametrize("name", MODULES)
def test_headers_say_where_the_file_comes_from(name: str) -> None:
    doc = ast.get_docstring(ast.parse((TARGET / f"{name}.py").read_text(encoding="utf-8")))
    assert doc is not None
    assert "`headflow derive --write`" in doc
    digest = re.search(r"Spec ([0-9a-f]{16}), SymPy (\S+)\.$", doc)
    assert digest is not None
    assert digest[2] == sp.__version__


def test_index_holds_every_activation_by_name() -> None:
    index = importlib.import_module("numeric._generated")
    assert list(index.ACTIVATIONS) == list(ACTIVATIONS)
    for name, attention in ACTIVATIONS.items():
        module = index.ACTIVATIONS[name]
        assert (name, attention.normalization) == (module.NAME, module.NORMALIZATION)
        assert attention.trained == module.PARAMETERS
        assert (float(attention.background), attention.averaged) == (
            module.BACKGROUND,
            module.AVERAGED,
        )
        assert attention.module == module.__name__.rpartition(".")[2]
        assert attention.module in MODULES
    assert set(index.__all__) == {"ACTIVATIONS", *MODULES}


@pytest.mark.parametrize(("module", "kernel"), KERNELS, ids=names)
def test_docstrings_list_every_argument_in_order(module: str, kernel: Kernel) -> None:
    function = ast.parse(kernel_source(kernel)).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert [a.arg for a in function.args.args] == [a.name for a in kernel.inputs]
    doc = ast.get_docstring(function) or ""
    assert doc.splitlines()[0] == kernel.summary
    entries = re.findall(r"^(\w+) : (.*)\n    (.*)\.$", doc, re.MULTILINE)
    assert entries == [(a.name, a.shape, a.doc) for a in (*kernel.inputs, *kernel.outputs)]
    assert f"Source: {kernel.reference}." in doc


def operations(node: ast.AST) -> int:
    """Arithmetic and functions; what a stable function is printed as counts once."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "exp" and "np.logaddexp" in ast.unparse(node.args[0]):
            return 1 + operations(node.args[0].right)  # softplus_slope(x) = exp(-.. - where(x ..))
        if name == "where":
            return operations(node.args[0].left)
        counted = name in {"exp", "expm1", "log", "log1p", "trace", "logaddexp", "expit", "erf"}
        return counted + sum(map(operations, node.args))
    one = isinstance(node, ast.BinOp | ast.UnaryOp)
    return one + sum(map(operations, ast.iter_child_nodes(node)))


@pytest.mark.parametrize(("module", "kernel"), KERNELS, ids=names)
def test_cost_is_that_of_the_body(module: str, kernel: Kernel) -> None:
    source = kernel_source(kernel)
    stated = re.search(r"Cost: (\d+) operations\.", source)
    assert stated is not None
    values = [
        statement.value
        for statement in ast.parse(source).body[0].body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
    ]
    counted = sum(map(operations, values))
    # Signs are counted a little differently on paper than in Python.
    assert abs(int(stated[1]) - counted) <= max(4, counted // 8)
    if not kernel.is_matrix:
        calls = [node for value in values for node in ast.walk(value) if isinstance(node, ast.Call)]
        texts = [ast.unparse(c) for c in calls if ast.unparse(c.func) in ("np.exp", "np.log1p")]
        assert len(texts) == len(set(texts))


def test_common_subexpressions_are_shared_across_outputs() -> None:
    shared = sqrt(1 + exp(x * y))
    source = kernel_source(small(shared * x, y / shared))
    assert source.count("np.exp(") == 1
    assert source.count("np.sqrt(") == 1


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        (sp.Function("foo")(x), "foo"),
        (sp.DiracDelta(x), "DiracDelta"),
        (sp.Integral(exp(x * y), (x, 0, y)), "integra"),
        (sp.Derivative(sp.Function("foo")(x), x), "Derivative"),
    ],
    ids=["foo", "DiracDelta", "Integral", "Derivative"],
)
def test_printing_is_strict(expression: sp.Expr, name: str) -> None:
    with pytest.raises((DeriveError, NotImplementedError), match=f"(?i){name}"):
        kernel_source(small(x * expression))


@pytest.mark.parametrize(
    "expression",
    [sp.erf(x), sp.gamma(x), sp.loggamma(x), sp.factorial(x), sp.besselj(0, x), sp.Max(x, y)],
    ids=lambda e: str(e.func),
)
def test_special_functions_are_refused_or_work_on_arrays(expression: sp.Expr) -> None:
    try:
        function = compiled(small(expression + y))
    except (DeriveError, NotImplementedError):
        return
    found = function(0.5, np.array([0.25, 0.75]))
    for one, second in zip(found, (0.25, 0.75), strict=True):
        exact = (expression + y).subs({x: 0.5, y: second}).evalf()
        assert one == pytest.approx(float(exact), rel=1e-14)


def test_names_of_outputs_do_not_clash_with_shared_subexpressions() -> None:
    kernel = Kernel(
        "k",
        "A kernel.",
        (Argument("x", x, ""), Argument("y", y, "")),
        (Output("x0", x, ""), Output("out", exp(x + y) + sqrt(exp(x + y) + 1), "")),
        "nowhere",
    )
    _, out = compiled(kernel)(0.0, 0.0)
    assert out == pytest.approx(1 + np.sqrt(2))


def test_matrix_arguments_keep_their_names() -> None:
    W = MatrixSymbol("W", H, F)
    kernel = Kernel("k", "s", (Argument("weights", W, ""),), (Output("out", W.T * W, ""),), "ref")
    with pytest.raises(DeriveError, match=r"^k: matrix arguments keep"):
        kernel_source(kernel)


# The numbers.


@pytest.mark.parametrize(("module", "kernel"), ELEMENTWISE, ids=names)
def test_outputs_have_the_full_broadcast_shape(module: str, kernel: Kernel) -> None:
    function = getattr(importlib.import_module(f"numeric._generated.{module}"), kernel.name)
    rng = np.random.default_rng(3)
    count = len(kernel.inputs)
    for k in range(count):
        # The k-th argument alone is long in the last axis, the next one in the first.
        shapes = [[1, 1, 1] for _ in range(count)]
        shapes[k][2] = 5
        shapes[(k + 1) % count][0] = 4
        shapes[(k + 2) % count][1] = 3
        arguments = [
            rng.uniform(0.1, 0.9, shape) + (3.0 if a.symbol.is_integer else 0.0)
            for a, shape in zip(kernel.inputs, shapes, strict=True)
        ]
        found = function(*arguments)
        found = found if isinstance(found, tuple) else (found,)
        assert len(found) == len(kernel.outputs)
        expected = np.broadcast_shapes(*map(np.shape, arguments))
        assert [np.shape(one) for one in found] == [expected] * len(found)
        assert all(one.dtype == np.float64 for one in found)


def test_constant_and_partial_outputs_are_broadcast() -> None:
    function = compiled(small(sp.Integer(1), sp.Rational(1, 2), x, exp(y), x * y))
    found = function(np.ones((2, 1)), np.zeros(3))
    assert [np.shape(one) for one in found] == [(2, 3)] * 5
    assert [float(one[0, 0]) for one in found] == [1, 0.5, 1, 1, 0]


@pytest.mark.parametrize(
    ("module", "kernel"),
    [pair for pair in KERNELS if "L" in [a.name for a in pair[1].inputs]],
    ids=names,
)
@pytest.mark.parametrize("integer", [int, np.int64, np.int32])
def test_whole_token_numbers_do_not_wrap(module: str, kernel: Kernel, integer: type) -> None:
    function = getattr(importlib.import_module(f"numeric._generated.{module}"), kernel.name)
    sizes = {"H": 3, "F": 2}

    def arguments(tokens: object) -> list[object]:
        shapes = [re.findall(r"\w+", a.shape) for a in kernel.inputs]
        values = [np.full([sizes.get(s, 1) for s in shape], 0.25) for shape in shapes]
        return [
            tokens if a.name == "L" else value
            for a, value in zip(kernel.inputs, values, strict=True)
        ]

    for one, other in zip(
        function(*arguments(integer(10**6))), function(*arguments(1e6)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
        assert np.all(np.isfinite(one))
