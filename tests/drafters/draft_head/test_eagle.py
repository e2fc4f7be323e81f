"""EAGLE's drafters propose the trees of the oracle, from a head without a cache."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import rounds
import tiny
from oracle import eagle as oracle

import jspec
from jspec import tree as trees
from jspec.drafters.draft_head.eagle import EAGLE, EAGLE2, PUBLISHED
from jspec.drafters.draft_head.head_drafter import child_probability
from jspec.models import heads
from jspec.tree import Template
from jspec.types import PromptChunk
from jspec.verify.proposals import ChildDraws

TARGET = tiny.model()
HEAD, HOT = tiny.eagle(), tiny.eagle(hot_tokens=11)
IDS = np.sort(np.random.default_rng(5).permutation(tiny.VOCAB)[:11])
ROWS = range(len(tiny.PROMPTS))


@pytest.fixture(scope="module")
def params():
    return tiny.params(TARGET)


@pytest.fixture(scope="module")
def variables(params):
    """Large enough that the head's distributions are far from uniform."""
    one = jnp.zeros((1, 1), jnp.int32)
    inputs = jnp.zeros((1, 1, 16)), one, one, jnp.ones((1, 1, 1), bool)
    fresh = jax.jit(HEAD.init)(jax.random.key(3), *inputs)
    grown = jax.tree.map(lambda leaf: leaf * 12 if leaf.ndim > 1 else leaf, fresh["params"])
    return {"params": grown, heads.TARGET: heads.borrow(HEAD, params)}


@pytest.fixture(scope="module")
def causal():
    """(states, scores) of the head after each of some pairs, by one whole forward."""

    @jax.jit
    def forward(variables, hidden, tokens):
        output = HEAD.apply(variables, hidden, *tiny.causal(tokens), None)
        return output.hidden, output.logits

    size = 16  # one program; it does not see what follows the last pair

    def run(variables, hidden, tokens):
        filled = np.zeros((1, size, 16), np.float32)
        filled[0, : len(hidden)] = hidden
        ids = np.zeros((1, size), np.int32)
        ids[0, : len(tokens)] = tokens
        states, scores = forward(variables, filled, ids)
        return np.asarray(states[0, : len(tokens)]), np.asarray(scores[0, : len(tokens)])

    return run


@pytest.fixture(scope="module")
def scores(params, variables, causal):
    """`scores(row)(path)`: the head's after a prompt and drafted tokens, each from its parent's."""
    # Padding is behind all that is read.
    states = np.asarray(tiny.forward(TARGET, params, tiny.PROMPTS).hidden)

    def of(row):
        prompt = tiny.PROMPTS[row, : tiny.LENGTHS[row]]
        true = states[row, : len(prompt) - 1]

        @cache
        def after(path):
            """States that the last pair reads: all true ones, then the path's own."""
            if not path:
                states, probs = causal(variables, true, prompt[1:])
                return np.concatenate([true, states[-1:]]), probs[-1]
            hidden, _ = after(path[:-1])
            states, probs = causal(variables, hidden, [*prompt[1:], *path])
            return np.concatenate([hidden, states[-1:]]), probs[-1]

        return lambda path: after(path)[1]

    return [of(row) for row in ROWS]


def proposed(drafter, params, variables):
    """The tree of the first round, each node of each row by its path of tokens."""
    prompt, lengths = jnp.asarray(tiny.PROMPTS), jnp.asarray(tiny.LENGTHS)
    rows = len(prompt)

    @jax.jit
    def run():
        output = tiny.forward(TARGET, params, prompt)
        chunk = PromptChunk.whole(prompt, lengths, output)
        state = drafter.prefill(variables, drafter.init(rows, 32, None), chunk)
        root = jnp.take_along_axis(prompt, lengths[:, None] - 1, axis=1)[:, 0]
        return drafter.draft(variables, state, rounds.greedy(root, lengths - 1))[0]

    tree = jax.device_get(run())
    assert tree.valid.all()
    return [list(rounds.paths(tree, row).values()) for row in ROWS]


def test_the_published_template_is_the_oracle_s():
    assert list(PUBLISHED.paths) == oracle.TEMPLATE


def test_static_trees(params, variables, scores):
    found = proposed(EAGLE(HEAD), params, variables)
    for row in ROWS:
        expected = oracle.static(scores[row], list(PUBLISHED.paths))
        assert found[row] == [path for path, _ in expected]


def test_a_head_of_hot_tokens_drafts_the_likeliest_of_these(params, variables, scores):
    template = Template(((0,), (2,), (0, 1), (0, 1, 0)))
    held = variables | {"scored": {"ids": jnp.asarray(IDS)}}
    found = proposed(EAGLE(HOT, template), params, held)
    cold = np.isin(np.arange(tiny.VOCAB), IDS, invert=True)

    def of_hot(row):
        return lambda path: np.where(cold, -np.inf, scores[row](path))

    for row in ROWS:
        expected = oracle.static(of_hot(row), list(template.paths))
        assert found[row] == [path for path, _ in expected]
        assert found[row] != [path for path, _ in oracle.static(scores[row], list(template.paths))]


SHAPES = [(7, 3, 3, 1.0), (12, 4, 4, 1.0), (20, 3, 4, 1.0), (3, 1, 3, 1.0), (7, 2, 23, 3.0)]


@pytest.mark.parametrize("shape", quick.only(SHAPES, SHAPES[0], SHAPES[-1]), ids=str)
def test_dynamic_trees(params, variables, scores, shape):
    """The same nodes; their order is the drafter's own.

    A sharper tree is one of larger scores, where no token is left out.
    """
    nodes, depth, beam, sharpness = shape
    shape = dict(num_speculative_tokens=nodes, max_depth=depth, beam=beam)
    sharp = {} if sharpness == 1 else dict(sharpness=sharpness)
    found = proposed(EAGLE2(HEAD, **shape, **sharp), params, variables)
    for row in ROWS:
        of_row = scores[row]
        made = oracle.expand(lambda path, of=of_row: sharpness * of(path), depth - 1, beam)
        expected = oracle.rerank(made, nodes + 1)
        assert sorted(found[row]) == sorted(path for path, _ in expected)


def test_a_memory_between_calls_has_room_for_the_default_depth():
    """The published EAGLE-2 drafts 8 levels, and a head refuses rows that are no longer than its
    trees."""
    memory = jspec.memory_file.empty(EAGLE2(HEAD, num_speculative_tokens=9, max_depth=9, beam=1))
    assert memory.hidden.shape[0] == 1


def drawn(probs):
    probs = jnp.asarray(probs, jnp.float32)
    return ChildDraws(
        jnp.arange(probs.shape[-1])[None, None], jnp.log(probs)[None, None], probs[None, None],
        probs[None, None], None,
    )  # fmt: skip


def test_worth_is_the_published_probability_or_a_power_of_it():
    probs = np.array([0.5, 0.2, 0.1])
    np.testing.assert_allclose(child_probability(drawn(probs))[0, 0], probs, rtol=1e-6)
    power = np.append(probs, 0.2) ** 3
    np.testing.assert_allclose(
        child_probability(drawn(probs), 3.0)[0, 0], (power / power.sum())[:3], rtol=1e-5
    )


def test_a_head_in_bfloat16_holds_states_and_nodes_as_numbers(params, variables):
    """Where the cache holds their bits, as whole numbers, too."""
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, variables))
    model, head = TARGET.clone(dtype=jnp.bfloat16), HEAD.clone(dtype=jnp.bfloat16)
    drafter = EAGLE(head, trees.chain(2))
    ask = dict(drafter=drafter, drafter_params=narrow[1], max_new_tokens=4)
    state = jspec.prefill(model, narrow[0], tiny.PROMPTS[:1], **ask)
    (held,) = jax.tree.leaves(state.drafter_state.hidden)
    assert held.dtype == jnp.bfloat16 and (held % 1 != 0).any()
