"""REST (He et al. 2023): the tokens that follow the last ones in a large corpus.

The method in its order: `longest_match` finds the text's longest suffix that occurs in the corpus,
`continuations` reads what follows it there, `frequent_prefixes` makes a tree of the most frequent.

Axes besides those of `jspec.types`:

    suffix    tokens of the longest suffix that is looked up
    matches   matches that are read
    depth     tokens that are read after a match
"""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, Integer
from jspec._validate.options import check_fields
from jspec._xla.manual_axes import vary
from jspec.drafters.retrieval.datastore import Datastore
from jspec.drafters.retrieval.frequent_prefixes import NOTHING, frequent_prefixes
from jspec.drafters.retrieval.prompt_lookup import check_match
from jspec.protocols import Drafter
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Tree

_MOST = 256
"""The bound of `max_match` and `max_depth`."""


@dataclass(frozen=True)
class REST(Drafter):
    """Drafts a tree of the most frequent continuations of the text's longest suffix in a corpus.

    He et al. 2023, "REST: Retrieval-Based Speculative Decoding", arXiv 2311.08252, section 3. All
    prefixes of all continuations are counted, and the most frequent ones make the tree: of equally
    frequent ones the shorter goes first, then the one with the smaller tokens. A suffix that occurs
    nowhere drafts nothing.

    Where the published method reads the first 5,000 matches, which are those with the smallest
    tokens, this one reads `num_matches` of all of them, evenly spaced in their order.

    The params of this drafter are a `jspec.datastore.Datastore`.

    Args:
        num_speculative_tokens: drafted nodes at most.
        max_match: longest suffix to look for, in tokens.
        min_match: shortest suffix to draft from.
        max_depth: tokens read after a match, and most levels of the tree.
        num_matches: most matches to read.

    Raises:
        InputError: if an option is of another type or out of range.

    Example:
        >>> import jspec
        >>> drafter = jspec.REST(16, max_match=8, max_depth=4)
        >>> drafter.init(batch=2, capacity=64, earlier=None).shape
        (2, 8)
    """

    num_speculative_tokens: Annotated[int, COUNT] = 64
    _: KW_ONLY
    max_match: Annotated[int, Integer(1, _MOST)] = 16
    min_match: Annotated[int, Integer(1)] = 2
    max_depth: Annotated[int, Integer(1, _MOST)] = 10
    num_matches: Annotated[int, Integer(1)] = 256

    follows_text: ClassVar = True

    def __post_init__(self):
        check_fields(self)
        check_match(self.min_match, self.max_match)
        # Count, depth and place make one number that orders prefixes; float32 is exact to 2^24.
        max_matches = int((2**24 / self.max_depth) ** 0.5) - 1
        check_integer(
            "num_matches", self.num_matches, 1, max_matches, f"with max_depth {self.max_depth}"
        )
        check_integer(
            "num_speculative_tokens",
            self.num_speculative_tokens,
            1,
            self.num_matches * self.max_depth,
            f"what {self.num_matches} matches of {self.max_depth} tokens give",
        )

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> Int[Array, "B suffix"]:
        """Returns an empty suffix: the memory is the row's own text, not an earlier call's."""
        del capacity
        if earlier is not None:
            self._check_state(earlier)
        return jnp.full((batch, self.max_match), NOTHING, jnp.int32)

    def prefill(
        self, params: Datastore, state: Int[Array, "B suffix"], chunk: PromptChunk
    ) -> Int[Array, "B suffix"]:
        """Returns the suffix after a chunk of the prompt: its last tokens.

        Raises:
            InputError: if the params are not datastore, or one of a larger vocabulary.
        """
        if not isinstance(params, Datastore):
            raise InputError(
                f"drafter_params of REST is a {type(params).__name__}; pass a datastore from "
                "jspec.datastore.load or build"
            )
        if params.vocab_size > (vocab_size := chunk.output.logits.shape[-1]):
            raise InputError(
                f"the datastore has a vocabulary of {params.vocab_size} and the model one of "
                f"{vocab_size}; build one with this model's tokenizer"
            )
        # The first token is the last of the suffix already, or the first of the text.
        return _append(state.at[:, -1].set(chunk.tokens[:, 0]), chunk.following, chunk.read_lengths)

    def draft(
        self, params: Datastore, state: Int[Array, "B suffix"], frame: Frame
    ) -> tuple[Tree, None]:
        """Drafts the tree of continuations by the three steps of the module's docstring."""
        self._check_state(state)
        first, count, length = longest_match(params, state, self.min_match)
        follow = continuations(params, first, count, length, self.num_matches, self.max_depth)
        return frequent_prefixes(frame.root, follow, self.num_speculative_tokens), None

    def update(
        self, params: Datastore, state: Int[Array, "B suffix"], aux: None, feedback: Feedback
    ) -> Int[Array, "B suffix"]:
        """Returns the suffix after a round: the last tokens, the emitted ones included."""
        del params, aux
        return _append(state, feedback.emitted, feedback.counts)

    def _check_state(self, state: PyTree) -> None:
        shape = getattr(state, "shape", None)
        if shape is None or len(shape) != 2 or shape[1] != self.max_match:
            kind = f"an array of shape {shape}" if shape else f"a {type(state).__name__}"
            raise InputError(
                f"drafter_state is {kind} and REST keeps the last {self.max_match} tokens of each "
                "row; pass the state of a REST with the same max_match"
            )


def _append(
    suffix: Int[Array, "B suffix"], new: Int[Array, "B T"], counts: Int[Array, " B"]
) -> Int[Array, "B suffix"]:
    """Returns the last tokens of the suffix and, behind it, the first `counts` of `new`."""
    index = counts[:, None] + jnp.arange(suffix.shape[1], dtype=jnp.int32)[None]
    both = jnp.concatenate([suffix, new.astype(jnp.int32)], axis=1)
    return jnp.take_along_axis(both, index, axis=1)


def longest_match(
    store: Datastore, suffix: Int[Array, "B suffix"], min_match: int
) -> tuple[Int[Array, " B"], Int[Array, " B"], Int[Array, " B"]]:
    """Finds each row's longest suffix that occurs in the corpus.

    All lengths are searched at once, and for each of them both ends of its range in the suffix
    array, in one bisection of log2(corpus) steps.
    """
    size, width = store.suffixes.shape[0], suffix.shape[1]
    lane = jnp.arange(width, dtype=jnp.int32)[None]
    lengths = jnp.arange(min_match, width + 1, dtype=jnp.int32)[:, None]
    inside = (lane < lengths)[None, :, None]
    # patterns[b, l, 0]: the row's last lengths[l] tokens. Beyond its length it is never read.
    patterns = suffix[:, jnp.minimum(width - lengths + lane, width - 1)][:, :, None]
    upper = jnp.array([False, True])[None, None]  # the end of the range is behind what equals

    def halve(_, bounds):
        low, high = bounds
        middle = low + (high - low) // 2
        tokens = _read(store, store.suffixes[middle], width)
        differs = inside & (tokens != patterns)
        column = differs.argmax(-1, keepdims=True)
        less = jnp.take_along_axis(tokens < patterns, column, axis=-1)[..., 0]
        right = jnp.where(differs.any(-1), less, upper)
        going = low < high
        return (
            jnp.where(going & right, middle + 1, low),
            jnp.where(going & ~right, middle, high),
        )

    shape = (suffix.shape[0], lengths.shape[0], 2)
    bounds = jnp.zeros(shape, jnp.int32), jnp.full(shape, size, jnp.int32)
    ends, _ = jax.lax.fori_loop(0, size.bit_length(), halve, vary(bounds, suffix))
    counts = ends[..., 1] - ends[..., 0]
    # A row's text may be shorter than the pattern.
    occurs = (counts > 0) & (patterns[:, :, 0, 0] != NOTHING)
    best = lengths.shape[0] - 1 - occurs[:, ::-1].argmax(-1).astype(jnp.int32)

    def pick(array):
        return jnp.take_along_axis(array, best[:, None], axis=1)[:, 0]

    return pick(ends[..., 0]), jnp.where(occurs.any(-1), pick(counts), 0), min_match + best


def continuations(
    store: Datastore,
    first: Int[Array, " B"],
    count: Int[Array, " B"],
    length: Int[Array, " B"],
    num_matches: int,
    depth: int,
) -> Int[Array, "B matches depth"]:
    """Reads what follows the matches, `num_matches` of them at most, evenly spaced."""
    rank, count = jnp.arange(num_matches, dtype=jnp.int32)[None], count[:, None]
    # rank * count / num_matches, without the product, which may not fit into 32 bits.
    spaced = rank * (count // num_matches) + rank * (count % num_matches) // num_matches
    place = first[:, None] + jnp.where(count > num_matches, spaced, rank)
    place = store.suffixes[jnp.minimum(place, store.suffixes.shape[0] - 1)] + length[:, None]
    return jnp.where((rank < count)[..., None], _read(store, place, depth), NOTHING)


def _read(store: Datastore, place: Int[Array, "*I"], size: int) -> Int[Array, "*I size"]:
    """Returns the tokens from these places on, -1 behind the corpus."""
    lane = jnp.arange(size, dtype=jnp.int32)
    places = place[..., None] + jnp.expand_dims(lane, tuple(range(place.ndim)))
    last = store.corpus.shape[0] - 1
    tokens = store.corpus[jnp.minimum(places, last)].astype(jnp.int32)
    return jnp.where(places <= last, tokens, NOTHING)
