"""One-pass block heads (DFlash, DSpark, JetSpec): a whole block of tokens from one forward."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec import memory
from jspec._validate.errors import InputError
from jspec.memory import KVCache, TreeKV
from jspec.models import attention
from jspec.models.decoder import Decoder
from jspec.models.linear import Linear, unembed
from jspec.models.llama import Block, LlamaConfig
from jspec.models.norms import RMSNorm
from jspec.types import PyTree


@dataclass(frozen=True)
class BlockConfig(LlamaConfig):
    """Shape of the layers, and which of the published heads it is."""

    taps: tuple[int, ...] = (1,)
    block_size: int = 8
    first_slot: int = 0
    causal: bool = False
    mask_token: int = -1
    markov_rank: int = 0
    confidence_width: int = 0
    draft_tokens: int = 0

    def __post_init__(self):
        if not 0 <= self.first_slot < self.block_size:
            raise InputError(
                f"first_slot is {self.first_slot} and the block has {self.block_size} slots; use "
                "0 or 1, and a block_size above it"
            )
        widths = (0, self.hidden_size, self.hidden_size + self.markov_rank)
        if self.confidence_width not in widths:
            raise InputError(
                f"confidence_width is {self.confidence_width}; a confidence head reads "
                f"{widths[1]} numbers of a state, or {widths[2]} with the token before it"
            )


def block_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """Returns the taps that DFlash chooses: from the first layer to the last but two, evenly."""
    if count == 1:
        return (min(num_layers // 2 + 1, num_layers - 1),)
    # Python's rounding, half to even, as in the authors' code. Their numbers are of outputs; ours
    # are of inputs, one more. A small target's last layer is not passed.
    span = max(num_layers - 4, 0)
    outputs = (round(1 + place * span / (count - 1)) for place in range(count))
    return tuple(min(output + 1, num_layers - 1) for output in outputs)


class BlockHead(Decoder):
    """The network of DFlash (z-lab), DSpark (DeepSeek 2026, arXiv:2607.05147) and JetSpec.

    The target's tapped states, mapped and normed once, are what every layer's keys and values of
    the context are made of. The rows of a block are queries: the anchor's embedding, then the same
    vector in every other slot. They see the context before the anchor, and each other. A state of
    a row, after the last norm, goes through the target's head.

    Collections alongside `params`: `target` holds the target's own arrays; `scored` the target's
    ids of the tokens that it scores, if it has a head of its own.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> config = BlockConfig(100, 16, 24, 1, 4, 2, 4, 64, taps=(1, 2), block_size=5)
        >>> head = BlockHead(config)
        >>> head.features, head.num_slots
        (32, 5)
    """

    config: BlockConfig

    until = staticmethod(memory.until)

    @property
    def features(self) -> int:
        """F, width of the tapped states side by side."""
        return self.config.hidden_size * len(self.config.taps)

    @property
    def num_slots(self) -> int:
        """D, tokens that one forward pass drafts."""
        return self.config.block_size - self.config.first_slot

    @nn.nowrap
    def read(
        self, params: PyTree, hidden: Float[Array, "B N F"], positions: Int[Array, "B N"]
    ) -> TreeKV:
        """Returns keys and values of the context at some positions."""
        kv: Any = self.apply(params, hidden, positions, method="keys_and_values")
        return kv

    @nn.nowrap
    def draft(
        self,
        params: PyTree,
        root: Int[Array, " B"],
        positions: Int[Array, " B"],
        cache: KVCache,
    ) -> Float[Array, "B D E"]:
        """Returns the states of the D tokens after each row's root; the cache has the context."""
        states: Any = self.apply(params, root, positions, cache, method="block")
        return states

    @property
    def num_scored(self) -> int:
        """The number d of tokens that it scores."""
        return self.config.draft_tokens or self.vocab_size

    @nn.nowrap
    def scored(self, params: PyTree) -> Int[Array, " d"]:
        """Returns the tokens that it scores."""
        ids: Any = self.apply(params, method="scored_ids")
        return ids

    @nn.nowrap
    def score(self, params: PyTree, hidden: Float[Array, "*S E"]) -> Float[Array, "*S d"]:
        """Returns the scores that states give these, whatever token comes before."""
        scores: Any = self.apply(params, hidden, method="scores")
        return scores

    @nn.nowrap
    def inform(
        self, params: PyTree, scores: Float[Array, "*S d"], tokens: Int[Array, "*S"]
    ) -> Float[Array, "*S d"]:
        """Returns the scores, given the token before."""
        informed: Any = self.apply(params, scores, tokens, method="informed")
        return informed

    @nn.nowrap
    def transition(
        self, params: PyTree, tokens: Int[Array, "*S"], following: Int[Array, "*S K"]
    ) -> Float[Array, "*S K"]:
        """Returns a token's addition to some scores of the next; 0 without a Markov map."""
        added: Any = self.apply(params, tokens, following, method="added")
        return added

    @nn.nowrap
    def confidence(
        self, params: PyTree, hidden: Float[Array, "*S E"], tokens: Int[Array, "*S"]
    ) -> Float[Array, "*S"]:
        """Returns log odds that a state's token is kept; 0 without such a head."""
        odds: Any = self.apply(params, hidden, tokens, method="confident")
        return odds

    def setup(self):
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        width, normal = config.hidden_size, nn.initializers.normal(0.02)
        table = config.vocab_size, width
        self.target_embed = self.variable("target", "embed", jnp.zeros, table, self.param_dtype)
        size = self.num_scored
        if config.draft_tokens:
            self.ids = self.variable("scored", "ids", jnp.arange, size)
            self.head = self.param("head", normal, (size, width), self.param_dtype)
        else:
            self.target_head = self.variable("target", "head", jnp.zeros, table, self.param_dtype)
        self.fuse = Linear(width, False, *dtypes)
        self.state_norm, self.norm = (RMSNorm(config.norm_eps, *dtypes) for _ in range(2))
        self.layers = [Block(config, *dtypes) for _ in range(config.num_layers)]
        if config.mask_token < 0:
            self.mask = self.param("mask", normal, (width,), self.param_dtype)
        if rank := config.markov_rank:
            before = config.vocab_size, rank
            self.markov_from = self.param("markov_from", normal, before, self.param_dtype)
            # Zero, so that a new head is one without a Markov map.
            self.markov_to = self.param(
                "markov_to", nn.initializers.zeros, (size, rank), self.param_dtype
            )
        if config.confidence_width:
            self.certainty = Linear(1, True, *dtypes)

    def __call__(
        self,
        hidden: Float[Array, "B S F"],
        tokens: Int[Array, "B A"],
        positions: Int[Array, "B A"],
        mask: Bool[Array, "B A S"],
    ) -> Float[Array, "B A D E"]:
        """Returns states of the blocks of A anchors in a text, without a cache."""
        places = jnp.broadcast_to(jnp.arange(hidden.shape[1]), hidden.shape[:2])
        states = self._rows(tokens, positions, mask, None, self.keys_and_values(hidden, places))
        if self.is_initializing():
            self.scores(states)
            self.confident(states, jnp.zeros(states.shape[:-1], jnp.int32))
        return states

    def keys_and_values(
        self, hidden: Float[Array, "B N F"], positions: Int[Array, "B N"]
    ) -> TreeKV:
        """Returns keys and values that every layer has of the target's states."""
        c = self.state_norm(self.fuse(hidden.astype(self.dtype)))
        batch, count = positions.shape
        alone, nothing = jnp.ones((batch, count, count), bool), attention.past(None, None, 0)
        # A layer as it is, of which only keys and values are kept: what else it would compute is
        # never computed.
        pairs = [layer(c, positions, alone, nothing, read=c)[1:] for layer in self.layers]
        keys, values = zip(*pairs, strict=True)
        return TreeKV(keys, values)

    def block(
        self, root: Int[Array, " B"], positions: Int[Array, " B"], cache: KVCache
    ) -> Float[Array, "B D E"]:
        """Returns states of one block per row, over the cached context."""
        nothing = jnp.ones((len(root), 1, 0), bool)
        return self._rows(root[:, None], positions[:, None], nothing, cache, None)[:, 0]

    def _rows(
        self,
        tokens: Int[Array, "B A"],
        positions: Int[Array, "B A"],
        mask: Bool[Array, "B A M"],
        cache: KVCache | None,
        nodes: TreeKV | None,
    ) -> Float[Array, "B A D E"]:
        """Returns states of A blocks per row that do not see each other."""
        config, (batch, anchors) = self.config, tokens.shape
        size, width = config.block_size, config.hidden_size
        embed = self.target_embed.value
        empty = embed[config.mask_token] if config.mask_token >= 0 else self.mask
        x = jnp.broadcast_to(empty.astype(self.dtype), (batch, anchors, size, width))
        x = x.at[:, :, 0].set(embed[tokens].astype(self.dtype)).reshape(batch, -1, width)
        inside = np.tri(size) if config.causal else np.ones((size, size))
        block_mask = np.kron(np.eye(anchors), inside) > 0
        block_mask = jnp.broadcast_to(block_mask, (batch, *block_mask.shape))
        seen = jnp.concatenate([jnp.repeat(mask, size, axis=1), block_mask], axis=-1)
        places = (positions[..., None] + jnp.arange(size)[None, None]).reshape(batch, -1)
        for number, layer in enumerate(self.layers):
            x, _, _ = layer(x, places, seen, attention.past(cache, nodes, number))
        states = self.norm(x).reshape(batch, anchors, size, width)
        return states[:, :, config.first_slot :]

    def scores(self, hidden: Float[Array, "*S E"]) -> Float[Array, "*S d"]:
        """Scores of states."""
        table = self.head if self.config.draft_tokens else self.target_head.value
        return unembed(hidden.astype(self.dtype), table)

    def informed(
        self, scores: Float[Array, "*S d"], tokens: Int[Array, "*S"]
    ) -> Float[Array, "*S d"]:
        """Returns the scores, given the token before (DSpark, section 3)."""
        return scores + self._after(tokens) if self.config.markov_rank else scores

    def scored_ids(self) -> Int[Array, " d"]:
        """Returns the tokens that it scores."""
        return self.ids.value if self.config.draft_tokens else jnp.arange(self.vocab_size)

    def added(
        self, tokens: Int[Array, "*S"], following: Int[Array, "*S K"]
    ) -> Float[Array, "*S K"]:
        """Returns what `informed` adds, for some tokens alone."""
        if not self.config.markov_rank:
            return jnp.zeros(following.shape, jnp.float32)
        rows = following
        if self.config.draft_tokens:
            size = len(self.ids.value)
            places = jnp.zeros(self.vocab_size, jnp.int32)
            rows = places.at[self.ids.value].set(jnp.arange(size, dtype=jnp.int32))[following]
        return jnp.einsum(
            "...r,...kr->...k",
            self._before(tokens),
            self.markov_to[rows].astype(self.dtype),
            preferred_element_type=jnp.float32,
        )

    def _before(self, tokens: Int[Array, "*S"]) -> Float[Array, "*S r"]:
        """Returns the Markov map's vectors of preceding tokens."""
        return self.markov_from[tokens].astype(self.dtype)

    def _after(self, tokens: Int[Array, "*S"]) -> Float[Array, "*S d"]:
        """Returns what tokens add to the scores of those that it scores."""
        return unembed(self._before(tokens), self.markov_to)

    def confident(
        self, hidden: Float[Array, "*S E"], tokens: Int[Array, "*S"]
    ) -> Float[Array, "*S"]:
        """Returns log odds of the confidence head (DSpark, section 3)."""
        config = self.config
        if not config.confidence_width:
            return jnp.zeros(tokens.shape, jnp.float32)
        read = hidden.astype(self.dtype)
        if config.confidence_width > config.hidden_size:
            read = jnp.concatenate([read, self._before(tokens)], axis=-1)
        return self.certainty(read)[..., 0].astype(jnp.float32)
