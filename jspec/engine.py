"""Draft, score, walk, commit: one round, and the loop around it.

The sentence of the project is `_round`; everything else here prepares it or repeats it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import ArrayLike
from jaxtyping import Array, Int

from jspec import cache as caches
from jspec import sampling as samplings
from jspec import tree as trees
from jspec.base import (
    Feedback,
    Frame,
    PyTree,
    Request,
    Result,
    Sampling,
    State,
    Stats,
    Status,
    Tree,
    Verdict,
)
from jspec.drafters.autoregressive import Autoregressive
from jspec.errors import InputError
from jspec.protocols import CausalLM, Drafter, NodeRule, Verifier
from jspec.ragged import append, sequence
from jspec.request import Prepared, prepare
from jspec.verify import rules
from jspec.verify.tree_verifier import TreeVerifier

_ENDLESS = 2**31 - 1


def decode(
    model: CausalLM,
    params: PyTree,
    prompt: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    drafter_state: PyTree = None,
    max_new_tokens: int = 128,
    limits: ArrayLike | None = None,
    sampling: Sampling | None = None,
    eos: int | Sequence[int] | ArrayLike | None = None,
    key: jax.Array | int | None = None,
    rows: ArrayLike | None = None,
    rule: NodeRule | Verifier | None = None,
) -> Result:
    """Generates tokens for a batch of prompts; a drafter changes the speed, never the tokens'
    distribution.

    A pure function: `jit`, `pmap`, `shard_map` and `export` take it whole. Called as it is, it
    compiles once per bucket of shapes, and runs as one prefill and one `while_loop`.

    Args:
        model: the target; static.
        params: its weights.
        prompt: [B, T] token ids, padded on the right.
        lengths: [B] tokens per row; None: every row is full.
        drafter: proposes the trees; static. The default drafts nothing.
        drafter_params: the drafter's weights, if it has any.
        drafter_state: `Result.drafter_state` of an earlier call, for a hot start.
        max_new_tokens: size of the output; static.
        limits: [B] most tokens to emit per row, 0 .. max_new_tokens; None: max_new_tokens.
        sampling: None is greedy.
        eos: token or tokens that end a row, or [B, X] with -1 filling up.
        key: a random key or a seed; needed for sampling. Not consumed: the token at a position
            depends on (key, row id, position) and the model alone, so the same key gives the
            same tokens, with every drafter under the default rule.
        rows: [B] ids of the rows for their randomness; None: 0 .. B-1. Under `shard_map` or
            `pmap` pass the global ids.
        rule: a node rule or a verifier; None is the one that the drafter's draws were made for,
            `jspec.rules.coupled` unless it was given another scheme. `coupled` is lossless for
            any drafter; another rule is refused where draws were made for a rule of their own.

    Raises:
        InputError: if an argument is out of range or does not fit, before anything is compiled.
    """
    state = prefill(
        model, params, prompt, lengths, drafter=drafter, drafter_params=drafter_params,
        drafter_state=drafter_state, max_new_tokens=max_new_tokens, limits=limits,
        sampling=sampling, eos=eos, key=key, rows=rows,
    )  # fmt: skip
    state = _advance(model, params, state, drafter, drafter_params, _verifier(rule), _ENDLESS)
    return Result(
        tokens=state.out[:, :max_new_tokens],
        lengths=state.lengths,
        status=state.status,
        stats=state.stats,
        drafter_state=state.draft,
    )


def prefill(
    model: CausalLM,
    params: PyTree,
    prompt: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    drafter_state: PyTree = None,
    max_new_tokens: int = 128,
    limits: ArrayLike | None = None,
    sampling: Sampling | None = None,
    eos: int | Sequence[int] | ArrayLike | None = None,
    key: jax.Array | int | None = None,
    rows: ArrayLike | None = None,
) -> State:
    """The state before the first round; arguments and errors as in `decode`.

    The output buffer may be larger than `max_new_tokens` (a bucket); the limits hold.
    """
    if isinstance(drafter, type) or not isinstance(drafter, Drafter):
        raise InputError(f"drafter is {drafter!r}; pass an instance such as jspec.PromptLookup()")
    call = prepare(model, prompt, lengths, max_new_tokens, limits, sampling, eos, key, rows)
    # Donated, so that a drafter's own cache is held once; the caller's arrays are copied first.
    # Cold or hot, it is an argument: both are one program.
    earlier = jax.tree.map(jnp.copy, drafter_state)
    drafter_state = drafter.init(call.prompt.shape[0], call.slots, earlier)
    size, slots = call.size, call.slots
    arrays = call._replace(size=0, slots=0)
    return _prefill(model, params, arrays, drafter, drafter_params, drafter_state, size, slots)


def step(
    model: CausalLM,
    params: PyTree,
    state: State,
    *,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    rule: NodeRule | Verifier | None = None,
) -> State:
    """One round: every running row emits at least one token. Donates `state`."""
    return _advance(model, params, state, drafter, drafter_params, _verifier(rule), 1)


@struct.dataclass
class Chunk:
    """What `stream` yields: the tokens since the last chunk, on the host."""

    tokens: list[list[int]]
    """Per row."""
    drafted: list[list[bool]]
    """Whether each token was a draft that the target confirmed; False: the round's last token, the
    target's own draw (if an end token or a limit cut the round, it may have been drafted too)."""
    state: State
    """Valid until the next chunk is asked for, which donates it."""


def stream(
    model: CausalLM,
    params: PyTree,
    prompt: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    rule: NodeRule | Verifier | None = None,
    **request,
) -> Iterator[Chunk]:
    """`decode`, round by round. Yields a `Chunk` after each; together they are decode's tokens.

    Runs the very program that `decode` runs, one round at a time. Arguments and errors as in
    `decode`; they are checked before the first chunk is asked for.
    """
    state = prefill(
        model, params, prompt, lengths, drafter=drafter, drafter_params=drafter_params, **request
    )
    verifier = _verifier(rule)

    def rounds(state: State) -> Iterator[Chunk]:
        seen = jax.device_get(state.lengths)
        while not jax.device_get(state.done).all():
            state = _advance(model, params, state, drafter, drafter_params, verifier, 1)
            out, ends = jax.device_get((state.out, state.lengths))
            yield Chunk(
                tokens=[out[row, seen[row] : ends[row]].tolist() for row in range(len(ends))],
                drafted=[
                    [True] * (count - 1) + [False] * min(count, 1)
                    for count in (ends - seen).tolist()
                ],
                state=state,
            )
            seen = ends

    return rounds(state)


def _judge(asked: Verifier | None, tree: Tree) -> Verifier:
    """The verifier that was asked for, or the tree's own; any other would be biased for its draws.

    Raises:
        InputError: if it was asked for another than the tree's draws allow.
    """
    coupled = TreeVerifier(rules.coupled)
    own = tree.verifier or coupled
    if asked is None:
        return own
    if tree.verifier is not None and asked not in (own, coupled):
        raise InputError(
            f"rule is {asked} and the drafter's draws are lossless under {own} alone, or under "
            "jspec.rules.coupled; leave rule out, or give the drafter a scheme that pairs its "
            "draws with that rule"
        )
    return asked


def _verifier(rule: NodeRule | Verifier | None) -> Verifier | None:
    if rule is None:
        return None
    if isinstance(rule, type) or not (callable(rule) or isinstance(rule, Verifier)):
        raise InputError(
            f"rule is {rule!r}; pass a node rule such as jspec.rules.deterministic_proposal"
        )
    # A node rule is a plain function; a verifier is a static object.
    return rule if isinstance(rule, Verifier) else TreeVerifier(rule)


@partial(
    jax.jit,
    static_argnames=("model", "drafter", "size", "slots"),
    donate_argnames=("drafter_state",),
)
def _prefill(
    model: CausalLM,
    params: PyTree,
    call: Prepared,
    drafter: Drafter,
    drafter_params: PyTree,
    drafter_state: PyTree,
    size: int,
    slots: int,
) -> State:
    batch, width = call.prompt.shape
    places, causal = sequence(batch, width)
    output = model.apply(params, call.prompt, places, causal, None)
    # All but the last token, which is the first root.
    committed = call.lengths - 1
    cache = caches.commit(model.init_cache(batch, slots), output, places, committed)
    root = jnp.take_along_axis(call.prompt, committed[:, None], axis=1)[:, 0]
    draft = drafter.prefill(drafter_params, drafter_state, call.prompt, call.lengths, output)
    request = Request(
        limits=call.limits,
        eos=call.eos,
        sampling=call.sampling,
        keys=None if call.key is None else samplings.row_keys(call.key, call.rows),
    )
    zeros = jnp.zeros(batch, jnp.int32)
    state = State(
        cache=cache,
        root=root,
        out=jnp.zeros((batch, size), jnp.int32),
        lengths=zeros,
        status=jnp.where(call.limits == 0, Status.LIMIT, Status.RUNNING).astype(jnp.int32),
        draft=draft,
        stats=Stats(histogram=zeros[:, None], drafted=zeros),
        request=request,
    )
    tree, _ = jax.eval_shape(drafter.draft, drafter_params, draft, _frame(state))
    histogram = jnp.zeros((batch, tree.depth + 1), jnp.int32)
    return replace(state, stats=replace(state.stats, histogram=histogram))


@partial(jax.jit, static_argnames=("model", "drafter", "verifier"), donate_argnames=("state",))
def _advance(
    model: CausalLM,
    params: PyTree,
    state: State,
    drafter: Drafter,
    drafter_params: PyTree,
    verifier: Verifier | None,
    rounds: Int[Array, ""],
) -> State:
    """At most `rounds` rounds, fewer if every row ends."""

    def going(carry):
        state, left = carry
        return (left > 0) & ~state.done.all()

    def body(carry):
        state, left = carry
        return _round(model, params, state, drafter, drafter_params, verifier), left - 1

    state, _ = jax.lax.while_loop(going, body, (state, jnp.asarray(rounds, jnp.int32)))
    return state


def _round(
    model: CausalLM,
    params: PyTree,
    state: State,
    drafter: Drafter,
    drafter_params: PyTree,
    verifier: Verifier | None,
) -> State:
    """The drafter proposes, the model scores once, the walk decides, the path is committed."""
    frame = _frame(state)
    tree, draft = drafter.draft(drafter_params, state.draft, frame)
    if (depth := state.stats.histogram.shape[1] - 1) != tree.depth:
        raise InputError(
            f"the state was made for trees of depth {depth} and this drafter's have {tree.depth}; "
            "step with the drafter that prefill was given"
        )
    mask = trees.ancestors(tree)
    # Ids that the target has not are no drafts, nor is what hangs from them.
    known = (tree.tokens >= 0) & (tree.tokens < model.vocab_size)
    there = tree.valid & (known[:, None, :] | ~mask).all(-1)
    tree = replace(tree, tokens=jnp.where(known, tree.tokens, 0), valid=there)
    positions = frame.positions[:, None] + mask.sum(-1, dtype=jnp.int32) - 1
    output = model.apply(params, tree.tokens, positions, mask, state.cache)
    verdict = _judge(verifier, tree).verdict(tree, output.logits, frame)

    emitted, counts, status = _truncate(state, tree, verdict)
    after = status != Status.RUNNING
    feedback = Feedback(
        tree=tree,
        output=output,
        verdict=verdict,
        emitted=emitted,
        counts=counts,
        positions=frame.positions,
        done=after,
    )
    last = jnp.take_along_axis(emitted, jnp.maximum(counts - 1, 0)[:, None], axis=1)[:, 0]
    moved = counts > 0
    return State(
        cache=caches.commit(state.cache, output, verdict.path, counts),
        root=jnp.where(moved, last, state.root),
        out=append(state.out, state.lengths, emitted, counts),
        lengths=state.lengths + counts,
        status=status,
        draft=drafter.update(drafter_params, draft, feedback),
        stats=Stats(
            histogram=state.stats.histogram
            + (jnp.arange(emitted.shape[1]) == counts[:, None] - 1).astype(jnp.int32),
            drafted=state.stats.drafted
            + jnp.where(frame.done, 0, tree.valid.sum(-1, dtype=jnp.int32) - 1),
        ),
        request=state.request,
    )


def _frame(state: State) -> Frame:
    return Frame(
        root=state.root,
        positions=state.cache.lengths,
        keys=state.request.keys,
        sampling=state.request.sampling,
        done=state.done,
    )


def _truncate(
    state: State, tree: Tree, verdict: Verdict
) -> tuple[Int[Array, "B P"], Int[Array, " B"], Int[Array, " B"]]:
    """(emitted, counts, status): cuts the round's tokens at end tokens, limit and capacity.

    Once, before commit and before output: an end token inside an accepted path is ordinary.
    """
    request, lanes = state.request, jnp.arange(verdict.path.shape[1])
    # Token i of the round is node i + 1 of the path; behind the last node comes the bonus.
    below = jnp.roll(verdict.path, -1, axis=1)
    drafted = jnp.take_along_axis(tree.tokens, below, axis=1)
    last = lanes == verdict.counts[:, None] - 1
    tokens = jnp.where(last, verdict.bonus[:, None], drafted)

    offered = verdict.counts - verdict.failed
    left = request.limits - state.lengths
    room = state.cache.slots - state.cache.lengths
    counts = jnp.minimum(jnp.minimum(offered, left), room)
    ends = (tokens[:, :, None] == request.eos[:, None, :]).any(-1) & (lanes < counts[:, None])
    ended = ends.any(-1)
    counts = jnp.where(ended, ends.argmax(-1) + 1, counts)
    counts = jnp.where(state.done, 0, counts).astype(jnp.int32)

    status = jnp.select(
        [
            state.done,
            ended,
            counts == left,
            verdict.failed & (counts == offered),
            counts == room,
        ],
        [state.status, Status.EOS, Status.LIMIT, Status.NAN, Status.CAPACITY],
        Status.RUNNING,
    )
    # A drafter may count in 64 bits where JAX does.
    emitted = jnp.where(lanes < counts[:, None], tokens, 0).astype(jnp.int32)
    return emitted, counts, status.astype(jnp.int32)
