"""Symbolic derivations: from an attention activation to kernels and readable formulas.

The rooms, in the order in which a formula passes through them:

symbols     the field's symbols with their assumptions
task        the task, its order parameters and the law of a token's scores
attention   an activation: score weight, normalization, trained parameters; `stable` functions
user        an activation of the user's own; its weight's text is read by `parser`
loss        the population loss in race form; one sample's score gradient
expansion   second-order expansion at the origin, symbolic L and H and prior moments
gradient    order-parameter gradients by matrix calculus; the flow equations
landau      the loss at the origin order by order: the Landau free energy of specialization
pattern     which patterns of heads the quartic energy prefers; heads parting at small alignment
hessian     Hessian at the origin by head sector; growth rates
single_head closed forms of one head on a fixed spike
noise       the noise matrix of finite steps where one race suffices
bayes       the Bayes weight of a position
query       one query recovering a signal: the objective by symmetry; `query_expansion`: growth at the
            equator
spec        the frozen kernel spec: what crosses to the numeric side
emit        kernels written as NumPy source into ``numeric/_generated``; drift
document    the derivation as Markdown with LaTeX, HTML or plain text; `landau_document` has the sections
            on `landau` and `pattern`; `query_document`: that of the query model
writer      collects a document in one of three forms; `inline`: formulas within its prose

Nothing here solves or integrates numerically; ``python -m derive`` is the command.
"""

from derive.attention import ACTIVATIONS, Attention, activation
from derive.errors import DeriveError
from derive.expansion import expand_at_origin

__all__ = ["ACTIVATIONS", "Attention", "DeriveError", "activation", "expand_at_origin"]
