"""The tree that looks at the noise: best-first growth by what the target is about to draw."""

import math
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec._validate.kinds import COUNT, Number
from jspec.drafters.draft_model.best_first_tree import BestFirst, draws_along_path
from jspec.drafters.draft_model.draft_model import Drafted
from jspec.drafters.growth.best_first import NodeValues, ValueFn
from jspec.types import Feedback
from jspec.verify import schemes
from jspec.verify.proposals import ChildDraws

_PRIOR = 2.0
"""The first inverse temperature; pairs of models that were measured settle at 1.3 to 2.2."""
_RANGE = (1 / 8, 16.0)
_PRIOR_WEIGHT = 10.0
"""The number of tokens that the prior counts for."""
_MEMORY = 0.99
"""The share of the curvature that remains after a token."""
_MAX_STEP = 0.5
"""The largest step of log beta from one token."""
_WIDEST = 1e3
"""The distance below the best score from which on a score counts for nothing."""


@struct.dataclass
class InverseTemperature:
    """The inverse temperature beta of the draft's scores, learnt from the emitted tokens."""

    log: Float[Array, " B"]
    weight: Float[Array, " B"]
    """Curvature of the log-likelihood so far, forgotten slowly."""


@dataclass(frozen=True)
class CoupledTree(BestFirst):
    """The tree of the tokens that the target will most likely draw, jspec's own.

    Under the coupled rule the target's token is argmax(log p + G), any proposal is lossless, and
    the noise G is known before p is. So the tree may look at G: a child's share of its parent's
    value is softmax(beta z) over its siblings, with z = logits of q + T G at temperature T. That is
    the probability that it is the target's token if the logits of p differ from q's by Gumbel noise
    of scale 1 / beta. The inverse temperature beta follows the text, row by row, by one Newton step
    of the log-likelihood per emitted token. At T = 0 the same line ranks plain logits.

    Sampling then costs few more rounds than greedy decoding: the noise that makes the target's
    choice uncertain is known to the draft.

    Args:
        model: the draft model.
        num_speculative_tokens: drafted tokens; the root is not counted.
        max_depth: most levels below the root.
        beam: nodes scored per level and children drawn per node.
        min_gain: no level is grown that adds at most this share to the expected tokens.
        order: of the nodes, such as `jspec.tree.depth_first`; None is breadth first.
        scheme: `jspec.schemes.COUPLED`, the only one that allows a look at the noise.
        sampling: the draft's own temperature and filters; None: the target's.

    Raises:
        InputError: if an argument is out of range, or another scheme is asked for.

    Example:
        >>> import jspec
        >>> from jspec.models.llama import Llama, LlamaConfig
        >>> draft = Llama(LlamaConfig(4096, 64, 128, 1, 4, 2, 16, 1024))
        >>> jspec.CoupledTree(draft, num_speculative_tokens=8, max_depth=4).depth
        4
    """

    max_depth: Annotated[int, COUNT] = 16
    min_gain: Annotated[float, Number(0, 1, below_high=True)] = 0.02

    def __post_init__(self):
        if self.scheme != schemes.COUPLED:
            raise InputError(
                "CoupledTree looks at the noise, which only the coupled rule allows; leave out "
                "scheme, or take DySpec"
            )
        super().__post_init__()

    def init_memory(self, batch: int, earlier: InverseTemperature | None) -> InverseTemperature:
        """Returns the memory of a new call, the mean of earlier rows' for each row."""
        if earlier is None:
            earlier = InverseTemperature(
                log=jnp.log(jnp.full(1, _PRIOR, jnp.float32)),
                weight=jnp.full(1, _PRIOR_WEIGHT, jnp.float32),
            )
        return jax.tree.map(lambda rows: jnp.full(batch, rows.mean()), earlier)

    def value_fn(self, memory: InverseTemperature) -> ValueFn:
        beta = jnp.exp(memory.log)[:, None, None]

        def share(drawn: ChildDraws, above: Float[Array, "B W"]) -> NodeValues:
            values = above[..., None] * jax.nn.softmax(beta * drawn.scores, axis=-1)
            return NodeValues(values, values, notes=(drawn.scores,))

        return share

    def learn(
        self, memory: InverseTemperature, aux: Drafted, feedback: Feedback
    ) -> InverseTemperature:
        """Takes a Newton step on log beta for each emitted token whose parent was scored."""
        drawn, has_drawn = draws_along_path(aux, feedback)
        emitted = jnp.arange(feedback.emitted.shape[1])[None] < feedback.counts[:, None]
        hit = drawn.tokens == feedback.emitted[..., None]
        # Impossible tokens would make the moments 0 * inf; a node of NaN logits teaches nothing.
        best = drawn.notes[0].max(-1, keepdims=True)
        scores = jnp.maximum(drawn.notes[0], best - _WIDEST)
        valid = emitted & has_drawn & hit.any(-1) & jnp.isfinite(best[..., 0])
        steps = jax.tree.map(lambda array: jnp.moveaxis(array, 1, 0), (scores, hit, valid))
        return jax.lax.scan(_newton_step, memory, steps)[0]


def _newton_step(
    state: InverseTemperature,
    token: tuple[Float[Array, "B K"], Bool[Array, "B K"], Bool[Array, " B"]],
) -> tuple[InverseTemperature, None]:
    """Moves log beta by one emitted token of each row."""
    scores, hit, valid = token
    beta = jnp.exp(state.log)
    probs = jax.nn.softmax(beta[:, None] * scores, axis=-1)
    mean = (probs * scores).sum(-1)
    variance = (probs * jnp.square(scores - mean[:, None])).sum(-1)
    weight = _MEMORY * state.weight + jnp.square(beta) * variance
    step = beta * (jnp.where(hit, scores, 0.0).sum(-1) - mean) / weight
    log = jnp.clip(state.log + jnp.clip(step, -_MAX_STEP, _MAX_STEP), *map(math.log, _RANGE))
    moved = InverseTemperature(
        log=jnp.where(valid, log, state.log), weight=jnp.where(valid, weight, state.weight)
    )
    return moved, None
