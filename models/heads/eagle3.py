"""EAGLE-3's draft head (Li et al. 2025, arXiv:2503.01840), and 3.1 and 4."""

from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.memory import KVCache, TreeKV
from jspec.models import attention
from jspec.models.heads import candidates
from jspec.models.heads.base import TransformerHead
from jspec.models.heads.candidates import CandidateConfig
from jspec.models.linear import Linear
from jspec.models.llama import Block
from jspec.models.norms import RMSNorm
from jspec.types import Output


@dataclass(frozen=True)
class Eagle3Config(CandidateConfig):
    """Shape of the layer, of what it reads and of the vocabulary that it scores.

    EAGLE-3.1 (arXiv:2605.09992) has `fc_norm` and `norm_output`. EAGLE-4 has these too, a window
    (`layers`) and candidates (`candidate_rank`).
    """

    taps: tuple[int, ...] = (2, 16, 29)
    draft_tokens: int = 0
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    own_embed: bool = False
    own_head: bool = True


class EAGLE3Head(TransformerHead):
    """EAGLE-3, 3.1 and 4 as `jspec.DraftHead`, most with a head over a vocabulary of their own.

    The first step reads the states of the target's tapped layers, mapped to one; later steps read
    what the layer gave before, as it is: the last norm belongs to the head, but with `norm_output`.
    Tokens that it does not score get -inf.

    Alongside `params` and `target` there is the collection `scored`, the target's ids of the tokens
    that it scores, if these are not all; and `candidates`, the factors that find candidates.
    """

    config: Eagle3Config

    @property
    def features(self) -> int:
        """F, width of the tapped states side by side."""
        return self.config.hidden_size * len(self.config.taps)

    def setup(self):
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        self.embedding = self.shared("embed")
        self.fuse = Linear(config.hidden_size, False, *dtypes)
        self.token_norm, self.state_norm, self.norm = (
            RMSNorm(config.norm_eps, *dtypes) for _ in range(3)
        )
        if config.fc_norm:
            self.fc_norms = [RMSNorm(config.norm_eps, *dtypes) for _ in config.taps]
        if config.norm_before_fc:
            self.fused_norm = RMSNorm(config.norm_eps, *dtypes)
        layer = config.layers[0] if config.layers else None
        self.layer = Block(config, *dtypes, input_norm=False, layer=layer)
        size = config.draft_tokens or config.vocab_size
        if config.draft_tokens:
            self.ids = self.variable("scored", "ids", jnp.arange, size)
        if config.own_head:
            init = nn.initializers.normal(0.02)
            self.head = self.param("head", init, (size, config.hidden_size), self.param_dtype)
        else:
            table = self.shared("head")
            self.head = table[self.ids.value] if config.draft_tokens else table
        if config.candidate_rank:
            candidates.declare(self, config)

    def __call__(
        self,
        hidden: Float[Array, "B N F"],
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        config, x = self.config, hidden.astype(self.dtype)
        if x.shape[-1] != config.hidden_size:
            x = self.fuse(self.normed(x))
        state = self.state_norm(x)
        read = jnp.concatenate([self.token_norm(self.embed(tokens)), state], axis=-1)
        past = attention.past(memory, nodes, 0)
        x = state if config.norm_before_residual else x
        x, k, v = self.layer(x, positions, mask, past, read=read)
        x = self.norm(x) if config.norm_output else x
        return Output(logits=self.logits(x), hidden=x, tentative=TreeKV((k,), (v,)))

    def normed(self, hidden: Float[Array, "B N F"]) -> Float[Array, "B N F"]:
        """Returns the tapped states as they are mapped to one."""
        if self.config.norm_before_fc:
            hidden = self.fused_norm(hidden)
        if self.config.fc_norm:
            parts = jnp.split(hidden, len(self.config.taps), axis=-1)
            each = [norm(part) for norm, part in zip(self.fc_norms, parts, strict=True)]
            hidden = jnp.concatenate(each, axis=-1)
        return hidden

    def logits(self, hidden: Float[Array, "B N E"]) -> Float[Array, "B N V"]:
        """Returns the head's own scores, -inf for tokens that it does not score."""
        hidden = hidden.astype(self.dtype)
        behind = hidden if self.config.norm_output else self.norm(hidden)
        scores = candidates.scores(self, behind, self.head)
        if not self.config.draft_tokens:
            return scores
        wide = jnp.full((*scores.shape[:-1], self.vocab_size), -jnp.inf, scores.dtype)
        return wide.at[..., self.ids.value].set(scores, unique_indices=True)
