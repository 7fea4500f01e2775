"""Other rules on the same tokens, and tokens that depart from the model: runs beside each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from numeric.errors import InputError
from numeric.quadrature import Array
from numeric.query import QueryTask
from numeric.query_sgd import QueryRuns, Steps, run_query
from numeric.query_steps import RULES, Departure
from numeric.query_study import PARAMETERS, varied
from numeric.validate import one_of, real_array, whole_number


@dataclass(frozen=True)
class RuleTimes:
    """Steps until ``|alpha|`` reaches an alignment, of several rules, against a parameter.

    Attributes
    ----------
    name : str
        The parameter.
    values : (n,) array
    alignment : float
    steps : dict of (n, runs) arrays
        By rule; infinite for runs that do not get there.
    """

    name: str
    values: Array
    alignment: float
    steps: dict[str, Array]

    def medians(self, rule: str) -> Array:
        """Return median steps (n,), infinite where half of the runs do not get there."""
        result: Array = np.quantile(self.steps[rule], 0.5, axis=1, method="higher")
        return result


def compare_rules(
    task: QueryTask,
    schedule: Steps,
    vary: tuple[str, ArrayLike],
    *,
    steps: int,
    alignment: float = 0.99,
    runs: int = 10,
    seed: int = 0,
    rules: tuple[str, ...] = RULES,
    progress: Callable[[float], object] | None = None,
) -> RuleTimes:
    """Count the steps of ascent, Oja's rule and the power method to an alignment, on the same tokens.

    Parameters
    ----------
    task : QueryTask
        Of equal norms, d >= 4.
    schedule : Steps
        Of the ascent and of Oja's rule.
    vary : (str, array_like)
        A parameter of `QueryTask`, and its values.
    steps : int
        After which a run ends.
    alignment : float
    runs, seed : int
        At each value.
    rules : tuple of str
        Among "softmax", "oja", "power".
    progress : callable, optional
        Called with the fraction done.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    name = one_of("vary", vary[0], PARAMETERS)
    values = real_array(name, vary[1], (None,))
    whole_number("steps", steps, 1)
    if not 0 < alignment < 1:
        raise InputError("alignment", alignment, "a number between 0 and 1")
    found: dict[str, list[Array]] = {one_of("rules", rule, RULES): [] for rule in rules}
    for i, value in enumerate(values):
        one = varied(task, {name: value})
        for j, rule in enumerate(found):
            done = run_query(
                one, schedule, steps=np.arange(steps + 1), runs=runs, seed=seed, rule=rule
            )
            found[rule].append(done.times_to(alignment))
            if progress is not None:
                progress((i + (j + 1) / len(found)) / len(values))
    times = {rule: np.ceil(np.array(x)) for rule, x in found.items()}
    return RuleTimes(name, values, alignment, times)


def compare_departures(
    task: QueryTask,
    schedule: Steps,
    departures: Mapping[str, Departure],
    *,
    steps: int,
    runs: int = 10,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> dict[str, QueryRuns]:
    """Run the ascent in d dimensions on tokens that depart from the model, by name.

    Parameters
    ----------
    task : QueryTask
        Its spread of norms is kept in all runs.
    schedule : Steps
    departures : mapping of str to Departure
    steps, runs, seed : int
        As of `run_query`; equal seeds give equal starts and equal Gaussian noise.
    progress : callable, optional
        Called with the fraction done.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    found: dict[str, QueryRuns] = {}
    for name, departure in departures.items():
        how = {"steps": steps, "runs": runs, "seed": seed, "method": "direct"}
        found[name] = run_query(task, schedule, departure=departure, **how)  # type: ignore[arg-type]
        if progress is not None:
            progress(len(found) / len(departures))
    return found
