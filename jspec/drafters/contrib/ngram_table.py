"""N-gram tables: a target's mean distributions after two tokens and after one.

Made once from a text that the target has read (`build`), or of single tokens without any text
(`jspec.drafters.contrib.vocabulary_table`), and looked up while drafting. It backs off: a pair of
tokens that the text has is followed by the pair's own line, and any other pair by its last token's
line.

Axes besides those of `jspec.types`:

    lines of single tokens first, then of pairs
    buckets    a power of two; a pair's key says which it is in
    entries    pairs of the fullest bucket
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt

from jspec import _struct as struct
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.drafters.retrieval.token_pairs import NONE, pair_key, slot_of
from jspec.types import HostOrDevice

_PER_BUCKET = 2
"""The pairs of a bucket in the mean, at most: a whole bucket is read for each look-up."""
_UNSEEN = 1.0
"""Visits that a pair's back-off counts as, in addition to the pair's own."""


@struct.dataclass
class NGramTable:
    """The likely tokens after pairs of tokens and after single ones; params of a drafter.

    `jspec.drafters.contrib.ngrams` has `build` and `tabulate`, and `load` for one on disk.
    """

    tokens: Int[Array, "lines k"]
    """The likeliest tokens, the likeliest first."""
    probs: Float[Array, "lines k"]
    """Their probabilities, falling along k; 0 where there is no token."""
    line_of_token: Int[Array, " V"]
    """`NONE` for a token without a line."""
    keys: UInt[Array, "buckets entries"]
    line_of_pair: Int[Array, "buckets entries"]
    """The lines of `keys`; `NONE` behind the last pair of a bucket."""

    def after(
        self, before: Int[Array, "*S"], tokens: Int[Array, "*S"]
    ) -> tuple[Int[Array, "*S k"], Float[Array, "*S k"], Int[Array, "*S"]]:
        """Returns the likely tokens after each token.

        Args:
            before: the token before it; `NONE` where there is none.
            tokens: the token itself.

        Returns:
            (candidates, probs, order): probabilities are 0 where there is no candidate, and order
            is the number of preceding tokens of the line: 2, 1, or 0 where there is none.
        """
        key = pair_key(before, tokens, self.line_of_token.shape[0])
        bucket = jnp.asarray(slot_of(key, self.keys.shape[0]))
        here = (cells(self.keys, bucket) == key[..., None]) & (before >= 0)[..., None]
        pair = jnp.where(here, cells(self.line_of_pair, bucket), NONE).max(-1)
        line = jnp.where(pair >= 0, pair, cells(self.line_of_token, tokens))
        order = jnp.where(pair >= 0, 2, jnp.where(line >= 0, 1, 0)).astype(jnp.int32)
        # An absent line reads the first one, whose probabilities then count as 0.
        place = jnp.maximum(line, 0)
        probs = jnp.where((order > 0)[..., None], cells(self.probs, place), 0.0)
        return cells(self.tokens, place), probs, order


def cells(array: Shaped[Array, "X ..."], index: Int[HostOrDevice, "..."]) -> Shaped[Array, "..."]:
    """Returns cells that are there, which saves the operations for those that are not."""
    return array.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


@struct.dataclass
class NGramLines:
    """The lines of a table and their preceding tokens, on the host and as a file holds them."""

    tokens: Int[np.ndarray, "lines k"]
    probs: Float[np.ndarray, "lines k"]
    singles: Int[np.ndarray, " singles"]
    """The preceding token of each of the first lines."""
    pairs: UInt[np.ndarray, " pairs"]
    """The key of the preceding pair of each of the other lines."""
    vocab_size: int = struct.field(pytree_node=False)


def build(
    text: Int[np.ndarray, "M T"],
    distributions: tuple[Int[np.ndarray, "M T K"], Float[np.ndarray, "M T K"]],
    vocab_size: int,
    k: int = 6,
    live: Bool[np.ndarray, "M T"] | None = None,
) -> NGramLines:
    """Returns a text's lines: mean distributions after pairs and after single tokens.

    With n visits of a pair (a, b) the mean of their distributions is m, and the mean of all visits
    of b is m_b; the pair's line holds, of the tokens that its own distributions have, the k
    likeliest under (n m + m_b) / (n + 1). A pair seen once is thereby not taken for sure.

    Args:
        text: token ids, rows that do not hang together.
        distributions: the K likeliest tokens after each token, with the target's probabilities.
        vocab_size: V of the target.
        k: candidates that a line keeps.
        live: False at places that are not text; None: all are text.

    Raises:
        InputError: if there is no text, or a token outside the vocabulary.
    """
    check_integer("k", k, 1, None)
    live = np.ones(text.shape, bool) if live is None else live
    if not live.any():
        raise InputError("there is no text to make an n-gram table of; give some")
    before = np.pad(text, ((0, 0), (1, 0)), constant_values=NONE)[:, :-1][live]
    last, tokens = text[live].astype(np.int64), distributions[0][live]
    probs = distributions[1][live].astype(np.float64)
    for name, ids in (("text has", last), ("distributions have", tokens)):
        if not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            raise InputError(
                f"the {name} tokens {ids.min()} .. {ids.max()}, outside the vocabulary of "
                f"{vocab_size}; pass ids of this target's tokenizer"
            )
    singles = _Means.of(last, tokens, probs, vocab_size)
    has_pair = before >= 0
    key = np.asarray(pair_key(before[has_pair], last[has_pair], vocab_size))
    pairs = _Means.of(key, tokens[has_pair], probs[has_pair], vocab_size)
    # What a pair's last token alone says of the pair's candidates.
    _, first = np.unique(key, return_index=True)
    backed = singles.probs_of(last[has_pair][first][pairs.group], pairs.tokens)
    visits = pairs.visits[pairs.group]
    mixed = (visits * pairs.probs + _UNSEEN * backed) / (visits + _UNSEEN)
    lines = singles.largest(singles.probs, k), pairs.largest(mixed, k)
    ids, means = (np.concatenate(parts) for parts in zip(*lines, strict=True))
    return NGramLines(
        ids.astype(np.int32),
        means.astype(np.float32),
        singles.names.astype(np.int32),
        pairs.names.astype(np.uint32),
        vocab_size,
    )


def table(lines: NGramLines) -> NGramTable:
    """Returns the lines on the default device, with what finds them."""
    singles, pairs = lines.singles, lines.pairs
    of_token = np.full(lines.vocab_size, NONE, np.int32)
    of_token[singles] = np.arange(len(singles))
    buckets = 1 << max((len(pairs) - 1) // _PER_BUCKET, 0).bit_length()
    bucket = slot_of(pairs, buckets)
    order = np.argsort(bucket, kind="stable")
    counts = np.bincount(bucket, minlength=buckets)
    place = _places(counts)
    keys = np.zeros((buckets, max(int(counts.max()), 1)), np.uint32)
    of_pair = np.full(keys.shape, NONE, np.int32)
    keys[bucket[order], place] = pairs[order]
    of_pair[bucket[order], place] = len(singles) + order
    return NGramTable(
        tokens=jnp.asarray(lines.tokens, jnp.int32),
        probs=jnp.asarray(lines.probs, jnp.float32),
        line_of_token=jnp.asarray(of_token),
        keys=jnp.asarray(keys),
        line_of_pair=jnp.asarray(of_pair),
    )


def _places(counts: Int[np.ndarray, " groups"]) -> Int[np.ndarray, " entries"]:
    """Returns the place of each entry in its group, of groups that follow one another."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclass(frozen=True)
class _Means:
    """Mean distributions by preceding tokens, each a run of entries (token, probability)."""

    names: Shaped[np.ndarray, " names"]
    """Preceding tokens as names, rising."""
    visits: Int[np.ndarray, " names"]
    """Their counts."""
    group: Int[np.ndarray, " entries"]
    """The name of each entry, rising; within one name tokens rise."""
    tokens: Int[np.ndarray, " entries"]
    probs: Float[np.ndarray, " entries"]
    vocab_size: int

    @staticmethod
    def of(
        names: Shaped[np.ndarray, " visits"],
        tokens: Int[np.ndarray, "visits K"],
        probs: Float[np.ndarray, "visits K"],
        vocab_size: int,
    ) -> "_Means":
        """Returns the means over the visits of each name."""
        keys, group, visits = np.unique(names, return_inverse=True, return_counts=True)
        entry = np.repeat(group.astype(np.int64), tokens.shape[1]) * vocab_size + tokens.reshape(-1)
        entries, place = np.unique(entry, return_inverse=True)
        total = np.bincount(place, probs.reshape(-1))
        group, tokens = np.divmod(entries, vocab_size)
        return _Means(keys, visits, group, tokens, total / visits[group], vocab_size)

    def probs_of(
        self, names: Shaped[np.ndarray, " asked"], tokens: Int[np.ndarray, " asked"]
    ) -> Float[np.ndarray, " asked"]:
        """Returns the mean probability of a token after each name; 0 where it was not likely."""
        query = np.searchsorted(self.names, names) * self.vocab_size + tokens
        entries = self.group * self.vocab_size + self.tokens
        place = np.minimum(np.searchsorted(entries, query), len(entries) - 1)
        return np.where(entries[place] == query, self.probs[place], 0.0)

    def largest(
        self, values: Float[np.ndarray, " entries"], k: int
    ) -> tuple[Int[np.ndarray, "names k"], Float[np.ndarray, "names k"]]:
        """Returns each name's entries of largest value, falling; then zeros."""
        order = np.lexsort((self.tokens, -values, self.group))
        group = self.group[order]
        counts = np.bincount(group, minlength=len(self.names))
        rank = _places(counts)
        top = order[rank < k]
        where = self.group[top], rank[rank < k]
        ids, best = np.zeros((len(self.names), k), np.int64), np.zeros((len(self.names), k))
        ids[where], best[where] = self.tokens[top], values[top]
        return ids, best
