"""Checks that theory and simulation agree, each with a value, what was expected, and a verdict.

Statistical checks share one budget: all of an experiment's comparisons with random numbers together
raise a false alarm with probability at most `FALSE_ALARM`. A comparison's p-value is therefore held
against `FALSE_ALARM` divided by their number (Bonferroni). Deterministic checks compare with the error
that the routine itself reports, or with a stated tolerance.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri, stdtr

from numeric.bayes import Risk
from numeric.flow import Flow, integrate_flow
from numeric.law import token_laws
from numeric.loss import MOST_POINTS, evaluate, population_loss
from numeric.origin import (
    at_rest,
    origin_attention,
    origin_eigenvalues,
    origin_expansion,
    origin_state,
)
from numeric.quadrature import Array, symmetric_root
from numeric.scores import attention_weights
from numeric.sgd import SGDRuns
from numeric.spectrum import Spectrum, feature_axes, hessian_spectrum
from numeric.task import Attention, State, Task

FALSE_ALARM = 1e-6
# A growth rate that is zero but for rounding.
SLOWEST = 1e-9


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes
    ----------
    name : str
        What was compared.
    value, expected, error : float
        The error is a standard error where `z` is given, else the tolerance.
    z : float or None
        Deviation in standard errors, ``None`` for deterministic checks. Student's t is converted to
        the normal deviate of the same p-value.
    passed : bool
    """

    name: str
    value: float
    expected: float
    error: float
    z: float | None
    passed: bool


def threshold(comparisons: int) -> float:
    """Largest |z| that passes when there are so many comparisons."""
    return float(-ndtri(FALSE_ALARM / (2 * comparisons)))


def statistical(
    name: str,
    value: float,
    expected: float,
    error: float,
    comparisons: int,
    freedom: float = np.inf,
) -> Check:
    """Compare a random value with a prediction.

    Parameters
    ----------
    name : str
    value, expected, error : float
        Estimate, prediction, standard error of their difference.
    comparisons : int
        Number of comparisons that share the budget.
    freedom : float
        Degrees of freedom of the standard error.
    """
    if not np.isfinite([value, expected, error]).all():
        return Check(name, value, expected, error, np.inf, False)
    if error > 0:
        score = abs(value - expected) / error
        if np.isfinite(freedom):
            score = -float(ndtri(max(stdtr(freedom, -score), 1e-300)))
    else:
        score = 0.0 if abs(value - expected) < 1e-12 else np.inf
    z = float(np.copysign(score, value - expected))
    return Check(name, value, expected, error, z, bool(abs(z) <= threshold(comparisons)))


def within(name: str, value: float, expected: float, tolerance: float) -> Check:
    """Compare a deterministic value with a prediction."""
    return Check(name, value, expected, tolerance, None, bool(abs(value - expected) <= tolerance))


def monte_carlo_loss(
    state: State, task: Task, attention: Attention, samples: int, seed: int
) -> tuple[float, float]:
    """Return a Monte-Carlo population loss and its standard error.

    The oracle of `population_loss`: it draws scores and normalizes weights, nothing else is shared.

    Parameters
    ----------
    state : State
        One state.
    task : Task
    attention : Attention
    samples : int
    seed : int
    """
    state = state.check(attention, task.prior.features)
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    null, _ = token_laws(state, task, attention)
    root = symmetric_root(null.cov)
    values = attention.value if state.v is None else state.v
    chunk = max(1, 4_000_000 // (task.tokens * attention.heads))
    losses = []
    for start in range(0, samples, chunk):
        size = min(chunk, samples - start)
        chi = rng.standard_normal((size, task.tokens, attention.heads)) @ root
        chi[:, 0] += task.prior.sample(rng, size) @ state.m.T
        _, a = attention_weights(chi.transpose(0, 2, 1), state.b, values, attention.kernel)
        losses.append(1 - 2 * a[:, 0] + (a**2).sum(axis=1))
    values = np.concatenate(losses)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def loss_checks(
    path: Flow, task: Task, attention: Attention, samples: int, seed: int, comparisons: int
) -> list[Check]:
    """Exact loss against Monte Carlo at the flow's start, middle and end."""
    result = []
    for label, i in (("start", 0), ("middle", len(path.tau) // 2), ("end", len(path.tau) - 1)):
        state = path.states.at((i,))
        exact = population_loss(state, task, attention, 1e-6)
        sampled, error = monte_carlo_loss(state, task, attention, samples, seed + i)
        result.append(
            statistical(
                f"loss at the flow's {label}: exact against Monte Carlo",
                float(exact.value),
                sampled,
                float(np.hypot(error, exact.error)),
                comparisons,
            )
        )
    return result


def expansion_check(state: State, task: Task, attention: Attention) -> Check:
    """What the origin expansion misses at second order, relative to its second-order term.

    Along the state times s, exact minus expanded loss is a power series in s; its coefficient of s^2 is
    solved for from four small scales and must vanish (for a symmetric prior odd powers do, too).
    """
    state = state.check(attention, task.prior.features)
    symmetric = _is_symmetric(task)
    size = max(float(np.abs(state.m).max(initial=0.0)), float(np.sqrt(np.abs(state.r).max())))
    spread = np.sqrt(1 + float(feature_axes(task)[0].max(initial=0.0)))
    # Scores of deviation 0.1 at most, less where odd powers mix in or the weight varies faster.
    unit = (0.1 if symmetric else 0.025) / (max(size, 1e-3) * spread)
    null, relevant = token_laws(
        replace(state, m=unit * state.m, r=unit**2 * state.r), task, attention
    )
    unit /= max(law.scale for law in (null, *relevant))
    powers = np.array([2, 4, 6, 8] if symmetric else [2, 3, 4, 5])
    scales = np.array([1.0, 0.75, 0.5, 0.35])

    def at(scale: float) -> State:
        return replace(state, m=scale * unit * state.m, r=(scale * unit) ** 2 * state.r)

    def expanded(scale: float) -> float:
        return origin_expansion(at(scale), task, attention).value

    missed = [
        float(evaluate(at(s), task, attention, 13.0, MOST_POINTS).value) - expanded(s)
        for s in scales
    ]
    coefficient = float(np.linalg.solve(scales[:, None] ** powers, missed)[0])
    second = abs((expanded(1.0) + expanded(-1.0)) / 2 - expanded(0.0))
    return within(
        "origin expansion: what it misses at second order, relatively",
        coefficient / max(second, 1e-9),
        0.0,
        1e-5,
    )


def _is_symmetric(task: Task) -> bool:
    """Whether the prior's mean and third moments vanish."""
    weights, means, covariances = task.prior.components()
    third = np.einsum("k,ka,kb,kc->abc", weights, means, means, means)
    mixed = np.einsum("k,ka,kbc->abc", weights, means, covariances)
    third = third + mixed + mixed.transpose(1, 0, 2) + mixed.transpose(2, 1, 0)
    scale = 1 + float(np.abs(means).max(initial=0.0)) ** 3
    return bool(
        np.abs(third).max(initial=0.0) < 1e-12 * scale
        and np.abs(task.prior.mean).max(initial=0.0) < 1e-12 * scale
    )


def spectrum_check(task: Task, attention: Attention) -> Check:
    """Closed-form Hessian at the origin against the differentiated exact gradient."""
    derived = hessian_spectrum(task, attention)
    numeric = hessian_spectrum(task, attention, origin_state(task, attention))
    difference = _expanded(derived) - _expanded(numeric)
    return within(
        "Hessian at the origin: closed form against the exact gradient",
        float(np.abs(difference).max(initial=0.0)),
        0.0,
        float(numeric.errors.max(initial=0.0)) + 1e-9,
    )


def _expanded(spectrum: Spectrum) -> Array:
    return np.sort(np.repeat(spectrum.eigenvalues, spectrum.multiplicities))


def growth_check(task: Task, attention: Attention) -> Check | str:
    """Exponent of the early flow against the derived growth rate of the fastest head displacement.

    A text says why, where there is nothing to compare: the origin is no saddle, or nothing grows there.
    """
    heads, features = attention.heads, task.prior.features
    if features == 0 or np.abs(task.prior.mean).max(initial=0.0) > 0:
        return "with a mean signal, or none at all, the origin is no saddle"
    state = State(np.zeros((heads, features)), 1e-8 * np.eye(heads)).check(attention, features)
    state = at_rest(state, task, attention)
    total = task.tokens * origin_attention(state, task, attention)
    if attention.parameters and abs(total - 1) > 1e-9:
        return "biases or values drift at the origin"
    moments, axes = feature_axes(task)
    leading = int(np.argmax(moments))
    mean, difference, _, _ = origin_eigenvalues(state, task, attention, float(moments[leading]))
    rate = -(difference if heads > 1 else mean)
    if rate <= SLOWEST:
        return "no displacement that was tried grows at the origin"
    along = np.zeros(heads)
    along[:2] = (1.0, -1.0)[:heads]
    state = replace(state, m=1e-4 * np.outer(along, axes[:, leading]))
    path = integrate_flow(
        state, task, attention, np.linspace(0, 2 / rate, 41), digits=9.0, rtol=1e-8
    )
    size = np.linalg.norm(path.m.reshape(len(path.tau), -1), axis=1)
    measured = float(np.polyfit(path.tau, np.log(size), 1)[0])
    return within(
        "growth rate from the origin: early flow against the Hessian", measured, rate, 0.01 * rate
    )


def bayes_check(path: Flow, risk: Risk) -> Check:
    """No state of the flow may have a loss below the Bayes risk."""
    least = float(path.loss.min())
    margin = path.loss_error + 5 * risk.error
    return Check(
        "least loss of the flow: not below the Bayes risk",
        least,
        risk.value,
        margin,
        None,
        least >= risk.value - margin,
    )


def order_parameters(found: SGDRuns | Flow) -> dict[str, Array]:
    """Return every entry of m, r, b and v, each once, by its name: (runs, n) or (n,)."""
    heads, features = found.m.shape[-2:]
    entries: dict[str, Array] = {}
    for h in range(heads):
        entries |= {f"m[{h + 1},{f + 1}]": found.m[..., h, f] for f in range(features)}
        entries |= {f"r[{h + 1},{k + 1}]": found.r[..., h, k] for k in range(h, heads)}
    for name, values in (("b", found.b), ("v", found.v)):
        if values is not None:
            entries |= {f"{name}[{h + 1}]": values[..., h] for h in range(heads)}
    return entries


def agreement_checks(large: SGDRuns, small: SGDRuns, path: Flow, comparisons: int) -> list[Check]:
    """Mean of SGD over runs, extrapolated to D -> infinity, against the finite-kappa flow.

    Parameters
    ----------
    large, small : SGDRuns
        Runs at D and D/2 from one state at the same times. The finite-D bias of a mean is O(1/D),
        so ``2 mean(D) - mean(D/2)`` removes it; what is left, O(1/D^2), enters the error as the
        O(1/D) part times ``2 (H + F + 2) / D``.
    path : Flow
        The flow at those times.
    comparisons : int
        Number of comparisons that share the budget.

    Returns
    -------
    list of Check
        Every entry of m, r, b and v at every recorded time but the first.
    """
    heads, features = path.m.shape[1:]
    first, second = order_parameters(large), order_parameters(small)
    # The O(1/D^2) remainder of a mean, relative to its O(1/D) part; the flow's own error.
    remainder = 2 * (heads + features + 2) / large.dimension
    drift = path.gradient_error + path.noise_error
    result = []
    for name, predicted in order_parameters(path).items():
        for i in range(1, len(path.tau)):
            x, y = first[name][:, i], second[name][:, i]
            variance = 4 * x.var(ddof=1) / len(x) + y.var(ddof=1) / len(y)
            variance += (remainder * (x.mean() - y.mean())) ** 2 + (drift * path.tau[i]) ** 2
            result.append(
                statistical(
                    f"{name} at tau = {path.tau[i]:.4g}: SGD against flow",
                    float(2 * x.mean() - y.mean()),
                    float(predicted[i]),
                    float(np.sqrt(variance)),
                    comparisons,
                    len(x) - 1,
                )
            )
    return result
