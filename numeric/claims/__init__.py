"""The papers' claims as executable checks.

claim       what a claim is: conditions fixed beforehand, and the verdict that follows from numbers
registry    all claims by id
ledger      runs claims side by side, keeps finished parts, compares with the committed ``ledger.json``
table       the ledger in lines: on the terminal, and in the README; `page` is the HTML report
training    training from random keys that A6, A7 and A12 look at; `scaling`: passages at several D of A2,
            A3 and A8; `directions`: Hessians of A4 and A5; `priors` from plain numbers; `figures`: panels
            that several claims share
a1 ... b4   one claim each: what is computed, the conditions, and a figure
"""
