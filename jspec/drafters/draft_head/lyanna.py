"""Lyanna (Chen et al. 2026): hidden states first, tokens afterwards, and every draft counts."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT
from jspec.drafters.draft_head.draft_head import DraftHead
from jspec.drafters.draft_head.head_drafter import SHARPNESS, HeadDrafter, HeadState
from jspec.drafters.draft_head.lyanna_resampling import FUSED, ChainCache, Merged, Resampling
from jspec.drafters.draft_head.lyanna_tree import ChainScorer, token_info_tree
from jspec.drafters.growth import best_first
from jspec.types import Feedback, Frame, PyTree, Tree


@dataclass(frozen=True)
class Lyanna(HeadDrafter):
    """Drafts a chain of hidden states, and a token-info tree of it.

    The head makes N states, one after another, without a token but the root (section 4.1). One
    product with the target's head scores them all (4.2). The token info of each node picks its
    children in the tree (5.2). What verification leaves of the chain makes a second tree (5.3),
    united with the next fresh one (6.2).

    Source: Chen et al. 2026, "Lyanna".

    Args:
        head: see `jspec.models.heads.lyanna.LyannaHead`.
        num_speculative_tokens: drafted nodes of the fresh tree, B, without root; in the paper 12.
        max_depth: most levels, N.
        beam: children of a node, k, and nodes of a level that get some.
        resampling: how the chain is used again: `Fused()`, the published `Merged()`, the slower
            `Separate()`, all in `jspec.drafters.draft_head.lyanna_resampling`, or None: not at all.
        sharpness: power of the head's probabilities; 1 is published. See
            `jspec.drafters.draft_head.head_drafter.child_probability`.

    Raises:
        InputError: if an argument is out of range.

    Example:
        >>> import jspec
        >>> from jspec import models
        >>> head, params, target = models.heads.load("jspec-7m/lyanna", models.load("jspec-7m"))
        >>> jspec.Lyanna(head, num_speculative_tokens=7).depth
        3
    """

    num_speculative_tokens: Annotated[int, COUNT] = 11
    max_depth: Annotated[int, COUNT] = 3
    beam: Annotated[int, COUNT] = 4
    resampling: Resampling | None = FUSED
    sharpness: Annotated[float, SHARPNESS] = 1.0

    @classmethod
    def published(cls, head: DraftHead, **options: Any) -> Self:
        """Returns the method as in its paper (sections 6.2, 7.2), with second trees.

        Trees have 12 tokens with their root, 3 levels and 4 children per node. How many tokens a
        second tree has is not in the paper; it is jspec's own default.

        Args:
            head: the head.
            options: further arguments of the constructor; they win over the paper's.

        Raises:
            InputError: if an argument is out of range.

        Example:
            >>> import jspec
            >>> from jspec import models
            >>> head, _, _ = models.heads.load("jspec-7m/lyanna", models.load("jspec-7m"))
            >>> jspec.Lyanna.published(head).resampling
            Merged(num_speculative_tokens=6, threshold=0)
        """
        paper: dict[str, Any] = {
            "num_speculative_tokens": 11,
            "max_depth": 3,
            "beam": 4,
            "resampling": Merged(),
            "sharpness": 1.0,
        }
        return cls(head, **{**paper, **options})

    def __post_init__(self):
        super().__post_init__()
        if self.resampling is not None and not isinstance(self.resampling, Resampling):
            raise InputError(
                f"resampling is {self.resampling!r:.80}; pass Fused(), Merged() or Separate() "
                "of jspec.drafters.draft_head.lyanna_resampling, or None"
            )
        best_first.check(
            self.num_speculative_tokens, self.max_depth, self.beam, self.head.vocab_size
        )

    @property
    def depth(self) -> int:
        return self.max_depth

    def init_memory(self, batch: int) -> PyTree:
        if self.resampling is None:
            return ()
        return ChainCache.init(batch, self.max_depth, self.head.vocab_size)

    def after_reading(self, memory: PyTree, read: Bool[Array, " B"]) -> PyTree:
        return () if self.resampling is None else memory.invalidate_where(read)

    def learn(self, memory: PyTree, aux: ChainCache | None, feedback: Feedback) -> PyTree:
        if self.resampling is None:
            return ()
        if aux is None:  # no chain is of the text that a back-off emitted
            return memory.invalidate_where(feedback.counts > 0)
        return self.resampling.learn(aux, feedback)

    def draft(
        self, params: PyTree, state: HeadState, frame: Frame
    ) -> tuple[Tree, ChainCache | None]:
        def grow(
            logits: Float[Array, "B L V"], first: Int[Array, " B"], depth: int, nodes: int
        ) -> Tree:
            scorer = ChainScorer(self.head, params, logits, first, frame)
            max_nodes = self.beam + (depth - 1) * self.beam**2
            return token_info_tree(scorer, depth, self.beam, min(nodes, max_nodes), self.sharpness)

        def fresh(more: int) -> tuple[Tree, Float[Array, "B L V"]]:
            logits = self.head.score(params, self.chain(params, state, frame))
            first = jnp.zeros_like(frame.root)
            return grow(logits, first, self.max_depth, self.num_speculative_tokens + more), logits

        if self.resampling is None:
            tree, _ = fresh(0)
            return tree, None
        return self.resampling.trees(state.memory, fresh, grow, frame.done)

    def chain(self, params: PyTree, state: HeadState, frame: Frame) -> Float[Array, "B L E"]:
        """Returns the chain of states h_1 .. h_N, of which h_1 was predicted already."""
        states, nodes = [state.hidden], None
        for step in range(self.max_depth - 1):
            output = self.head.apply(
                params,
                states[-1][:, None],
                None,
                (frame.positions + step)[:, None],
                jnp.ones((len(frame.root), 1, step + 1), bool),
                state.cache,
                nodes,
            )
            assert output.hidden is not None, "a head predicts states"
            states.append(output.hidden[:, 0])
            new = output.tentative
            nodes = new if nodes is None else nodes.concat(new)
        return jnp.stack(states, axis=1)
