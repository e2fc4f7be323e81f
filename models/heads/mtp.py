"""The draft head that comes with a model's own weights: multi-token prediction (MTP, NextN)."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.memory import KVCache, TreeKV
from jspec.models import attention
from jspec.models.heads.base import TransformerHead
from jspec.models.linear import Linear
from jspec.models.llama import Block, LlamaConfig, kept_sizes
from jspec.models.norms import RMSNorm
from jspec.types import Output


@dataclass(frozen=True)
class MTPConfig(LlamaConfig):
    """Shape of the layer, which is one of the target's family: `layers` has one entry."""

    own_head: bool = False


class MTPHead(TransformerHead):
    """One decoder layer that was trained with the target (DeepSeek-V3, arXiv:2412.19437, 2.2).

    With h_j the target's state at position j after its final norm, and t_(j+1) the next token,

        x = layer(W [norm(embed(t_(j+1))); norm(h_j)]),  h' = norm(x),  scores = head(h')

    at position j. Further steps read h' in place of h_j, as vLLM, SGLang and llama.cpp do; the
    paper has a layer for each step, of which the published weights hold one. vLLM zeroes the first
    token's embedding of DeepSeek's and GLM's; here it is read.
    """

    config: MTPConfig

    def kept_sizes(self, layer: int) -> tuple[int, int, int]:
        return kept_sizes(self.config, self.config.layers[layer])

    def setup(self):
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        super().setup()
        self.fuse = Linear(config.hidden_size, False, *dtypes)
        self.token_norm, self.state_norm, self.norm = (
            RMSNorm(config.norm_eps, *dtypes, config.norm_offset) for _ in range(3)
        )
        self.layer = Block(config, *dtypes, layer=config.layers[0])

    def __call__(
        self,
        hidden: Float[Array, "B N E"],
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        pair = self.token_norm(self.embed(tokens)), self.state_norm(hidden.astype(self.dtype))
        read = self.fuse(jnp.concatenate(pair, axis=-1))
        x, k, v = self.layer(read, positions, mask, attention.past(memory, nodes, 0))
        x = self.norm(x)
        return Output(logits=self.logits(x), hidden=x, tentative=TreeKV((k,), (v,)))
