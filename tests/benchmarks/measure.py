"""Measurements in a process of their own, where the number of threads can be set.

``python -m tests.benchmarks.measure accuracy`` prints errors, and ``... times THREADS`` times, of what
the standard input asks for; both as JSON. `run` starts them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Seconds of taking turns in one process.
SECONDS = 20.0


def run(what: str, threads: int | None = None, request: Any = None) -> Any:
    """Measure in a new process; BLAS has one thread (more do not help), JAX `threads`."""
    command = [sys.executable, "-m", "tests.benchmarks.measure", what]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    if threads is not None:
        command.append(str(threads))
        if threads == 1:
            environment["XLA_FLAGS"] = (
                "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
            )
    done = subprocess.run(
        command,
        input=json.dumps(request),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"measuring {what} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def accuracy() -> dict[str, Any]:
    """Errors of this package by digits and by tolerance, and of JAX by samples, at each state."""
    from numeric.loss import evaluate, population_loss
    from tests.benchmarks import peer, problem

    task, attention = problem.task(), problem.attention()
    digits, tolerance = {}, {}
    for name in problem.STATES:
        state = problem.state(name)
        digits[name] = [
            (d, *problem.own_errors(name, evaluate(state, task, attention, d)))
            for d in problem.DIGITS
        ]
        losses = [(goal, population_loss(state, task, attention, goal)) for goal in problem.GOALS]
        tolerance[name] = [
            (goal, x.error, x.gradient_error, *problem.own_errors(name, x)) for goal, x in losses
        ]
    return {"digits": digits, "tolerance": tolerance, "jax": peer.accuracy(problem.STATES)}


def times(request: dict[str, Any]) -> dict[str, float]:
    """Shortest times of evaluations (state, digits), with error (state, tol), and of JAX (samples)."""
    from functools import partial

    from numeric.loss import evaluate, population_loss
    from tests.benchmarks import peer, problem

    task, attention = problem.task(), problem.attention()
    jobs = peer.jobs(request["samples"])
    for kind, function in (("digits", evaluate), ("tolerance", population_loss)):
        for name, number in request[kind]:
            jobs[f"{kind} {name} {number}"] = partial(
                function, problem.state(name), task, attention, number
            )
    return problem.fastest(jobs, SECONDS)


def _pin(threads: int) -> None:
    """Allow so many processors; before JAX starts its threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


if __name__ == "__main__":
    if sys.argv[1] == "accuracy":
        result: Any = accuracy()
    else:
        _pin(int(sys.argv[2]))
        result = times(json.load(sys.stdin))
    print(json.dumps(result))
