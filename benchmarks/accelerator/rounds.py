"""Rounds in the loop of `decode`: their seconds, pieces, and forced acceptance.

Forced acceptance keeps the first child of a node with one probability at each level, so that a
round takes as many tokens as were counted on real text. Walk, commit and update are the same as
with a target that agrees; only the text is meaningless.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jspec
from benchmarks.accelerator.shapes import Measurements, Shape, random_state
from benchmarks.harness import paired
from benchmarks.pieces import Piece, medians
from jspec import round as parts

# The loop of `decode` by itself: its prefill would have to be compiled for every drafter.
from jspec.decoding import decode_rounds
from jspec.protocols import Drafter, Drafting, NodeRule
from jspec.types import PyTree
from jspec.verify.schemes import COUPLED, RECURSIVE, Scheme
from jspec.verify.tree_verifier import TreeVerifier

FEW = 2
"""Rounds of the shorter sample; the fixed cost of a call cancels in the difference."""
FORCED = {
    "token_recycling": {"SmolLM2": 2.45, "the paper, 7B": 2.70},
    "rsd_s 5x4": {"SmolLM2, T 0.3": 2.06, "the paper, XSum": 3.43},
    "speculative_decoding 4": {"SmolLM2, T 0.3": 1.45, "the paper, XSum": 2.73},
}
"""Tokens per round that are forced: those counted in benchmarks/results, and the papers'."""


def first_child(share: float) -> NodeRule:
    """Makes a node rule that keeps the first child with a probability, and no other."""

    def rule(p, q, children, valid, noise):
        del q, noise
        first = valid & (jnp.arange(len(children)) == 0)
        return jnp.where(first, share, 0.0), p

    return rule


def share_of(tokens: float, depth: int) -> float:
    """Finds the probability per level with which rounds of a depth take so many tokens.

    Example:
        >>> round(share_of(1 + 0.5 + 0.25, 2), 6)
        0.5
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        more = sum(middle**level for level in range(depth + 1)) > tokens
        low, high = (low, middle) if more else (middle, high)
    return low


def drafter(name: str, shape: Shape, rule: NodeRule | None = None) -> tuple[Drafter, PyTree]:
    """Makes a method and its weights; a rule, if given, decides about its drafts."""
    draft = shape.model(shape.draft)
    scheme = RECURSIVE if rule is None else Scheme(RECURSIVE.draw, TreeVerifier(rule))
    match name.split():
        case ["plain"]:
            return jspec.Autoregressive(), None
        case ["token_recycling"]:
            found = jspec.TokenRecycling(shape.target.vocab_size)
            return (found if rule is None else jspec.with_verifier(found, rule)), None
        case ["rsd_s", size]:
            beam, depth = map(int, size.split("x"))
            return jspec.RSDS(draft, beam=beam, max_depth=depth, scheme=scheme), shape.draft_params
        case ["dyspec", nodes]:
            tree = jspec.DySpec.published(draft, num_speculative_tokens=int(nodes))
            return tree, shape.draft_params
        case _:
            chain = jspec.SpeculativeDecoding(draft, int(name.split()[-1]), scheme=scheme)
            return chain, shape.draft_params


def rounds(shape: Shape) -> Measurements:
    """Yields the seconds and tokens of a round: plain, of methods, and of forced acceptance."""
    yield {"method": "plain", "forced": None}, partial(_loop, shape, "plain", None)
    for name, forced in FORCED.items():
        for told, tokens in forced.items():
            yield {"method": name, "forced": told}, partial(_loop, shape, name, tokens)
    for budget in shape.budgets:
        name = f"dyspec {budget}"
        yield {"method": name, "forced": None}, partial(_loop, shape, name, None)


def _loop(shape: Shape, name: str, tokens: float | None) -> dict[str, Any]:
    """Seconds and tokens of a round, over calls of few rounds and of many."""
    rule = None
    if tokens is not None:
        found, _ = drafter(name, shape)
        rule = first_child(share_of(tokens, getattr(found, "template", found).depth))
    found, params = drafter(name, shape, rule)
    model = shape.model(shape.target)
    # Where tokens are drawn: greedily a rule's probabilities are 0 and 1.
    held = [random_state(shape, found, params, temperature=1.0)]
    drafting = Drafting(found, params, jspec.FixedWidth())

    def run(count: int) -> jax.Array:
        start = replace(
            held[0],
            memory=replace(held[0].memory, lengths=jnp.full(1, shape.past, jnp.int32)),
            positions=jnp.full(1, shape.past, jnp.int32),
            lengths=jnp.zeros(1, jnp.int32),
            status=jnp.zeros(1, jnp.int32),
        )
        # Donated: the cache is held once, and the next call goes on with what this one returns.
        held[0] = decode_rounds(model, shape.target_params, start, drafting, np.int32(count))
        return held[0].lengths

    many = shape.num_rounds + FEW
    seconds = paired({str(count): partial(run, count) for count in (FEW, many)}, shape.repeats)
    taken = (seconds[str(many)] - seconds[str(FEW)]) / shape.num_rounds
    return {"seconds": taken.tolist(), "tokens": float(run(many).mean()) / many}


def shares(shape: Shape) -> Measurements:
    """Yields the seconds of a round's pieces: Fig. 4 of Token Recycling and of DySpec."""
    for name in ("token_recycling", *(f"dyspec {budget}" for budget in shape.budgets)):
        yield {"method": name}, partial(_shares, shape, name)


def _shares(shape: Shape, name: str) -> dict[str, Any]:
    found, params = drafter(name, shape)
    model, weights = shape.model(shape.target), shape.target_params
    state = random_state(shape, found, params, temperature=0.0)
    frame = parts.frame(state)
    verifier = found.verifier or COUPLED.verifier

    def commit(state, aux, tree, output, verdict):
        after, feedback = parts.commit(state, tree, output, verdict)
        memory = model.commit(state.memory, output.tentative, verdict.path, feedback.counts)
        learnt = found.update(params, state.drafter_state, aux, feedback)
        return after.replace(memory=memory, drafter_state=learnt)

    draft, score = jax.jit(found.draft), jax.jit(partial(parts.score, model))
    verify, update = jax.jit(verifier.verdict), jax.jit(commit, donate_argnums=0)
    drawn, aux = draft(params, state.drafter_state, frame)
    tree = parts.sanitize(drawn, frame.root, model.vocab_size)
    output = score(weights, tree, frame, state.memory)
    verdict = verify(tree, output.logits, frame)
    seconds = medians(
        {
            "draft": Piece(draft, (params, state.drafter_state, frame)),
            "target": Piece(score, (weights, tree, frame, state.memory)),
            "verify": Piece(verify, (tree, output.logits, frame)),
            "update": Piece(update, (state, aux, tree, output, verdict), donates=True),
        },
        shape.repeats,
    )
    return {"seconds": seconds, "nodes": int(tree.valid.sum()) - 1}
