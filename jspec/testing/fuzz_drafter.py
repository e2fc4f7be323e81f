"""Trees as data: a drafter whose drafts, right and wrong, come in its params."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec.protocols import Drafter
from jspec.types import Feedback, Frame, PyTree, Tree

LITERAL, TEXT, ROOT = range(3)
"""The kinds of a drafted node: a number, the text's token at its depth, or the root's token."""


@dataclass(frozen=True)
class FuzzShape:
    """Sizes of the trees; each shape is a program of its own, whatever the trees are."""

    num_nodes: int
    """The number of nodes N, the root included."""
    depth: int
    """The depth that the tree declares; its nodes may lie deeper, or never as deep."""
    width: int
    """The width that the tree declares."""
    with_value: bool = False


@struct.dataclass
class FuzzTrees:
    """The params of a `FuzzDrafter`: a tree for each round and row, as data. R: rounds."""

    tokens: Int[Array, "R B N"]
    kinds: Int[Array, "R B N"]
    """The kind of each node: `LITERAL`, `TEXT` or `ROOT`."""
    levels: Int[Array, "R B N"]
    """Depths of the nodes, which say what token of the text is right."""
    parents: Int[Array, "R B N"]
    valid: Bool[Array, "R B N"]
    value: Float[Array, "R B N"] | None
    text: Int[Array, "B T"]
    """The text of plain decoding, so that some drafts are right however deep they go."""


@struct.dataclass
class FuzzState:
    """The state of a `FuzzDrafter`."""

    emitted: Int[Array, " B"]
    rounds: Int[Array, ""]
    mistold: Int[Array, " B"]
    """Rounds whose feedback did not fit the drafter's own tree."""


@dataclass(frozen=True)
class FuzzDrafter(Drafter):
    """Drafts what its params say, round by round; starts over at their end."""

    shape: FuzzShape

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> FuzzState:
        del capacity, earlier
        # Two arrays: the engine donates the state, and JAX donates no buffer twice.
        emitted, mistold = (jnp.zeros(batch, jnp.int32) for _ in range(2))
        return FuzzState(emitted=emitted, rounds=jnp.int32(0), mistold=mistold)

    def draft(self, params: FuzzTrees, state: FuzzState, frame: Frame) -> tuple[Tree, None]:
        at = state.rounds % params.tokens.shape[0]
        tokens, kinds, levels, parents, valid = (
            x[at]
            for x in (params.tokens, params.kinds, params.levels, params.parents, params.valid)
        )
        places = state.emitted[:, None] + levels - 1
        right = jnp.take_along_axis(params.text, jnp.maximum(places, 0), axis=1, mode="clip")
        root = jnp.broadcast_to(frame.root[:, None], tokens.shape)
        tokens = jnp.select([kinds == TEXT, kinds == ROOT], [right, root], tokens)
        tree = Tree(
            tokens=tokens,
            parents=parents,
            valid=valid,
            depth=self.shape.depth,
            width=self.shape.width,
            value=None if params.value is None else params.value[at],
        )
        return tree, None

    def update(
        self, params: FuzzTrees, state: FuzzState, aux: None, feedback: Feedback
    ) -> FuzzState:
        del params, aux
        return FuzzState(
            emitted=state.emitted + feedback.counts,
            rounds=state.rounds + 1,
            mistold=state.mistold + _mistold(feedback).astype(jnp.int32),
        )


def _mistold(feedback: Feedback) -> Bool[Array, " B"]:
    """Returns rows whose path is not in the drafter's own tree, or leaves it though it went on."""
    tree, path, emitted = feedback.tree, feedback.verdict.path, feedback.emitted
    below = (jnp.arange(1, path.shape[1]) < feedback.counts[:, None])[..., None]
    node, above, token = path[:, 1:, None], path[:, :-1, None], emitted[:, :-1, None]
    nodes = jnp.arange(tree.tokens.shape[1])
    right = tree.valid & (nodes > 0)
    right = right[:, None] & (tree.parents[:, None] == above) & (tree.tokens[:, None] == token)
    wrong = below & jnp.where(node >= 0, (node == nodes) & ~right, right)
    # The root is everybody's.
    return wrong.any((1, 2)) | ((path[:, 0] != 0) & (feedback.counts > 0))


def random_trees(
    rng: np.random.Generator,
    shape: FuzzShape,
    vocab_size: int,
    text: Int[np.ndarray, "B T"],
    rounds: int,
) -> FuzzTrees:
    """Returns a tree for each round and row; each row's rounds have their own kind of damage."""
    size = (rounds, len(text), shape.num_nodes)
    nodes = np.arange(shape.num_nodes)

    def some(chance: float) -> np.ndarray:
        return rng.uniform(size=size) < chance

    # Sound trees first: chains, bushes and what lies between them.
    parents = rng.integers(0, np.maximum(nodes, 1), size)
    parents = np.where(rng.uniform(size=(*size[:2], 1)) < 0.4, np.maximum(nodes - 1, 0), parents)
    parents[..., 0] = -1
    levels = np.zeros(size, int)
    for node in nodes[1:]:
        above = parents[..., node : node + 1]
        levels[..., node] = np.take_along_axis(levels, above, axis=2)[..., 0] + 1
    tokens = rng.integers(vocab_size, size=size)
    kinds = rng.choice([LITERAL, TEXT, ROOT], p=[0.25, 0.6, 0.15], size=size)
    valid = ~some(0.05)
    valid[..., 0] = True
    # Then the damage, in two rounds of three.
    hurt = rng.uniform(size=(*size[:2], 1)) < 0.67
    wild = rng.integers(-3, shape.num_nodes + 3, size)
    parents = np.where(hurt & some(0.15), wild, parents)
    parents = np.where(hurt & some(0.03), nodes, parents)
    foreign = rng.choice([-1, -(2**31), vocab_size, vocab_size + 5, 2**31 - 1], size=size)
    strange = hurt & some(0.08)
    tokens, kinds = np.where(strange, foreign, tokens), np.where(strange, LITERAL, kinds)
    valid &= ~(hurt & some(0.1))
    value = None
    if shape.with_value:
        value = np.where(hurt & some(0.05), np.nan, rng.uniform(size=size))
        value = jnp.asarray(value, jnp.float32)
    # Node 0 is as often right as not in rounds with damage.
    sound = ~hurt[..., 0] | (rng.uniform(size=size[:2]) < 0.5)
    kinds[..., 0] = np.where(sound, ROOT, LITERAL)
    parents[..., 0] = np.where(sound, -1, parents[..., 0])
    valid[..., 0] |= sound
    return FuzzTrees(
        *(jnp.asarray(x, jnp.int32) for x in (tokens, kinds, levels, parents)),
        valid=jnp.asarray(valid),
        value=value,
        text=jnp.asarray(text, jnp.int32),
    )
