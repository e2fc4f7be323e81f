"""The pieces of Lyanna's and EAGLE's drafting, timed on states of real decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import jspec
from benchmarks.lyanna import trained_heads
from benchmarks.lyanna.trained_heads import DEPTH, WIDTH
from benchmarks.model_pairs import Subject
from benchmarks.pieces import Piece
from benchmarks.texts import Prompts
from jspec import round as rounds
from jspec.arrays.top_k import top_k
from jspec.drafters.draft_head.eagle import HeadScorer, joint_probability
from jspec.drafters.draft_head.head_drafter import HeadState, top_k_draw
from jspec.drafters.draft_head.lyanna import Lyanna
from jspec.drafters.draft_head.lyanna_resampling import FUSED
from jspec.drafters.draft_head.lyanna_tree import ChainScorer
from jspec.drafters.growth import best_first
from jspec.drafters.growth.scorer import LevelOutput, Scorer
from jspec.types import Feedback, Frame, PyTree, Tree
from jspec.verify.schemes import COUPLED


@dataclass(frozen=True)
class Given:
    """Scores that are computed already, for a tree to grow on."""

    logits: Float[Array, "B L W V"]
    frame: Frame

    def root(self) -> LevelOutput:
        return LevelOutput(self.logits[:, 0, :1], (), ())

    def below(self, level, kv_index, tokens, inherited, kv) -> LevelOutput:
        """Returns the given scores of a level; see `jspec.drafters.growth.scorer.Scorer`."""
        del kv_index, tokens, inherited, kv
        return LevelOutput(
            jax.lax.dynamic_index_in_dim(self.logits, level, 1, keepdims=False), (), ()
        )


class Side:
    """A head's drafting, whole and cut up."""

    def __init__(
        self, subject: Subject, head: Any, variables: PyTree, nodes: int, fused: bool = False
    ):
        self.subject, self.head, self.variables = subject, head, variables
        self.nodes, self.fused = nodes, fused
        drafter = trained_heads.tree(head, nodes, FUSED if fused else None)
        self.drafter = drafter
        # One each, so that each is compiled once.
        self.layers = jax.jit(self._states if isinstance(drafter, Lyanna) else self._levels)
        self.products = jax.jit(self._products)
        self.softmaxes = jax.jit(in_turn(jax.nn.softmax))
        self.grow = jax.jit(self._grow)
        self.draft = jax.jit(drafter.draft)
        self.update = jax.jit(drafter.update, donate_argnums=1)
        self.verify = jax.jit(self._verify)

    def start(self, prompts: Prompts, num_rounds: int) -> jspec.State:
        target = self.subject.target
        return jspec.prefill(
            target.model, target.params, *prompts, drafter=self.drafter,
            drafter_params=self.variables, max_new_tokens=(num_rounds + 1) * (DEPTH + 1),
        )  # fmt: skip

    def step(self, state: jspec.State) -> jspec.State:
        target = self.subject.target
        return jspec.step(
            target.model, target.params, state, drafter=self.drafter, drafter_params=self.variables
        )

    def pieces(self, state: jspec.State) -> dict[str, Piece]:
        """Returns the pieces of the round that starts from a state."""
        frame, mine = rounds.frame(state), state.drafter_state
        tree, aux = self.draft(self.variables, mine, frame)
        feedback = self.verify(state, tree)
        whole = {
            "draft": Piece(self.draft, (self.variables, mine, frame)),
            "update": Piece(self.update, (self.variables, mine, aux, feedback), donates=True),
        }
        if self.fused:
            return whole
        batch, width = len(frame.root), self.head.hidden_size
        hidden = jnp.broadcast_to(mine.hidden[:, None], (batch, WIDTH, width))
        states = [hidden[:, :1], *[hidden] * (DEPTH - 1)]
        if isinstance(self.drafter, Lyanna):
            states = [hidden[:, :DEPTH]]
        logits = self.products(self.variables, states)
        # A level's distributions are its nodes', whatever its scores were made of.
        distributions = [
            logits[-1][:, :1],
            *[jnp.repeat(logits[-1][:, :1], WIDTH, axis=1)] * (DEPTH - 1),
        ]
        tokens = tree.tokens[:, 1 : 1 + WIDTH]
        scores = logits[0]
        if not isinstance(self.drafter, Lyanna):
            wide = jnp.repeat(logits[0], WIDTH, axis=1)
            scores = jnp.stack([wide, *logits[1:]], axis=1)
        return whole | {
            "layer": Piece(self.layers, (self.variables, mine, frame, tokens)),
            "head": Piece(self.products, (self.variables, states)),
            "softmax": Piece(self.softmaxes, (distributions,)),
            "softmax, sampling and tree": Piece(self.grow, (self.variables, scores, frame)),
        }

    def _levels(self, params: PyTree, state: HeadState, frame: Frame, tokens: Int[Array, "B W"]):
        """EAGLE's forward passes without their scores: the levels below the first."""
        room = (DEPTH - 1) * WIDTH
        scorer = HeadScorer(self.head, params, state.cache, state.hidden, frame, room)
        level = scorer.root()
        inherited = jax.tree.map(lambda leaf: jnp.repeat(leaf, WIDTH, axis=1), level.inherited)
        kv = level.kv
        for depth in range(1, DEPTH):
            below = scorer.below(depth, 2 + (depth - 1) * WIDTH, tokens, inherited, kv)
            inherited, kv = below.inherited, below.kv
        return inherited, kv

    def _states(self, params: PyTree, state: HeadState, frame: Frame, tokens: Int[Array, "B W"]):
        """Returns the states of Lyanna's chain."""
        del tokens
        return Lyanna(self.head, self.nodes, DEPTH, WIDTH).chain(params, state, frame)

    def _products(self, params: PyTree, states: Sequence[Float[Array, "B N E"]]):
        """Returns the target's scores of each of several, one after another."""
        return in_turn(lambda x: self.head.score(params, x))(states)

    def _grow(self, params: PyTree, logits: Float[Array, "B L *W V"], frame: Frame) -> Tree:
        """Returns the tree from scores that are there: of each level's nodes, or of the chain."""
        scorer: Scorer
        if isinstance(self.drafter, Lyanna):
            first = jnp.zeros_like(frame.root)
            scorer = ChainScorer(self.head, params, logits, first, frame)
        else:
            scorer = Given(logits, frame)
        draft, _ = best_first.grow(
            scorer, top_k_draw, None, joint_probability,
            num_speculative_tokens=self.nodes, max_depth=DEPTH, beam=WIDTH,
        )  # fmt: skip
        return draft.tree

    def _verify(self, state: jspec.State, tree: Tree) -> Feedback:
        target, frame = self.subject.target, rounds.frame(state)
        tree = rounds.sanitize(tree, frame.root, target.model.vocab_size)
        output = rounds.score(target.model, target.params, tree, frame, state.memory)
        verdict = COUPLED.verifier.verdict(tree, output.logits, frame)
        _, feedback = rounds.commit(state, tree, output, verdict)
        return feedback


def in_turn(function: Callable[[Array], Array]) -> Callable[[Sequence[Array]], list[Array]]:
    """Calls of a function in which each waits for the one before, as for a token of that."""

    def run(parts: Sequence[Array]) -> list[Array]:
        done: list[Array] = []
        for part in parts:
            if done:
                part, done[-1] = jax.lax.optimization_barrier((part, done[-1]))
            done.append(function(part))
        return done

    return run


class Steps:
    """Fig. 13 (a): draft steps of one node each, one after another or all at once.

    Args:
        head: Lyanna's, trained or not.
        variables: its variables.
        count: how many steps.
    """

    def __init__(self, head: Any, variables: PyTree, count: int):
        self.head, self.variables, self.count = head, variables, count

        def product(params: PyTree, states: Sequence[Float[Array, "B N E"]]):
            return in_turn(lambda x: head.score(params, x))(states)

        self.product = jax.jit(product)
        self.softmax = jax.jit(in_turn(jax.nn.softmax))
        self.sample = jax.jit(in_turn(lambda probs: top_k(probs, WIDTH)))
        self.inform = jax.jit(self._inform)

    def pieces(self, hidden: Float[Array, "B E"], root: Int[Array, " B"]) -> dict[str, Piece]:
        """Returns the pieces of both ways, from a predicted state and the last token."""
        once = [jnp.repeat(hidden[:, None], self.count, axis=1)]
        turns = [hidden[:, None]] * self.count
        logits = self.product(self.variables, once)
        one = [logits[0][:, :1]] * self.count
        return {
            "in turn, head": Piece(self.product, (self.variables, turns)),
            "at once, head": Piece(self.product, (self.variables, once)),
            "in turn, softmax": Piece(self.softmax, (one,)),
            "at once, softmax": Piece(self.softmax, (logits,)),
            "in turn, sampling": Piece(self.sample, (one,)),
            "at once, sampling": Piece(self.inform, (self.variables, logits[0], root)),
        }

    def _inform(self, params: PyTree, logits: Float[Array, "B N V"], root: Int[Array, " B"]):
        """Returns token info token by token: each step's scores wait for the token before."""
        token, chosen = root[:, None], []
        for step in range(self.count):
            row = logits[:, step : step + 1]
            scores = self.head.inform(params, row, token)
            chosen.append(top_k(scores, WIDTH))
            token = chosen[-1][1][..., 0]
        return chosen
