"""One round, piece by piece, for benches that time the pieces: as `jspec.engine` has it."""

import jax.numpy as jnp

from jspec import tree as trees
from jspec.base import Cache, Feedback, Frame, Output, PyTree, State, Tree, Verdict
from jspec.protocols import CausalLM


def frame(state: State) -> Frame:
    """What a drafter may know."""
    request = state.request
    return Frame(state.root, state.cache.lengths, request.keys, request.sampling, state.done)


def score(model: CausalLM, params: PyTree, tree: Tree, frame: Frame, cache: Cache) -> Output:
    """The target's forward over a tree."""
    mask = trees.ancestors(tree)
    positions = frame.positions[:, None] + mask.sum(-1, dtype=jnp.int32) - 1
    return model.apply(params, tree.tokens, positions, mask, cache)


def feedback(tree: Tree, output: Output, verdict: Verdict, frame: Frame) -> Feedback:
    """What the round teaches; nothing ends here."""
    path, counts = verdict.path, verdict.counts
    lanes = jnp.arange(path.shape[1])
    drafted = jnp.take_along_axis(tree.tokens, jnp.roll(path, -1, axis=1), axis=1)
    emitted = jnp.where(lanes == counts[:, None] - 1, verdict.bonus[:, None], drafted)
    return Feedback(
        tree=tree,
        output=output,
        verdict=verdict,
        emitted=jnp.where(lanes < counts[:, None], emitted, 0),
        counts=counts,
        positions=frame.positions,
        done=frame.done,
    )
