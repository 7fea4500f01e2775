"""The kernels, to import into your own code: plain functions of arrays, written by ``derive``.

They need NumPy and SciPy alone, broadcast over batches, and keep names and argument order; each docstring
gives shapes, source and domain. Everything below runs as a test.

Growth rates at the origin for many problems at once (`origin_eigenvalues`: of all heads alike and of
heads apart, along a feature and along residual directions):

>>> import numpy as np
>>> from numeric.kernels import b_softmax, softmax
>>> tokens = np.array([2, 5, 20])
>>> mean, difference, *_ = softmax.origin_eigenvalues(L=tokens, H=4, nu=4.0)
>>> -difference + 0.0
array([0.    , 0.192 , 0.0855])
>>> -b_softmax.origin_eigenvalues(L=5, H=4, nu=[4.0, 2.0], b=0.0)[1]
array([0.32, 0.16])

An activation's log weight and its relative derivatives (`weight_functions_2`, to fourth order `_4`), and
the gradient of one sample's loss in the scores:

>>> log_weight, slope, curvature, in_bias = b_softmax.weight_functions_2(chi=[0.0, 3.0], b=-1.0)
>>> log_weight, slope
(array([-1.,  2.]), array([1., 1.]))
>>> share = np.exp(log_weight) / np.exp(log_weight).sum()
>>> error = 2 * (share - [0, 1])
>>> in_score, _ = b_softmax.score_gradient([0.0, 3.0], -1.0, share, error, (share * error).sum(), 1.0)
>>> in_score.round(6)
array([ 0.00857, -0.00857])

The flow of the order parameters for a batch of states: with dE/dr = G of each, r changes as

>>> from numeric.kernels import order_parameters
>>> r = np.array([[[1.0, 0.0], [0.0, 1.0]], [[2.0, 1.0], [1.0, 2.0]]])
>>> G = np.array([[[0.1, 0.0], [0.0, 0.2]]])
>>> order_parameters.overlap_flow(r, G, V=np.zeros((2, 2)), kappa=0.0)
array([[[-0.4,  0. ],
        [ 0. , -0.8]],
<BLANKLINE>
       [[-0.8, -0.6],
        [-0.6, -1.6]]])

The loss's integrands over a race time (`race`), the Bayes weight of a token at coordinates xi (`bayes`),
and the query model (`query`):

>>> from numeric.kernels import bayes, query
>>> bayes.log_weight(xi=np.array([0.0, 2.0]), mu=0.0, nu=4.0).round(6)
array([-0.804719,  0.795281])
>>> fair, shared = query.growth_second_order(n_0=100, n_I=10, d=50, sigma=0.1, theta=1.0, beta=2.0)
>>> round(float(fair), 6)  # J''(0) to second order in beta, each informative token with its own sign
0.043728

Your own activation's kernels are made by ``derive`` in the same form, see `numeric.Attention`:

>>> from sympy import exp
>>> from derive import Attention
>>> from derive.symbols import chi
>>> from numeric.activation import UserActivation
>>> mine = UserActivation(Attention("mine", exp(chi / 2), "per-head").kernel_source())
>>> float(-mine.origin_eigenvalues(L=5, H=4, nu=4.0)[1])
0.048

The names ``ACTIVATIONS`` (by the activation's name), ``bayes``, ``noise``, ``order_parameters``,
``query``, ``race`` and one for each built-in activation are stable; arguments are added at the end only.
"""

from numeric._generated import (
    ACTIVATIONS,
    b_softmax,
    bayes,
    erf,
    linear,
    noise,
    order_parameters,
    query,
    race,
    softmax,
    softmax_1,
    softmax_v,
    softplus,
)

__all__ = [
    "ACTIVATIONS",
    "b_softmax",
    "bayes",
    "erf",
    "linear",
    "noise",
    "order_parameters",
    "query",
    "race",
    "softmax",
    "softmax_1",
    "softmax_v",
    "softplus",
]
