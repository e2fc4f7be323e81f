"""Bitwise comparison of tree nodes with their tokens in plain decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._xla import compiler, native
from jspec.memory import KVCache
from jspec.protocols import CausalLM
from jspec.round import score
from jspec.round.forward import num_tokens_of
from jspec.types import NO_PARENT, Frame, PyTree, Tree

_CHAINS = 0.25
"""The share of random trees that are chains."""


@dataclass(frozen=True)
class Bits:
    """The findings of `check_bits`.

    Example:
        >>> found = Bits(10, 640, 0, (1, 4), 1, "AVX2")
        >>> found.equal
        True
    """

    num_nodes: int
    """Nodes of trees that were compared with their token in plain decoding."""
    num_numbers: int
    """Their logits and hidden states."""
    num_different: int
    """Numbers of which some bit differs."""
    sizes: tuple[int, ...]
    """Tokens of a forward."""
    batch_size: int
    kernels: str | None
    """The instruction set of a CPU's kernels; None: XLA computed."""
    device: str = "cpu"
    """Its kind."""
    num_different_nodes: int = 0
    """Nodes with such a number."""
    first_layer: int | None = None
    """The first layer whose keys or values differ; None: it is not known, or none do."""
    num_tokens: int = 1
    """The fewest tokens of a forward pass, see `jspec.models.BatchInvariant`."""
    compiler: str | None = None
    """What XLA is known to compute wrongly in this process; None: nothing."""

    @property
    def equal(self) -> bool:
        return self.num_different == 0

    def __str__(self) -> str:
        by = f"{self.kernels} kernels" if self.kernels else f"XLA's products, {self.device}"
        by += f", {self.num_tokens} tokens" if self.num_tokens > 1 else ""
        finding = "no bit differs" if self.equal else f"{self.num_different:,} differ"
        sentence = (
            f"Bitwise: {finding}, of {self.num_numbers:,} logits and hidden states of "
            f"{self.num_nodes:,} nodes ({by})."
        )
        warning = "" if self.compiler is None else f"\nWarning: {self.compiler}."
        if self.equal:
            return sentence + warning
        share = 1 - self.num_different_nodes / self.num_nodes
        layer = self.first_layer
        where = "" if layer is None else f", and layer {layer} is the first that differs"
        return f"{sentence} {share:.1%} of the nodes have equal bits{where}.{warning}"


def check_bits(
    model: CausalLM,
    params: PyTree,
    texts: Sequence[Sequence[int]],
    *,
    sizes: Sequence[int] | None = None,
    batch_size: int = 1,
    seed: int = 0,
    said: Callable[[str], None] = lambda line: None,
) -> Bits:
    """Compares nodes' logits and hidden states bit by bit with plain decoding.

    Every text is fed token by token, each row alone. Then it is fed again in chains and as a path
    of random trees, with random tokens alongside it, several rows at a time and each at its own
    pace. Of a `jspec.models.BatchInvariant`, whose shapes are to be equal, the row is not alone:
    all `batch_size` rows are the same text.

    Args:
        model: the target.
        params: its weights.
        texts: token lists, prompts included.
        sizes: tokens of a forward pass, the root included; None: 1, 2, 5, 8 and 16, or all that a
            `jspec.models.BatchInvariant` has, and 2.
        batch_size: rows of a tree's forward.
        seed: of the trees.
        said: is told in a few words how far it is.

    Raises:
        InputError: if there is no text, one is empty or too long, or a number is out of range.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> check_bits(model, model.init(), [[1, 2, 3, 4]], sizes=[2, 3]).equal
        True
    """
    if not len(texts) or not all(len(text) for text in texts):
        raise InputError(f"there are {len(texts)} texts; pass one or more, none of them empty")
    check_integer("batch_size", batch_size, 1, None)
    min_tokens = num_tokens_of(model)
    if sizes is None:
        sizes = (1, 2, 5, 8, 16) if min_tokens == 1 else (2, min_tokens)
    for size in sizes:
        check_integer("sizes", size, 1, None)
    longest = max(map(len, texts))
    if model.context is not None and longest > model.context:
        raise InputError(
            f"a text has {longest} tokens and the model places {model.context}; cut it"
        )
    plain, alone = [], batch_size if min_tokens > 1 else 1
    for number, text in enumerate(texts):
        said(f"plain decoding, text {number + 1} of {len(texts)}")
        again = [text] * alone
        plain.append(_feed(model, params, again, 1, np.random.default_rng(seed), longest))
    nodes = numbers = different = different_nodes = 0
    layers = list[int]()
    draw = np.random.default_rng(seed)
    for size in sizes:
        for start in range(0, len(texts), batch_size):
            said(f"trees of {size} tokens, text {start + 1} of {len(texts)}")
            group = list(texts[start : start + batch_size])
            # One program for all groups: the last is filled up.
            rows = group + [group[0]] * (batch_size - len(group))
            logits, memory = _feed(model, params, rows, size, draw, longest)
            for row, (reference, *rest) in enumerate(plain[start : start + batch_size]):
                ours = logits[row]
                differs = _differ(ours, reference[0])
                different += int(differs.sum())
                different_nodes += int(differs.any(-1).sum())
                nodes, numbers = nodes + len(ours), numbers + ours.size
                if differs.any():
                    layers += _layers(model, (memory, *rest), (row, 0), len(ours))
    device = jax.devices()[0]
    kernels = native.instruction_set() if device.platform == "cpu" else None
    kind = device.device_kind
    return Bits(
        *(nodes, numbers, different, tuple(sizes), batch_size, kernels, kind),
        *(different_nodes, min(layers, default=None), min_tokens),
        compiler=compiler.wrong(),
    )


def _differ(first: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns which numbers have other bits."""
    bits = [np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") for x in (first, other)]
    return bits[0] != bits[1]


def _layers(model: Any, memories: Sequence[PyTree], rows: Sequence[int], count: int) -> list[int]:
    """Returns the layers in which two memories' rows have other keys or values of the tokens."""
    if not isinstance(memories[0], KVCache) or not hasattr(model, "groups"):
        return []
    ranges = [layers for layers in chain(*model.groups) if model.keys_of(layers.start) is None]
    result = list[int]()
    for place, layers in enumerate(ranges):  # which share an array, those of a head side by side
        pairs = [jax.tree.leaves((memory.keys[place], memory.values[place])) for memory in memories]
        for arrays in zip(*pairs, strict=True):
            cut = (np.asarray(x)[row, :, :count] for x, row in zip(arrays, rows, strict=True))
            differs = _differ(*cut)
            by_layer = differs.reshape(-1, len(layers), *differs.shape[1:]).any((0, 2, 3))
            result += [layers[number] for number in np.flatnonzero(by_layer)]
    return result


def _feed(
    model: CausalLM,
    params: PyTree,
    texts: Sequence[Sequence[int]],
    size: int,
    draw: np.random.Generator,
    longest: int,
) -> tuple[list[np.ndarray], PyTree]:
    """Returns logits and hidden states of texts, [T, V + F], by trees of `size` tokens, and the
    memory after them.
    """
    pieces: list[list[np.ndarray]] = [[] for _ in texts]
    memory, done = model.init_memory(len(texts), longest + 1), [0] * len(texts)
    while any(start < len(text) for start, text in zip(done, texts, strict=True)):
        tails = [list(text[start:]) for start, text in zip(done, texts, strict=True)]
        drawn = [_tree(rest, size, model.vocab_size, draw) for rest in tails]
        tokens, parents, path, counts = (np.stack(part) for part in zip(*drawn, strict=True))
        state = memory, jnp.asarray(done, jnp.int32)
        values, memory = _step(model, params, *state, tokens, parents, path, counts)
        for row, count in enumerate(counts):
            pieces[row].append(np.asarray(values[row, :count]))
            done[row] += int(count)
    return [np.concatenate(parts) for parts in pieces], memory


def _tree(rest: Sequence[int], size: int, vocab_size: int, draw: np.random.Generator) -> Any:
    """Returns a random tree with a path of the text's next tokens: its nodes, and that path. One in
    four is a chain of these tokens alone, and of random ones behind the text's last.
    """
    count = min(int(draw.integers(1, size + 1)), len(rest))
    path = np.zeros(size, np.int32)
    path[1:count] = np.sort(draw.choice(np.arange(1, size), max(count - 1, 0), replace=False))
    if chained := draw.random() < _CHAINS:
        count = min(size, len(rest))
        path[:count] = np.arange(count)
    tokens = draw.integers(0, vocab_size, size)
    parents = np.array([NO_PARENT, *(int(draw.integers(node)) for node in range(1, size))])
    tokens[path[:count]] = rest[:count]
    parents[path[1:count]] = path[: max(count - 1, 0)]
    parents = np.arange(-1, size - 1) if chained else parents
    return tokens.astype(np.int32), parents.astype(np.int32), path, np.int32(count)


@partial(jax.jit, static_argnames="model")
def _step(
    model: CausalLM,
    params: PyTree,
    memory: PyTree,
    positions: Int[Array, " B"],
    tokens: Int[Array, "B N"],
    parents: Int[Array, "B N"],
    path: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> tuple[Array, PyTree]:
    """Returns a forward pass over trees: its outputs on paths, and the memory after."""
    batch, size = tokens.shape
    tree = Tree(tokens, parents, jnp.ones((batch, size), bool), depth=size - 1, width=size)
    frame = Frame(
        root=tokens[:, 0],
        positions=positions,
        keys=None,
        sampling=None,
        done=jnp.zeros(batch, bool),
    )
    output = score(model, params, tree, frame, memory)
    parts = [output.logits, *([] if output.hidden is None else [output.hidden])]
    values = jnp.concatenate([part.astype(jnp.float32) for part in parts], axis=-1)
    values = jnp.take_along_axis(values, path[..., None], axis=1)
    return values, model.commit(memory, output.tentative, path, counts)
