"""Regular expressions and JSON schemas as machines that read bytes, by `outlines-core`.

It runs in a process of its own. Some expressions have machines of 2^30 states, which nobody knows
beforehand, and compiled code cannot be interrupted: a process can be given an end, and so much
memory: 2 GB, or what is left to the process that starts it where that has a bound (RLIMIT_DATA).
"""

import json
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from jspec._validate import extras
from jspec._validate.errors import InputError
from jspec.processors.grammar import process_memory
from jspec.processors.grammar.regex_syntax import check_groups, without_anchors

_MEGABYTES = 2048
"""Bytes that the process may take beyond its initial memory."""
_MEGABYTE = 2**20
RAISE_MEMORY = "let this process take more memory"
"""The end of the sentence for what takes more."""

# A noncharacter of Unicode, which no text has, follows every text. An index loses bytes
# after a place where the expression could end, if it cannot end right behind them; so it may end
# nowhere else.
_SENTINEL = "\U0010ffff".encode()

# Reads bytes, not tokens: the index of a vocabulary of 256 bytes is the machine itself, which is
# far smaller than the index of a real vocabulary.
_PROGRAM = """
import array, json, sys
from outlines_core import Index, Vocabulary, json_schema
asked = json.load(sys.stdin)
try:
    import resource
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[5]) * resource.getpagesize()
    most = held + asked["bytes"]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
except (ImportError, ValueError, OSError):
    pass
try:
    pattern = asked["pattern"]
    if pattern is None:
        pattern = json_schema.build_regex_from_schema(asked["schema"])
    pattern = "(?:" + pattern + ")" + chr(92) + "x{10FFFF}"
    index = Index(pattern, Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)}))
except ValueError as error:
    sys.exit(" ".join(str(error).split()))
moves = index.get_transitions()
order = {index.get_initial_state(): 0}
for state in moves:
    order.setdefault(state, len(order))
flat = array.array("i")
for state, row in moves.items():
    for byte, after in row.items():
        if byte < 256:
            flat.extend((order[state], byte, order.setdefault(after, len(order))))
finals = array.array("i", (order[state] for state in index.get_final_states() if state in order))
out = sys.stdout.buffer
out.write(array.array("i", (len(order), len(finals))).tobytes())
out.write(finals.tobytes())
out.write(flat.tobytes())
"""


@dataclass(frozen=True, eq=False)
class ByteMachine:
    """A machine that reads bytes. State 0 is the first."""

    step: Int[np.ndarray, "states 256"]
    """The next state by state and byte; -1 where there is none."""
    accepting: Bool[np.ndarray, " states"]
    """True if what was read is whole."""


def of_regex(pattern: str, what: str, max_states: int, max_seconds: float) -> ByteMachine:
    """Returns the machine of a regular expression, in the syntax of Rust's `regex`."""
    check_groups(pattern, what)
    request: dict[str, str | None] = {"pattern": without_anchors(pattern)}
    return _machine(request, what, max_states, max_seconds)


def of_schema(schema: str, what: str, max_states: int, max_seconds: float) -> ByteMachine:
    """Returns the machine of all JSON texts of a schema; arguments and errors as in `of_regex`."""
    return _machine({"pattern": None, "schema": schema}, what, max_states, max_seconds)


def _machine(
    request: dict[str, str | None], what: str, max_states: int, max_seconds: float
) -> ByteMachine:
    extras.require(what, "grammar", "outlines_core")
    size = process_memory.find_room(_MEGABYTES * _MEGABYTE)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=json.dumps(request | {"bytes": size}).encode(),
            capture_output=True,
            timeout=max_seconds,
        )
    except subprocess.TimeoutExpired:
        limit = f"{max_seconds:g} seconds"
        raise InputError(_too_large(what, limit, ", or raise max_seconds")) from None
    if ran.returncode:
        message = ran.stderr.decode(errors="replace").strip()
        if ran.returncode < 0 or "memory" in message.lower():
            more = f", or {RAISE_MEMORY}" if size < _MEGABYTES * _MEGABYTE else ""
            raise InputError(_too_large(what, f"{size // _MEGABYTE} MB of memory", more))
        reason = " ".join((message.splitlines() or ["no reason"])[-1].split())
        raise InputError(f"{what} cannot be compiled: {reason:.200}")
    numbers = np.frombuffer(ran.stdout, np.int32)
    num_states, num_finals = numbers[:2].tolist()
    if num_states > max_states:
        raise InputError(
            f"{what} has an automaton of {num_states} states and at most {max_states} are allowed; "
            "make it smaller, such as by shorter bounds of repetition, or raise max_states"
        )
    step = np.full((num_states, 256), -1, np.int32)
    states, bytes_, after = numbers[2 + num_finals :].reshape(-1, 3).T
    step[states, bytes_] = after
    current = np.arange(num_states)
    for byte in _SENTINEL:
        current = np.where(current >= 0, step[current, byte], -1)
    return ByteMachine(step, np.isin(current, numbers[2 : 2 + num_finals]))


def _too_large(what: str, limit: str, more: str) -> str:
    return (
        f"{what} explodes: its automaton took more than {limit}; make it smaller, such as by "
        f"shorter bounds of repetition{more}"
    )
