"""Medusa (Cai et al. 2024): several heads on one state, each one token further ahead."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.drafters.draft_head.head_drafter import check_head, check_is_head, child_probability
from jspec.drafters.growth.template_trees import check_template
from jspec.protocols import Drafter, Verifier
from jspec.tree import Template, best_paths
from jspec.types import (
    Feedback,
    Frame,
    Output,
    PromptChunk,
    PyTree,
    Sampling,
    Tree,
)
from jspec.verify import proposals
from jspec.verify.proposals import ScoredTokens
from jspec.verify.schemes import COUPLED

# `mc_sim_7b_63` of the authors' code, in their order: nodes of falling value, as measured for a
# model of 7B parameters. 63 drafted nodes in 4 levels.
_ORDER = tuple(
    tuple(map(int, path))
    for path in """
    0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003
    40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021
    90 060 0001 16 070
    """.split()
)
PUBLISHED = Template(_ORDER)


def published(nodes: int, depth: int = PUBLISHED.depth) -> Template:
    """Takes the first `nodes` nodes of the published tree that are at most `depth` deep."""
    paths = [path for path in _ORDER if len(path) <= depth]
    check_integer("nodes", nodes, 1, len(paths), f"what the published tree has to depth {depth}")
    return Template(tuple(paths[:nodes]))


@runtime_checkable
class ParallelHeads(Protocol):
    """Medusa's heads: static, hashable and pure. See `jspec.models.heads.medusa.MedusaHeads`."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def features(self) -> int:
        """The width E of the target's states that the heads read."""
        ...

    @property
    def num_heads(self) -> int: ...

    @property
    def num_scored(self) -> int:
        """The number d of tokens that the heads score, and so of those that are drafted."""
        ...

    def scored(self, params: PyTree) -> Int[Array, " d"]:
        """Returns the tokens that the heads score."""
        ...

    def apply(self, params: PyTree, hidden: Float[Array, "B N E"]) -> Any:
        """Scores [B, N, K, d]: head i's at position j are of the token at j + 2 + i."""
        ...


@dataclass(frozen=True)
class Medusa(Drafter):
    """Drafts the Cartesian product of the heads' top tokens: one forward pass for all levels.

    Head i proposes the tokens of level i + 1, from the target's state at the last committed token,
    whatever is above them. All that it keeps from round to round is that state.

    Source: Cai et al. 2024, arXiv:2401.10774. The authors accept tokens by a threshold ("typical
    acceptance"), which changes the distribution; here the tokens are those of plain decoding.

    Args:
        head: see `jspec.models.heads.medusa.MedusaHeads`; static, as the target is.
            `drafter_params` of a call are its variables.
        template: which ranks of which head are drafted. The cost of a tree depends on the device:
            the published one suits GPUs, `published` and `fit_tree` make smaller ones.

    Raises:
        InputError: if the tree is not a template, is empty, or wider or deeper than the heads.

    Example:
        >>> import jspec
        >>> from jspec import models
        >>> head, params, target = models.heads.load("jspec-7m/medusa", models.load("jspec-7m"))
        >>> head.num_heads
        3
        >>> jspec.Medusa(head, published(nodes=7, depth=head.num_heads)).template.num_nodes
        8
    """

    head: ParallelHeads
    template: Template = PUBLISHED

    follows_text: ClassVar = True

    def __post_init__(self):
        check_is_head(self.head, ParallelHeads, "Medusa's heads")
        check_template(self.template, self.head.num_scored)
        if self.template.depth > self.head.num_heads:
            raise InputError(
                f"the draft's tree has {self.template.depth} levels and there are "
                f"{self.head.num_heads} Medusa heads; pass a template of at most so many levels"
            )

    @property
    def verifier(self) -> Verifier:
        """The coupled rule: children are chosen by the noise that decides the target's token."""
        return COUPLED.verifier

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> Float[Array, "B E"]:
        del capacity, earlier  # each prompt gives its own state
        return jnp.zeros((batch, self.head.features), jnp.float32)

    def prefill(
        self, params: PyTree, state: Float[Array, "B E"], chunk: PromptChunk
    ) -> Float[Array, "B E"]:
        head: Any = self.head
        check_head(head, params, chunk.output)
        return _state(
            chunk.output, jnp.maximum(chunk.read_lengths - 1, 0), chunk.read_lengths > 0, state
        )

    def draft(self, params: PyTree, state: Float[Array, "B E"], frame: Frame) -> tuple[Tree, None]:
        template = self.template
        logits = self.head.apply(params, state[:, None])[:, 0]
        ids, is_subset = self.head.scored(params), self.head.num_scored < self.head.vocab_size
        among = ScoredTokens(ids, self.head.vocab_size) if is_subset else None
        tokens, value = frame.root[:, None], jnp.ones_like(state[:, :1])
        for level, nodes in enumerate(template.levels):
            ranks, parents = template.ranks[nodes], template.parents[nodes]
            size = int(ranks.max()) + 1
            at_level = logits[:, level : level + 1]
            drawn = proposals.coupled(at_level, Sampling(), frame, level, size, among)
            tokens = jnp.concatenate([tokens, ids[drawn.tokens[:, 0, ranks]]], axis=1)
            probabilities = child_probability(drawn)[:, 0, ranks]
            value = jnp.concatenate([value, value[:, parents] * probabilities], axis=1)
        tree = template.fill(tokens)
        has_state = (frame.positions > 0)[:, None]
        valid = tree.valid & (has_state | (jnp.arange(template.num_nodes) == 0)[None])
        return replace(tree, valid=valid, value=value), None

    def update(
        self, params: PyTree, state: Float[Array, "B E"], aux: None, feedback: Feedback
    ) -> Float[Array, "B E"]:
        del params, aux
        counts = feedback.counts
        last = jnp.maximum(counts - 1, 0)[:, None]
        node = jnp.take_along_axis(feedback.scored.verdict.path, last, axis=1)[:, 0]
        return _state(feedback.scored.output, node, counts > 0, state)


def fit_tree(accuracies: Sequence[Sequence[float]], nodes: int) -> Template:
    """Returns the best tree of a size, built as the authors do (section 2.3.3)."""
    if not accuracies or not all(
        0 <= probability <= 1 for head in accuracies for probability in head
    ):
        raise InputError(
            f"accuracies are {list(accuracies)!r:.80}; pass probabilities, 0 .. 1, by head and rank"
        )
    paths = best_paths(lambda depth: accuracies[depth] if depth < len(accuracies) else (), nodes)
    if nodes < 1 or len(paths) < nodes:
        raise InputError(
            f"nodes is {nodes} and a tree of these heads and ranks has 1 .. {len(paths)}; ask for "
            "so many, or pass more ranks"
        )
    return Template(tuple(paths))


def _state(
    output: Output, place: Int[Array, " B"], valid: Array, before: Float[Array, "B E"]
) -> Float[Array, "B E"]:
    """Returns the target's state at a place of its forward pass, where there is one."""
    assert output.hidden is not None, "it was there when the call began"
    hidden = jnp.take_along_axis(output.hidden, place[:, None, None], axis=1)[:, 0]
    return jnp.where(valid[:, None], hidden.astype(before.dtype), before)
