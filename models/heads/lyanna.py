"""Lyanna's draft head (Chen et al. 2026): a chain of states, tokens afterwards."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from jspec._validate.arguments import check_integer
from jspec.memory import KVCache, TreeKV
from jspec.models import attention
from jspec.models.heads.base import TransformerHead
from jspec.models.linear import Linear
from jspec.models.llama import Block, LlamaConfig
from jspec.types import Output, PyTree

_EPS = 1e-6
_FIRST_GAIN = 0.1
"""The gain of the norm over token info before training.

The norm makes each token's info as large as this, whatever the two matrices are. With 1 a new head
would add noise of deviation 1 to every score; with 0 the matrices would get no gradient.
"""
TABLE_BYTES = 64 * 2**20
"""The largest table of token info by default; of more hot tokens, two factors are kept."""


@dataclass(frozen=True)
class LyannaConfig(LlamaConfig):
    """Shape of the layer, and of what knows the tokens."""

    rank: int = 64
    hot_tokens: int = 0
    first_token: bool = True


class LyannaHead(TransformerHead):
    """h_1 = layer(h_0 + E(t_1)), h_(i+1) = layer(h_i), and tokens enter as a bias on the scores.

    The fusion of the first step is EAGLE's (the paper leaves it open): a linear map of embedding
    and state side by side. As there, the layer has no norm at its entrance.

    Alongside `params` and `target` there are two collections. `hot` holds which tokens have token
    info, if not all have. `table`, which `collapse` makes, is the token info of every hot token, or
    its two narrow factors where all of it would take much memory.
    """

    config: LyannaConfig

    def setup(self):
        super().setup()
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        if config.first_token:
            self.fuse = Linear(config.hidden_size, True, *dtypes)
        self.layer = Block(config, *dtypes, input_norm=False)
        if config.rank:
            self.info = TokenInfo(config, self.param_dtype)

    def __call__(
        self,
        hidden: Float[Array, "B N E"],
        tokens: Int[Array, "B N"] | None,
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        """Returns the raw logits, l: the same whatever token came before."""
        x = hidden.astype(self.dtype)
        if tokens is not None and self.config.first_token:
            x = self.fuse(jnp.concatenate([self.embed(tokens), x], axis=-1))
        past = attention.past(memory, nodes, 0)
        x, k, v = self.layer(x, positions, mask, past)
        logits = self.logits(x)
        if self.is_initializing() and tokens is not None:
            self.informed(logits, tokens)  # else `init` would make no token info
        return Output(logits=logits, hidden=x, tentative=TreeKV((k,), (v,)))

    def further(
        self,
        hidden: Float[Array, "B N E"],
        tokens: Int[Array, "B N"] | None,
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        """Computes h_(i+1) = layer(h_i), whatever the tokens are."""
        del tokens
        return self(hidden, None, positions, mask, memory, nodes)

    def informed(
        self, logits: Float[Array, "B N V"], tokens: Int[Array, "B N"]
    ) -> Float[Array, "B N V"]:
        """Computes l' = l + RMSNorm(E'(t)): the scores after each token (section 4.1)."""
        if not self.config.rank:
            return logits
        return self.info(logits, tokens, self.embedding)

    def table(self, dtype: DTypeLike, max_bytes: int) -> dict[str, Array]:
        """Returns the token info of every hot token (section 5.1) and the row of each token."""
        embedded, size = self.info.hot(self.embedding), self.config.hot_tokens
        places = {"places": self.info.places()} if size else {}
        if table_bytes(self.config, dtype) > max_bytes:
            codes, up = self.info.factors(embedded)
            return {"codes": codes.astype(self.dtype), "up": up.astype(self.dtype), **places}
        rows = self.info.rows(embedded)
        if not jnp.issubdtype(dtype, jnp.integer):
            return {"rows": rows.astype(dtype), **places}
        steps = jnp.abs(rows).max(-1, keepdims=True) / jnp.iinfo(dtype).max
        steps = jnp.maximum(steps, jnp.finfo(rows.dtype).tiny)  # of a row of zeros
        return {"rows": jnp.round(rows / steps).astype(dtype), "steps": steps, **places}


class TokenInfo(nn.Module):
    """RMSNorm(E'(t)) with E'(t) = W_E[t] W1 W2, or read from a table of all or of its factors."""

    config: LyannaConfig
    param_dtype: jnp.dtype

    def setup(self):
        config = self.config
        size = config.hot_tokens or config.vocab_size
        init = nn.initializers.normal(0.02)
        self.down = self.param("down", init, (config.hidden_size, config.rank), self.param_dtype)
        self.up = self.param("up", init, (config.rank, size), self.param_dtype)
        gain = nn.initializers.constant(_FIRST_GAIN)
        self.scale = self.param("scale", gain, (size,), self.param_dtype)
        if config.hot_tokens:
            self.ids = self.variable("hot", "ids", jnp.arange, size)

    def __call__(
        self,
        logits: Float[Array, "B N V"],
        tokens: Int[Array, "B N"],
        embed: Float[Array, "V E"],
    ) -> Float[Array, "B N V"]:
        info = self.of(tokens, embed).astype(logits.dtype)
        if not self.config.hot_tokens:
            return logits + info
        return logits.at[..., self.ids.value].add(info, unique_indices=True)

    def of(self, tokens: Int[Array, "B N"], embed: Float[Array, "V E"]) -> Float[Array, "B N hot"]:
        """Returns each token's addition to the hot tokens' scores; 0 for a cold token."""
        if self.has_variable("table", "steps"):
            return self._read("rows", tokens) * self._read("steps", tokens)
        if self.has_variable("table", "rows"):
            return self._read("rows", tokens)
        if self.has_variable("table", "codes"):
            return self._read("codes", tokens) @ self.get_variable("table", "up")
        info = self.rows(embed[tokens])
        if not self.config.hot_tokens:
            return info
        cold = self.places()[tokens] == self.config.hot_tokens
        return jnp.where(cold[..., None], 0, info)

    def _read(self, name: str, tokens: Int[Array, "B N"]) -> Shaped[Array, "B N w"]:
        """Returns the rows of tokens in a part of the table; 0 for those that are not hot."""
        places = self.get_variable("table", "places")[tokens] if self.config.hot_tokens else tokens
        return self.get_variable("table", name).at[places].get(mode="fill", fill_value=0)

    def factors(
        self, embedded: Float[Array, "hot E"]
    ) -> tuple[Float[Array, "hot r"], Float[Array, "r hot"]]:
        """Returns two factors of which `rows` is the product."""
        up = self.up.astype(jnp.float32)
        codes = embedded.astype(jnp.float32) @ self.down.astype(jnp.float32)
        square = jnp.einsum("...r,rs,...s->...", codes, up @ up.T, codes) / up.shape[-1]
        unit = codes * jax.lax.rsqrt(square + _EPS)[..., None]
        return unit, up * self.scale.astype(jnp.float32)

    def rows(self, embedded: Float[Array, "... E"]) -> Float[Array, "... hot"]:
        """Computes RMSNorm(W_E[t] W1 W2)."""
        wide = (embedded.astype(jnp.float32) @ self.down.astype(jnp.float32)) @ self.up.astype(
            jnp.float32
        )
        unit = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + _EPS)
        return unit * jnp.broadcast_to(self.scale.astype(jnp.float32), unit.shape)

    def hot(self, embed: Float[Array, "V E"]) -> Float[Array, "hot E"]:
        return embed[self.ids.value] if self.config.hot_tokens else embed

    def places(self) -> Int[Array, " V"]:
        """Returns each token's index among the hot ones; for a cold token their number."""
        size = self.config.hot_tokens
        ids = self.ids.value
        return (
            jnp.full(self.config.vocab_size, size, ids.dtype)
            .at[ids]
            .set(jnp.arange(size, dtype=ids.dtype))
        )


def table_bytes(config: LyannaConfig, dtype: DTypeLike) -> int:
    """Returns the memory of a table of all token info."""
    return (config.hot_tokens or config.vocab_size) ** 2 * jnp.dtype(dtype).itemsize


def collapse(
    head: LyannaHead,
    variables: PyTree,
    dtype: DTypeLike | None = None,
    max_bytes: int = TABLE_BYTES,
) -> PyTree:
    """Returns the variables with a table of all token info.

    Of H hot tokens it is H * H entries, or its two factors of 2 * rank * H where the table would
    take more than `max_bytes`: of a vocabulary of 49,152 it takes 9.7 GB in float32 and 2.4 GB in
    int8, and its factors 25 MB.
    """
    check_integer("max_bytes", max_bytes, 0, None)
    if not head.config.rank:
        return variables
    plain = {name: part for name, part in variables.items() if name != "table"}
    table_dtype = jnp.dtype(head.dtype if dtype is None else dtype)
    table = head.apply(plain, table_dtype, max_bytes, method="table")
    return {**plain, "table": {"info": table}}
