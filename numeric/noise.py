"""The noise matrix V of finite-step SGD, and the random initial state.

``V_hh' = E sum_l c_hl c_h'l`` (`derive.task` section 3) couples up to four heads, so it does not
reduce to pairs of heads as the loss does. It is integrated over all H x L scores by randomized
quasi-Monte Carlo, with the standard error of independently scrambled nets.
"""

import numpy as np
from scipy.special import ndtr

from numeric.errors import InputError
from numeric.loss import token_laws
from numeric.quadrature import Array, standard_normal_nets, symmetric_root
from numeric.scores import attention_weights, score_gradient
from numeric.task import Attention, State, Task
from numeric.validate import real_number, whole_number

NETS, NET_SIZE = 8, 512
LARGEST_ETA = 1e50
# Scores of one net, and the largest dimension of a Sobol sequence.
MOST_SCORES, MOST_DIMENSIONS = 2_000_000, 21_201


def noise_matrix(
    state: State, task: Task, attention: Attention, net_size: int = NET_SIZE
) -> tuple[Array, Array]:
    """Return V and its standard error.

    Parameters
    ----------
    state : State
        One state, m (H, F), r (H, H), b (H,).
    task : Task
    attention : Attention
    net_size : int
        Points of each of the eight nets; fewer are used when H L is large.

    Returns
    -------
    V, error : (H, H) arrays
        Symmetric, V positive semi-definite.

    Raises
    ------
    InputError
        If the state does not fit, or H L exceeds what a Sobol sequence covers.

    Notes
    -----
    `derive.task` section 3. The limit D -> infinity is taken: tokens are orthonormal.
    """
    state = state.check(attention, task.prior.features)
    if state.batch_shape:
        raise InputError("state", f"a batch of shape {state.batch_shape}", "one state")
    net_size = whole_number("net_size", net_size, 2)
    heads, tokens = attention.heads, task.tokens
    if heads * tokens + 1 > MOST_DIMENSIONS:
        raise InputError(
            "tokens",
            tokens,
            f"at most {(MOST_DIMENSIONS - 1) // heads} tokens for "
            f"the noise matrix of {heads} heads",
        )
    size = int(
        min(2 ** int(np.log2(net_size)), max(16, 2 ** int(np.log2(MOST_SCORES / (heads * tokens)))))
    )
    null, relevant = token_laws(state, task)
    root = symmetric_root(null.cov)
    edges = np.cumsum([law.weight for law in relevant])
    results = []
    for net in standard_normal_nets(heads * tokens + 1, NETS, size):
        z = net[:, 1:].reshape(size, tokens, heads)
        chi = z @ root
        component = np.searchsorted(edges, ndtr(net[:, 0]) * edges[-1])
        for k, law in enumerate(relevant):
            mine = component == k
            chi[mine, 0] = law.mean + z[mine, 0] @ symmetric_root(law.cov)
        chi = np.ascontiguousarray(chi.transpose(0, 2, 1))
        p, a = attention_weights(chi, state.b, attention.activation)
        slope = 2 * a
        slope[:, 0] -= 2
        c, _ = score_gradient(chi, state.b, p, slope, attention.activation)
        flat = c.transpose(1, 0, 2).reshape(heads, -1)
        results.append(flat @ flat.T / size)
    values = np.array(results)
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(NETS)


def initial_state(task: Task, attention: Attention, eta: float, dimension: int, seed: int) -> State:
    """Draw the order parameters of keys ``k_h ~ N(0, eta^2 I / D)``, exactly in law.

    Parameters
    ----------
    task : Task
    attention : Attention
    eta : float
        Norm of a key, O(1).
    dimension : int
        Token dimension D >= F + H; m = O(eta / sqrt D), r close to eta^2 times the identity.
    seed : int

    Returns
    -------
    State

    Raises
    ------
    InputError
        If `eta` is not positive or `dimension` too small.

    Notes
    -----
    `derive.task` section 3.
    """
    from scipy.stats import wishart  # slow to import

    eta = real_number("eta", eta, positive=True)
    if eta > LARGEST_ETA:
        raise InputError("eta", eta, f"at most {LARGEST_ETA:g}")
    heads, features = attention.heads, task.prior.features
    dimension = whole_number("dimension", dimension, features + heads)
    rng = np.random.default_rng(np.random.SeedSequence(whole_number("seed", seed, 0)))
    scale = eta**2 / dimension
    m = np.sqrt(scale) * rng.standard_normal((heads, features))
    overlap = scale * np.atleast_2d(
        wishart.rvs(dimension - features, np.eye(heads), random_state=rng)
    )
    return State(m, (overlap + overlap.T) / 2).check(attention, features)
