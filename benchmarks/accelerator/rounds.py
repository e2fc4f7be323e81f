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
from jspec.methods import LLM
from jspec.models import Loaded
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
    """The compiled loop of rounds of a target and a method, and a state that it repeats."""

    def __init__(self, target: Loaded, built: LLM, batch: int, scale: Scale):
        self.params, self.past = target.params, scale.past
        self.state = random_state(
            target.model, target.params, built.drafting, batch, scale.past, scale.capacity
        )
        self.program = compiled(
            decode_rounds, target.model, target.params, self.state, built.drafter,
            built.drafter_params, np.int32(FEW), policy=built.policy,
            policy_params=built.policy_params,
        )  # fmt: skip

    def run(self, num_rounds: int, params: tuple[PyTree, PyTree]) -> jax.Array:
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
        drafter_params, policy_params = params
        self.state = self.program.run(
            self.params, start, drafter_params, np.int32(num_rounds), policy_params=policy_params
        )
        return self.state.lengths

    def time(self, params: tuple[PyTree, PyTree], scale: Scale) -> dict[str, Any]:
        """Returns the seconds and tokens of a round, with these params of drafter and policy."""
        many = scale.num_rounds + FEW
        runs = {str(count): partial(self.run, count, params) for count in (FEW, many)}
        seconds = paired(runs, scale.repeats)
        rounds = (seconds[str(many)] - seconds[str(FEW)]) / scale.num_rounds
        tokens = float(self.run(many, params).mean()) / many
        return {"seconds": rounds.tolist(), "tokens_per_round": tokens}


def build(name: str, target: Loaded, batch: int, scale: Scale) -> LLM:
    """Makes the drafter of a method, with its weights and its policy."""
    if name == PLAIN:
        return LLM(target, jspec.Autoregressive())
    if name == FORCED:
        drafter = forced(scale.config.vocab_size, scale.nodes)
        return LLM(target, drafter, script(batch, TOKENS_PER_ROUND[0]))
    return methods.build(name, target)


def kinds(loop: Loop, name: str, built: LLM) -> Iterator[tuple[str, tuple[PyTree, PyTree]]]:
    """Yields each kind of round that a method has, with the params that bring nothing else."""
    state, params = loop.state, built.drafter_params
    if name == FORCED:
        for tokens in TOKENS_PER_ROUND:
            yield f"{tokens} tokens", (script(len(state.root), tokens), None)
    elif built.policy.widths:
        sizes = jspec.round.sizes_of(built.policy, state.root)
        for chosen in (0, *(width for width, _ in sizes)):
            curve = {tokens: 1.0 if size == chosen else _OUT_OF_REACH for size, tokens in sizes}
            loop.state = set_backoff(loop.state, chosen == 0)
            yield f"{chosen} nodes" if chosen else REST, (params, CostCurve.of(curve))
    else:
        (width,) = state.stats.widths
        yield f"{width} nodes" if width else PLAIN, (params, None)


def _time(target: Loaded, name: str, batch: int, scale: Scale) -> tuple[dict, dict]:
    """Returns what the rounds of a method take by kind, and what compiling them took."""
    built = build(name, target, batch, scale)
    loop = Loop(target, built, batch, scale)
    found = {kind: loop.time(one, scale) for kind, one in kinds(loop, name, built)}
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
