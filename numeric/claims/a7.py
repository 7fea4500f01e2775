"""A7: softmax heads learn mixtures of all features, Bayes-softmax heads single directions."""

from collections import Counter

import numpy as np
from matplotlib.figure import Figure

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, share_of
from numeric.claims.figures import panels
from numeric.claims.training import OWN, POINTS, gathered, trainings
from numeric.outcomes import classify
from numeric.style import COLOURS, styled

MIXED = Condition("share of softmax heads that mix features", low=0.8)
WHOLE = Condition("share of softmax heads that mix all features", low=0.8)
SINGLE = Condition("share of Bayes-softmax heads along one feature", low=0.8)
REGIMES = (
    Regime("Gaussian features, η = 1", (MIXED, WHOLE, SINGLE)),
    Regime("Gaussian features, η = 0.01", (MIXED, WHOLE, SINGLE)),
    Regime("points ±a e_f, η = 1", (MIXED, WHOLE, SINGLE)),
)
SETTINGS = ((OWN[0], OWN[2]), (OWN[1], OWN[3]), (POINTS[1], POINTS[0]))


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Training to the end; the runs of A6."""
    return trainings(full, seed, (*OWN, *POINTS))


def sizes(results: Results, name: str) -> Counter[int]:
    """Count used heads of all runs by the number of features that take part in them."""
    heads = [head for m in gathered(results, name)["m"] for head in classify(m).heads if head]
    return Counter(len(head) for head in heads)


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Shares of heads."""
    found = {}
    for regime, (softmax, bayes) in zip(REGIMES, SETTINGS, strict=True):
        mixed, single = sizes(results, softmax), sizes(results, bayes)
        count = mixed.total()
        found[regime.name] = {
            MIXED.name: share_of(count - mixed[1], count),
            WHOLE.name: share_of(mixed[3], count),
            SINGLE.name: share_of(single[1], single.total()),
        }
    return found


@styled
def draw(results: Results) -> Figure:
    """Shares of heads in which one, two or three features take part."""
    figure, (ax,) = panels()
    figure.set_figwidth(6.5)
    names = [x for pair in SETTINGS for x in pair]
    left = np.zeros(len(names))
    for k in (1, 2, 3):
        counts = [sizes(results, name) for name in names]
        shares = np.array([x[k] / max(x.total(), 1) for x in counts])
        words = "one feature" if k == 1 else f"{k} features"
        ax.barh(range(len(names)), shares, left=left, color=COLOURS[k - 1], label=words)
        left += shares
    ax.set(yticks=range(len(names)), yticklabels=names, xlabel="share of used heads", xlim=(0, 1))
    ax.invert_yaxis()
    ax.grid(visible=False)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    return figure


CLAIM = Claim(
    id="A7",
    title="Softmax heads learn mixtures, Bayes-softmax heads single directions",
    statement=r"Softmax heads end as mixtures $\pm e_1 \pm \dots \pm e_F$, Bayes-softmax heads along "
    r"single directions $\pm e_f$.",
    source="arXiv 2603.03993, section III",
    status="numerical",
    method=r"Final alignments of the runs of A6. A feature takes part in a head from three tenths "
    r"of the head's largest $|m_{hf}|$ on; heads shorter than a fifth of the longest one "
    r"are not counted. Beside Gaussian features, signals at the six points $\pm a_f e_f$, "
    r"where the Bayes estimator has a head along each.",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
