"""The papers' claims as executable checks.

claim     what a claim is: conditions fixed beforehand, and the verdict that follows from measured numbers
ledger    runs claims side by side, keeps finished parts, compares with the committed ``ledger.json``
report    the ledger for people: a table on the terminal, one for the README, and an HTML page
figures   panels that several claims share; `training`: runs that several claims look at
a1 ... b4 one claim each: what is computed, the conditions, and a figure
"""
