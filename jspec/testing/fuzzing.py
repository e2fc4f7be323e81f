"""Random trees, right and wrong ones: whatever is drafted, tokens are those of plain decoding."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec import engine
from jspec.base import Feedback, Frame, Output, PyTree, Result, Sampling, Tree
from jspec.drafters.ensemble.merge import merge
from jspec.errors import InputError
from jspec.protocols import CausalLM, Drafter
from jspec.testing.prefix_lm import PrefixLM
from jspec.testing.promises import Report, consistent_stats, promise, same_tokens

_ROWS = 32
_MAX_NEW_TOKENS = 40
_PROMPT = 8

LITERAL, TEXT, ROOT = range(3)
"""What a drafted node holds: a number, the text's token at its depth, or the root's token."""


@dataclass(frozen=True)
class FuzzShape:
    """Sizes of the trees; each shape is a program of its own, whatever the trees are."""

    num_nodes: int
    """N, the root included."""
    depth: int
    """As declared; the nodes may lie deeper, or never as deep."""
    width: int
    """As declared."""
    with_value: bool = False


SHAPES = (
    FuzzShape(num_nodes=10, depth=3, width=9, with_value=True),
    FuzzShape(num_nodes=14, depth=20, width=30),
    FuzzShape(num_nodes=8, depth=1, width=7),
    FuzzShape(num_nodes=9, depth=8, width=1),
)
MERGED = (FuzzShape(num_nodes=7, depth=3, width=6), FuzzShape(num_nodes=9, depth=2, width=8))


@struct.dataclass
class FuzzTrees:
    """The params of a `FuzzDrafter`: a tree for each round and row, as data."""

    tokens: Int[Array, "R B N"]
    kinds: Int[Array, "R B N"]
    """`LITERAL`, `TEXT` or `ROOT`."""
    levels: Int[Array, "R B N"]
    """Depths of the nodes, which say what token of the text is right."""
    parents: Int[Array, "R B N"]
    valid: Bool[Array, "R B N"]
    value: Float[Array, "R B N"] | None
    text: Int[Array, "B T"]
    """What plain decoding emits, so that some drafts are right however deep they go."""


@struct.dataclass
class FuzzState:
    """State of a `FuzzDrafter`."""

    emitted: Int[Array, " B"]
    rounds: Int[Array, ""]
    mistold: Int[Array, " B"]
    """Rounds whose feedback did not fit the drafter's own tree."""


@dataclass(frozen=True)
class FuzzDrafter:
    """Drafts what its params say, round by round; starts over at their end."""

    shape: FuzzShape

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> FuzzState:
        del slots, earlier
        zeros = jnp.zeros(batch, jnp.int32)
        return FuzzState(emitted=zeros, rounds=jnp.int32(0), mistold=zeros)

    def prefill(
        self,
        params: FuzzTrees,
        state: FuzzState,
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> FuzzState:
        del params, prompt, lengths, output
        return state

    def draft(self, params: FuzzTrees, state: FuzzState, frame: Frame) -> tuple[Tree, FuzzState]:
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
        return tree, state

    def update(self, params: FuzzTrees, state: FuzzState, feedback: Feedback) -> FuzzState:
        del params
        return FuzzState(
            emitted=state.emitted + feedback.counts,
            rounds=state.rounds + 1,
            mistold=state.mistold + _mistold(feedback).astype(jnp.int32),
        )


def _mistold(feedback: Feedback) -> Bool[Array, " B"]:
    """Rows in which the path is none of the drafter's own tree, or leaves it though it went on."""
    tree, path, emitted = feedback.tree, feedback.verdict.path, feedback.emitted
    below = (jnp.arange(1, path.shape[1]) < feedback.counts[:, None])[..., None]
    node, above, token = path[:, 1:, None], path[:, :-1, None], emitted[:, :-1, None]
    nodes = jnp.arange(tree.tokens.shape[1])
    right = tree.valid & (nodes > 0)
    right = right[:, None] & (tree.parents[:, None] == above) & (tree.tokens[:, None] == token)
    wrong = below & jnp.where(node >= 0, (node == nodes) & ~right, right)
    # The root is everybody's.
    return wrong.any((1, 2)) | ((path[:, 0] != 0) & (feedback.counts > 0))


@dataclass
class _Subject:
    """A model, its params, and a batch whose plain text is known."""

    model: CausalLM
    params: PyTree
    prompt: Int[np.ndarray, "B T"]
    lengths: Int[np.ndarray, " B"]
    key: int
    plain: Result = field(init=False)

    def __post_init__(self):
        self.plain = self.decode()

    def decode(self, **drafter: Any) -> Result:
        sampled = np.arange(len(self.lengths)) % 2 == 1
        return engine.decode(
            self.model,
            self.params,
            self.prompt,
            self.lengths,
            max_new_tokens=_MAX_NEW_TOKENS,
            sampling=Sampling(temperature=np.where(sampled, 0.8, 0.0)),
            key=self.key,
            **drafter,
        )


def fuzz(
    model: CausalLM | None = None,
    model_params: PyTree = None,
    *,
    rounds: int = 2000,
    seed: int = 0,
    in_merge: bool = True,
) -> Report:
    """Decodes with thousands of random trees, most of them no trees, and compares the tokens.

    Parents may be later nodes, the node itself, cycles or negative; nodes may be absent with
    children, deeper or more than declared; ids may be foreign, equal to a sibling's or to the
    root's; node 0 may be absent, hold another token or have a parent; values may be NaN. Some nodes
    hold what the target will say, so that paths of all lengths are accepted. Half the rows are
    greedy and half sampled. Trees are data: however many rounds, one program for each of four
    shapes, and three more for `jspec.merge` of two such drafters, with and without a budget.

    Args:
        model: the target; None is `jspec.testing.PrefixLM`.
        model_params: its weights; None only without a model.
        rounds: how many trees to draft at least; each row's round counts as one.
        seed: of the trees; another one gives other trees, and compiles nothing.
        in_merge: whether to fuzz `jspec.merge` as well.

    Returns:
        A `Report` of how many trees there were and how deep the accepted paths went.

    Raises:
        AssertionError: if tokens are not those of plain decoding, if the statistics do not add up,
            or if a path was not accepted that should have been. The sentence holds the shape, the
            seed and the tree.
        InputError: if the arguments do not fit together.

    Example:
        >>> from jspec.testing import fuzz
        >>> def test_whatever_is_drafted():
        ...     fuzz(rounds=5000, seed=1)
    """
    if model is None and model_params is not None:
        raise InputError("model_params came without a model; pass both, or neither")
    if rounds < 1:
        raise InputError(f"rounds is {rounds}; draft at least 1 tree")
    if model is None:
        model = PrefixLM()
        model_params = model.init()
    rng = np.random.default_rng(seed)
    report = Report()
    drafters: list[tuple[str, tuple[FuzzShape, ...], Drafter]] = [
        (str(shape), (shape,), FuzzDrafter(shape)) for shape in SHAPES
    ]
    if in_merge:
        pair = tuple(FuzzDrafter(shape) for shape in MERGED)
        drafters += [
            ("merge", MERGED, merge(*pair)),
            ("merge the other way round", MERGED[::-1], merge(*pair[::-1])),
            ("merge of 5 nodes", MERGED, merge(*pair, num_speculative_tokens=5)),
        ]
    for name, shapes, drafter in drafters:
        counts = np.zeros(1, int)
        while counts.sum() < rounds / len(drafters):
            found = _batch(name, shapes, drafter, model, model_params, rng, seed)
            wide = max(len(found), len(counts))
            counts = sum(np.pad(x, (0, wide - len(x))) for x in (counts, found))
        report.checked.append(
            f"{counts.sum()} trees of {name}: tokens are those of plain decoding; accepted paths "
            f"by length {counts.tolist()}"
        )
    return report


def _batch(
    name: str,
    shapes: tuple[FuzzShape, ...],
    drafter: Drafter,
    model: CausalLM,
    model_params: PyTree,
    rng: np.random.Generator,
    seed: int,
) -> Int[np.ndarray, " P"]:
    """One call; returns how often a path of each length was accepted."""
    size = model.vocab_size
    # Few different tokens, so that the root's often comes again.
    prompt = rng.integers(min(size, 4), size=(_ROWS, _PROMPT))
    lengths = rng.integers(1, _PROMPT + 1, _ROWS)
    subject = _Subject(model, model_params, prompt, lengths, int(rng.integers(2**31)))
    text = np.asarray(subject.plain.tokens)
    params = tuple(_trees(rng, shape, size, text) for shape in shapes)
    result = subject.decode(
        drafter=drafter, drafter_params=params if len(params) > 1 else params[0]
    )
    what = f"fuzz, seed {seed}, {name}"
    histogram = np.asarray(result.stats.histogram)
    # Before the tokens: the round that went astray explains them.
    exact = "nodes" not in name
    emitted, ends = np.asarray(result.tokens), np.asarray(subject.plain.lengths)
    for row in range(_ROWS):
        root = int(prompt[row, lengths[row] - 1])
        story = _play(params, shapes, row, root, text[row, : ends[row]], size)
        if (wrong := np.flatnonzero(emitted[row] != text[row])).size:
            rounds = [told for told in story if told.start <= wrong[0]]
            same_tokens(result, subject.plain, f"{what}; {rounds[-1] if rounds else ''}")
        if exact:
            wanted = np.bincount(
                [told.emitted - 1 for told in story], minlength=len(histogram[row])
            )
            promise(
                np.array_equal(wanted, histogram[row]),
                f"{what}: right drafts are accepted: row {row} should have had rounds by length "
                f"{wanted.tolist()} and had {histogram[row].tolist()}; its rounds: "
                + "; ".join(map(str, story[:4])),
            )
    same_tokens(result, subject.plain, what)
    consistent_stats(result, what)
    states = result.drafter_state if len(params) > 1 else (result.drafter_state,)
    for member, state in enumerate(_fuzz_states(states)):
        for row, rounds in enumerate(np.asarray(state.mistold).tolist()):
            promise(
                rounds == 0,
                f"{what}: a drafter is told of its own tree: drafter {member} was told otherwise "
                f"in {rounds} rounds of row {row}",
            )
    return histogram.sum(0)


def _fuzz_states(state: PyTree) -> list[FuzzState]:
    """The states of all fuzz drafters, however a merge keeps them."""
    found = jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, FuzzState))
    return [leaf for leaf in found if isinstance(leaf, FuzzState)]


def _trees(
    rng: np.random.Generator, shape: FuzzShape, vocab_size: int, text: Int[np.ndarray, "B T"]
) -> FuzzTrees:
    """A tree for each round and row; each row's rounds have their own kind of damage."""
    size = (_MAX_NEW_TOKENS, _ROWS, shape.num_nodes)
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


@dataclass(frozen=True)
class _Told:
    """A round as it should go."""

    number: int
    start: int
    """Tokens that the row had emitted."""
    emitted: int
    trees: tuple[tuple[list[int], list[int], list[bool]], ...]

    def __str__(self) -> str:
        trees = " and ".join(
            f"tokens {tokens}, parents {parents}, valid {[int(x) for x in valid]}"
            for tokens, parents, valid in self.trees
        )
        return f"round {self.number} from token {self.start} should emit {self.emitted}: {trees}"


def _play(
    params: tuple[FuzzTrees, ...],
    shapes: tuple[FuzzShape, ...],
    row: int,
    root: int,
    text: Int[np.ndarray, " T"],
    vocab_size: int,
) -> list[_Told]:
    """The rounds of a row, worked out from the trees and the plain text, without jspec."""
    host = jax.device_get(params)
    told, start = [], 0
    while start < len(text):
        number = len(told)
        rounds = [_tree_at(trees, number, row, root, start) for trees in host]
        accepted = max(
            _accepted(*tree, shape, text[start:], vocab_size)
            for tree, shape in zip(rounds, shapes, strict=True)
        )
        emitted = min(accepted + 1, len(text) - start)
        shown = tuple(tuple(x.tolist() for x in tree[:3]) for tree in rounds)
        told.append(_Told(number, start, emitted, shown))
        start += emitted
        root = int(text[start - 1])
    return told


def _tree_at(trees: FuzzTrees, number: int, row: int, root: int, start: int) -> tuple[Any, ...]:
    at = number % trees.tokens.shape[0], row
    tokens, kinds, levels = trees.tokens[at], trees.kinds[at], trees.levels[at]
    places = np.clip(start + levels - 1, 0, trees.text.shape[1] - 1)
    tokens = np.select([kinds == TEXT, kinds == ROOT], [trees.text[row][places], root], tokens)
    value = None if trees.value is None else trees.value[at]
    return tokens, trees.parents[at], trees.valid[at], value


def _accepted(
    tokens: Int[np.ndarray, " N"],
    parents: Int[np.ndarray, " N"],
    valid: Bool[np.ndarray, " N"],
    value: Float[np.ndarray, " N"] | None,
    shape: FuzzShape,
    text: Int[np.ndarray, " T"],
    vocab_size: int,
) -> int:
    """How many drafted tokens are right, in what is left of the tree when the engine has it."""
    level: dict[int, int] = {0: 0}
    children: dict[int, dict[int, int]] = {0: {}}
    for node in range(1, len(tokens)):
        above, token = int(parents[node]), int(tokens[node])
        sound = valid[node] and 0 <= above < node and above in level
        known = 0 <= token < vocab_size and (value is None or not np.isnan(value[node]))
        # Equal siblings are one node: the first.
        if sound and known and level[above] < shape.depth and token not in children[above]:
            level[node], children[node] = level[above] + 1, {}
            children[above][token] = node
    node = 0
    for done, token in enumerate(text.tolist()):
        read = dict(list(children[node].items())[: shape.width])
        if token not in read:
            return done
        node = read[token]
    return len(text)
