"""Says what to use instead of commands and options that this version no longer has.

A line is removed one version later.
"""

from collections.abc import Sequence
from itertools import takewhile

GONE = {
    "serve --api-keys": "pass one --api-key, and let a proxy know clients and limit their rates",
    "serve --header-seconds": "let a proxy limit the time of a request's head",
    "serve --max-connections": "let a proxy limit connections",
    "export": "use jax.export in a program of ten lines (docs/plans.md)",
    "plan --compile": "plan always compiles, so leave it out",
    "plan --compile-layers": "pass --scan-layers, with which layers that are alike compile as one",
    "plan --device": "name the chips that are not here by --topology, such as v5e:2x4 or h100:1",
    "plan --devices": "pass --mesh model=N",
    "train eagle": "use jspec train head --kind eagle",
    "train lm": "use jspec train draft for a draft model; the text alone makes none any more",
    "train lyanna": "use jspec train head --kind lyanna",
    "train medusa": "use jspec train head --kind medusa",
    "train ngrams": "use jspec train head --kind ngrams",
    "train block": "read a published head by method block, since those trained here did not pay",
    "train candidates": "use --hot-tokens of jspec train head, which drafts as much and is faster",
}
"""By the words of the command line: first the commands, then the options."""


def replacement(arguments: Sequence[str]) -> str | None:
    """Returns what to use instead of what is gone; None if nothing among the arguments is."""
    flags = {word.partition("=")[0] for word in arguments} | set(arguments)
    for name, instead in GONE.items():
        words = name.split()
        command = list(takewhile(lambda word: not word.startswith("-"), words))
        begins = list(arguments[: len(command)]) == command
        if begins and flags.issuperset(words):
            return f"jspec {name} is gone; {instead}"
    return None
