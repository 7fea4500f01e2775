"""Read a score weight from text, without ever running the text.

Grammar, with Python's precedence (``-chi**2`` is ``-(chi**2)``, ``a**b**c`` is ``a**(b**c)``)::

    sum      = product { ("+" | "-") product }
    product  = signed { ("*" | "/") signed }
    signed   = ("+" | "-") signed | power
    power    = primary [ ("**" | "^") signed ]
    primary  = number | "chi" | "b" | "pi" | function "(" sum ")" | "(" sum ")"

SymPy evaluates what it builds. So operands are examined before an operation, and its result after it:
no number ever grows large; every part of the weight is known to SymPy as real for all ``chi`` and ``b``
(elsewhere its own tests for realness may never end); and four derivatives stay small.
"""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction

import sympy
from sympy import Expr, Pow, Rational, S, exp, log, pi, preorder_traversal

from derive.errors import DeriveError
from derive.stable import expit, softplus
from derive.symbols import b, chi

MOST_CHARACTERS = 500
MOST_OPERATIONS = 24
DEEPEST_PARENTHESES = 8
HIGHEST_ORDER = 10
LARGEST_NUMBER = 1000
MOST_DIGITS = 60
# A smaller one may be a zero that SymPy does not see.
SMALLEST_IRRATIONAL = 1e-12
EXCERPT = 40

TOKEN = re.compile(
    r"(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE](?P<exponent>[+-]?[0-9]+))?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)"
    r"|(?P<sign>\*\*|\S)"
    r"|(?P<end>\Z)",
    re.ASCII,
)


class _Unfit(Exception):
    """What an operation or its result should have been."""


def parse_weight(text: str) -> Expr:
    """Return the score weight that `text` writes in ``chi`` and ``b``.

    Parameters
    ----------
    text : str
        Decimal numbers, ``chi``, ``b``, ``pi``, ``+ - * / **`` (or ``^``), parentheses, and the
        functions of one argument in `FUNCTIONS`.

    Returns
    -------
    sympy.Expr
        An expression in the symbols of `derive.symbols`, with exact numbers.

    Raises
    ------
    DeriveError
        For anything else, for a weight without ``chi``, beyond the limits above, and where SymPy does
        not see that a part is real, as in ``sqrt(chi)``, ``1 / b`` and also ``log(2 + sin(chi))``.
    """
    if not isinstance(text, str):
        raise DeriveError(f"weight: found {_shown(type(text).__name__)}, expected a text")
    if len(text) > MOST_CHARACTERS:
        found = f"{_shown(text)} of {len(text)} characters"
        raise DeriveError(f"weight: found {found}, expected at most {MOST_CHARACTERS}")
    return _Reader(text).weight()


def _shown(text: str) -> str:
    """Return an excerpt in quotes, of printable ASCII."""
    shown = ascii(text[: EXCERPT + 1])[1:-1]
    return f"'{shown}'" if len(shown) <= EXCERPT else f"'{shown[: EXCERPT - 3]}...'"


class _Reader:
    """Recursive descent through the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [*TOKEN.finditer(text)]
        self.at = 0
        self.operations = 0
        self.depth = 0

    @property
    def token(self) -> re.Match[str]:
        """The token to be read."""
        return self.tokens[self.at]

    @property
    def sign(self) -> str:
        """The token's text, empty at the end."""
        return self.token.group()

    def refusal(self, expected: str, since: int | None = None) -> DeriveError:
        """Return an error about the token to be read, or about all that was read since a place."""
        start, end = self.token.span()
        if since is not None:
            start, end = since, self.tokens[self.at - 1].end()
        found = _shown(self.text[start:end]) if start < end else "the end"
        return DeriveError(f"weight: found {found} at character {start + 1}, expected {expected}")

    def take(self) -> str:
        sign = self.sign
        self.at += 1
        return sign

    def take_operation(self) -> str:
        self.operations += 1
        if self.operations > MOST_OPERATIONS:
            raise self.refusal(f"at most {MOST_OPERATIONS} operations")
        return self.take()

    def build(self, since: int, operation: Callable[..., Expr], *operands: object) -> Expr:
        """Apply an operation that was read since a place."""
        try:
            return _examined(operation(*operands))
        except _Unfit as unfit:
            raise self.refusal(str(unfit), since) from None

    def weight(self) -> Expr:
        since, weight = self.token.start(), self.sum()
        if self.sign:
            raise self.refusal("an operator or the end")
        if chi not in weight.free_symbols:
            raise self.refusal("an expression in chi", since)
        return weight

    def chain(self, signs: set[str], operand: Callable[[], Expr]) -> Expr:
        """Read operands with any of some operators between them, from left to right."""
        since, left = self.token.start(), operand()
        while self.sign in signs:
            operation = OPERATIONS[self.take_operation()]
            left = self.build(since, operation, left, operand())
        return left

    def sum(self) -> Expr:
        return self.chain({"+", "-"}, self.product)

    def product(self) -> Expr:
        return self.chain({"*", "/"}, self.signed)

    def signed(self) -> Expr:
        if self.sign not in ("+", "-"):
            return self.power()
        since, operation = self.token.start(), OPERATIONS[self.take_operation()]
        return self.build(since, operation, S.Zero, self.signed())

    def power(self) -> Expr:
        since, base = self.token.start(), self.primary()
        if self.sign not in ("**", "^"):
            return base
        operation = OPERATIONS[self.take_operation()]
        return self.build(since, operation, base, self.signed())

    def primary(self) -> Expr:
        token, since = self.token, self.token.start()
        if token.lastgroup == "number":
            self.take()
            return self.build(since, _number, token)
        if self.sign in NAMES:
            return NAMES[self.take()]
        if self.sign in FUNCTIONS:
            function = FUNCTIONS[self.take_operation()]
            return self.build(since, function, self.parenthesis("'('"))
        if token.lastgroup == "name":
            raise self.refusal(f"one of {', '.join([*NAMES, *FUNCTIONS])}")
        return self.parenthesis("a number, a name or '('")

    def parenthesis(self, expected: str) -> Expr:
        if self.sign != "(":
            raise self.refusal(expected)
        self.depth += 1
        if self.depth > DEEPEST_PARENTHESES:
            raise self.refusal(f"at most {DEEPEST_PARENTHESES} parentheses in each other")
        self.take()
        inner = self.sum()
        if self.sign != ")":
            raise self.refusal("an operator or ')'")
        self.take()
        self.depth -= 1
        return inner


def _number(token: re.Match[str]) -> Expr:
    if abs(int(token["exponent"] or 0)) > MOST_DIGITS:
        raise _Unfit(f"an exponent of at most {MOST_DIGITS}")
    value = Fraction(token.group())
    return Rational(value.numerator, value.denominator)


def _quotient(x: Expr, y: Expr) -> Expr:
    if not y.is_nonzero:
        raise _Unfit("a divisor that is never 0")
    return x / y


def _power(base: Expr, exponent: Expr) -> Expr:
    if any(abs(n) > HIGHEST_ORDER for n in exponent.atoms(Rational)):
        raise _Unfit(f"powers of at most {HIGHEST_ORDER}")
    whole = exponent.is_Integer and (exponent >= 0 or base.is_nonzero)
    if not (whole or base.is_positive or (base == 0 and exponent.is_positive)):
        raise _Unfit("a root or power of what is always positive")
    return base**exponent


def _logarithm(x: Expr) -> Expr:
    if not x.is_positive:
        raise _Unfit("a logarithm of what is always positive")
    return log(x)


def _examined(result: Expr) -> Expr:
    """Return a result that can be used further."""
    if any(max(abs(n.p), n.q) > 10**MOST_DIGITS for n in result.atoms(Rational)):
        raise _Unfit(f"numbers of at most {MOST_DIGITS} digits")
    if not result.is_real:
        raise _Unfit("what is always real and finite")
    if not all(_is_moderate(x) for x in _constants(result)):
        raise _Unfit(
            f"constants up to {LARGEST_NUMBER} (irrational ones from {SMALLEST_IRRATIONAL})"
        )
    if any(abs(n) > HIGHEST_ORDER for p in result.atoms(Pow) for n in p.exp.atoms(Rational)):
        raise _Unfit(f"powers of at most {HIGHEST_ORDER}")
    if _order(result) > HIGHEST_ORDER:
        raise _Unfit("fewer factors, powers and functions in each other")
    return result


def _constants(e: Expr) -> Iterator[Expr]:
    """Yield what is constant in an expression, but no number under a root."""
    parts = preorder_traversal(e)
    for part in parts:
        if part.is_Pow and part.base.is_Rational and part.exp.is_Rational:
            parts.skip()
            continue
        constant = part.as_independent(chi, b)[0] if part.is_Mul else part
        if not constant.free_symbols:
            yield constant


def _is_moderate(constant: Expr) -> bool:
    if constant.is_Rational:
        return abs(constant) <= LARGEST_NUMBER
    return SMALLEST_IRRATIONAL <= abs(constant.evalf(30)) <= LARGEST_NUMBER


def _order(e: Expr) -> Expr:
    """Return how far derivatives grow: factors add, powers multiply, and each function adds two."""
    if not e.free_symbols:
        return S.Zero
    if e.is_Symbol:
        return S.One
    if e.is_Pow and e.exp.is_number:
        return max(S.One, abs(e.exp)) * _order(e.base)
    orders = [_order(x) for x in e.args]
    if e.is_Mul:
        return sum(orders, S.Zero)
    return max(orders) if e.is_Add else max(orders) + 2


NAMES = {"chi": chi, "b": b, "pi": pi}

OPERATIONS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": _quotient,
    "**": _power,
    "^": _power,
}

# Of a constant, softplus and expit are written in functions whose values SymPy knows.
FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "exp": exp,
    "log": _logarithm,
    "sqrt": lambda x: _power(x, S.Half),
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tanh": sympy.tanh,
    "sinh": sympy.sinh,
    "cosh": sympy.cosh,
    "atan": sympy.atan,
    "erf": sympy.erf,
    "erfc": sympy.erfc,
    "softplus": lambda x: softplus(x) if x.free_symbols else log(1 + exp(x)),
    "expit": lambda x: expit(x) if x.free_symbols else 1 / (1 + exp(-x)),
}
