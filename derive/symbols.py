"""The field's symbols, with their assumptions, in one place.

Every derivation imports its symbols from here, so that a formula read in one room means the same in
the next. Assumptions (real, positive, integer) live on the symbols: loose ones make SymPy leave
``DiracDelta`` and ``Abs`` behind in second derivatives.
"""

from sympy import MatrixSymbol, Symbol

# Sizes.
L = Symbol("L", integer=True, positive=True)
H = Symbol("H", integer=True, positive=True)
F = Symbol("F", integer=True, positive=True)

# A score, a head bias, a head value; a posterior field and one principal feature of a prior.
chi = Symbol("chi", real=True)
b = Symbol("b", real=True)
v = Symbol("v", real=True)
xi = Symbol("xi", real=True)
theta = Symbol("theta", real=True)
mu_f = Symbol("mu_f", real=True)
nu_f = Symbol("nu_f", positive=True)

# A token's weight in units of the race time t = exp(-u), tau = t w = exp(log w - u).
tau = Symbol("tau", nonnegative=True)

# Order parameters and prior moments as matrices.
m = MatrixSymbol("m", H, F)
r = MatrixSymbol("r", H, H)
rho = MatrixSymbol("rho", H, H)
mu = MatrixSymbol("mu", F, 1)
M = MatrixSymbol("M", F, F)
S = MatrixSymbol("S", F, F)
Gamma = MatrixSymbol("Gamma", H, H)
G = MatrixSymbol("G", H, H)
V = MatrixSymbol("V", H, H)
gain = MatrixSymbol("g", H, 1)
kappa = Symbol("kappa", nonnegative=True)
