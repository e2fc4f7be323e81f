"""Jump-forward drafting (Zheng et al. 2024): the tokens that a grammar forces, for nothing."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from jspec import tree as trees
from jspec._validate.arguments import check_integer
from jspec._xla.manual_axes import vary
from jspec.protocols import Drafter
from jspec.types import Frame, PyTree, Tree

_PROBABILITY = 0.9
"""The probability that a forced text is spelled by the longest tokens."""


@dataclass(frozen=True)
class JumpForward(Drafter):
    """Drafts the chain of tokens that a row's grammar forces.

    SGLang's jump-forward decoding (Zheng et al. 2024, section 4) writes such text without asking
    the model. Here it is drafted and verified as any other, since the same text can be spelled by
    other tokens: the output stays plain decoding's. It goes well in a merge with a drafter
    for the parts that are free. Without a grammar it drafts nothing.

    Args:
        num_speculative_tokens: most drafted tokens.

    Raises:
        InputError: if the number is not an integer of at least 1.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> letters = [bytes([97 + token]) for token in range(22)] + [None]
        >>> result = jspec.decode(
        ...     model, model.init(), [[1, 2, 3]], max_new_tokens=8,
        ...     stopping=jspec.Stopping(eos=22),
        ...     processors=[jspec.grammar.choices(["abcde", "bcd"], letters)],
        ...     drafter=jspec.JumpForward(),
        ... )
        >>> text = result.tokens[0, : result.lengths[0] - 1].tolist()
        >>> "".join(chr(97 + token) for token in text) in ("abcde", "bcd")
        True
        >>> int(result.stats.num_rounds[0])
        2
    """

    num_speculative_tokens: int = 8

    def __post_init__(self):
        check_integer("num_speculative_tokens", self.num_speculative_tokens, 1, None)

    def draft(self, params: PyTree, state: PyTree, frame: Frame) -> tuple[Tree, None]:
        """Follows the automata of the frame's grammar while they force a token."""
        del params, state
        size = self.num_speculative_tokens
        if (grammar := frame.grammar) is None:
            forced = jnp.full((size, *frame.root.shape), -1, jnp.int32)
        else:

            def follow(states, _):
                token = grammar.forced(states)
                return grammar.step(states, jnp.maximum(token, 0)), token

            start = vary(grammar.states, grammar)
            forced = jax.lax.scan(follow, start, length=size)[1]
        tokens = jnp.concatenate([frame.root[None], jnp.maximum(forced, 0)])
        certain = jnp.concatenate([jnp.ones_like(tokens[:1], bool), forced >= 0])
        valid = jnp.cumprod(certain, 0).T > 0
        tree = trees.chain(size).fill(tokens.T)
        probabilities = _PROBABILITY ** jnp.arange(valid.shape[1], dtype=jnp.float32)
        value = jnp.where(valid, probabilities, 0.0)
        return replace(tree, valid=valid, value=value), None
