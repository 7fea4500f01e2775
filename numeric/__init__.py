"""Numbers from derived formulas: exact losses, spectra, flows and simulations of attention training.

The rooms, from the input to the figure:

experiment   an experiment file: TOML into validated dataclasses
prior        signal priors
task         task, attention layer, state; `activation`: built-in and user-defined kernels
quadrature   rules for Gaussian scores and the race time; `refine`: digits raised to a tolerance
race         races of a token's score law; `heads` and `pairs` of them on their own, `pooled` heads
loss         exact population loss and gradient, with an error
hessian      exact Hessian of the loss in (m, r) and (m, rho), by `curvature`; `alike` of equal heads
origin       second-order expansion at the origin
scores       one sample: attention weights and score gradients
noise        noise matrix V of finite-step SGD; random initial states
flow         order-parameter flow; first passages; excursions
spectrum     Hessian spectra at the origin and at any state, lifted to D dimensions
saddles      the unspecialized saddle, partially specialized ones, minima; `ladder` of them with waiting
             times; `continuation` in any parameter, bifurcations and phase boundaries
escape       the law of the first passage at every D; diffusion of the magnetization
bayes        Bayes weight and Bayes risk; `minimum`: the least loss that an activation reaches beside it
sgd          finite-D stochastic gradient descent, `direct` on the keys or `reduced`, exact in law, to the
             order parameters (`compiled`: its loop); `descent` has what they share, `recording` and
             `checkpoint` follow groups of runs; `watch`: norms whose first passages are noted
phases       durations of the phases from random keys, fitted against D
checks       theory against simulation, with a false-alarm budget; `agreement` over a sweep of D
run          the main job; `report` writes its files
plots        figures in the look of `style`; `saddle_plots`, `sgd_plots`
cli          the command ``headflow``; `commands`, `spectrum_command`, `sgd_command` have what it computes
errors       typed errors; `validate` checks arguments; `files` writes whole files

`_generated` holds the kernels that `derive` writes; import them directly to reuse a formula. Nothing
here imports SymPy, except the two commands that print derivations, and an experiment file that defines
an activation of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numeric.agreement import Agreement, compare_with_flow
    from numeric.alike import AlikeHessian, alike_hessian
    from numeric.bayes import Risk, bayes_posterior, bayes_risk, log_bayes_weight
    from numeric.continuation import Branch, follow_saddle, phase_boundary
    from numeric.errors import (
        ExperimentError,
        FlowError,
        HeadflowError,
        InputError,
        QuadratureError,
        SimulationError,
    )
    from numeric.escape import EscapeLaw, escape_law, magnetization_diffusion
    from numeric.experiment import Experiment, example_names, load_experiment
    from numeric.flow import Flow, integrate_flow
    from numeric.hessian import FactorHessian, LossHessian, factor_hessian, loss_hessian
    from numeric.ladder import Rung, saddle_ladder
    from numeric.loss import Loss, population_loss
    from numeric.minimum import Minimum, bayes_softmax_optimum, minimize_loss
    from numeric.noise import initial_state, noise_matrix
    from numeric.phases import Scaling, first_passages, fit_scaling, phase_watches, random_starts
    from numeric.prior import (
        DiscretePrior,
        GaussianPrior,
        MixturePrior,
        empirical,
        flipped_spike,
        isotropic,
    )
    from numeric.saddles import (
        Saddle,
        nearby_saddle,
        origin_saddle,
        stationary_state,
        unspecialized_saddle,
    )
    from numeric.sgd import SGDRuns, run_sgd
    from numeric.spectrum import Spectrum, hessian_spectrum
    from numeric.task import Attention, State, Task
    from numeric.watch import Watch, feature_norms, mean_alignment, specialization

_ROOMS = {
    "agreement": ("Agreement", "compare_with_flow"),
    "alike": ("AlikeHessian", "alike_hessian"),
    "bayes": ("Risk", "bayes_posterior", "bayes_risk", "log_bayes_weight"),
    "continuation": ("Branch", "follow_saddle", "phase_boundary"),
    "escape": ("EscapeLaw", "escape_law", "magnetization_diffusion"),
    "errors": (
        "ExperimentError",
        "FlowError",
        "HeadflowError",
        "InputError",
        "QuadratureError",
        "SimulationError",
    ),
    "experiment": ("Experiment", "example_names", "load_experiment"),
    "flow": ("Flow", "integrate_flow"),
    "hessian": ("FactorHessian", "LossHessian", "factor_hessian", "loss_hessian"),
    "ladder": ("Rung", "saddle_ladder"),
    "loss": ("Loss", "population_loss"),
    "phases": ("Scaling", "first_passages", "fit_scaling", "phase_watches", "random_starts"),
    "minimum": ("Minimum", "bayes_softmax_optimum", "minimize_loss"),
    "noise": ("initial_state", "noise_matrix"),
    "saddles": (
        "Saddle",
        "nearby_saddle",
        "origin_saddle",
        "stationary_state",
        "unspecialized_saddle",
    ),
    "sgd": ("SGDRuns", "run_sgd"),
    "spectrum": ("Spectrum", "hessian_spectrum"),
    "prior": (
        "DiscretePrior",
        "GaussianPrior",
        "MixturePrior",
        "empirical",
        "flipped_spike",
        "isotropic",
    ),
    "task": ("Attention", "State", "Task"),
    "watch": ("Watch", "feature_norms", "mean_alignment", "specialization"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = list(_ROOM_OF)


def __getattr__(name: str) -> Any:
    """Import a public name's room when it is first used, so that importing `numeric` is fast."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'numeric' has no attribute {name!r}")
    return getattr(import_module(f"numeric.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_ROOM_OF)
