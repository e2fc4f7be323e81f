"""Whatever is drafted, tokens are those of plain decoding, and no right draft is left.

Parents may be later nodes, the node itself, cycles or negative; nodes may be absent with children,
deeper or more than declared; ids may be foreign, equal to a sibling's or to the root's; node 0 may
be absent, hold another token or have a parent; values may be NaN.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from jspec import _struct as struct
from jspec.testing import PrefixLM
from jspec.testing.promises import consistent_stats, same_tokens

ROWS, NEW_TOKENS, PROMPT = 32, 40, 8
LITERAL, TEXT, ROOT = range(3)
"""The token of a node: a number, the text's at its depth, or the root's."""


@dataclass(frozen=True)
class Shape:
    num_nodes: int
    depth: int
    width: int
    with_value: bool = False


SHAPES = Shape(10, 3, 9, with_value=True), Shape(14, 20, 30), Shape(8, 1, 7), Shape(9, 8, 1)
PAIR = Shape(7, 3, 6), Shape(9, 2, 8)


@struct.dataclass
class Trees:
    """A tree for each round and row, [R, B, N], and the text that some of its tokens are of."""

    tokens: jax.Array
    kinds: jax.Array
    levels: jax.Array
    parents: jax.Array
    valid: jax.Array
    value: jax.Array | None
    text: jax.Array


@dataclass(frozen=True)
class RandomTrees(jspec.Drafter):
    """Drafts what its params say, round by round; counts the rounds told of another tree."""

    shape: Shape

    def init(self, batch, capacity, earlier):
        emitted, mistold = (jnp.zeros(batch, jnp.int32) for _ in range(2))
        return emitted, jnp.int32(0), mistold

    def draft(self, params, state, frame):
        at = state[1] % len(params.tokens)
        kinds, levels = params.kinds[at], params.levels[at]
        places = jnp.maximum(state[0][:, None] + levels - 1, 0)
        right = jnp.take_along_axis(params.text, places, axis=1, mode="clip")
        root = jnp.broadcast_to(frame.root[:, None], kinds.shape)
        tokens = jnp.select([kinds == TEXT, kinds == ROOT], [right, root], params.tokens[at])
        tree = jspec.Tree(
            tokens=tokens, parents=params.parents[at], valid=params.valid[at],
            depth=self.shape.depth, width=self.shape.width,
            value=None if params.value is None else params.value[at],
        )  # fmt: skip
        return tree, None

    def update(self, params, state, aux, feedback):
        tree, path, emitted = feedback.tree, feedback.verdict.path, feedback.emitted
        below = (jnp.arange(1, path.shape[1]) < feedback.counts[:, None])[..., None]
        node, above, token = path[:, 1:, None], path[:, :-1, None], emitted[:, :-1, None]
        nodes = jnp.arange(tree.tokens.shape[1])
        right = (tree.valid & (nodes > 0))[:, None]
        right = right & (tree.parents[:, None] == above) & (tree.tokens[:, None] == token)
        # A path through the drafter's own nodes, which leaves them only where none is right.
        wrong = (below & jnp.where(node >= 0, (node == nodes) & ~right, right)).any((1, 2))
        wrong |= (path[:, 0] != 0) & (feedback.counts > 0)
        return state[0] + feedback.counts, state[1] + 1, state[2] + wrong.astype(jnp.int32)


def draw_trees(rng, shape, vocab_size, text):
    size, nodes = (NEW_TOKENS, len(text), shape.num_nodes), np.arange(shape.num_nodes)
    some = lambda chance: rng.uniform(size=size) < chance  # noqa: E731
    # Sound trees first: chains, bushes and what lies between them.
    parents = rng.integers(0, np.maximum(nodes, 1), size)
    parents = np.where(rng.uniform(size=(*size[:2], 1)) < 0.4, np.maximum(nodes - 1, 0), parents)
    parents[..., 0] = -1
    levels = np.zeros(size, int)
    for node in nodes[1:]:
        above = np.take_along_axis(levels, parents[..., node : node + 1], axis=2)
        levels[..., node] = above[..., 0] + 1
    tokens = rng.integers(vocab_size, size=size)
    kinds = rng.choice([LITERAL, TEXT, ROOT], p=[0.25, 0.6, 0.15], size=size)
    valid = ~some(0.05)
    valid[..., 0] = True
    # Then the damage, in two rounds of three; node 0 is as often right as not in these.
    hurt = rng.uniform(size=(*size[:2], 1)) < 0.67
    parents = np.where(hurt & some(0.15), rng.integers(-3, shape.num_nodes + 3, size), parents)
    parents = np.where(hurt & some(0.03), nodes, parents)
    foreign = rng.choice([-1, -(2**31), vocab_size, vocab_size + 5, 2**31 - 1], size=size)
    strange = hurt & some(0.08)
    tokens, kinds = np.where(strange, foreign, tokens), np.where(strange, LITERAL, kinds)
    valid &= ~(hurt & some(0.1))
    value = None
    if shape.with_value:
        value = np.where(hurt & some(0.05), np.nan, rng.uniform(size=size)).astype(np.float32)
    sound = ~hurt[..., 0] | (rng.uniform(size=size[:2]) < 0.5)
    kinds[..., 0] = np.where(sound, ROOT, LITERAL)
    parents[..., 0] = np.where(sound, -1, parents[..., 0])
    valid[..., 0] |= sound
    numbers = (np.asarray(x, np.int32) for x in (tokens, kinds, levels, parents))
    return Trees(*numbers, valid=valid, value=value, text=np.asarray(text, np.int32))


def check(shapes, seed, budget=None):
    """Decodes a batch of half greedy, half sampled rows with random trees."""
    model = PrefixLM()
    params = model.init()
    rng, size = np.random.default_rng(seed), model.vocab_size
    # Few different tokens, so that the root's often comes again.
    prompt, lengths = rng.integers(min(size, 4), size=(ROWS, PROMPT)), rng.integers(1, 9, ROWS)
    temperature = jnp.where(jnp.arange(ROWS) % 2 == 1, 0.8, 0.0)

    def decode(**drafter):
        return jspec.decode(
            model, params, prompt, lengths, max_new_tokens=NEW_TOKENS, key=seed,
            sampling=jspec.Sampling(temperature=temperature), **drafter,
        )  # fmt: skip

    plain = decode()
    trees = tuple(draw_trees(rng, shape, size, np.asarray(plain.tokens)) for shape in shapes)
    drafter, drafter_params = RandomTrees(shapes[0]), trees[0]
    if len(shapes) > 1:
        drafter = jspec.merge(*map(RandomTrees, shapes), num_speculative_tokens=budget)
        drafter_params = trees
    result = decode(drafter=drafter, drafter_params=drafter_params)
    same_tokens(result, plain, f"seed {seed}")
    consistent_stats(result, f"seed {seed}")
    states = result.drafter_state.members if len(shapes) > 1 else (result.drafter_state,)
    assert not any(np.asarray(mistold).any() for _, _, mistold in states)
    return int(result.stats.num_accepted_tokens.sum())


def test_random_trees_change_no_token():
    assert check(SHAPES[:1], seed=0) > ROWS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("shapes", "budget"), [*(((one,), None) for one in SHAPES), (PAIR, None), (PAIR[::-1], 5)]
)
def test_random_trees_of_all_shapes_change_no_token(shapes, budget, seed):
    check(shapes, seed, budget=budget)
