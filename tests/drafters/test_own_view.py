"""A member of a merge sees its own tree, in its own numbers, and knows nothing of the merge."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny
from contract.methods import DRAFTERS

import jspec
from jspec import tree as trees

LIMIT = 16


@dataclasses.dataclass(frozen=True)
class Watching(jspec.Drafter):
    """Drafts what it is told, and counts what its feedback says: accepted nodes of its own."""

    length: int = 3

    def init(self, batch, capacity, earlier):
        return jnp.zeros((5, batch), jnp.int32)

    def draft(self, params, state, frame):
        steps = state[0][:, None] + jnp.arange(self.length)
        told = jnp.take_along_axis(params, steps, axis=1, mode="fill", fill_value=0)
        tokens = jnp.concatenate([frame.root[:, None], told], axis=1)
        return trees.chain(self.length).fill(tokens), None

    def update(self, params, state, aux, feedback):
        written, own, wrong, others, seen = state
        path, counts = feedback.verdict.path, feedback.verdict.path_lengths
        lanes = jnp.arange(path.shape[1])
        drafted = (lanes > 0) & (lanes < counts[:, None]) & (feedback.counts[:, None] > 0)
        mine = drafted & (path >= 0)
        # A node of its own on the path holds the token that was emitted there, in its own numbers.
        tokens = jnp.take_along_axis(feedback.tree.tokens, jnp.maximum(path, 0), axis=1)
        before = jnp.roll(feedback.emitted, 1, axis=1)
        kept = mine & (lanes <= feedback.counts[:, None] - 1)
        told = jnp.take_along_axis(feedback.output.logits.argmax(-1), jnp.maximum(path, 0), axis=1)
        # The logits at the node are the target's after it: greedy, they name the next token.
        follows = kept & (lanes < feedback.counts[:, None]) & (told != feedback.emitted)
        wrong = wrong + (kept & (tokens != before)).sum(-1) + follows.sum(-1)
        chain = jnp.arange(feedback.tree.tokens.shape[1])
        wrong = wrong + (feedback.tree.parents != chain - 1).any(-1)
        return jnp.stack(
            [
                written + feedback.counts,
                own + mine.sum(-1),
                wrong,
                others + (drafted & (path < 0)).sum(-1),
                seen + feedback.scored.tree.valid.sum(-1),
            ]
        ).astype(jnp.int32)


def test_alone_all_that_is_accepted_is_its_own(target):
    plain = jspec.decode(*target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT)
    ran = jspec.decode(
        *target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT, drafter=Watching(),
        drafter_params=plain.tokens,
    )  # fmt: skip
    _, own, wrong, others, _ = np.asarray(ran.drafter_state)
    np.testing.assert_array_equal(ran.tokens, plain.tokens)
    assert (own >= 9).all() and not wrong.any() and not others.any()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 5])
def test_in_a_merge_each_learns_of_its_own_nodes(target, budget):
    """One member is told the truth, the other half of it; both must read their own ids."""
    plain = jspec.decode(*target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT)
    right = np.asarray(plain.tokens)
    half = np.where(np.arange(LIMIT) % 2 == 0, right, (right + 1) % tiny.VOCAB)
    drafter = jspec.merge(
        Watching(2), jspec.merge(Watching(3), jspec.PromptLookup(2)), num_speculative_tokens=budget
    )
    ran = jspec.decode(
        *target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT, drafter=drafter,
        drafter_params=(jnp.asarray(half), (jnp.asarray(right), None)),
    )  # fmt: skip
    np.testing.assert_array_equal(ran.tokens, plain.tokens)
    first, inner = ran.drafter_state.members
    second = inner.members[0]
    for state in (first, second):
        assert not np.asarray(state[2]).any(), "something was read under another's number"
        assert (np.asarray(state[0]) == LIMIT).all()
    assert (np.asarray(second[1]) > np.asarray(first[1])).all()
    assert np.asarray(first[3]).any(), "tokens that only the other drafted are not the first's"
    # Everything that was verified is there to learn from: more than its own three nodes.
    assert (np.asarray(first[4]) > 3 * np.asarray(ran.stats.num_rounds)).all()


@pytest.mark.parametrize("name", quick.only(["eagle2", "lyanna", "coupled_tree"], "eagle2"))
def test_a_member_deeper_than_the_budget_reads_shorter_paths(target, name):
    drafter, weights = DRAFTERS[name]
    merge = jspec.merge(drafter, jspec.PromptLookup(2), num_speculative_tokens=2)
    assert drafter.depth > 2

    def call(prompt):
        return jspec.decode(
            *target, prompt, drafter=merge, drafter_params=(weights, None), max_new_tokens=4
        ).tokens

    jax.eval_shape(call, jnp.ones((2, 4), jnp.int32))  # shapes are those of tracing
