"""EAGLE-3's draft head (Li et al. 2025, arXiv:2503.01840): low, middle and high states at once."""

from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.memory import KVCache, TreeKV
from jspec.models import attention
from jspec.models.heads.base import TransformerHead
from jspec.models.linear import Linear, unembed
from jspec.models.llama import Block, LlamaConfig
from jspec.models.norms import RMSNorm
from jspec.types import Output


@dataclass(frozen=True)
class Eagle3Config(LlamaConfig):
    """Shape of the layer, of what it reads and of the vocabulary that it scores.

    Args:
        taps: layers of the target whose inputs it reads, side by side: `Llama.taps`.
        draft_tokens: tokens that it scores; 0 is all of them.
    """

    taps: tuple[int, ...] = (2, 16, 29)
    draft_tokens: int = 0


class EAGLE3Head(TransformerHead):
    """EAGLE-3 as `jspec.DraftHead`, with its own head over its own vocabulary.

    The first step reads the states of the target's tapped layers, mapped to one; later steps read
    what the layer gave before, as it is: the last norm belongs to the head. Tokens that it does not
    score get -inf.

    Beside `params` and `target` there is the collection `scored`: the target's ids of the tokens
    that it scores, if these are not all.
    """

    config: Eagle3Config

    @property
    def features(self) -> int:
        """F, width of the tapped states side by side."""
        return self.config.hidden_size * len(self.config.taps)

    def setup(self):
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        table = config.vocab_size, config.hidden_size
        self.target_embed = self.variable("target", "embed", jnp.zeros, table, self.param_dtype)
        self.fuse = Linear(config.hidden_size, False, *dtypes)
        self.token_norm, self.state_norm, self.norm = (
            RMSNorm(config.norm_eps, *dtypes) for _ in range(3)
        )
        self.layer = Block(config, *dtypes, input_norm=False)
        size = config.draft_tokens or config.vocab_size
        init = nn.initializers.normal(0.02)
        self.head = self.param("head", init, (size, config.hidden_size), self.param_dtype)
        if config.draft_tokens:
            self.ids = self.variable("scored", "ids", jnp.arange, size)

    def __call__(
        self,
        hidden: Float[Array, "B N F"],
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        x = hidden.astype(self.dtype)
        if x.shape[-1] != self.config.hidden_size:
            x = self.fuse(x)
        read = jnp.concatenate([self.token_norm(self.embed(tokens)), self.state_norm(x)], axis=-1)
        past = attention.past(memory, nodes, 0)
        x, k, v = self.layer(x, positions, mask, past, read)
        return Output(logits=self.logits(x), hidden=x, tentative=TreeKV((k,), (v,)))

    def logits(self, hidden: Float[Array, "B N E"]) -> Float[Array, "B N V"]:
        """The head's own scores, -inf for tokens that it does not score."""
        scores = unembed(self.norm(hidden.astype(self.dtype)), self.head)
        if not self.config.draft_tokens:
            return scores
        wide = jnp.full((*scores.shape[:-1], self.vocab_size), -jnp.inf, scores.dtype)
        return wide.at[..., self.ids.value].set(scores, unique_indices=True)
