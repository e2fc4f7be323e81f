"""The base of draft heads of one transformer layer: their shape, and the arrays they borrow."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.memory import KVCache, TreeKV, until
from jspec.models.decoder import Decoder
from jspec.models.linear import unembed
from jspec.models.llama import LlamaConfig
from jspec.types import Output, PyTree


class TransformerHead(Decoder):
    """A `jspec.DraftHead` that borrows embedding and scores from its target.

    The variables' collection `target` holds the target's own arrays, never trained or saved.
    """

    config: LlamaConfig

    until = staticmethod(until)

    @property
    def num_layers(self) -> int:
        """Layers that have a cache."""
        return 1

    @property
    def features(self) -> int:
        """F, width of the states that it reads."""
        return self.hidden_size

    @nn.nowrap
    def score(self, params: PyTree, hidden: Float[Array, "B N E"]) -> Float[Array, "B N V"]:
        """Returns the scores of states that the head predicted."""
        logits: Any = self.apply(params, hidden, method="logits")
        return logits

    @nn.nowrap
    def inform(
        self, params: PyTree, logits: Float[Array, "B N V"], tokens: Int[Array, "B N"]
    ) -> Float[Array, "B N V"]:
        """Returns the scores of what follows each token, where the states do not know it yet."""
        informed: Any = self.apply(params, logits, tokens, method="informed")
        return informed

    @nn.nowrap
    def hot(self, params: PyTree) -> Int[Array, " d"] | None:
        """Returns the drafted tokens, which training scores; None: all."""
        del params
        return None

    @nn.nowrap
    def score_hot(
        self,
        params: PyTree,
        hidden: Float[Array, "B N E"],
        tokens: Int[Array, "B N"] | None = None,
    ) -> Float[Array, "B N d"]:
        """Returns the scores of the hot tokens alone; after `tokens`, where these are given."""
        scores: Any = self.apply(params, hidden, tokens, method="hot_scores")
        return scores

    def setup(self):
        self.embedding, self.unembedding = self.shared("embed"), self.shared("head")

    def shared(self, name: str) -> Array:
        """Returns the target's embeddings or head; a parameter if the config says `own_`."""
        shape = self.config.vocab_size, self.config.hidden_size
        if getattr(self.config, f"own_{name}", False):
            return self.param(name, nn.initializers.normal(0.02), shape, self.param_dtype)
        return self.variable("target", name, jnp.zeros, shape, self.param_dtype).value

    def embed(self, tokens: Int[Array, "B N"]) -> Float[Array, "B N E"]:
        """Returns the embedding of tokens."""
        return self.embedding[tokens].astype(self.dtype)

    def logits(self, hidden: Float[Array, "B N E"]) -> Float[Array, "B N V"]:
        """Returns the scores after states."""
        return unembed(hidden.astype(self.dtype), self.unembedding)

    def further(
        self,
        hidden: Float[Array, "B N E"],
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        """Returns the steps after the first, from states that the head predicted."""
        return self(hidden, tokens, positions, mask, memory, nodes)

    def informed(
        self, logits: Float[Array, "B N V"], tokens: Int[Array, "B N"]
    ) -> Float[Array, "B N V"]:
        """Returns the scores as they are: these states know their tokens."""
        del tokens
        return logits


def gather_hot(head: Any, variables: PyTree) -> PyTree:
    """Returns the variables with the hot tokens' rows gathered."""
    if not head.config.hot_tokens:
        return variables
    return {**variables, "hot": head.apply(variables, method="hot_rows")}
