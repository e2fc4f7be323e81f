"""Whole rounds in the loop of `decode`, by method and width, and with forced acceptance.

Forced acceptance keeps as many drafted tokens as asked for, whatever the model says. The walk takes
the steps and the bonus token that it would take if the target agreed; only the text is meaningless,
so that no two forwards have to round alike.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

import jspec
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.hollow import HollowModel
from benchmarks.accelerator.shapes import Scale, random_state
from benchmarks.accelerator.timing import compiled
from benchmarks.harness import paired
from jspec import methods
from jspec.costs import CostCurve
from jspec.costs.measuring import set_backoff

# The loop of `decode` by itself. Its prefill would have to be compiled for every drafter, which
# takes as long again and has nothing to say here.
from jspec.decoding import decode_rounds
from jspec.drafters.retrieval.token_recycling import fitted
from jspec.models import Loaded
from jspec.policies.adaptive import Adaptive, AdaptiveParams
from jspec.protocols import Drafter
from jspec.types import PyTree

FEW = 2
"""Rounds of the shorter sample: what a call costs besides its rounds cancels in the difference."""
TOKENS_PER_ROUND = (2, 3, 4, 5)
PLAIN, FORCED, REST = "plain", "forced", "rest"
RIGHT = 1
"""The token that counts as right; `jspec.Scripted` drafts another one where it is to be wrong."""
_OUT_OF_REACH = 1e6
"""Seconds of a width that is not to be chosen."""


def right_token(
    p: Float[Array, " V"],
    q: Float[Array, " V"] | None,
    children: Int[Array, " K"],
    valid: Bool[Array, " K"],
    noise: Float[Array, " V"],
) -> tuple[Float[Array, " K"], Float[Array, " V"]]:
    """A node rule that keeps the right token and nothing else; the bonus token is the target's."""
    del q, noise
    return jnp.where(valid & (children == RIGHT), 1.0, 0.0), p


def forced(vocab_size: int, nodes: int) -> Drafter:
    """Drafts Token Recycling's best tree of so many nodes."""
    return jspec.with_verifier(jspec.Scripted(vocab_size, fitted(nodes, 8)), right_token)


def script(batch: int, tokens_per_round: int) -> jspec.Script:
    """Returns the `drafter_params` with which every round emits so many tokens."""
    return jspec.Script(
        tokens=jnp.full((batch, 1), RIGHT, jnp.int32), accepts=jnp.array([tokens_per_round - 1])
    )


class Loop:
    """The compiled loop of rounds of a target and a drafter, and a state that it repeats."""

    def __init__(
        self, target: Loaded, drafter: Drafter, drafter_params: PyTree, batch: int, scale: Scale
    ):
        self.params, self.past = target.params, scale.past
        self.state = random_state(
            target.model, target.params, drafter, drafter_params, batch, scale.past, scale.capacity
        )
        self.program = compiled(
            decode_rounds, target.model, target.params, self.state, drafter, drafter_params,
            np.int32(FEW),
        )  # fmt: skip

    def run(self, num_rounds: int, drafter_params: PyTree) -> jax.Array:
        """Returns the tokens that each row emits in so many rounds from the state's beginning."""
        state, batch = self.state, len(self.state.root)
        start = replace(
            state,
            memory=replace(state.memory, lengths=jnp.full(batch, self.past, jnp.int32)),
            positions=jnp.full(batch, self.past, jnp.int32),
            lengths=jnp.zeros(batch, jnp.int32),
            status=jnp.zeros(batch, jnp.int32),
        )
        # Donated: the cache is held once, and the next call goes on with what this one returns.
        self.state = self.program.run(self.params, start, drafter_params, np.int32(num_rounds))
        return self.state.lengths

    def time(self, drafter_params: PyTree, scale: Scale) -> dict[str, Any]:
        """Returns the seconds and tokens of a round, with these weights of the drafter."""
        many = scale.num_rounds + FEW
        runs = {str(count): partial(self.run, count, drafter_params) for count in (FEW, many)}
        seconds = paired(runs, scale.repeats)
        rounds = (seconds[str(many)] - seconds[str(FEW)]) / scale.num_rounds
        tokens = float(self.run(many, drafter_params).mean()) / many
        return {"seconds": rounds.tolist(), "tokens_per_round": tokens}


def build(name: str, target: Loaded, batch: int, scale: Scale) -> tuple[Drafter, PyTree]:
    """Makes the drafter of a method and its weights."""
    if name == PLAIN:
        return jspec.Autoregressive(), None
    if name == FORCED:
        return forced(scale.config.vocab_size, scale.nodes), script(batch, TOKENS_PER_ROUND[0])
    return methods.build(name, target)[1:]


def kinds(loop: Loop, name: str, drafter: Drafter, params: PyTree) -> Iterator[tuple[str, PyTree]]:
    """Yields each kind of round that a method has, with the weights that bring nothing else."""
    state = loop.state
    if name == FORCED:
        for tokens in TOKENS_PER_ROUND:
            yield f"{tokens} tokens", script(len(state.root), tokens)
    elif isinstance(drafter, Adaptive):
        sizes = drafter.sizes(state.root)
        for chosen in (0, *(width for width, _ in sizes)):
            curve = {tokens: 1.0 if size == chosen else _OUT_OF_REACH for size, tokens in sizes}
            loop.state = set_backoff(loop.state, chosen == 0)
            yield (
                f"{chosen} nodes" if chosen else REST,
                AdaptiveParams(params.drafter, CostCurve.of(curve)),
            )
    else:
        (width,) = state.stats.widths
        yield f"{width} nodes" if width else PLAIN, params


def _time(target: Loaded, name: str, batch: int, scale: Scale) -> tuple[dict, dict]:
    """Returns what the rounds of a method take by kind, and what compiling them took."""
    drafter, params = build(name, target, batch, scale)
    loop = Loop(target, drafter, params, batch, scale)
    found = {kind: loop.time(one, scale) for kind, one in kinds(loop, name, drafter, params)}
    return found, loop.program.about()


def measure(cells: Cells, scale: Scale) -> None:
    """Writes one row for each method and batch: the rounds, and the same without a forward."""
    for batch in scale.round_batches:
        for name in (PLAIN, FORCED, *scale.round_methods):

            def row(name: str = name, batch: int = batch) -> dict:
                target = Loaded(scale.model, scale.params, tokenizer=None, eos=(), bos=None)
                found, about = _time(target, name, batch, scale)
                model = HollowModel(scale.config, scale.dtype)
                empty = replace(target, model=model, params=model.init(jax.random.key(0)))
                return {"kinds": found, "hollow": _time(empty, name, batch, scale)[0], **about}

            cells.run(row, method=name, batch=batch)
