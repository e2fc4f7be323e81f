"""REST (He et al. 2023): what followed the last tokens where they stand in a large corpus.

Axes besides those of `jspec.base`:

    C  tokens of the corpus
    W  tokens of the longest suffix that is looked up
    L  suffix lengths that are tried
    R  matches that are read
    F  tokens that are read after a match
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.base import NO_PARENT, Feedback, Frame, Output, PyTree, Tree
from jspec.drafters.retrieval.datastore import Datastore
from jspec.errors import InputError

_NOTHING = -1
"""Before the text and behind the corpus. It is less than every token, as a suffix that ends is less
than one that goes on."""

_MOST = 256
"""Tokens of a suffix that is looked up, and of a continuation."""

_UNSEEN = 2.0
"""Of the tokens that followed a single match, the bundled model's own were 0.30 (2,000 places in
held-out text): 1 / (1 + 2) says 0.33. Of many matches it takes little from the shares."""


@dataclass(frozen=True)
class REST:
    """Drafts a tree of the most frequent continuations of the text's longest suffix in a corpus.

    Its params are a `jspec.datastore`. All continuations' prefixes are counted, and the most
    frequent ones make the tree; of equal counts the shorter goes first, then the one that comes
    first by its tokens. A suffix that occurs nowhere drafts nothing.

    Where the published method reads the first 5,000 matches, which are those with the smallest
    tokens, this one reads `matches` of all of them, evenly spaced in their order.

    Args:
        suffix_max: longest suffix to look for, in tokens.
        suffix_min: shortest.
        num_speculative_tokens: drafted nodes at most.
        max_depth: tokens read after a match, the depth of the tree.
        num_matches: most matches to read.

    Raises:
        InputError: if an option is out of range.
    """

    suffix_max: int = 16
    suffix_min: int = 2
    num_speculative_tokens: int = 64
    max_depth: int = 10
    num_matches: int = 256

    def __post_init__(self):
        if not 1 <= self.suffix_min <= self.suffix_max:
            raise InputError(
                f"suffix_min is {self.suffix_min} and suffix_max is {self.suffix_max}; "
                "choose 1 <= min <= max"
            )
        for name in ("suffix_max", "max_depth"):
            if not 1 <= (value := getattr(self, name)) <= _MOST:
                raise InputError(f"{name} is {value}; read 1 .. {_MOST} tokens")
        # Count, depth and place make one number, by which prefixes are ordered; float32 is exact
        # up to 2^24.
        most = int((2**24 / self.max_depth) ** 0.5) - 1
        if not 1 <= self.num_matches <= most:
            raise InputError(
                f"num_matches is {self.num_matches}; with continuation {self.max_depth} read 1 "
                f".. {most}"
            )
        if not 1 <= self.num_speculative_tokens <= self.num_matches * self.max_depth:
            raise InputError(
                f"num_speculative_tokens is {self.num_speculative_tokens}; {self.num_matches} "
                "matches "
                f"of {self.max_depth} tokens give 1 .. {self.num_matches * self.max_depth}"
            )

    def init(self, batch: int, slots: int, earlier: PyTree | None) -> Int[Array, "B W"]:
        """No tokens yet; the memory is the row's own text."""
        del slots, earlier
        return jnp.full((batch, self.suffix_max), _NOTHING, jnp.int32)

    def prefill(
        self,
        params: Datastore,
        state: Int[Array, "B W"],
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> Int[Array, "B W"]:
        """The prompt's last tokens.

        Raises:
            InputError: if the params are no datastore, or one of a larger vocabulary.
        """
        if not isinstance(params, Datastore):
            raise InputError(
                f"drafter_params of Rest is a {type(params).__name__}; pass a datastore from "
                "jspec.datastore.load or build"
            )
        if params.vocab_size > (known := output.logits.shape[-1]):
            raise InputError(
                f"the datastore has a vocabulary of {params.vocab_size} and the model one of "
                f"{known}; build one with this model's tokenizer"
            )
        return _last(state, prompt, lengths)

    def draft(
        self, params: Datastore, state: Int[Array, "B W"], frame: Frame
    ) -> tuple[Tree, Int[Array, "B W"]]:
        first, count, length = longest_match(params, state, self.suffix_min)
        follow = continuations(params, first, count, length, self.num_matches, self.max_depth)
        return frequent_prefixes(frame.root, follow, self.num_speculative_tokens), state

    def update(
        self, params: Datastore, state: Int[Array, "B W"], feedback: Feedback
    ) -> Int[Array, "B W"]:
        del params
        return _last(state, feedback.emitted, feedback.counts)


def _last(
    tail: Int[Array, "B W"], new: Int[Array, "B T"], counts: Int[Array, " B"]
) -> Int[Array, "B W"]:
    """The last W tokens after the first `counts` of `new` came behind the tail."""
    lanes = counts[:, None] + jnp.arange(tail.shape[1])
    return jnp.take_along_axis(jnp.concatenate([tail, new], axis=1), lanes, axis=1)


def longest_match(
    store: Datastore, tail: Int[Array, "B W"], shortest: int
) -> tuple[Int[Array, " B"], Int[Array, " B"], Int[Array, " B"]]:
    """(first, count, length): of each row's longest suffix that occurs in the corpus.

    What begins with it stands at `first` .. `first + count - 1` of the suffix array; count is 0 if
    no suffix of at least `shortest` tokens occurs. All lengths are searched at once, both ends of
    the range in one bisection of log2(C) steps.
    """
    size, width = store.suffixes.shape[0], tail.shape[1]
    lanes = jnp.arange(width)
    lengths = jnp.arange(shortest, width + 1)[:, None]
    inside = lanes < lengths
    # Lane j of pattern [b, l] is its token j, and beyond its length never read.
    patterns = tail[:, jnp.minimum(width - lengths + lanes, width - 1)][:, :, None]
    after = jnp.array([False, True])  # the end of the range lies after what begins alike

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        tokens = _read(store, store.suffixes[middle], width)
        differs = inside[:, None] & (tokens != patterns)
        at = differs.argmax(-1, keepdims=True)
        less = jnp.take_along_axis(tokens < patterns, at, axis=-1)[..., 0]
        right = jnp.where(differs.any(-1), less, after)
        going = low < high
        return (
            jnp.where(going & right, middle + 1, low),
            jnp.where(going & ~right, middle, high),
        )

    shape = (tail.shape[0], len(lengths), 2)
    bounds = jnp.zeros(shape, jnp.int32), jnp.full(shape, size, jnp.int32)
    ends, _ = jax.lax.fori_loop(0, size.bit_length(), halve, bounds)
    counts = ends[..., 1] - ends[..., 0]
    # A row's text may be shorter than the pattern.
    found = (counts > 0) & (patterns[:, :, 0, 0] != _NOTHING)
    best = len(lengths) - 1 - found[:, ::-1].argmax(-1)

    def pick(array):
        return jnp.take_along_axis(array, best[:, None], axis=1)[:, 0]

    return pick(ends[..., 0]), jnp.where(found.any(-1), pick(counts), 0), shortest + best


def continuations(
    store: Datastore,
    first: Int[Array, " B"],
    count: Int[Array, " B"],
    length: Int[Array, " B"],
    num_matches: int,
    size: int,
) -> Int[Array, "B R F"]:
    """What follows the matches, R of them at most, in the order of the suffix array.

    Behind the corpus and where there is no match stands -1.
    """
    ranks, count = jnp.arange(matches), count[:, None]
    # ranks * count / matches, without the product, which may not fit.
    spaced = ranks * (count // matches) + ranks * (count % matches) // matches
    rank = first[:, None] + jnp.where(count > matches, spaced, ranks)
    place = store.suffixes[jnp.minimum(rank, store.suffixes.shape[0] - 1)] + length[:, None]
    return jnp.where((ranks < count)[..., None], _read(store, place, size), _NOTHING)


def _read(store: Datastore, place: Int[Array, "*I"], size: int) -> Int[Array, "*I F"]:
    """The tokens from these places on."""
    places = place[..., None] + jnp.arange(size)
    last = store.corpus.shape[0] - 1
    tokens = store.corpus[jnp.minimum(places, last)].astype(jnp.int32)
    return jnp.where(places <= last, tokens, _NOTHING)


def frequent_prefixes(root: Int[Array, " B"], follow: Int[Array, "B R F"], nodes: int) -> Tree:
    """The tree of the `nodes` most frequent prefixes of sorted continuations, most frequent first.

    A prefix is as frequent as its own prefixes or less, so that the most frequent ones are a tree,
    and in this order parents stand before their children.
    """
    batch, matches, size = follow.shape
    ranks, levels = jnp.arange(matches)[:, None], jnp.arange(size)
    # Sorted, continuations with the same prefix are neighbours: a prefix is a run of them.
    changes = jnp.pad(
        follow[:, 1:] != follow[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=True
    )
    fresh = jnp.cumsum(changes, axis=-1) > 0
    begin = jax.lax.cummax(jnp.where(fresh, ranks, 0), axis=1)
    later = jax.lax.cummin(jnp.where(fresh, ranks, matches), axis=1, reverse=True)
    end = jnp.pad(later[:, 1:], ((0, 0), (0, 1), (0, 0)), constant_values=matches)
    counts = end - begin

    # By count, then by depth, then by place; unlike for every prefix.
    score = (counts * size + (size - 1 - levels)) * matches + (matches - 1 - ranks)
    score = jnp.where(fresh & (follow != _NOTHING), score, -1).reshape(batch, -1)
    # XLA's CPU selects the best floats, but sorts integers: 0.016 against 0.29 ms for 64 of 2,560.
    score, chosen = jax.lax.top_k(score.astype(jnp.float32), nodes)
    valid = score >= 0

    def pick(array):
        return jnp.take_along_axis(array.reshape(batch, -1), chosen, axis=1)

    # The parent is the run one level up that holds this one.
    above = jnp.pad(begin[:, :, :-1] * size + levels[:-1], ((0, 0), (0, 0), (1, 0)))
    parents = 1 + (chosen[:, None, :] == pick(above)[:, :, None]).argmax(-1)
    parents = jnp.where(valid & (chosen % size > 0), parents, 0)
    return Tree(
        tokens=jnp.concatenate([root[:, None], jnp.where(valid, pick(follow), 0)], axis=1),
        parents=jnp.concatenate(
            [jnp.full((batch, 1), NO_PARENT, jnp.int32), parents.astype(jnp.int32)], axis=1
        ),
        valid=jnp.pad(valid, ((0, 0), (1, 0)), constant_values=True),
        depth=size,
        width=min(nodes, matches),
        value=jnp.pad(
            jnp.where(valid, pick(_worth(follow, counts)), 0), ((0, 0), (1, 0)), constant_values=1
        ),
    )


def _worth(follow: Int[Array, "B R F"], counts: Int[Array, "B R F"]) -> Float[Array, "B R F"]:
    """Chance of each prefix: along its path, each token's share of the matches that lead to it,
    `_UNSEEN` added to them for what none showed (an escape as in PPM, Cleary and Witten 1984).
    """
    matched = (follow[:, :, :1] != _NOTHING).sum(1, keepdims=True)
    before = jnp.concatenate(
        [jnp.broadcast_to(matched, counts[:, :, :1].shape), counts[:, :, :-1]], axis=-1
    )
    return jnp.cumprod(counts / (before + _UNSEEN), axis=-1)
