"""A draft model of a target whose vocabulary is padded to another size."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.arguments import check_integer
from jspec.protocols import CausalLM
from jspec.types import Output, PyTree


@dataclass(frozen=True)
class PaddedVocabulary:
    """A model that scores as many tokens as another one, of the same tokenizer.

    Models of one family pad their vocabulary to different sizes: Qwen2.5 has 151,665 tokens, and
    scores 151,936 of them in the small models and 152,064 in the large ones. The ids beyond the
    smaller size are padding, which no text has. Here they are cut: scores that the other has not
    are dropped, those that this model has not are -inf, and an id that it has not is read as its
    last one. What a target emits is not touched by any of it.

    Args:
        model: the draft model.
        vocab_size: V of the target.

    Raises:
        InputError: if the size is not valid.

    Example:
        >>> from jspec.testing import PrefixLM
        >>> draft = PaddedVocabulary(PrefixLM(vocab_size=50), 64)
        >>> draft.vocab_size
        64
    """

    model: CausalLM
    vocab_size: int

    def __post_init__(self) -> None:
        check_integer("vocab_size", self.vocab_size, 1, 2**31 - 1)

    @property
    def context(self) -> int | None:
        """The number of positions that the model can place; None if it has no bound."""
        return self.model.context

    def init_memory(self, batch: int, capacity: int) -> PyTree:
        """Returns the model's memory."""
        return self.model.init_memory(batch, capacity)

    @property
    def commit(self) -> Any:
        """The model's; see `jspec.protocols.CausalLM`."""
        return self.model.commit

    @property
    def until(self) -> Any:
        return self.model.until  # pyright: ignore[reportAttributeAccessIssue]

    def apply(
        self,
        params: PyTree,
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: PyTree,
        nodes: PyTree = None,
    ) -> Output:
        """Returns the model's forward pass; see `jspec.protocols.CausalLM`."""
        ids = jnp.minimum(tokens, self.model.vocab_size - 1)
        earlier = () if nodes is None else (nodes,)
        output = self.model.apply(params, ids, positions, mask, memory, *earlier)
        return replace(output, logits=_resize(output.logits, self.vocab_size))


def _resize(logits: Float[Array, "B N _"], size: int) -> Float[Array, "B N V"]:
    missing = max(size - logits.shape[-1], 0)
    padding = ((0, 0), (0, 0), (0, missing))
    return jnp.pad(logits[..., :size], padding, constant_values=-jnp.inf)
