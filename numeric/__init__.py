"""Numbers from derived formulas: exact losses, spectra, flows and simulations of attention training.

The rooms, from the input to the figure:

experiment   an experiment file: TOML into validated dataclasses, by `tables`; `query_experiment` of the
             query model; `samples`: files of samples
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
bayes        Bayes weight and Bayes risk; `minimum`: the least loss that an activation reaches beside it;
             `curves` of both; `head_counts`: gaps against the number of heads; `decay`: their fits
pruning      which heads can be removed; `outcomes`: what training from random keys finds
signals      real samples and their leading features; `planting` of whole ones in noise
sgd          finite-D stochastic gradient descent, `direct` on the keys or `reduced`, exact in law, to the
             order parameters (`compiled`: its loop); `descent` has what they share, `recording` and
             `checkpoint` follow groups of runs; `watch`: norms whose first passages are noted
phases       durations of the phases from random keys, fitted against D
query        one query recovering a signal: exact objective, flow on the sphere; `query_study`: fixed
             points and phase diagram; `query_sgd`: stochastic gradient ascent by `query_steps`, on all
             coordinates or on the alignment alone; `query_noise`: what single samples allow;
             `query_compare`: other rules and other tokens
claims       the papers' claims as checks with a verdict; `claims_command` runs and reports them
sweep        an experiment or a function at all combinations of swept values; `grid` reads the table
             [sweep], `quantities` has what a cell computes, `cells` keep it, `workers` run side by side
dataset      results as xarray datasets in files, from `labelled` arrays; `sweep_plots` draws them, and
             `tabular` shows results in a notebook
kernels      the generated kernels, to import into your own code
verified     derived formulas against independent numbers, for printed derivations: `formula_checks` and
             `landau_checks` of an activation, `query_formula_checks` of the query model
checks       theory against simulation, with a false-alarm budget; `agreement` over a sweep of D
run          the main job; `report` writes its files; `query_run`: that of the query model
plots        figures in the look of `style`; `saddle_plots`, `sgd_plots`, `bayes_plots`, `query_plots`
cli          the command ``headflow`` with its `options` and `lab_options`; `commands` and the rooms that
             end in `_command` have what it computes
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
    from numeric.curves import RiskCurves, risk_curves
    from numeric.dataset import load_result, save_result, to_dataset
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
    from numeric.head_counts import HeadCount, gauss_nodes, head_count
    from numeric.hessian import FactorHessian, LossHessian, factor_hessian, loss_hessian
    from numeric.ladder import Rung, saddle_ladder
    from numeric.loss import Loss, population_loss
    from numeric.minimum import Minimum, bayes_softmax_optimum, minimize_loss
    from numeric.noise import initial_state, noise_matrix
    from numeric.outcomes import Outcomes, Pattern, classify, training_outcomes
    from numeric.phases import Scaling, first_passages, fit_scaling, phase_watches, random_starts
    from numeric.planting import Planting, plant_signals
    from numeric.prior import (
        DiscretePrior,
        GaussianPrior,
        MixturePrior,
        empirical,
        flipped_spike,
        isotropic,
    )
    from numeric.pruning import Pruning, prune_heads
    from numeric.query import Objective, QueryFlow, QueryTask, query_flow, query_objective
    from numeric.query_compare import RuleTimes, compare_departures, compare_rules
    from numeric.query_noise import (
        EarlyGrowth,
        GradientMoments,
        StepBudget,
        early_growth,
        gradient_moments,
        step_budget,
    )
    from numeric.query_sgd import QueryRuns, Steps, run_query
    from numeric.query_steps import Departure
    from numeric.query_study import (
        FieldChange,
        FixedPoint,
        GrowthMap,
        field_change,
        field_lipschitz,
        fixed_points,
        growth_map,
        time_to_align,
    )
    from numeric.saddles import (
        Saddle,
        nearby_saddle,
        origin_saddle,
        stationary_state,
        unspecialized_saddle,
    )
    from numeric.sgd import SGDRuns, run_sgd
    from numeric.signals import Signals, condensed, real_signals
    from numeric.spectrum import Spectrum, hessian_spectrum
    from numeric.sweep import run_sweep
    from numeric.task import Attention, State, Task
    from numeric.watch import Watch, feature_norms, mean_alignment, specialization

_ROOMS = {
    "agreement": ("Agreement", "compare_with_flow"),
    "alike": ("AlikeHessian", "alike_hessian"),
    "bayes": ("Risk", "bayes_posterior", "bayes_risk", "log_bayes_weight"),
    "continuation": ("Branch", "follow_saddle", "phase_boundary"),
    "curves": ("RiskCurves", "risk_curves"),
    "dataset": ("load_result", "save_result", "to_dataset"),
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
    "head_counts": ("HeadCount", "gauss_nodes", "head_count"),
    "hessian": ("FactorHessian", "LossHessian", "factor_hessian", "loss_hessian"),
    "ladder": ("Rung", "saddle_ladder"),
    "loss": ("Loss", "population_loss"),
    "phases": ("Scaling", "first_passages", "fit_scaling", "phase_watches", "random_starts"),
    "minimum": ("Minimum", "bayes_softmax_optimum", "minimize_loss"),
    "noise": ("initial_state", "noise_matrix"),
    "outcomes": ("Outcomes", "Pattern", "classify", "training_outcomes"),
    "planting": ("Planting", "plant_signals"),
    "pruning": ("Pruning", "prune_heads"),
    "query": ("Objective", "QueryFlow", "QueryTask", "query_flow", "query_objective"),
    "query_compare": ("RuleTimes", "compare_departures", "compare_rules"),
    "query_noise": (
        "EarlyGrowth",
        "GradientMoments",
        "StepBudget",
        "early_growth",
        "gradient_moments",
        "step_budget",
    ),
    "query_sgd": ("QueryRuns", "Steps", "run_query"),
    "query_steps": ("Departure",),
    "query_study": (
        "FieldChange",
        "FixedPoint",
        "GrowthMap",
        "field_change",
        "field_lipschitz",
        "fixed_points",
        "growth_map",
        "time_to_align",
    ),
    "saddles": (
        "Saddle",
        "nearby_saddle",
        "origin_saddle",
        "stationary_state",
        "unspecialized_saddle",
    ),
    "sgd": ("SGDRuns", "run_sgd"),
    "signals": ("Signals", "condensed", "real_signals"),
    "spectrum": ("Spectrum", "hessian_spectrum"),
    "sweep": ("run_sweep",),
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
