"""Lyanna's trees: scores of all levels at once, plus token info (the paper's section 5.1)."""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.drafters.draft_head.draft_head import DraftHead
from jspec.drafters.draft_head.eagle import joint_probability
from jspec.drafters.draft_head.head_drafter import top_k_draw
from jspec.drafters.growth import best_first
from jspec.drafters.growth.scorer import TokenScorer
from jspec.types import Frame, PyTree, Tree


@dataclass(frozen=True)
class ChainScorer(TokenScorer):
    """Raw scores of a chain of states, with each node's token info added."""

    head: DraftHead
    params: PyTree
    logits: Float[Array, "B L V"]
    first: Int[Array, " B"]
    frame: Frame

    def after(
        self, level: Int[Array, ""] | int, tokens: Int[Array, "B W"]
    ) -> Float[Array, "B W V"]:
        """Returns scores with token info added, l' = l + RMSNorm(E'(t)) (section 4.1)."""
        row = (self.first + level)[:, None, None]
        raw = jnp.take_along_axis(self.logits, row, axis=1, mode="clip")
        raw = jnp.broadcast_to(raw, (*tokens.shape, raw.shape[-1]))
        informed = self.head.inform(self.params, raw, tokens)
        # What is not a number offers no child.
        in_chain = row < self.logits.shape[1]
        return jnp.where(in_chain, informed, jnp.nan)


def token_info_tree(
    scorer: ChainScorer, depth: int, branch: int, nodes: int, sharpness: float = 1.0
) -> Tree:
    """Returns the tree of Algorithm 1, pruned to `nodes` nodes (section 5.2)."""
    draft, _ = best_first.grow(
        scorer,
        top_k_draw,
        None,
        partial(joint_probability, sharpness=sharpness),
        num_speculative_tokens=nodes,
        max_depth=depth,
        beam=branch,
    )
    return draft.tree
