"""Every program that a configuration can reach, before any of them is compiled."""

from dataclasses import dataclass

from jspec.decoding.programs import Program, buckets

DECODE, ENGINE = "decode", "Engine"


@dataclass(frozen=True)
class Reached:
    """A compiled program."""

    call: str
    """What runs it: "decode", which is `jspec.decode` and `jspec.stream`, or "Engine"."""
    function: str
    """Its name as JAX says it in messages of compilations."""
    program: Program


def reachable(
    rows: int, capacity: int, max_new_tokens: int, context: int | None
) -> tuple[Reached, ...]:
    """The programs of `jspec.decode` for prompts of every length, and those of a `jspec.Engine`.

    `jspec.warmup` with as many rows, `capacity - max_new_tokens` prompt tokens and `max_new_tokens`
    compiles the first. Beside them JAX compiles operations of a few numbers.

    Args:
        rows: of a batch.
        capacity: most tokens of a row, prompt and output.
        max_new_tokens: of the calls of `decode`.
        context: of the model; None: it has no bound.

    Example:
        >>> [(one.function, one.program.capacity) for one in reachable(1, 200, 50, None)][:4]
        [('_prefill', 128), ('decode_rounds', 128), ('_prefill', 256), ('decode_rounds', 256)]
    """
    longest = max(capacity - max_new_tokens, 1)
    decoding = [
        Reached(DECODE, function, Program(rows, size))
        for size, _ in buckets(longest, max_new_tokens, context)
        for function in ("_prefill", "decode_rounds")
    ]
    serving = [
        Reached(ENGINE, function, Program(batch, capacity))
        for function, batch in (
            ("_prefill", 1),
            ("insert", rows),
            ("_step", rows),
            ("copies", rows),
            ("free", rows),
        )
    ]
    return (*decoding, *serving)
