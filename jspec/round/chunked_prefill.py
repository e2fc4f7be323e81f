"""Chunked prefill: a text goes through the target in chunks, and each chunk into its memory.

One program serves texts of all lengths, since the number of chunks is data, and what a chunk holds
in memory does not grow with the text.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec.arrays.ragged import sequence
from jspec.protocols import CausalLM, Drafter
from jspec.round import forward
from jspec.tree.sanitize import check_state
from jspec.types import Output, PromptChunk, PyTree


def read(
    model: CausalLM,
    params: PyTree,
    text: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    memory: PyTree,
    positions: Int[Array, " B"],
    capacity: int,
    drafter: Drafter,
    drafter_params: PyTree,
    drafter_state: PyTree,
    size: int,
) -> tuple[PyTree, Int[Array, " B"], PyTree, Output]:
    """Reads all tokens of a text but its last one, which is the next root."""
    last = jnp.minimum(lengths - 1, capacity - positions)[:, None]
    offsets, causal = sequence(len(lengths), size)
    shapes: list[Output] = []

    def going(carry):
        return carry[0] * size < last.max()

    def one_more(carry):
        number, memory, before, drafter_state = carry
        first = jnp.minimum(number * size, last)
        # Copies of a row's last token follow it.
        places = jnp.minimum(first + jnp.arange(size + 1, dtype=jnp.int32)[None], last)
        tokens = jnp.take_along_axis(text, places, axis=1)
        positions = before[:, None] + places[:, :-1] - first
        output = forward.apply(model, params, tokens[:, :-1], positions, causal, memory)
        if not isinstance(output, Output):
            raise InputError(
                f"{type(model).__name__}.apply returned no jspec.Output; return one of logits "
                "and what is tentative, and test the model by jspec.testing.check_model"
            )
        chunk_output = replace(output, tentative=None)
        shapes.append(jax.eval_shape(lambda: chunk_output))
        counts = jnp.minimum(last - first, size)[:, 0]
        chunk = PromptChunk(
            tokens=tokens, read_lengths=counts, positions=before, output=chunk_output
        )
        new_state = drafter.prefill(drafter_params, drafter_state, chunk)
        check_state(type(drafter).__name__, "prefill", new_state, "init", drafter_state)
        memory = model.commit(memory, output.tentative, offsets, counts)
        return number + 1, memory, before + counts, new_state

    def at_least_once(carry):
        # A text of one token is nothing to the target, but the drafter has to be told of it.
        return (carry[0] == 0) | going(carry)

    carry = vary((jnp.int32(0), memory, positions, drafter_state), text, lengths)
    _, memory, positions, new_state = jax.lax.while_loop(at_least_once, one_more, carry)
    return memory, positions, new_state, shapes[0]
