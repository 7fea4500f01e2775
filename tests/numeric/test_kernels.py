"""The page of kernels: its examples run, its names are there, and kernels broadcast over batches."""

import doctest
import inspect
from typing import Any

import numpy as np
import pytest

from numeric import kernels
from numeric.kernels import order_parameters

RNG = np.random.default_rng(0)


def test_examples() -> None:
    found = doctest.testmod(kernels)
    assert found.attempted >= 20 and not found.failed


def test_every_name_is_explained() -> None:
    missing = [x for x in kernels.__all__ if x not in str(kernels.__doc__).replace("softmax", "")]
    assert set(missing) <= {x.replace("-", "_") for x in kernels.ACTIVATIONS}


def functions() -> list[Any]:
    found = []
    for name in kernels.__all__[1:]:
        module = getattr(kernels, name)
        found += [
            pytest.param(function, id=f"{name}.{key}")
            for key, function in vars(module).items()
            if inspect.isfunction(function) and function.__module__ == module.__name__
        ]
    return found


@pytest.mark.parametrize("kernel", functions())
def test_kernels_broadcast(kernel: Any) -> None:
    """A batch gives, entry by entry, what its members give."""
    names = list(inspect.signature(kernel).parameters)
    assert kernel.__doc__ and "Parameters" in kernel.__doc__
    if "Arguments broadcast" not in kernel.__doc__:
        return
    batch = {name: RNG.uniform(0.1, 0.9, (3, 1) if i % 2 else 4) for i, name in enumerate(names)}
    for name in ("L", "H", "n_0", "n_I", "d"):
        if name in batch:
            batch[name] = RNG.integers(2, 9, batch[name].shape)
    shape = np.broadcast_shapes(*(x.shape for x in batch.values()))
    whole = kernel(**batch)
    single = kernel(**{name: np.broadcast_to(x, shape)[2 % shape[0]] for name, x in batch.items()})
    for x, y in zip(
        whole if isinstance(whole, tuple) else (whole,),
        single if isinstance(single, tuple) else (single,),
        strict=True,
    ):
        assert np.shape(x) == shape
        np.testing.assert_allclose(np.broadcast_to(x, shape)[2 % shape[0]], y, rtol=1e-13)


def test_matrices_broadcast() -> None:
    heads, features, count = 3, 2, 4

    def some(*shape: int) -> np.ndarray:
        return RNG.normal(size=shape)

    def symmetric(*shape: int) -> np.ndarray:
        x = some(*shape)
        return x + x.mT

    m, mu = some(count, heads, features), some(count, features, 1)
    s, g, gamma = symmetric(features, features), some(heads, 1), symmetric(count, heads, heads)
    in_m, in_r = order_parameters.law_gradient(m, mu, s, g, gamma)
    for i in range(count):
        one = order_parameters.law_gradient(m[i], mu[i], s, g, gamma[i])
        np.testing.assert_allclose(in_m[i], one[0])
        np.testing.assert_allclose(in_r[i], one[1])
    r, big, v = (symmetric(count, heads, heads) for _ in range(3))
    kappa = RNG.uniform(size=(count, 1, 1))
    whole = order_parameters.overlap_flow(r, big, v, kappa)
    for i in range(count):
        one = order_parameters.overlap_flow(r[i], big[i], v[i], kappa[i, 0, 0])
        np.testing.assert_allclose(whole[i], one)
    rho = some(count, heads, 2)
    np.testing.assert_allclose(order_parameters.factor_flow(rho, big[0]), -2 * big[0] @ rho)
