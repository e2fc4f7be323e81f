"""The training loop of a causal language model: AdamW, a cosine, and resumption after a kill."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from jspec.base import CausalLM, PyTree
from jspec.training.checkpoints import Checkpoints
from jspec.training.packing import Plan


@dataclass(frozen=True)
class Recipe:
    """How to optimise.

    Args:
        steps: updates in all.
        learning_rate: its peak, after `warmup` steps.
        cooldown: share of the steps after the warmup over which a cosine takes the learning rate
            from its peak down to `floor` times that; before, it stays at the peak. Below 1, a
            run can still be lengthened or cut while it is at the peak.
        clip: bound on the global norm of the gradient.
        checkpoint_every: steps between checkpoints; the last step always writes one.
    """

    steps: int
    learning_rate: float = 2e-3
    warmup: int = 100
    cooldown: float = 1.0
    floor: float = 0.05
    weight_decay: float = 0.1
    beta2: float = 0.95
    clip: float = 1.0
    checkpoint_every: int = 200


@struct.dataclass
class TrainState:
    """What the next update needs; the data order follows from the step alone."""

    params: PyTree
    optimizer: optax.OptState


@dataclass(frozen=True)
class Report:
    """What one update tells."""

    step: int
    """Updates done, this one included."""
    loss: float
    """Nats per token, before the update."""
    norm: float
    """Global norm of the gradient, before clipping."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says from where it can be resumed."""


def learning_rate(recipe: Recipe, step: ArrayLike) -> Float[Array, ""]:
    """Linear warmup, the peak, then a half cosine; `step` counts from 0."""
    warmup = min(recipe.warmup, recipe.steps - 1)
    fall = max(recipe.cooldown * (recipe.steps - warmup), 1.0)
    rise = jnp.minimum((step + 1) / (warmup + 1), 1.0)
    late = jnp.clip((step - (recipe.steps - fall)) / fall, 0.0, 1.0)
    cosine = recipe.floor + (1 - recipe.floor) * (1 + jnp.cos(jnp.pi * late)) / 2
    return recipe.learning_rate * rise * cosine


def optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """AdamW after clipping; norms and biases (vectors) do not decay."""
    return optax.chain(
        optax.clip_by_global_norm(recipe.clip),
        optax.adamw(
            partial(learning_rate, recipe),
            b2=recipe.beta2,
            weight_decay=recipe.weight_decay,
            mask=partial(jax.tree.map, lambda x: x.ndim > 1),
        ),
    )


def logits(model: CausalLM, params: PyTree, tokens: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """A causal forward over whole sequences."""
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, length, length))
    return model.apply(params, tokens, positions, mask, None).logits


def losses(model: CausalLM, params: PyTree, sequences: Int[Array, "B T+1"]) -> Float[Array, "B T"]:
    """Nats of each token after the first."""
    scores = logits(model, params, sequences[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(scores, sequences[:, 1:])


@partial(jax.jit, static_argnames=("model", "recipe"), donate_argnames="state")
def update(
    model: CausalLM, recipe: Recipe, state: TrainState, sequences: Int[Array, "B T+1"]
) -> tuple[TrainState, Float[Array, ""], Float[Array, ""]]:
    """(next state, loss, gradient norm) of one AdamW step. Donates the state."""
    loss, gradients = jax.value_and_grad(lambda params: losses(model, params, sequences).mean())(
        state.params
    )
    steps, next_optimizer = optimizer(recipe).update(gradients, state.optimizer, state.params)
    params = optax.apply_updates(state.params, steps)
    return TrainState(params, next_optimizer), loss, optax.tree.norm(gradients)


def start(recipe: Recipe, params: PyTree) -> TrainState:
    return TrainState(params, optimizer(recipe).init(params))


def train(
    model: CausalLM,
    recipe: Recipe,
    params: PyTree,
    plan: Plan,
    checkpoints: Checkpoints,
    report: Callable[[Report], None] = lambda _: None,
) -> PyTree:
    """Trains from the last checkpoint, or from `params` if there is none, and returns the weights.

    Args:
        params: initial weights; donated.
        plan: what each step reads. The same plan after a kill gives the same losses.
        report: called after each update.

    Raises:
        TrainingError: if the loss or gradient is not a number; the last checkpoint stays.
    """
    state, done = checkpoints.restore(start(recipe, params))
    for step in range(done, recipe.steps):
        state, loss, norm = update(model, recipe, state, plan.batch(step))
        result = Report(step + 1, float(loss), float(norm))
        if not (math.isfinite(result.loss) and math.isfinite(result.norm)):
            raise TrainingError(
                f"loss {result.loss}, gradient norm {result.norm} at step {result.step}; the last "
                f"good checkpoint is step {checkpoints.latest()}: resume with a lower learning rate"
            )
        checkpoints.log(asdict(result))
        report(result)
        if result.step % recipe.checkpoint_every == 0 or result.step == recipe.steps:
            checkpoints.save(result.step, state)
    return state.params
