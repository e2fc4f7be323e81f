"""Trees of a batch as one row of tokens: the same numbers, for fewer tokens."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from contract.methods import DRAFTERS, AtRandom
from policies.test_adaptive import FORCED, random_tree
from quick import only

import jspec
from jspec import tree as trees
from jspec.models.learned_positions import LearnedPositionConfig, LearnedPositionDecoder
from jspec.models.llama import Layer, Llama
from jspec.models.neox import GPTNeoX, GPTNeoXConfig
from jspec.models.rope import Rope
from jspec.round import score
from jspec.round.packed import largest_together, packed
from jspec.round.widths import cut, sizes_of

BATCH, NODES = 3, 7


def learned() -> LearnedPositionDecoder:
    return LearnedPositionDecoder(LearnedPositionConfig(tiny.VOCAB, 16, 24, 2, 4, 64, 16))


MODELS = {
    "llama": tiny.model(),
    "window": tiny.model(layers=(Layer(Rope(), window=3), Layer(None))),
    "scanned": Llama(tiny.model().config, scan_layers=True),
    "taps": Llama(tiny.model().config, taps=(0, 1)),
    "learned positions": learned(),
    "neox": GPTNeoX(GPTNeoXConfig(tiny.VOCAB, 16, 24, 2, 4, 64, Rope())),
}


def drafted(seed=0):
    """Random trees without grandchildren of absent nodes."""
    tree = random_tree(np.random.default_rng(seed), BATCH, NODES)
    return tree.replace(valid=trees.along(tree.parents, tree.valid, jnp.logical_and, NODES))


def brute(value, valid, running, room):
    """The nodes of largest value that there is room for, by sorting all of them."""
    nodes = [
        (-value[row, node], row, node)
        for row in range(len(value))
        for node in range(1, value.shape[1])
        if running[row] and valid[row, node]
    ]
    kept = np.zeros(value.shape, bool)
    kept[:, 0] = True
    for _, row, node in sorted(nodes)[:room]:
        kept[row, node] = True
    return kept


@pytest.mark.parametrize("tokens", [2, 3, 8, 17, 21])
def test_the_best_nodes_of_all_running_rows_are_kept(tokens):
    for seed in range(5):
        tree = drafted(seed)
        done = jnp.array([False, seed % 2 == 0, seed == 3])
        part = cut(tree, NODES - 1, tokens, done)
        room = max(tokens - int((~done).sum()), 0)
        wanted = brute(np.asarray(tree.value), np.asarray(tree.valid), ~np.asarray(done), room)
        if tokens >= BATCH * NODES:
            wanted = np.asarray(tree.valid)
        np.testing.assert_array_equal(part.valid, wanted)
        above = np.take_along_axis(np.asarray(part.valid), np.maximum(part.parents, 0), 1)
        assert (above | ~np.asarray(part.valid)).all(), "a node without its parent"


def test_equal_values_go_to_the_earlier_node():
    """No child comes before its parent: among equal probabilities the parent is earlier."""
    value = jnp.array([[1.0, 0.5, 0.5, 0.5], [1.0, 0.5, 0.5, 0.5]])
    there = jnp.ones((2, 4), bool).at[:, 0].set(False)
    kept = largest_together(value, there, jnp.int32(4))
    np.testing.assert_array_equal(kept, [[0, 1, 1, 1], [0, 1, 0, 0]])


@pytest.mark.parametrize("name", only(MODELS, "llama", "neox"))
def test_one_row_of_tokens_gives_what_the_trees_give(name):
    """Rows with texts of their own length, one of which has ended; what is absent is 0."""
    model = MODELS[name]
    params = tiny.params(model)
    state = jspec.prefill(model, params, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=8)
    now = replace(jspec.round.frame(state), done=jnp.array([False, True, False]))
    tree = cut(drafted(), 4, 9, now.done)
    tree = tree.replace(tokens=tree.tokens.at[:, 0].set(state.root))
    shapes = []

    @jax.jit
    def both(params, tree, now, cache):
        whole = score(model, params, tree, now, cache)
        return whole, score(tiny.Counted(model, shapes), params, tree, now, cache, 9)

    whole, row = both(params, tree, now, state.memory)
    assert shapes == [(1, 9)]
    scored = np.asarray(tree.valid & ~now.done[:, None])
    assert scored.sum() == 9
    kept = whole.tentative, row.tentative
    for one, other, axis in (
        (whole.logits, row.logits, 1),
        (whole.hidden, row.hidden, 1),
        *((x, y, 2) for x, y in zip(*map(jax.tree.leaves, kept), strict=True)),
    ):
        assert one.shape == other.shape
        one, other = (np.moveaxis(np.asarray(x), axis, 1) for x in (one, other))
        np.testing.assert_allclose(other[scored], one[scored], atol=2e-5, rtol=1e-5)
        rest = other[~scored]
        assert not rest.any(), "a node that was not scored"


@pytest.mark.slow
def test_a_node_in_the_wrong_tree_is_caught(monkeypatch):
    """The negative control of the test above: places that are those of another row."""

    def shifted(*given):
        mask = packed(*given)
        return replace(mask, places=jnp.roll(mask.places, 1, axis=0))

    monkeypatch.setattr("jspec.round.packed", shifted)
    with pytest.raises(AssertionError):
        test_one_row_of_tokens_gives_what_the_trees_give("llama")


COSTS = jspec.CostCurve.of({3: 1.0, 12: 1.1, 30: 1.6})
MIXED = jspec.Sampling(temperature=np.array([0.0, 1.0, 0.7]))
INNER = {
    "matrix and lookup": FORCED["budgeted_merge"],
    "draft model": (
        jspec.CoupledTree(tiny.draft(), 8, max_depth=4, beam=3),
        tiny.params(tiny.draft()),
    ),
    "head": DRAFTERS["eagle2"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "token_budget"),
    [
        ("matrix and lookup", 0.3),
        ("matrix and lookup", 0.6),
        ("draft model", 0.3),
        ("head", 0.6),
    ],
)
def test_token_budgets_change_no_token(name, token_budget):
    """Rows end one by one, and what they no longer need the others get. Some rounds that are
    asked for have no room for all roots."""
    drafter, weights = INNER[name]
    model = tiny.model()
    params = tiny.params(model)
    ask = dict(
        sampling=MIXED, key=5, max_new_tokens=24, stopping=jspec.Stopping(max_tokens=[24, 6, 15])
    )
    plain = jspec.decode(model, params, tiny.PROMPTS, tiny.LENGTHS, **ask)
    result = jspec.decode(
        model, params, tiny.PROMPTS, tiny.LENGTHS, **ask, drafter=drafter,
        drafter_params=weights, policy=AtRandom((0, 2, 5), token_budget),
    )  # fmt: skip
    np.testing.assert_array_equal(result.tokens, plain.tokens)
    np.testing.assert_array_equal(result.lengths, plain.lengths)
    np.testing.assert_array_equal(result.status, plain.status)
    used = np.asarray(result.stats.width_histogram[0])
    assert (used > 0).all() and result.stats.widths == (0, 2, 5)


def shared(model, policy):
    params, (drafter, _) = tiny.params(tiny.model()), INNER["matrix and lookup"]
    ask = dict(max_new_tokens=12, stopping=jspec.Stopping(max_tokens=[12, 3, 6]))
    drafting = dict(drafter=drafter, policy=policy)
    return jspec.decode(model, params, tiny.PROMPTS, tiny.LENGTHS, **ask, **drafting)


@pytest.mark.parametrize(
    ("token_budget", "batch", "rows"), [(0.07, 100, 7), (0.3, 10, 3), (0.31, 10, 4)]
)
def test_a_token_budget_is_rounded_up_to_whole_rows(token_budget, batch, rows):
    assert sizes_of(AtRandom((0, 3), token_budget), jnp.zeros(batch))[0] == (0, rows)


@pytest.mark.slow
def test_decoding_gives_the_model_one_row():
    """The sizes of all possible rounds; the size of all roots is the batch."""
    policy, shapes = AtRandom((0, 2, 5), 0.3), []
    sizes = ((0, 1), (0, 3), (2, 3), (5, 6))
    assert sizes_of(policy, jnp.zeros(3)) == sizes
    shared(tiny.Counted(tiny.model(), shapes), policy)
    assert set(shapes[-len(sizes) :]) == {(1, 1), (3, 1), (1, 3), (1, 6)}


@pytest.mark.slow
def test_a_round_without_room_for_all_roots_would_be_found(monkeypatch):
    plain = shared(tiny.model(), jspec.FixedWidth(0))
    monkeypatch.setattr("jspec.decoding.rounds.with_room", lambda index, *_: index)
    found = shared(tiny.Counted(tiny.model(), []), AtRandom((0, 2, 5), 0.2))
    assert (found.tokens != plain.tokens).any()


@pytest.mark.slow
def test_rows_get_nodes_where_they_are_worth_most():
    """One row's draft is right and the others' are wrong: while it runs it alone is drafted for."""
    model = tiny.model()
    params = tiny.params(model)
    prompt = np.tile(tiny.PROMPTS[:1], (4, 1))
    text = jspec.decode(model, params, prompt, max_new_tokens=40).tokens
    script = jspec.Script(text, jnp.array([4]))
    wrong = replace(script, tokens=text.at[1:].set((text[1:] + 1) % tiny.VOCAB))
    given = dict(
        drafter=jspec.Scripted(tiny.VOCAB, trees.chain(4)), drafter_params=wrong,
        policy=jspec.Adaptive((0, 4), token_budget=0.25),
        policy_params=jspec.CostCurve.of({4: 1.0, 5: 1.05, 100: 100.0}),
    )  # fmt: skip
    state = jspec.prefill(model, params, prompt, max_new_tokens=40, **given)
    for _ in range(20):
        state = jspec.step(model, params, state, **given)
    assert state.stats.num_draft_tokens.tolist() == [20, 0, 0, 0]
    assert state.lengths.tolist() == [40, 20, 20, 20]
    np.testing.assert_array_equal(state.tokens[0, :40], text[0])
