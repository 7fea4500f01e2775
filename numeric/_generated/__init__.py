"""Generated kernels; the activations by name. Written by `headflow derive --write`."""

from numeric._generated import b_softmax, bayes, erf, linear, noise, order_parameters, query, race, softmax, softmax_1, softmax_v, softplus

ACTIVATIONS = {
    "softmax": softmax,
    "softmax-v": softmax_v,
    "softmax-1": softmax_1,
    "b-softmax": b_softmax,
    "linear": linear,
    "erf": erf,
    "softplus": softplus,
}

__all__ = ['ACTIVATIONS', 'b_softmax', 'bayes', 'erf', 'linear', 'noise', 'order_parameters', 'query', 'race', 'softmax', 'softmax_1', 'softmax_v', 'softplus']
