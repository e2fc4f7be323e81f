"""The training loop: AdamW, a schedule, and resumption after a kill, whatever is trained."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from jspec._validate.errors import InputError, RunStopped
from jspec.training.checkpoints import Checkpoints
from jspec.types import PyTree

Metrics = Mapping[str, Float[Array, "..."]]


class Objective(Protocol):
    """The loss to minimise. An objective is static and hashable, as a model is."""

    def loss(
        self, params: PyTree, frozen: PyTree, batch: PyTree
    ) -> tuple[Float[Array, ""], Metrics]:
        """Returns the loss, and what else is worth a line in the curve.

        Args:
            params: what is trained.
            frozen: what is not, such as the target of a draft head.
            batch: what the step reads.
        """
        ...


SCHEDULES: Mapping[str, Callable[[ArrayLike], Array]] = {
    "cosine": lambda late: (1 + jnp.cos(jnp.pi * late)) / 2,
    "linear": lambda late: 1 - jnp.asarray(late),
}
"""The share of the peak that is left, by the share of the cooldown that is over."""


@dataclass(frozen=True)
class Recipe:
    """The settings of the optimiser and its schedule.

    Args:
        steps: updates in all.
        learning_rate: its peak, after `warmup` steps.
        cooldown: share of the steps after the warmup over which the learning rate falls from its
            peak down to `floor` times that; before, it stays at the peak. Below 1, a run can still
            be lengthened or cut while it is at the peak.
        schedule: how it falls, one of `SCHEDULES`.
        clip: bound on the global norm of the gradient.
        checkpoint_every: steps between checkpoints; the last step always writes one.

    Raises:
        InputError: if there is no such schedule.
    """

    steps: int
    learning_rate: float = 2e-3
    warmup: int = 100
    cooldown: float = 1.0
    floor: float = 0.05
    schedule: str = "cosine"
    weight_decay: float = 0.1
    beta2: float = 0.95
    clip: float = 1.0
    checkpoint_every: int = 200

    def __post_init__(self):
        if self.schedule not in SCHEDULES:
            names = ", ".join(SCHEDULES)
            raise InputError(f"schedule is {self.schedule!r:.80}; use one of {names}")


@struct.dataclass
class TrainState:
    """The weights and the optimiser's state; the data order follows from the step alone."""

    params: PyTree
    optimizer: optax.OptState


@dataclass(frozen=True)
class UpdateMetrics:
    """The figures of one update."""

    step: int
    """Updates done, this one included."""
    loss: float
    """Nats per token, before the update."""
    norm: float
    """Global norm of the gradient, before clipping."""
    metrics: Mapping[str, float | list[float]] = field(default_factory=dict)
    """The other figures that the objective gives."""


class TrainingError(RunStopped):
    """Training cannot go on; the message says from where it can be resumed."""


def learning_rate(recipe: Recipe, step: ArrayLike) -> Float[Array, ""]:
    """Computes linear warmup, the peak, then the schedule's decay; `step` counts from 0."""
    warmup = min(recipe.warmup, recipe.steps - 1)
    fall = max(recipe.cooldown * (recipe.steps - warmup), 1.0)
    rise = jnp.minimum((step + 1) / (warmup + 1), 1.0)
    late = jnp.clip((step - (recipe.steps - fall)) / fall, 0.0, 1.0)
    decay = recipe.floor + (1 - recipe.floor) * SCHEDULES[recipe.schedule](late)
    return recipe.learning_rate * rise * decay


def optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """Returns AdamW after clipping; norms and biases (vectors) do not decay."""
    return optax.chain(
        optax.clip_by_global_norm(recipe.clip),
        optax.adamw(
            partial(learning_rate, recipe),
            b2=recipe.beta2,
            weight_decay=recipe.weight_decay,
            mask=partial(jax.tree.map, lambda x: x.ndim > 1),
        ),
    )


@partial(jax.jit, static_argnames=("objective", "recipe"), donate_argnames="state")
def update(
    objective: Objective, recipe: Recipe, state: TrainState, frozen: PyTree, batch: PyTree
) -> tuple[TrainState, Float[Array, ""], Float[Array, ""], Metrics]:
    """Returns (next state, loss, gradient norm, metrics) of one AdamW step. Donates the state."""
    (loss, metrics), gradients = jax.value_and_grad(objective.loss, has_aux=True)(
        state.params, frozen, batch
    )
    steps, next_optimizer = optimizer(recipe).update(gradients, state.optimizer, state.params)
    params = optax.apply_updates(state.params, steps)
    return TrainState(params, next_optimizer), loss, optax.tree.norm(gradients), metrics


def start(recipe: Recipe, params: PyTree) -> TrainState:
    return TrainState(params, optimizer(recipe).init(params))


def train(
    objective: Objective,
    recipe: Recipe,
    params: PyTree,
    batches: Callable[[int], PyTree],
    checkpoints: Checkpoints,
    report: Callable[[UpdateMetrics], None] = lambda _: None,
    frozen: PyTree = None,
    place: Callable[[PyTree], PyTree] = lambda state: state,
    examine: Callable[[int, PyTree], None] = lambda step, params: None,
) -> PyTree:
    """Trains from the last checkpoint, or from `params`, and returns the weights.

    Args:
        params: initial weights; donated.
        batches: what each step reads, by the step. The same after a kill gives the same losses.
        report: called after each update.
        frozen: what the objective reads and does not train.
        place: puts the state on the devices that the batches are on.
        examine: called after each update with step and weights, which the next update donates.

    Raises:
        InputError: if the run has gone further than it is asked to.
        TrainingError: if the loss or gradient is not a number; the last checkpoint stays.
    """
    if (done := checkpoints.latest()) > recipe.steps:
        raise InputError(
            f"{checkpoints.folder} is at step {done} and {recipe.steps} steps are asked for; ask "
            f"for at least {done}, or name another folder"
        )
    state, done = checkpoints.restore(place(start(recipe, params)))
    for step in range(done, recipe.steps):
        state, loss, norm, metrics = update(objective, recipe, state, frozen, batches(step))
        values = {name: value.tolist() for name, value in jax.device_get(metrics).items()}
        result = UpdateMetrics(step + 1, float(loss), float(norm), values)
        if not (math.isfinite(result.loss) and math.isfinite(result.norm)):
            raise TrainingError(
                f"loss {result.loss}, gradient norm {result.norm} at step {result.step}; the last "
                f"good checkpoint is step {checkpoints.latest()}: resume with a lower learning rate"
            )
        curve = {"step": result.step, "loss": result.loss, "norm": result.norm}
        checkpoints.log({**curve, **result.metrics})
        report(result)
        examine(result.step, state.params)
        if result.step % recipe.checkpoint_every == 0 or result.step == recipe.steps:
            checkpoints.save(result.step, state)
    return state.params
