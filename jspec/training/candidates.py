"""The objective of low-rank candidates: to find what a trained head scores highest."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from jspec.arrays.top_k import top_k
from jspec.protocols import CausalLM
from jspec.training import lm
from jspec.training.loop import Metrics
from jspec.training.sequences import Sequences
from jspec.training.unroll import Batch
from jspec.types import PyTree

_ROWS = 16
"""Sequences whose states are taken: the factors have a beginning of a few thousand."""


class Drafting(Protocol):
    """The objective of a head, for the states that it drafts with."""

    def drafted(
        self, variables: PyTree, frozen: PyTree, batch: Batch
    ) -> tuple[Float[Array, "D B A E"], Bool[Array, "D B A"]]:
        """The states that the head predicts, by draft step, and which of them are there."""
        ...


@dataclass(frozen=True)
class CandidateDistillation:
    """The second stage of EAGLE-4's training: the head stays as it is, its two factors learn.

    At every draft step the softmax of the factors' scores is held to that of the head's own scores
    of all tokens, by the forward KL divergence, which weighs a token by its probability. So the
    rank goes to the tokens that will be drafted.

    Source: EAGLE-4 (2026), by the documentation of its training in NVIDIA's NeMo AutoModel.

    Args:
        head: what scores all tokens, with the method `score` of draft heads.
        retrieve: the scores [*S, V] that states [*S, E] have by the factors.
        count: candidates of each state.
        drafting: the head's own objective, whose places are scored.
    """

    head: Any
    retrieve: Callable[[Array, PyTree], Array]
    count: int
    drafting: Drafting

    def loss(
        self, params: PyTree, frozen: PyTree, batch: Batch
    ) -> tuple[Float[Array, ""], Metrics]:
        """The loss, and how often the candidates have the token that the head scores highest.

        Args:
            params: the factors.
            frozen: `target`, the target's weights, and `borrowed`, the head's other collections.
            batch: text.

        Returns:
            The mean divergence of the draft steps, and the metrics `recall` and `divergence`, one
            entry a step.
        """
        variables = frozen["borrowed"]

        def at_step(step: tuple[Array, Array]) -> tuple[Array, Array]:
            """Divergence and recall of one step: the scores of all would take much memory."""
            hidden, live = step
            exact, scores = self.head.score(variables, hidden), self.retrieve(hidden, params)
            log_probs = jax.nn.log_softmax(scores)
            divergence = optax.losses.kl_divergence(log_probs, jax.nn.softmax(exact))
            _, ids = top_k(scores, self.count)
            has = (ids == exact.argmax(-1, keepdims=True)).any(-1)
            return _mean(divergence, live), _mean(has, live)

        drafted = jax.lax.stop_gradient(self.drafting.drafted(variables, frozen, batch))
        divergence, recall = jax.lax.map(jax.checkpoint(at_step), drafted)
        return divergence.mean(), {"recall": recall, "divergence": divergence}


def some_states(target: CausalLM, params: PyTree, text: Sequences) -> Float[np.ndarray, "N E"]:
    """The target's states from which some sequences of a text, spread over it, are foretold."""
    rows = np.unique(np.linspace(0, len(text) - 1, _ROWS).astype(int))

    @jax.jit
    def run(params: PyTree, tokens: Array) -> Array:
        hidden = lm.forward(target, params, tokens).hidden
        assert hidden is not None, "a target of draft heads gives its states"
        return hidden[:, :-1]

    return np.asarray(run(params, text.tokens[rows]))[text.live[rows, 1:]]


def _mean(values: Array, live: Bool[Array, "B A"]) -> Float[Array, ""]:
    return jnp.where(live, values, 0).sum(dtype=jnp.float32) / jnp.maximum(live.sum(), 1)
