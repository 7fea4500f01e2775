"""Training from random keys, followed to the end: what A6, A7 and A12 look at.

Three features, eight heads. SGD is exact in law at D = 1,000; the flow is the limit of small steps from
keys of the same law.
"""

from typing import Any

import numpy as np

from numeric.claims.claim import Part, parts
from numeric.claims.priors import gaussian, mixture, points
from numeric.flow import excursions, integrate_flow
from numeric.phases import random_starts
from numeric.prior import Prior
from numeric.pruning import prune_heads
from numeric.quadrature import Array
from numeric.sgd import run_sgd
from numeric.task import Attention, State, Task
from numeric.watch import feature_norms

HEADS, DIMENSION, KAPPA = 8, 1000, 1.0
VARIANCES = np.array([9.0, 6.0, 4.0])
RECORDS = 121
SETTINGS: dict[str, dict[str, Any]] = {
    "softmax, η = 1": {"activation": "softmax", "eta": 1.0},
    "softmax, η = 0.01": {"activation": "softmax", "eta": 0.01},
    "b-softmax, η = 1": {"activation": "b-softmax", "eta": 1.0},
    "b-softmax, η = 0.01": {"activation": "b-softmax", "eta": 0.01},
    "large mean": {"activation": "softmax", "eta": 1.0, "prior": "large mean"},
    "η = 5": {"activation": "softmax", "eta": 5.0},
    "correlated θ": {"activation": "softmax", "eta": 1.0, "prior": "correlated"},
    "nearly equal variances": {"activation": "softmax", "eta": 1.0, "prior": "nearly equal"},
    "L = 2": {"activation": "softmax", "eta": 1.0, "tokens": 2},
    "b-softmax, points ±a e_f": {"activation": "b-softmax", "eta": 1.0, "prior": "points"},
    "softmax, points ±a e_f": {"activation": "softmax", "eta": 1.0, "prior": "points"},
    "b-softmax, η = 1, D = 10,000": {"activation": "b-softmax", "eta": 1.0, "dimension": 10_000},
}
OWN = tuple(SETTINGS)[:4]
BEYOND = tuple(SETTINGS)[4:9]
POINTS = tuple(SETTINGS)[9:11]
LARGE = tuple(SETTINGS)[11]
# Runs of which heads are removed, in the quick and in the full check.
PRUNED = {False: {OWN[0]: 6}, True: {OWN[0]: 25, OWN[2]: 8}}


def prior_of(kind: str) -> Prior:
    """Return the prior of a setting, in the axes of its covariance unless features are correlated."""
    zero = np.zeros(3)
    if kind == "large mean":
        return gaussian([2.0, 2.0, 2.0], np.diag(VARIANCES))
    if kind == "nearly equal":
        return gaussian(zero, np.diag([6.2, 6.0, 5.8]))
    if kind == "correlated":
        # Uncorrelated, but dependent: |theta_1| is large where |theta_2| and |theta_3| are small.
        loud, quiet = np.diag([17.0, 1.0, 0.5]), np.diag([1.0, 11.0, 7.5])
        return mixture([0.5, 0.5], np.zeros((2, 3)), [loud, quiet])
    if kind == "points":
        sizes = np.sqrt(3 * VARIANCES)
        return points(np.concatenate([np.diag(sizes), -np.diag(sizes)]), np.full(6, 1 / 6))
    return gaussian(zero, np.diag(VARIANCES))


def train(
    activation: str,
    eta: float,
    runs: int,
    tau_max: float,
    seed: int,
    prior: str = "",
    tokens: int = 5,
    dimension: int = DIMENSION,
    prune: int = 0,
    flow: bool = False,
) -> dict[str, Any]:
    """Train, and return first passages, later drops of a feature's norm, and the final keys.

    Of the first runs, `prune`, heads are removed one by one, and losses are returned, too.
    """
    task, layer = Task(tokens, prior_of(prior)), Attention(activation, HEADS)
    starts = random_starts(task, layer, eta, dimension, seed, runs)
    times = np.linspace(0.0, tau_max, RECORDS)
    if flow:
        passages, m, last = _flows(starts, task, layer, times)
    else:
        found = run_sgd(
            starts,
            task,
            layer,
            dimension=dimension,
            tau=times,
            kappa=KAPPA,
            runs=runs,
            seed=seed + 1,
            method="reduced",
            watch=feature_norms(task, layer),
        )
        passages, m, times = found.passages, found.m, found.tau
        last = {"m": found.m[:, -1], "r": found.r[:, -1]}
        if found.b is not None:
            last["b"] = found.b[:, -1]
    drops = [
        {x.feature: x.drop for x in excursions(times, path, passed)}
        for path, passed in zip(m, passages, strict=True)
    ]
    removed = [
        prune_heads(State(**{k: x[i] for k, x in last.items()}), task, layer).losses
        for i in range(prune)
    ]
    return {
        "passages": passages,
        "removed": removed,
        "drops": [max(x.values(), default=0.0) for x in drops],
        "norms": np.sqrt((m[0] ** 2).sum(axis=1)),
        "tau": times,
        "m": last["m"],
    }


def _flows(
    starts: State, task: Task, layer: Attention, times: Array
) -> tuple[Array, Array, dict[str, Array]]:
    # Four digits tell first passages to 1e-3.
    paths = [
        integrate_flow(starts.at(i), task, layer, times, digits=4, rtol=1e-4)
        for i in range(len(starts.m))
    ]
    last = {"m": np.array([x.m[-1] for x in paths]), "r": np.array([x.r[-1] for x in paths])}
    return np.array([x.first_passage for x in paths]), np.array([x.m for x in paths]), last


def trainings(full: bool, seed: int, names: tuple[str, ...]) -> dict[str, Part]:
    """Return parts of at most 25 runs: a hundred of each of paper A's settings, fewer beyond."""
    calls: dict[str, dict[str, Any]] = {}
    for name in names:
        how = {**SETTINGS[name], "tau_max": 600.0 if full else 150.0}
        if name == LARGE:
            how["tau_max"] = 100.0
        groups = (4 if name in OWN else 1) if full else 1
        for k in range(groups):
            prune = PRUNED[full].get(name, 0) if k == 0 else 0
            runs = 25 if full else 6
            calls[f"train, {name}, {k + 1}"] = {**how, "runs": runs, "prune": prune}
    return parts(seed, train, calls)


def flows(full: bool, seed: int) -> dict[str, Part]:
    """Return parts of flows of softmax."""
    calls = {
        f"flow, {name}, {k + 1}": {**SETTINGS[name], "runs": 10, "tau_max": 600.0, "flow": True}
        for name in OWN[:2]
        for k in range(2)
    }
    return parts(seed, train, calls) if full else {}


def gathered(results: Any, name: str, kind: str = "train") -> dict[str, Any]:
    """Return the entries of all runs of a setting, one after the other; nothing if there are none."""
    chosen = [x for key, x in results.items() if key.rpartition(", ")[0] == f"{kind}, {name}"]
    found: dict[str, Any] = {}
    for entry in ("passages", "drops", "m", "removed"):
        if chosen and entry in chosen[0]:
            found[entry] = np.array([y for x in chosen for y in x[entry]], dtype=float)
    return found
