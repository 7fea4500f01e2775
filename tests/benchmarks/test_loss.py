"""Speed of the loss and its gradient at a measured accuracy, against JAX and on their own.

    python -m pip install -e ".[test,bench]"
    OPENBLAS_NUM_THREADS=1 python -m pytest -m benchmark tests/benchmarks

Nothing here asserts a time. Tables follow the tests; times are the shortest of many, yet a busy machine
lengthens them, so its load is printed too.
"""

import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from itertools import product
from math import log, log2
from typing import Any

import numpy as np
import pytest

from numeric._generated import ACTIVATIONS
from numeric.experiment import load_experiment
from numeric.flow import integrate_flow
from numeric.hessian import loss_hessian
from numeric.loss import evaluate, population_loss
from numeric.spectrum import hessian_spectrum
from numeric.task import State
from tests.benchmarks import measure, problem

pytestmark = pytest.mark.benchmark

THREADS = (1, 2)
# Sizes of a net over which its error's exponent is fitted.
FITTED = 6
FEW_TOKENS, MANY_TOKENS, TOKEN_DIGITS = 10, 100_000, 6.0
TOLERANCE, EXACT = 1e-6, 1e-10
CASES = list(product(problem.QUANTITIES, problem.STATES, problem.GOALS))

Row = list[Any]
Times = dict[str, float]


def markdown(title: str, header: Row, rows: list[Row]) -> str:
    """Return a titled table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([f"**{title}**", "", *(f"| {' | '.join(map(str, x))} |" for x in lines)])


def add_row(tables: list[str], title: str, header: Row, row: Row) -> None:
    """Add a row to the last table if it has this title, else begin it."""
    table = markdown(title, header, [row])
    if tables and tables[-1].startswith(f"**{title}**"):
        tables[-1] += "\n" + table.splitlines()[-1]
    else:
        tables.append(table)


def duration(seconds: float) -> str:
    """Return a time in a fitting unit."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def ratio(a: float, b: float) -> str:
    """Return a quotient to two digits."""
    return f"{float(f'{a / b:.1e}'):,.6g}"


def machine() -> str:
    """Return what was measured with, and how busy it was."""
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg()) if hasattr(os, "getloadavg") else "?"
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "jax"))
    return f"{os.cpu_count()} processors ({platform.machine()}), load {load}; {packages}"


def errors_of(rows: list[Row], quantity: str) -> list[float]:
    """Return the errors of one quantity; rows are (cost, error of the loss, of the gradient)."""
    return [row[1 + problem.QUANTITIES.index(quantity)] for row in rows]


def cheapest(rows: list[Row], goal: float, quantity: str) -> Any:
    """Return the first cost from which on every error meets the goal, or None."""
    met = [error <= goal for error in errors_of(rows, quantity)]
    first = len(met) - met[::-1].index(False) if False in met else 0
    return rows[first][0] if first < len(rows) else None


def power_law(rows: list[Row], quantity: str) -> tuple[float, float]:
    """Return exponent and log prefactor of the errors of the largest nets."""
    sizes = np.log([row[0] for row in rows[-FITTED:]])
    exponent, prefactor = np.polyfit(sizes, np.log(errors_of(rows[-FITTED:], quantity)), 1)
    return float(exponent), float(prefactor)


def own_digits(accuracy: dict[str, Any], quantity: str, name: str, goal: float) -> float:
    """Return the digits with which this package meets a goal."""
    digits = cheapest(accuracy["digits"][name], goal, quantity)
    assert digits is not None, f"no number of digits gives the {quantity} at {name} to {goal}"
    return float(digits)


def jax_time(
    accuracy: dict[str, Any], times: Times, quantity: str, name: str, goal: float
) -> tuple[float, float, str]:
    """Return samples and time with which JAX meets a goal, and whether they are extrapolated."""
    nets = accuracy["jax"][name]
    size = cheapest(nets, goal, quantity)
    measured = nets[-1][0] if size is None else size
    ways = (f"plain {measured}", f"chunked {measured}")
    seconds = min(times[way] for way in ways if way in times)
    if size is not None:
        return size, seconds, ""
    exponent, prefactor = power_law(nets, quantity)
    needed = float(np.exp((log(goal) - prefactor) / exponent))
    return needed, seconds * needed / measured, " (extrapolated)"


@pytest.fixture(scope="module")
def accuracy() -> dict[str, Any]:
    """Measured errors: they do not depend on threads."""
    return measure.run("accuracy")


@pytest.fixture(scope="module")
def timed(accuracy: dict[str, Any]) -> Callable[[int], Times]:
    """Times of all that the comparison needs, by threads; measured once each."""
    digits, sizes = set(), set()
    for quantity, name, goal in CASES:
        digits.add((name, own_digits(accuracy, quantity, name, goal)))
        nets = accuracy["jax"][name]
        sizes.add(cheapest(nets, goal, quantity) or nets[-1][0])
    plan = {
        "digits": sorted(digits),
        "tolerance": list(product(problem.STATES, problem.GOALS)),
        "samples": sorted(sizes),
    }
    found: dict[int, Times] = {}

    def at(threads: int) -> Times:
        if threads not in found:
            found[threads] = measure.run("times", threads, plan)
        return found[threads]

    return at


@pytest.mark.parametrize("threads", THREADS)
def test_against_jax(
    accuracy: dict[str, Any],
    timed: Callable[[int], Times],
    tables: list[str],
    threads: int,
) -> None:
    times, rows = timed(threads), []
    for quantity, name, goal in CASES:
        digits = own_digits(accuracy, quantity, name, goal)
        own, with_error = times[f"digits {name} {digits}"], times[f"tolerance {name} {goal}"]
        size, peer, how = jax_time(accuracy, times, quantity, name, goal)
        row = [f"{quantity}, {name}", f"{goal:g}", f"{digits:g}", duration(own)]
        row += [duration(with_error), f"2^{log2(size):.3g}{how}", f"{duration(peer)}{how}"]
        rows.append([*row, ratio(peer, own), ratio(peer, with_error)])
    header = ["error of", "below", "digits", "evaluate", "population_loss", "samples", "JAX"]
    header += ["JAX / evaluate", "JAX / population_loss"]
    title = f"Loss + gradient, softmax, H = 8, F = 3, L = 10; JAX: {threads} thread(s)"
    tables.append(f"{markdown(title, header, rows)}\n\n{machine()}")


def test_summary(
    accuracy: dict[str, Any], timed: Callable[[int], Times], tables: list[str]
) -> None:
    """The README's table: loss and gradient both as accurate as the goal."""
    rows = []
    for name, goal in product(problem.STATES, problem.GOALS):
        digits = max(own_digits(accuracy, q, name, goal) for q in problem.QUANTITIES)
        own = min(timed(threads)[f"digits {name} {digits}"] for threads in THREADS)
        row = [name, f"{goal:g}", duration(own)]
        for threads in THREADS:
            _, peer, how = max(
                jax_time(accuracy, timed(threads), q, name, goal) for q in problem.QUANTITIES
            )
            row += [f"{duration(peer)}{how}", ratio(peer, own)]
        rows.append(row)
    header = ["state", "error below", "headflow"]
    header += [x for n in THREADS for x in (f"JAX, {n} thread(s)", "ratio")]
    title = "Loss + gradient at the same measured error, softmax, H = 8, F = 3, L = 10"
    tables.append(f"{markdown(title, header, rows)}\n\n{machine()}")


def test_accuracy(accuracy: dict[str, Any], tables: list[str]) -> None:
    rows: list[Row] = []
    for name in problem.STATES:
        for goal, reported, gradient_reported, true, gradient_true in accuracy["tolerance"][name]:
            found = (reported, true, gradient_reported, gradient_true)
            rows.append([name, f"{goal:g}", *(f"{x:.1e}" for x in found)])
            assert true <= reported <= goal
    header = [
        "state",
        "tol",
        "loss: reported",
        "true",
        "gradient (m, r): reported",
        "(m, rho): true",
    ]
    tables.append(markdown("Errors of population_loss", header, rows))
    columns = list(product(problem.STATES, problem.QUANTITIES))
    nets = [accuracy["jax"][name] for name in problem.STATES]
    rows = [
        [f"2^{log2(lines[0][0]):.0f}", *(f"{x:.1e}" for line in lines for x in line[1:])]
        for lines in list(zip(*nets, strict=True))[::2]
    ]
    exponents = [power_law(accuracy["jax"][name], quantity)[0] for name, quantity in columns]
    rows.append(["exponent", *(f"{x:.2f}" for x in exponents)])
    header = ["samples", *(f"{quantity}, {name}" for name, quantity in columns)]
    tables.append(markdown("RMS errors of JAX over scrambled nets", header, rows))


@pytest.mark.parametrize("name", problem.STATES)
def test_many_tokens(tables: list[str], name: str) -> None:
    state, attention = problem.state(name), problem.attention()

    def job(tokens: int) -> Callable[[], Any]:
        task = problem.task(tokens)
        return lambda: evaluate(state, task, attention, TOKEN_DIGITS)

    jobs = {str(tokens): job(tokens) for tokens in (FEW_TOKENS, MANY_TOKENS)}
    few, many = problem.fastest(jobs, 2.0).values()
    off = [abs(run().value - problem.exact(name, int(n)).value) for n, run in jobs.items()]
    row = [name, duration(few), duration(many), f"{many / few:.2f}", *(f"{x:.0e}" for x in off)]
    header = ["state", *(f"L = {n}" for n in jobs), "ratio", *(f"error, L = {n}" for n in jobs)]
    add_row(tables, f"Cost of many tokens at {TOKEN_DIGITS:g} digits, H = 8", header, row)


@pytest.mark.parametrize("name", ("middle", "trained"))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation(benchmark: Any, tables: list[str], activation: str, name: str) -> None:
    arguments = problem.state(name, 4), problem.task(), problem.attention(4, activation)
    loss = benchmark(population_loss, *arguments, TOLERANCE)
    exact = population_loss(*arguments, EXACT)
    known = 10 * exact.error < loss.error
    true = f"{abs(loss.value - exact.value):.0e}" if known else "unknown"
    row = [activation, name, duration(benchmark.stats.stats.min), f"{loss.error:.0e}", true]
    header = ["activation", "state", "time", "reported error", "true error", "method"]
    title = f"population_loss, tol = {TOLERANCE:g}, H = 4, F = 3, L = 10"
    add_row(tables, title, header, [*row, loss.method])


@pytest.mark.parametrize("heads", (4, 8))
def test_hessian(benchmark: Any, tables: list[str], heads: int) -> None:
    state, attention = problem.state("middle", heads), problem.attention(heads)
    found = benchmark(loss_hessian, state, problem.task(), attention, TOLERANCE)
    what = f"Hessian of the loss, H = {heads}, {len(found.matrix)} coordinates"
    add_other(tables, what, benchmark, found.error)


def test_spectrum_of_alike_heads(benchmark: Any, tables: list[str]) -> None:
    attention, task = problem.attention(64), problem.task()
    features = task.prior.features
    state = State(np.full((64, features), 0.4), np.zeros((64, 64)))
    found = benchmark(hessian_spectrum, task, attention, state)
    add_other(tables, "spectrum of 64 heads that are all alike", benchmark, found.errors.max())


def test_flow(benchmark: Any, tables: list[str]) -> None:
    example = load_experiment("two-features")
    start = example.state, example.task, example.attention
    until = example.flow.tau_max, example.flow.kappa
    flow = benchmark.pedantic(integrate_flow, args=(*start, *until), rounds=2)
    add_other(tables, f"flow of {example.name}", benchmark, flow.loss_error)


def add_other(tables: list[str], what: str, benchmark: Any, error: float) -> None:
    """Add a row to the table of everything else."""
    row = [what, duration(benchmark.stats.stats.min), f"{error:.0e}"]
    add_row(tables, "Others", ["what", "time", "reported error"], row)
