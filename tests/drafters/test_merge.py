"""Merges: the union of trees, and members that know nothing of it."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import rounds
import tiny
from contract.methods import DRAFTERS

import jspec
from jspec import tree as trees
from jspec.drafters.growth import union
from jspec.types import Tree

join = jax.jit(union.union)


def paths(tree, row):
    """The token paths of the present nodes."""
    tree, found = jax.device_get(tree), []
    for node in range(tree.tokens.shape[1]):
        if tree.valid[row, node]:
            path, at = [], node
            while at != -1:
                assert tree.valid[row, at]
                path.append(int(tree.tokens[row, at]))
                at = int(tree.parents[row, at])
            found.append(tuple(path[::-1]))
    return found


def test_the_union_has_every_path_once():
    rng = np.random.default_rng(0)
    a_shape = trees.Template(((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))
    for _ in range(20):
        # Distinct siblings in each tree, shared prefixes between them.
        a = a_shape.fill(jnp.asarray([[9, 0, 1, *rng.permutation(2), 0]] * 2))
        b = trees.chain(4).fill(jnp.asarray([[9, *rng.integers(0, 3, 4)] for _ in range(2)]))
        length = rng.integers(0, 5, (2, 1))
        b = b.replace(valid=jnp.asarray(np.arange(5) <= length))
        both, number = join(a, b)
        assert both.tokens.shape[1] == a.tokens.shape[1] + b.tokens.shape[1] - 1
        for row in range(2):
            got = paths(both, row)
            assert len(got) == len(set(got))
            assert set(got) == set(paths(a, row)) | set(paths(b, row))
        # Every node of b is in the union under its number, with its token.
        there = np.take_along_axis(np.asarray(both.tokens), np.asarray(number), axis=1)
        assert (there == np.asarray(b.tokens))[np.asarray(b.valid)].all()


def test_a_child_that_holds_the_roots_token_is_not_the_root():
    """Text such as "0000": found, and all of b hung a level too deep, beyond the declared depth."""
    a = trees.chain(2).fill(jnp.array([[7, 7, 7]]))
    b = trees.chain(2).fill(jnp.array([[7, 1, 2]]))
    both, number = join(a, b)
    assert both.parents.tolist() == [[-1, 0, 1, 0, 3]]
    assert number.tolist() == [[0, 3, 4]]
    assert np.asarray(trees.depths(both))[np.asarray(both.valid)].max() == both.depth == 2


def test_a_sampled_tree_is_refused():
    tree = trees.root_only(jnp.array([1]))
    sampled = tree.replace(q=jnp.ones((1, 1, 4)) / 4)
    with pytest.raises(ValueError, match="sampled distribution"):
        join(tree, sampled)


def test_depth_and_width_bound_the_union():
    a, b = trees.branching([2]).fill(jnp.zeros((1, 3), int)), trees.chain(3)
    both, _ = join(a, b.fill(jnp.zeros((1, 4), int)))
    assert isinstance(both, Tree)
    assert (both.depth, both.width) == (3, 3)


@dataclass(frozen=True)
class Telling(jspec.Drafter):
    """Drafts its params."""

    def draft(self, params, state, frame):
        return params, None


def random_tree(rng, shape, batch):
    """Few tokens, so that drafters agree; siblings differ, values fall along paths."""
    tokens, value = np.zeros((2, batch, shape.num_nodes))
    tokens[:, 0], value[:, 0] = 9, 1
    for node in range(1, shape.num_nodes):
        above, rank = shape.parents[node], shape.ranks[node]
        tokens[:, node] = (tokens[:, node - rank] + rank) % 4 if rank else rng.integers(0, 4, batch)
        value[:, node] = value[:, above] * rng.uniform(0.2, 0.9, batch)
    tree = shape.fill(jnp.asarray(tokens, jnp.int32))
    return tree.replace(value=jnp.asarray(value, jnp.float32))


def test_a_budget_takes_the_paths_of_largest_value():
    rng, batch, budget = np.random.default_rng(1), 2, 6
    shapes = trees.branching([3, 2]), trees.chain(4), trees.branching([2, 2, 1])
    merge = jspec.merge(*[Telling()] * 3, num_speculative_tokens=budget)
    draft, state, shared = jax.jit(merge.draft), merge.init(batch, 64, None), 0
    for _ in range(10):
        members = tuple(random_tree(rng, shape, batch) for shape in shapes)
        tree, aux = draft(members, state, rounds.greedy([9] * batch))
        assert tree.tokens.shape[1] == budget + 1
        for row in range(batch):
            value = {}
            for member in members:
                for path, node in zip(paths(member, row), range(99), strict=False):
                    own = float(member.value[row, node])
                    shared += path in value and len(path) > 1
                    value[path] = max(value.get(path, 0), own)
            best = sorted(value, key=lambda path: -value[path])[: budget + 1]
            found = paths(tree, row)
            assert set(found) == set(best)
            np.testing.assert_allclose(tree.value[row], [value[path] for path in found], rtol=1e-6)
            # Where a member's nodes are in it, and that the others are not.
            for member, own in zip(members, aux.drafts, strict=True):
                for node, path in enumerate(paths(member, row)):
                    place = int(own.number[row, node])
                    assert found[place] == path if path in found else place == budget + 1
    assert shared > 20


def test_arguments_out_of_range_are_refused():
    recycling, lookup = jspec.TokenRecycling(tiny.VOCAB), jspec.PromptLookup()
    with pytest.raises(ValueError, match="merge got 1 drafter; pass two or more"):
        jspec.merge(recycling, num_speculative_tokens=4)
    with pytest.raises(ValueError, match=r"num_speculative_tokens is 0; pass .* 1 .. 4096"):
        jspec.merge(recycling, lookup, num_speculative_tokens=0)
    with pytest.raises(ValueError, match=r"merge got .*PromptLookup.*; pass instances"):
        jspec.merge(recycling, jspec.PromptLookup)
    mixture = jspec.merge(recycling, lookup, num_speculative_tokens=4)
    with pytest.raises(ValueError, match="drafter_state is a tuple and a merge keeps a MergeState"):
        mixture.init(1, 8, (None, None))
    with pytest.raises(ValueError, match="drafter_params is a tuple of 3 and merge keeps a tuple"):
        mixture.draft((None,) * 3, mixture.init(1, 8, None), None)
    draws = jspec.SpeculativeDecoding(tiny.draft(), 2, scheme=jspec.schemes.RECURSIVE)
    with pytest.raises(jspec.InputError, match="whose draws have a verifier of their own"):
        jspec.merge(draws, jspec.PromptLookup(2), num_speculative_tokens=3)


LIMIT = 16
MODEL = jspec.testing.PrefixLM(vocab_size=tiny.VOCAB)
TARGET = MODEL, MODEL.init()


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
        others = others + (drafted & (path < 0)).sum(-1)
        seen = seen + feedback.scored.tree.valid.sum(-1)
        counted = [written + feedback.counts, own + mine.sum(-1), wrong, others, seen]
        return jnp.stack(counted).astype(jnp.int32)


@pytest.mark.parametrize("budget", quick.only([None, 5], 5))
def test_in_a_merge_each_learns_of_its_own_nodes(budget):
    """One member is told the truth, the other half of it; both must read their own ids."""
    plain = jspec.decode(*TARGET, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT)
    right = np.asarray(plain.tokens)
    half = np.where(np.arange(LIMIT) % 2 == 0, right, (right + 1) % tiny.VOCAB)
    drafter = jspec.merge(
        Watching(2), jspec.merge(Watching(3), jspec.PromptLookup(2)), num_speculative_tokens=budget
    )
    ran = jspec.decode(
        *TARGET, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT, drafter=drafter,
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
