"""Throughput of a full batch, as a server has it: where a row ends, the next prompt is read in."""

import time
from functools import partial

import jax
import numpy as np

import jspec
from benchmarks.texts import Prompts
from jspec.types import PyTree


def rate(
    model: jspec.CausalLM,
    params: PyTree,
    drafter: jspec.Drafter,
    drafter_params: PyTree,
    queue: Prompts,
    size: int,
    new_tokens: int,
    drafter_state: PyTree = None,
) -> float:
    """Tokens per second from the first prompt until the last one has been read in.

    What follows is no full batch. Reading prompts counts; each is read alone.

    Args:
        model: the target, with its weights `params`.
        drafter: proposes the trees, with its weights `drafter_params`.
        queue: the prompts, more than a batch.
        size: rows of the batch.
        new_tokens: of each prompt.
        drafter_state: what the drafter starts with; of a batch of any size.
    """
    how = dict(drafter=drafter, drafter_params=drafter_params)

    def read(prompts: Prompts) -> jspec.State:
        return jspec.prefill(
            model, params, *prompts, max_new_tokens=new_tokens, drafter_state=drafter_state, **how
        )

    begin = time.perf_counter()
    state, following, finished = read(queue.take(slice(size))), size, 0
    while True:
        state = jspec.step(model, params, state, **how)
        done, lengths = np.array(state.done), np.array(state.lengths)
        for row in np.flatnonzero(done):
            if following == queue.count:
                return (finished + int(lengths.sum())) / (time.perf_counter() - begin)
            finished += int(lengths[row])
            lengths[row] = 0
            state = replaced(state, read(queue.take([following])), row)
            following += 1


@partial(jax.jit, donate_argnums=0)
def replaced(state: jspec.State, one: jspec.State, row: int) -> jspec.State:
    """The batch with another text in a row. What the rows share stays the batch's."""

    def put(whole, new):
        is_by_row = whole.ndim and new.shape == (1, *whole.shape[1:])
        return whole.at[row].set(new[0]) if is_by_row else whole

    return jax.tree.map(put, state, one)
