"""Functions that floating point needs by name: written out, they overflow or lose all digits.

``log(1 + exp(x))`` overflows at 710, and its logarithm underflows at -745, where attention weights are
as good as anywhere else. Both are functions here, with derivatives that are stable as well, and every
weight is rewritten in them (`stable`, `log_of`).
"""

from sympy import Add, Expr, Function, Integer, S, exp, expand_log, log
from sympy.core.function import ArgumentIndexError


class softplus(Function):
    """``log(1 + exp(x))``."""

    nargs = 1
    is_positive = True
    is_real = True

    @classmethod
    def eval(cls, x: Expr) -> Expr | None:
        return log(2) if x == 0 else None

    def fdiff(self, argindex: int = 1) -> Expr:
        if argindex != 1:
            raise ArgumentIndexError(self, argindex)
        return expit(self.args[0])


class expit(Function):
    """``1 / (1 + exp(-x))``, the logistic function."""

    nargs = 1
    is_positive = True
    is_real = True

    @classmethod
    def eval(cls, x: Expr) -> Expr | None:
        return S.Half if x == 0 else None

    def fdiff(self, argindex: int = 1) -> Expr:
        if argindex != 1:
            raise ArgumentIndexError(self, argindex)
        x = self.args[0]
        return expit(x) * expit(-x)


class log_softplus(Function):
    """``log(log(1 + exp(x)))``, which is x far to the left."""

    nargs = 1
    is_real = True

    @classmethod
    def eval(cls, x: Expr) -> Expr | None:
        return log(log(2)) if x == 0 else None

    def fdiff(self, argindex: int = 1) -> Expr:
        if argindex != 1:
            raise ArgumentIndexError(self, argindex)
        return softplus_slope(self.args[0])


class softplus_slope(Function):
    """``expit(x) / softplus(x)``, the slope of `log_softplus`; 0/0 in floats far to the left."""

    nargs = 1
    is_positive = True
    is_real = True

    @classmethod
    def eval(cls, x: Expr) -> Expr | None:
        return S.Half / log(2) if x == 0 else None

    def fdiff(self, argindex: int = 1) -> Expr:
        if argindex != 1:
            raise ArgumentIndexError(self, argindex)
        x = self.args[0]
        return softplus_slope(x) * (expit(-x) - softplus_slope(x))


def stable(expression: Expr) -> Expr:
    """Write ``log(1 + exp(x))`` as `softplus` and its logarithm as `log_softplus`."""

    def one_plus_exponential(e: Expr) -> bool:
        return (
            isinstance(e, log)
            and isinstance(e.args[0], Add)
            and len(e.args[0].args) == 2
            and e.args[0].args[0] == Integer(1)
            and isinstance(e.args[0].args[1], exp)
        )

    expression = expression.replace(
        one_plus_exponential, lambda e: softplus(e.args[0].args[1].args[0])
    )
    return expression.replace(
        lambda e: isinstance(e, log) and isinstance(e.args[0], softplus),
        lambda e: log_softplus(e.args[0].args[0]),
    )


def log_of(weight: Expr) -> Expr:
    """Return the logarithm of a positive weight, products and powers split."""
    return stable(expand_log(log(stable(weight)), force=True))


def written_out(expression: Expr) -> Expr:
    """Write the functions of this module out, for reading and for evaluation with many digits."""
    meaning = {
        softplus_slope: lambda x: expit(x) / softplus(x),
        log_softplus: lambda x: log(softplus(x)),
        softplus: lambda x: log(1 + exp(x)),
        expit: lambda x: 1 / (1 + exp(-x)),
    }
    for function, written in meaning.items():
        expression = expression.replace(function, written)
    return expression
