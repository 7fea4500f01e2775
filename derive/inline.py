"""Formulas within the prose of a derivation: marked by `backticks` there, in plain text or as LaTeX."""

import re
from collections.abc import Callable

_MARKED = re.compile(r"`([^`]+)`")
_WORDS = (
    *(
        "alpha",
        "beta",
        "chi",
        "gamma",
        "kappa",
        "mu",
        "nu",
        "rho",
        "sigma",
        "tau",
        "theta",
        "lambda",
    ),
    *("xi", "Gamma", "Sigma", "exp", "log", "sum", "int"),
)
_RULES = (
    (r"<(sum.*)>", r"\\langle \1\\rangle"),
    (r"\bgbar\b", r"\\bar\\gamma"),
    (r"\beps\b", r"\\varepsilon"),
    (r"\bw(\d)\b", r"w_\1"),
    (r"\bdE/d(\w)", r"\\partial E/\\partial \1"),
    (r"\bphi\b", r"\\varphi"),
    (r"\binf(ty|inity)?\b", r"\\infty"),
    (r"\bE_([01])\b", r"\\mathbb E_\1"),
    (rf"(?<![a-zA-Z\\])({'|'.join(_WORDS)})(?![a-zA-Z])", r"\\\1"),
    (r"_([0-9A-Za-z']+)", lambda x: f"_{{{x[1].replace('l', chr(92) + 'ell')}}}"),
    (r"\bl\b", r"\\ell"),
    (r"\^\((.*?)\)", r"^{\1}"),
    (r"\^T", r"^{\\mathsf T}"),
    (r"k\*", "k^*"),
    (r"1\{(.*?)\}", r"1_{\1}"),
    (r"sqrt\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"<\.>", r"\\langle\\,\\cdot\\,\\rangle"),
    (r"\+-", r"\\pm "),
    (r"->", r"\\to "),
    (r"(?<=[A-Za-z])\.(?=[A-Za-z])", r"\\cdot "),
)


def inline_latex(plain: str) -> str:
    """Return a formula in plain text, such as ``sigma = d^(-1/2)``, as LaTeX."""
    for pattern, replacement in _RULES:
        plain = re.sub(pattern, replacement, plain)
    return plain


def typeset(prose: str, formula: Callable[[str], str], words: Callable[[str], str] = str) -> str:
    """Return prose with its marked formulas, and what is between them, each as a function writes it."""
    parts = _MARKED.split(prose)
    return "".join(formula(x) if i % 2 else words(x) for i, x in enumerate(parts))
