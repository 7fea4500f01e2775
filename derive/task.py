"""The task and its order parameters: what the derivations start from.

1. Task. Of L tokens in R^D one, at a uniform position eps, carries a signal:
   ``x_l = z_l + 1{l = eps} sum_f theta_f k*_f``, z_l standard normal, k*_f orthonormal, theta ~
   P_theta in R^F. A head h has a key k_h and scores ``chi_hl = k_h . x_l``. Attention predicts
   x_eps by ``sum_l a_l x_l``; as D grows the tokens become orthonormal and the loss is
   ``E = E sum_l (1{l = eps} - a_l)^2 = 1 - 2 A + B``, ``A = E a_eps``, ``B = E sum_l a_l^2``.
2. Attention. The weights a_l are those of `derive.attention`.
3. Dynamics. Order parameters are the alignments ``m_hf = k_h . k*_f`` and the overlap r of the
   keys' parts orthogonal to all k*_f. SGD with step gamma and batch N_b, ``tau = gamma steps`` and
   ``kappa = gamma D / N_b``, follows ``dm/dtau = -dE/dm``, ``dr/dtau = -2 (G r + r G) + kappa V``,
   ``db/dtau = -dE/db`` and ``dv/dtau = -dE/dv``, with ``G = dE/dr`` (``dE = tr(G dr)``) and
   ``V_hh' = E sum_l c_hl c_h'l``, ``c_hl = d(loss of one sample)/d chi_hl``. Initial keys are
   N(0, eta^2 I / D).
4. Reduction. A token's scores are Gaussian, and denominators are Laplace integrals over a race
   time, under which tokens are independent: `derive.loss`.
5. Saddles. The expansion at the origin and its Hessian: `derive.expansion`, `derive.hessian`.
6. Bayes. The posterior weight of a position is ``w(xi) = E_theta exp(theta.xi - |theta|^2/2)``,
   with xi the token's coordinates along k*; the risk is ``1 - E p_eps``, and ``A = B`` at the Bayes
   estimator: `derive.bayes`.

Sources: arXiv 2603.03993 (Prop. III.2 for 3, Lemma III.1 for 5, Prop. IV.2 for 6). Docstrings cite
these sections as "`derive.task` section n".
"""

from sympy import MatrixExpr

from derive.symbols import S, m, mu, r


def score_mean() -> MatrixExpr:
    """Mean of a token's scores for a component of the prior with mean mu (0: any other token)."""
    return m * mu


def score_covariance() -> MatrixExpr:
    """Covariance of a token's scores, S = 1 + covariance of the component (1: any other token)."""
    return m * S * m.T + r
