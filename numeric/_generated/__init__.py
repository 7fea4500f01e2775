"""Generated kernels; the activations by name. Written by `headflow derive --write`."""

from numeric._generated import b_softmax, bayes, order_parameters, race, softmax

ACTIVATIONS = {
    "softmax": softmax,
    "b-softmax": b_softmax,
}

__all__ = ['ACTIVATIONS', 'b_softmax', 'bayes', 'order_parameters', 'race', 'softmax']
