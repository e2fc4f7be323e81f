"""Multi-head latent attention (DeepSeek-V2, section 2.1), in its absorbed form.

All heads make their keys and values of one latent vector per token, and the memory holds that
vector and a rotary key. Products with a head's matrices are associative, so that none of its keys
and values is ever made: a query goes through the matrix of the keys and is compared with latents,
and what it reads, a mean of latents, goes through the values' matrix. Nodes of a tree are compared
as committed tokens are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec.memory import Held, kept
from jspec.models import attention, eight_bits
from jspec.models.linear import as_laid_out
from jspec.models.norms import RMSNorm
from jspec.models.rope import Rope, rotate, turns

_EPS = 1e-6
"""Of the norms of latents, whatever the epsilon of the other norms is."""


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of multi-head latent attention.

    Raises:
        InputError: if the lanes with positions do not make pairs.
    """

    rank: int
    """R, lanes of a token's latent vector."""
    query_rank: int | None
    """Lanes of the latent vector that queries are made of; None: they are made of the states."""
    plain_dim: int
    """Lanes of a head's queries and keys that know no positions."""
    rotary_dim: int
    """Lanes of a head's queries that are turned, and of the one rotary key of all heads."""
    value_dim: int
    """Lanes of a head's values."""

    def __post_init__(self):
        if self.rotary_dim % 2:
            raise InputError(
                f"rotary_dim is {self.rotary_dim}, and lanes are turned in pairs; pass an even one"
            )


def check(num_kv_heads: int, ropes: Sequence[Rope | None]) -> None:
    """Refuses what a decoder of latents has no place for.

    Raises:
        InputError: if it keeps more than one head, or a layer has no rotary positions.
    """
    if num_kv_heads != 1:
        raise InputError(
            f"num_kv_heads is {num_kv_heads}, and latents are kept once for all heads; pass 1"
        )
    if None in ropes:
        raise InputError(
            f"layer {ropes.index(None)} has no rope, and latents have a rotary key; give it one"
        )


def attend(
    block: Any,
    read: Float[Array, "B N E"],
    positions: Int[Array, "B N"],
    mask: Bool[Array, "B N M+N"],
    past: attention.Past,
    rope: Rope,
    window: int | None,
) -> tuple[Float[Array, "B N E"], Held, Held]:
    """Returns attention's output, and the tokens' rotary keys and latents.

    Args:
        block: the layer, a `jspec.models.llama.Block`, whose weights these are.
        read: what queries and latents are made of.
        positions: of the tokens.
        mask: who sees whom, as in `jspec.models.attention.attend`.
        past: what the layer holds of tokens and nodes before.
        rope: turns the rotary lanes.
        window: tokens that a token sees; None: all before it.
    """
    config, sizes = block.config, block.config.latent
    heads, dim = config.num_heads, sizes.plain_dim + sizes.rotary_dim
    kv_dim, first = sizes.rank + sizes.rotary_dim, sizes.query_rank or 0

    def norm(name: str, x: Float[Array, "B N R"]) -> Float[Array, "B N R"]:
        return RMSNorm(_EPS, block.dtype, block.param_dtype, name=name)(x)

    joint = as_laid_out(block.dense(first + kv_dim, "latents", config.qkv_bias)(read))
    of_queries, latents, key = jnp.split(joint, [first, first + sizes.rank], axis=-1)
    query_input = read if sizes.query_rank is None else norm("q_norm", of_queries)
    q = as_laid_out(block.dense(heads * dim, "q", False)(query_input))
    q = q.reshape(*read.shape[:2], heads, dim)
    plain, turned = jnp.split(q, [sizes.plain_dim], axis=-1)
    turn = turns(rope, sizes.rotary_dim, config.context, positions)
    turned, key = (rotate(x, turn, rope.interleaved) for x in (turned, key[:, :, None]))
    # A row for each lane of a head's keys, then of its values, as the files have them.
    shape = heads * (sizes.plain_dim + sizes.value_dim), sizes.rank
    high = eight_bits.high_precision(block.param_dtype, block.dtype)
    up = block.param("kv_up", nn.initializers.normal(0.02), shape, high).astype(block.dtype)
    key_up, value_up = jnp.split(up.reshape(heads, -1, sizes.rank), [sizes.plain_dim], axis=1)
    absorbed = jnp.einsum("bnhd,hdr->bnhr", plain, key_up)
    keys = kept(key.swapaxes(1, 2), block.kv_dtype)
    values = kept(norm("kv_norm", latents)[:, None], block.kv_dtype)
    keys, values = past.put(keys, values)
    mixed = attention.attend(
        jnp.concatenate([absorbed, turned], axis=-1),
        *(keys, values, mask, past, positions),
        scale=dim**-0.5 if config.attention_scale is None else config.attention_scale,
        window=window,
        latent=True,
        impl=block.attention_impl,
    )
    mixed = jnp.einsum("bnhr,hvr->bnhv", mixed.reshape(*q.shape[:3], -1), value_up)
    mixed = mixed.reshape(*read.shape[:2], -1)
    return block.dense(config.hidden_size, "output", config.output_bias)(mixed), keys, values
