"""Chunked prefill: a text goes through the target in pieces, and each piece into the cache.

One program serves texts of all lengths, since the number of pieces is data, and what a piece holds
in memory does not grow with the text.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import memory as caches
from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec._xla.ragged import sequence
from jspec.protocols import CausalLM, Drafter
from jspec.tree.admission import check_state
from jspec.types import Cache, Output, PromptChunk, PyTree


def read(
    model: CausalLM,
    params: PyTree,
    text: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    cache: Cache,
    drafter: Drafter,
    drafter_params: PyTree,
    drafter_state: PyTree,
    size: int,
) -> tuple[Cache, PyTree, Output]:
    """Reads all tokens of a text but its last one, which is the next root.

    Args:
        model: the target.
        params: its weights.
        text: what follows the committed tokens, padded on the right.
        lengths: how many tokens of it there are, at least 1.
        cache: the committed tokens.
        drafter: reads with the target.
        drafter_params: its weights.
        drafter_state: its memory before the text.
        size: C, most tokens of a row that are read at once.

    Returns:
        The cache and the drafter's memory after the text, and the shapes of a forward.

    Raises:
        InputError: if the drafter's `prefill` changes the shapes of its memory.
    """
    last = jnp.minimum(lengths - 1, cache.slots - cache.lengths)[:, None]
    lanes, causal = sequence(len(lengths), size)
    shapes: list[Output] = []

    def going(carry):
        return carry[0] * size < last.max()

    def one_more(carry):
        number, cache, drafter_state = carry
        first = jnp.minimum(number * size, last)
        # Behind a row's last token stand copies of it.
        places = jnp.minimum(first + jnp.arange(size + 1, dtype=jnp.int32), last)
        tokens = jnp.take_along_axis(text, places, axis=1)
        before = cache.lengths
        positions = before[:, None] + places[:, :-1] - first
        output = model.apply(params, tokens[:, :-1], positions, causal, cache)
        if not isinstance(output, Output):
            raise InputError(
                f"{type(model).__name__}.apply returned no jspec.Output; return one of logits, "
                "keys and values, and test the model by jspec.testing.check_model"
            )
        shapes.append(jax.eval_shape(lambda: output))
        counts = jnp.minimum(last - first, size)[:, 0]
        chunk = PromptChunk(tokens=tokens, counts=counts, positions=before, output=output)
        known = drafter.prefill(drafter_params, drafter_state, chunk)
        check_state(type(drafter).__name__, "prefill", known, "init", drafter_state)
        return number + 1, caches.commit(cache, output, lanes, counts), known

    def at_least_once(carry):
        # A text of one token is nothing to the target, but the drafter has to be told of it.
        return (carry[0] == 0) | going(carry)

    carry = vary((jnp.int32(0), cache, drafter_state), text, lengths)
    _, cache, drafter_state = jax.lax.while_loop(at_least_once, one_more, carry)
    return cache, drafter_state, shapes[0]
