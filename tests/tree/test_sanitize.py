"""The promise at the seam that users touch: whatever a drafter returns, no token changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import tiny

import jspec
from jspec import tree as trees
from jspec.testing import PrefixLM
from jspec.tree.sanitize import sanitize

LIMIT = 12


class Told(jspec.Drafter):
    """Drafts the right tokens as a chain."""

    def init(self, batch, capacity, earlier):
        return jnp.zeros(batch, jnp.int32)

    def draft(self, params, state, frame):
        steps = state[:, None] + jnp.arange(4)
        known = jnp.take_along_axis(params, steps, axis=1, mode="fill", fill_value=0)
        tokens = jnp.concatenate([frame.root[:, None], known], axis=1)
        return trees.chain(4).fill(tokens), None

    def update(self, params, state, aux, feedback):
        return state + feedback.counts


@pytest.fixture(scope="module")
def target():
    model = PrefixLM(vocab_size=tiny.VOCAB)
    return model, model.init()


@pytest.fixture(scope="module")
def plain(target):
    return jspec.decode(*target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT)


def test_admission_is_that_of_a_loop_over_nodes():
    """Random nonsense against a plain reading of the rules, node by node."""
    rng = np.random.default_rng(0)
    vocab, nodes = 5, 9
    sanitized = jax.jit(lambda tree, root: sanitize(tree, root, vocab))
    for most in (3,) * 60 + (0,) * 5:
        tree = jspec.Tree(
            tokens=rng.integers(-1, vocab + 1, (2, nodes)).astype(np.int32),
            parents=np.minimum(rng.integers(-2, nodes + 2, (2, nodes)), np.arange(nodes) + 1),
            valid=rng.uniform(size=(2, nodes)) < 0.9, depth=most, width=99,
            value=np.where(rng.uniform(size=(2, nodes)) < 0.1, np.nan, 0.5).astype(np.float32),
        )  # fmt: skip
        tree = tree.replace(parents=tree.parents.astype(np.int32))
        got = sanitized(tree, np.array([1, 2], np.int32))
        for row in range(2):
            depth, good, seen = {0: 0}, {0}, set()
            for node in range(1, nodes):
                parent, token = int(tree.parents[row, node]), int(tree.tokens[row, node])
                fine = tree.valid[row, node] and not np.isnan(tree.value[row, node])
                fine = fine and 0 <= parent < node and 0 <= token < vocab
                first = (parent, token) not in seen
                if fine:
                    seen.add((parent, token))
                if fine and first and parent in good and depth[parent] < most:
                    good.add(node)
                    depth[node] = depth[parent] + 1
            assert set(np.flatnonzero(got.valid[row]).tolist()) == good
        assert got.tokens[:, 0].tolist() == [1, 2]
        assert got.parents[:, 0].tolist() == [-1, -1] and got.width == nodes


def test_a_tree_of_nothing_but_its_root_is_the_root():
    tree = trees.root_only(jnp.array([3])).replace(
        valid=jnp.zeros((1, 1), bool), parents=jnp.zeros((1, 1), jnp.int32), depth=4, width=9
    )
    got = sanitize(tree, jnp.array([5]), 23)
    assert (got.tokens.item(), got.parents.item(), got.valid.item()) == (5, -1, True)
    assert (got.depth, got.width) == (4, 1)


def test_sampled_siblings_may_be_equal():
    tree = trees.branching([2]).fill(jnp.array([[1, 2, 2]])).replace(q=jnp.ones((1, 3, 5)) / 5)
    assert sanitize(tree, jnp.array([1]), 5).valid.all()
    assert sanitize(tree.replace(q=None), jnp.array([1]), 5).valid.tolist() == [[True, True, False]]


def broken(**functions):
    return type("Mine", (Told,), functions)()


def draws(change):
    def draft(self, params, state, frame):
        tree, _ = Told.draft(self, params, state, frame)
        return change(tree, state)

    return dict(draft=draft)


def changing(**fields):
    """A drafter whose trees have other fields, each a function of the tree."""
    return draws(
        lambda tree, state: (tree.replace(**{n: f(tree) for n, f in fields.items()}), state)
    )


UNUSABLE = [
    (draws(lambda tree, state: tree), r"draft returned a Tree; it must return \(tree, aux\)"),
    (draws(lambda tree, state: (1, state)), "Mine.draft returned a .*jspec.Tree, state"),
    (changing(tokens=lambda tree: tree.tokens[0]),
     r"whose tokens has shape \(5,\) and dtype int32; it must be \[B, N\] of integer"),
    (changing(valid=lambda tree: tree.valid[:, :3]),
     r"whose valid has shape \(3, 3\) and dtype bool; it must be .* of bool, with B = 3"),
    (changing(tokens=lambda tree: tree.tokens * 1.0),
     "whose tokens has shape .* dtype float32; it must be .* of integer"),
    (changing(parents=lambda tree: None), "whose parents is None; it must be an array"),
    (changing(depth=lambda tree: 2.5), "whose depth is 2.5; it must be an integer of at least 0"),
    (changing(width=lambda tree: 0), "whose width is 0; it must be an integer of at least 1"),
    (changing(q=lambda tree: jnp.ones((3, 5))), r"whose q has shape \(3, 5\) .*\[B, Q, V\]"),
    (dict(update=lambda self, params, state, aux, feedback: state * 1.0),
     r"Mine.update returned a state whose leaf of its own has .* and dtype float32"),
    (dict(update=lambda self, params, state, aux, feedback: (state, state)),
     "Mine.update returned a state of structure .* where prefill returned"),
    (dict(prefill=lambda self, params, state, chunk: {"a": state}),
     "Mine.prefill returned a state of structure .* where init returned"),
]  # fmt: skip


def test_unusable_trees_are_refused_in_one_sentence(target, plain):
    def run(functions):
        model = tiny.Counted(target[0])
        try:
            jspec.decode(
                model, target[1], tiny.PROMPTS, max_new_tokens=LIMIT,
                drafter=broken(**functions), drafter_params=plain.tokens,
            )  # fmt: skip
        finally:
            assert len(model.traces) <= 1, "the prompt's forward pass was traced; no round was"

    refusals.check(UNUSABLE, run)


SPINE = jspec.Spine(23, num_speculative_tokens=3)


def test_a_rule_that_does_not_fit_is_refused_where_it_is_given():
    drawn, point = jspec.SpeculativeDecoding(tiny.draft(), 2), jspec.rules.deterministic_proposal
    said = "rule is deterministic_proposal and the drafter's draws are lossless under coupled"
    merged = jspec.merge(SPINE, jspec.PromptLookup(), num_speculative_tokens=3)
    refusals.check([
        (lambda: jspec.with_verifier(jspec.PromptLookup, jspec.rules.coupled), "pass an instance"),
        (lambda: jspec.with_verifier(jspec.PromptLookup(), "coupled"), "rule is 'coupled'; pass"),
        # Candidates that know the noise: accepted by another rule, they would be drawn too often.
        *((lambda one=one: jspec.with_verifier(one, point), said)
          for one in (drawn, SPINE, merged)),
        (lambda: jspec.with_verifier(jspec.PromptLookup(), lambda probs: probs),
         r"which does not take \(p, q, children, valid, noise\)"),
    ])  # fmt: skip


def test_a_rule_without_its_distribution_is_refused_before_a_round_is_traced(target):
    model = tiny.Counted(target[0])
    with pytest.raises(jspec.InputError, match="needs the distribution q"):
        jspec.decode(
            model, target[1], tiny.PROMPTS, max_new_tokens=4,
            drafter=jspec.with_verifier(jspec.PromptLookup(), jspec.rules.recursive),
        )  # fmt: skip
    assert len(model.traces) == 1


def test_one_array_may_be_two_leaves_of_a_state(target, plain):
    """The state is donated; XLA takes no buffer twice."""

    def init(self, batch, capacity, earlier):
        zeros = jnp.zeros(batch, jnp.int32)
        return zeros, zeros

    functions = dict(
        init=init,
        draft=lambda self, params, state, frame: Told.draft(self, params, state[0], frame),
        update=lambda self, params, state, aux, feedback: (state[0] + feedback.counts, state[1]),
    )
    ran = jspec.decode(
        *target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT, drafter=broken(**functions),
        drafter_params=plain.tokens,
    )  # fmt: skip
    np.testing.assert_array_equal(ran.tokens, plain.tokens)
