"""DySpec (Xiong et al. 2024): a tree grown greedily from the draft's own probabilities."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import jax.numpy as jnp
from jaxtyping import Array, Float

from jspec._validate.arguments import check_integer
from jspec._validate.kinds import Number
from jspec.drafters.draft_model.best_first_tree import BestFirst
from jspec.drafters.growth.best_first import NodeValues, ValueFn
from jspec.protocols import CausalLM
from jspec.types import PyTree, Sampling
from jspec.verify.proposals import ChildDraws
from jspec.verify.schemes import RECURSIVE


@dataclass(frozen=True)
class DySpec(BestFirst):
    """DySpec's greedy tree; verified by the coupled scheme unless asked.

    A slot, the next draw at a node, has as its value the probability that it is reached: the
    draft's probability of the path, times what the earlier siblings left (Xiong et al. 2024,
    Algorithms 1 and 2). A slot is chosen by its value before its token is drawn, which keeps the
    rejection exact. The paper verifies by recursive rejection, with 64 or 768 nodes and a draft
    temperature of 0.6, and bounds neither children nor levels. `DySpec.published(model)` does so
    with 64 nodes or as many as it is told, see there. The default is jspec's coupled scheme, whose
    tokens are those of plain decoding with the same key, and a smaller tree.

    Args:
        model: the draft model.
        num_speculative_tokens: drafted tokens; the root is not counted.
        max_depth: most levels below the root.
        beam: nodes scored per level and children drawn per node. The tree is the paper's if that
            has no more children of a node, and no more nodes with children in a level.
        min_gain: a level is not grown if it can add no more than this share to the tokens that are
            expected of the round; above 0 for the coupled scheme only.
        threshold: slots of this value or less are not drafted (Algorithm 2; about 1 / nodes). 0 is
            the greedy tree, which fills its budget.
        order: of the nodes, such as `jspec.tree.depth_first`; None is breadth first.
        scheme: how children are drawn and verified, one of `jspec.schemes`.
        sampling: the draft's own temperature and filters; None: the target's.

    Raises:
        InputError: if an argument is out of range.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> jspec.DySpec(draft, num_speculative_tokens=16, threshold=0.05).depth
        8
        >>> jspec.DySpec.published(draft).num_speculative_tokens
        64
    """

    threshold: Annotated[float, Number(0, 1, below_high=True)] = 0.0

    paper_settings: ClassVar = {
        "scheme": RECURSIVE,
        "sampling": Sampling(temperature=0.6),
        "num_speculative_tokens": 64,
    }

    @classmethod
    def published(cls, model: CausalLM, **options: Any) -> Self:
        """Returns the method as its paper has it, with bounds that small trees do not meet.

        Algorithm 1 bounds nothing. A tree of n nodes has at most n children of a node, of which 128
        are drawn: of 768 nodes an uncertain draft may want more. Levels are at most 16, above 64
        nodes 30 ("typically less than 10" and "usually less than 30", section 4.3).

        Args:
            model: the draft model.
            options: further arguments of the constructor; they win over the paper's.

        Raises:
            InputError: if an argument is out of range.

        Example:
            >>> from jspec.models.llama import Llama, LlamaConfig
            >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
            >>> large = DySpec.published(draft, num_speculative_tokens=768)
            >>> large.max_depth, large.beam
            (30, 128)
        """
        nodes = options.get("num_speculative_tokens", 64)
        check_integer("num_speculative_tokens", nodes, 1, None)
        # The beam also bounds the nodes of a level that get children.
        bounds = {
            "max_depth": min(nodes, 16 if nodes <= 64 else 30),
            "beam": min(nodes, 128, model.vocab_size),
        }
        return super().published(model, **{**bounds, **options})

    @property
    def slot_threshold(self) -> float:
        return self.threshold

    def value_fn(self, memory: PyTree) -> ValueFn:
        del memory
        return reach_values


def reach_values(drawn: ChildDraws, above: Float[Array, "B W"]) -> NodeValues:
    """Returns values by equations 9 to 11: of slots and of their tokens."""
    return NodeValues(
        above[..., None] * remaining_mass(drawn.child_probs), above[..., None] * drawn.child_probs
    )


def remaining_mass(probabilities: Float[Array, "*S K"]) -> Float[Array, "*S K"]:
    """Returns the probability that the earlier siblings left in the draft's distribution."""
    # Of those before it alone, to the last bit: a slot that its own token moves by a rounding error
    # is there or not by that token, which a certain distribution (1 and a tail below 1e-7) turns
    # into bias.
    earlier = jnp.concatenate(
        [jnp.zeros_like(probabilities[..., :1]), probabilities[..., :-1]], axis=-1
    )
    return jnp.maximum(1.0 - jnp.cumsum(earlier, axis=-1), 0.0)
