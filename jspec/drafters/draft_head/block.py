"""One-pass block drafting (DFlash, DSpark, JetSpec), in trees ranked by the target's noise."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec import _struct as struct
from jspec import memory
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, Integer
from jspec._validate.options import check_fields
from jspec.arrays.ragged import sequence
from jspec.arrays.top_k import largest
from jspec.drafters.contrib import block_probabilities
from jspec.drafters.contrib.block_probabilities import BlockDistributions, ProbabilityWeights
from jspec.drafters.draft_head.head_drafter import check_depth, check_head, check_is_head
from jspec.drafters.growth import best_first
from jspec.drafters.growth.best_first import NodeValues
from jspec.drafters.growth.scorer import TokenScorer
from jspec.memory import KVCache, TreeKV
from jspec.protocols import Drafter, Verifier
from jspec.types import Feedback, Frame, PromptChunk, PyTree, Sampling, Tree
from jspec.verify.proposals import ChildDraws
from jspec.verify.schemes import COUPLED


@runtime_checkable
class OnePassHead(Protocol):
    """A network that drafts D tokens in one forward pass: static, hashable, pure."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context(self) -> int | None: ...

    @property
    def features(self) -> int:
        """The width F of the target's states that the head reads."""
        ...

    @property
    def num_slots(self) -> int:
        """The number D of tokens that a forward pass drafts."""
        ...

    @property
    def num_scored(self) -> int:
        """The number d of tokens that it scores: V, or fewer."""
        ...

    def init_memory(self, batch: int, capacity: int) -> KVCache:
        """Returns an empty cache, for the context."""
        ...

    def read(
        self, params: PyTree, hidden: Float[Array, "B N F"], positions: Int[Array, "B N"]
    ) -> TreeKV:
        """Returns keys and values of the target's states at some positions."""
        ...

    def draft(
        self, params: PyTree, root: Int[Array, " B"], positions: Int[Array, " B"], cache: KVCache
    ) -> Float[Array, "B D E"]:
        """Returns the states of the D tokens after the root, given the context in the cache."""
        ...

    def scored(self, params: PyTree) -> Int[Array, " d"]:
        """Returns the tokens that it scores."""
        ...

    def score(self, params: PyTree, hidden: Float[Array, "B D E"]) -> Float[Array, "B D d"]:
        """Returns the scores that states give these, whatever token comes before."""
        ...

    def transition(
        self, params: PyTree, tokens: Int[Array, "B M"], following: Int[Array, "B M K"]
    ) -> Float[Array, "B M K"]:
        """Returns a token's addition to the scores of the next one; 0 if it is not known."""
        ...

    def confidence(
        self, params: PyTree, hidden: Float[Array, "B M E"], tokens: Int[Array, "B M"]
    ) -> Float[Array, "B M"]:
        """Returns log odds that a state's draft after a token is kept; 0 if unknown."""
        ...


@struct.dataclass
class BlockState:
    """The memory of a block drafter."""

    cache: KVCache
    """Keys and values of the target's states at all committed tokens."""
    weights: ProbabilityWeights


@dataclass(frozen=True)
class BlockScorer(TokenScorer):
    """The candidates of a round, scored after each token that they may follow."""

    head: OnePassHead
    params: PyTree
    distributions: BlockDistributions
    weights: ProbabilityWeights
    frame: Frame

    def after(
        self, level: Int[Array, ""] | int, tokens: Int[Array, "B W"]
    ) -> Float[Array, "B W K"]:
        """Scores the candidates of depth `level` + 1, after W tokens at depth `level`."""

        def at_level(array: Array) -> Array:
            part = jax.lax.dynamic_index_in_dim(array, level, axis=1, keepdims=True)
            return jnp.broadcast_to(part, (part.shape[0], tokens.shape[1], *part.shape[2:]))

        candidates = block_probabilities.probabilities(
            self.head,
            self.params,
            jax.tree.map(at_level, self.distributions),
            at_level(self.weights.values),
            tokens,
        )
        return candidates.log_shares[..., :-1]

    def draw(
        self,
        logits: Float[Array, "B M K"],
        sampling: Sampling | None,
        frame: Frame,
        level: Int[Array, ""] | int,
        size: int,
    ) -> ChildDraws:
        """Takes the candidates of largest probability, as a `jspec.proposals.ChildSampler`."""
        del sampling, frame
        scores, place = largest(logits, size)
        offered = jax.lax.dynamic_index_in_dim(
            self.distributions.tokens, level, axis=1, keepdims=True
        )
        offered = jnp.broadcast_to(offered, logits.shape)
        tokens = jnp.take_along_axis(offered, place, axis=-1)
        return ChildDraws(tokens, scores, jnp.exp(scores), jnp.exp(logits), q=None)


@dataclass(frozen=True)
class BlockDrafter(Drafter):
    """Drafts a tree from a whole block of distributions that one forward pass of a head gives.

    The head reads what the target's layers made of the text, and gives a distribution for each of
    the next D tokens at once. Each distribution is cut to the candidates that it and its position's
    noise rank first, the very noise G that will decide the target's token there, as
    argmax(log p + G). The tree is grown best first by the product of the candidates' probabilities,
    which depend on the token before where the head knows that (DSpark's Markov map). How sharp the
    distributions are, and how much the noise counts alongside them, is learnt, depth by depth, see
    `jspec.drafters.contrib.block_probabilities`. With a beam of 1 the tree is a chain, as DFlash
    and DSpark draft it.

    After a round the head reads the states of the accepted tokens alone. What it computed for a
    block is never kept, so nothing has to be rolled back.

    Source: DFlash (z-lab 2026), DSpark (DeepSeek 2026, arXiv:2607.05147) and JetSpec
    (arXiv:2606.18394) for the heads, DDTree for the order. Ranking by the noise is jspec's own.

    Args:
        head: see `jspec.models.heads.block.BlockHead`; static, as the target is.
            `drafter_params` of a call are its variables.
        num_speculative_tokens: drafted nodes, without the root.
        max_depth: most levels; None is as many as the head drafts tokens.
        beam: nodes of a level that get children, and the most children of each.
        num_candidates: tokens of a level among which children are chosen, K.

    Raises:
        InputError: if the head is of another kind, or an argument is out of range.

    Example:
        >>> from jspec.models.heads.block import BlockConfig, BlockHead
        >>> head = BlockHead(BlockConfig(100, 16, 24, 1, 4, 2, 4, 64, block_size=6))
        >>> BlockDrafter(head, num_speculative_tokens=12, beam=4).depth
        6
        >>> chain = BlockDrafter(head, num_speculative_tokens=6, beam=1)
    """

    head: OnePassHead
    num_speculative_tokens: Annotated[int, COUNT] = 15
    max_depth: Annotated[int | None, COUNT] = None
    beam: Annotated[int, COUNT] = 4
    num_candidates: Annotated[int, Integer(1)] = 32

    follows_text: ClassVar = True

    def __post_init__(self):
        check_is_head(self.head, OnePassHead, "a head of blocks")
        check_fields(self)
        depth = self.head.num_slots
        if self.max_depth is not None:
            check_integer("max_depth", self.max_depth, 1, depth, "the tokens that the head drafts")
        check_integer("beam", self.beam, 1, self._size, "the candidates of a level")
        best_first.check(self.num_speculative_tokens, self.depth, self.beam, self.head.vocab_size)

    @property
    def depth(self) -> int:
        """The largest number of levels below the root."""
        return self.max_depth or self.head.num_slots

    @property
    def context(self) -> int | None:
        """The longest row that the head can read, in tokens; None if it has no bound."""
        return self.head.context

    @property
    def _size(self) -> int:
        return min(self.num_candidates, self.head.num_scored)

    @property
    def verifier(self) -> Verifier:
        """The coupled rule: children are chosen by the noise that decides the target's token."""
        return COUPLED.verifier

    def init(self, batch: int, capacity: int, earlier: PyTree | None) -> BlockState:
        """Returns an empty context; learnt calibrations of an earlier call are kept."""
        check_depth(self.depth, capacity, self.context)
        weights = ProbabilityWeights.init(batch, self.depth)
        if earlier is not None:
            if not isinstance(earlier, BlockState):
                raise InputError(
                    f"drafter_state is a {type(earlier).__name__} and a block drafter keeps a "
                    "BlockState; pass the state of a call with the same drafter"
                )
            if (depth := earlier.weights.values.shape[1]) != self.depth:
                raise InputError(
                    f"drafter_state is of trees {depth} deep and this drafter's are {self.depth}; "
                    "pass the state of a call with the same drafter"
                )
            # A new row begins with the mean of what the rows before it learnt.
            weights = jax.tree.map(
                lambda new, old: jnp.broadcast_to(old.mean(0), new.shape), weights, earlier.weights
            )
        return BlockState(self.head.init_memory(batch, capacity), weights)

    def prefill(self, params: PyTree, state: BlockState, chunk: PromptChunk) -> BlockState:
        head: Any = self.head
        check_head(head, params, chunk.output)
        assert chunk.output.hidden is not None, "it was checked"
        cache = self._read(params, state, chunk.output.hidden, chunk.positions, chunk.read_lengths)
        return replace(state, cache=cache)

    def draft(
        self, params: PyTree, state: BlockState, frame: Frame
    ) -> tuple[Tree, BlockDistributions]:
        hidden = self.head.draft(params, frame.root, frame.positions, state.cache)
        distributions = block_probabilities.block_distributions(
            self.head,
            params,
            hidden[:, : self.depth],
            state.weights.ratio,
            frame,
            self._size,
        )
        scorer = BlockScorer(self.head, params, distributions, state.weights, frame)
        draft, _ = best_first.grow(
            scorer,
            scorer.draw,
            None,
            _path_probability,
            num_speculative_tokens=self.num_speculative_tokens,
            max_depth=self.depth,
            beam=self.beam,
        )
        return draft.tree, distributions

    def update(
        self, params: PyTree, state: BlockState, aux: BlockDistributions | None, feedback: Feedback
    ) -> BlockState:
        # The accepted path, whoever drafted it.
        scored, counts = feedback.scored, feedback.counts
        path, hidden = scored.verdict.path, scored.output.hidden
        assert hidden is not None, "it was there when the call began"
        hidden = jnp.take_along_axis(hidden, path[..., None], axis=1)
        weights = state.weights
        if aux is not None:
            root = feedback.tree.tokens[:, :1]
            before = jnp.concatenate([root, feedback.emitted[:, :-1]], axis=1)
            weights = block_probabilities.learn(
                self.head, params, aux, weights, before, feedback.emitted, counts
            )
        cache = self._read(params, state, hidden, feedback.positions, counts)
        return BlockState(cache, weights)

    def _read(
        self,
        params: PyTree,
        state: BlockState,
        hidden: Float[Array, "B C F"],
        first: Int[Array, " B"],
        counts: Int[Array, " B"],
    ) -> KVCache:
        """Returns the context with the first `counts` of C more states from `first` on."""
        offsets, _ = sequence(*hidden.shape[:2])
        kv = self.head.read(params, hidden, first[:, None] + offsets)
        return memory.commit(memory.until(state.cache, first), kv, offsets, counts)


def _path_probability(drawn: ChildDraws, value: Float[Array, "B W"]) -> NodeValues:
    """Returns values per node by the product of the probabilities along its path."""
    values = value[..., None] * drawn.child_probs
    return NodeValues(values, values)
