"""The number of kernels that a round starts, from the optimised program's text."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "call", "while",
    "conditional", "opt-barrier", "partition-id", "replica-id", "add-dependency",
}  # fmt: skip
"""Instructions that start nothing themselves."""

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*? ([a-z][\w\-]*)\((.*)$")


class Instruction(NamedTuple):
    """An instruction's kind, and the rest of its line."""

    kind: str
    rest: str

    def named(self, attribute: str) -> list[str]:
        """The computations that an attribute such as `body` names."""
        found = re.search(rf"\b{attribute}=(\{{[^}}]*\}}|%?[\w.\-]+)", self.rest)
        return re.findall(r"%?([\w.\-]+)", found[1]) if found else []


def count(text: str) -> dict[str, Any]:
    """Counts what the body of a program's outermost loop starts in one pass.

    Args:
        text: optimised HLO, as `Compiled.as_text()` gives it.

    Returns:
        `round`: kernels and library calls of the body; `kinds`: the same by kind of instruction;
        `inner`: those of a pass of each loop inside the body, one below the other; `conditionals`;
        `command_buffers`: how many computations XLA has made CUDA command buffers of. Newer ones
        are made behind the HLO and not counted: there the times tell whether they are on.
    """
    computations, entry = parse(text)
    loops = _walk(computations, entry)[1]
    if not loops:
        return {}
    kinds, inner, conditionals = _walk(computations, loops[0])
    passes = []
    for loop in inner:  # grows while it is read: a loop inside comes after the one around it
        below, deeper, more = _walk(computations, loop)
        passes.append(below.total())
        inner.extend(deeper)
        conditionals += more
    return {
        "round": kinds.total(),
        "kinds": dict(kinds.most_common()),
        "inner": passes,
        "conditionals": conditionals,
        "command_buffers": sum("command_buffer" in name for name in computations),
    }


def total(text: str) -> int:
    """The kernels of a program in which every loop makes one pass and takes every branch."""
    computations, entry = parse(text)
    found = 0
    bodies = [entry]
    for body in bodies:  # grows while it is read
        kinds, inner, _ = _walk(computations, body)
        found += kinds.total()
        bodies += inner
    return found


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """All computations of a program by name, and the name of its entry."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif current is not None and (found := _INSTRUCTION.match(line)):
            current.append(Instruction(found[1], found[2]))
    return computations, entry


def _walk(
    computations: Mapping[str, Sequence[Instruction]], name: str
) -> tuple[Counter[str], list[str], int]:
    """(kernels by kind, bodies of loops, conditionals) of a computation and what it calls."""
    kinds, loops, conditionals = Counter[str](), [], 0
    for instruction in computations.get(name, ()):
        called: list[str] = []
        if instruction.kind == "while":
            loops += instruction.named("body")
        elif instruction.kind == "call":
            called = instruction.named("to_apply")
        elif instruction.kind == "conditional":
            conditionals += 1
            called = [
                branch
                for attribute in ("branch_computations", "true_computation", "false_computation")
                for branch in instruction.named(attribute)
            ]
        elif instruction.kind not in FREE and not instruction.kind.endswith("-done"):
            kinds[instruction.kind] += 1
        for other in called:
            below, deeper, more = _walk(computations, other)
            kinds += below
            loops += deeper
            conditionals += more
    return kinds, loops, conditionals
