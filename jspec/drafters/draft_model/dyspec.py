"""DySpec (Xiong et al. 2024): a tree grown greedily from the draft's own probabilities."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from jspec.base import PyTree
from jspec.drafters.draft_model.best_first import BestFirst
from jspec.drafters.growth.best_first import NodeValues, ValueFn
from jspec.errors import InputError
from jspec.verify.proposals import Candidates


@dataclass(frozen=True)
class DySpec(BestFirst):
    """Spends a budget of nodes where the draft expects most to be accepted (Algorithms 1 and 2).

    A slot, that is the next draw at a node, is worth the probability that it is reached: the
    draft's probability of the path, times what the earlier siblings left. The slot is chosen by
    that worth before its token is drawn, which keeps the rejection exact. The published method has
    `scheme=jspec.schemes.RECURSIVE`, `sampling=jspec.Sampling(temperature=0.6)` and a budget of 64
    or 768 nodes.

    Args:
        threshold: slots that are worth no more are not drawn (Algorithm 2; about 1 / nodes). 0 is
            the greedy tree, which fills its budget.

    Raises:
        InputError: if an argument is out of range.
    """

    threshold: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.threshold < 1:
            raise InputError(f"threshold is {self.threshold}; choose 0 <= threshold < 1")

    @property
    def least(self) -> float:
        return self.threshold

    def value_fn(self, memory: PyTree) -> ValueFn:
        del memory
        return reach


def reach(drawn: Candidates, value: Float[Array, "B M"]) -> NodeValues:
    """Equations 9 to 11: v (1 - q of the earlier siblings) for a draw, v q(y) below its token."""
    return NodeValues(value[..., None] * left(drawn.chances), value[..., None] * drawn.chances)


def left(chances: Float[Array, "*S K"]) -> Float[Array, "*S K"]:
    """What the siblings drawn before each left of the draft's distribution."""
    # Of those before it alone, to the last bit: a slot that its own token moves by a rounding error
    # is there or not by that token, which a certain distribution (1 and a tail below 1e-7) turns
    # into bias.
    earlier = jnp.concatenate([jnp.zeros_like(chances[..., :1]), chances[..., :-1]], axis=-1)
    return jnp.maximum(1.0 - jnp.cumsum(earlier, axis=-1), 0.0)
