"""Speculative decoding as pure functions: `prefill`, `step` and `decode`, their loop.

The whole algorithm is one round, in `jspec.round.phases`; this file sets it up.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

from jspec import sampling as samplings
from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec._validate.row_arguments import of_rows, put_like
from jspec._xla import mesh_axes
from jspec._xla.backend import Jitted
from jspec._xla.explicit_axes import automatic
from jspec._xla.in_place import unshare
from jspec._xla.manual_axes import vary
from jspec.arrays.between_calls import between_calls
from jspec.drafters.autoregressive import Autoregressive
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import CausalLM, Drafter, Drafting, LogitsProcessor, PrefillInfo, WidthPolicy
from jspec.round import (
    check_drafter_shapes,
    chunked_prefill,
    no_rounds,
    processing,
)
from jspec.round.phases import one_round, run_rounds
from jspec.round.request import (
    Prepared,
    PreparedArrays,
    check_alive,
    check_context,
    check_drafting,
    check_earlier,
    check_model,
    check_policy,
    check_same_memory,
    prepare,
    read_prompt,
)
from jspec.round.widths import check_round
from jspec.types import PyTree, Result, Sampling, State, Status, Stopping

if TYPE_CHECKING:
    from jspec.request import Request

_ENDLESS, _MAX_NEW_TOKENS = 2**31 - 1, 128


class Arguments(TypedDict, total=False):
    """The arguments of `decode` beside `request` by their names, for calls that pass them on."""

    drafter: Drafter
    drafter_params: PyTree
    drafter_state: PyTree
    policy: WidthPolicy
    policy_params: PyTree
    policy_state: PyTree
    max_new_tokens: int | None
    stopping: Stopping | None
    sampling: Sampling | None
    key: jax.Array | int | None
    row_ids: ArrayLike | None
    processors: Any


class Asked(Arguments, total=False):
    """All of them."""

    request: "Request | Sequence[Request] | None"


def decode(
    model: CausalLM,
    params: PyTree,
    prompt: ArrayLike | Sequence[Any],
    prompt_lengths: ArrayLike | None = None,
    *,
    request: "Request | Sequence[Request] | None" = None,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    drafter_state: PyTree = None,
    policy: WidthPolicy = FixedWidth(),
    policy_params: PyTree = None,
    policy_state: PyTree = None,
    max_new_tokens: int | None = None,
    stopping: Stopping | None = None,
    sampling: Sampling | None = None,
    key: jax.Array | int | None = None,
    row_ids: ArrayLike | None = None,
    processors: Any = (),
) -> Result:
    """Generates tokens with speculative decoding. The drafter affects only speed.

    A pure function: `jit`, `pmap`, `shard_map` and `export` take it whole. Called as it is, it
    compiles once per number of rows and capacity bucket, and runs as one prefill and one
    `while_loop`. Lengths of prompts and limits compile nothing.

    Args:
        model: the target; static.
        params: its weights.
        prompt: [B, T] token ids, padded on the right; or a list for each row, of any lengths.
        prompt_lengths: [B] tokens per row; None: every row is full, or as long as its list.
        request: what is asked for, a `jspec.Request` for all rows or a list with one for each; in
            the place of `stopping`, `sampling`, `key`, `row_ids` and `processors`, which have the
            same as arrays, for callers under `jit`.
        drafter: proposes the trees; static. The default drafts nothing.
        drafter_params: the drafter's weights, if it has any.
        drafter_state: `Result.drafter_state` of an earlier call, for a hot start.
        policy: says in which rounds the drafter is asked, and how many of its nodes are verified;
            static. The default verifies all of them, `jspec.Adaptive` as many as pay.
        policy_params: what the policy knows alongside its state, such as what rounds cost; None:
            its own guess.
        policy_state: `Result.policy_state` of an earlier call.
        max_new_tokens: size of the output; static. None: the largest `max_tokens` of the requests,
            or 128.
        stopping: where rows end: their most and fewest tokens, end tokens, stop tokens, and stop
            strings. By default after `max_new_tokens` alone.
        sampling: None is greedy.
        key: a random key or a seed; needed where a row has a temperature. Not consumed: the token
            at a position depends on (key, row id, position) and the model alone, so the same key
            gives the same tokens, with every drafter under the default rule.
        row_ids: [B] ids of the rows for their randomness; None: 0 .. B-1, under `jax.shard_map` of
            the rows of all devices that the prompt is split over. Under `pmap` and `vmap` pass the
            global ids.
        processors: what else is asked for, one or a list: the members of `jspec.processors`, which
            change the logits of every node before temperature and filters, from left to right, or
            record log-probabilities; a grammar of `jspec.grammar`.

    Raises:
        InputError: if an argument is out of range or does not fit, before anything is compiled.
            Values that a caller's `jit` traces are not known: limits and settings are clamped, and
            a token beyond the vocabulary is the caller's mistake.

    Returns:
        Tokens, lengths and status of every row, statistics, and the drafter's memory.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> ask = dict(prompt=[[1, 2, 1, 2, 1]], max_new_tokens=6)
        >>> plain = jspec.decode(model, model.init(), **ask)
        >>> drafted = jspec.decode(model, model.init(), drafter=jspec.PromptLookup(), **ask)
        >>> bool((plain.tokens == drafted.tokens).all())
        True
    """
    drafter_params = of_rows(drafter_params, prompt)
    state = prefill(
        model, params, prompt, prompt_lengths, request=request, drafter=drafter,
        drafter_params=drafter_params, drafter_state=drafter_state, policy=policy,
        policy_params=policy_params, policy_state=policy_state, max_new_tokens=max_new_tokens,
        stopping=stopping,
        sampling=sampling, key=key, row_ids=row_ids, processors=processors,
    )  # fmt: skip
    drafting = Drafting(drafter, drafter_params, policy, policy_params)
    result = _run_all(model, params, state, drafting)
    size, outputs = output_size(request, max_new_tokens), (result.tokens, result.logprobs)
    tokens, logprobs = jax.tree.map(partial(_first, size), outputs)
    return replace(result, tokens=tokens, logprobs=logprobs)


def output_size(request: Any, max_new_tokens: int | None) -> int:
    """Returns the size of the output: the largest `max_tokens`, if no size was given."""
    if max_new_tokens is not None:
        return max_new_tokens
    rows = request if isinstance(request, list | tuple) else [request]
    limits = [getattr(row, "max_tokens", None) for row in rows]
    return max([limit or _MAX_NEW_TOKENS for limit in limits], default=_MAX_NEW_TOKENS)


def finish(
    model: CausalLM,
    params: PyTree,
    state: State,
    *,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    policy: WidthPolicy = FixedWidth(),
    policy_params: PyTree = None,
) -> Result:
    """Runs the rounds that are left, and returns the result of `decode`. Donates `state`.

    Args:
        model: the target; static.
        params: its weights.
        state: of `prefill` or `step`.
        drafter: as in `step`.
        drafter_params: as in `step`.
        policy: as in `step`.
        policy_params: as in `step`.

    Returns:
        The result, with all of the state's output buffer.

    Raises:
        InputError: as in `step`.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> state = jspec.prefill(model, model.init(), [[1, 2, 3]], max_new_tokens=4)
        >>> state = jspec.step(model, model.init(), state)
        >>> jspec.finish(model, model.init(), state).lengths.tolist()
        [4]
    """
    check_alive(state)
    check_policy(policy, drafter)
    drafting = Drafting(drafter, drafter_params, policy, policy_params)
    return _run_all(model, params, state, drafting)


def _run_all(model: CausalLM, params: PyTree, state: State, drafting: Drafting) -> Result:
    state = decode_rounds(model, params, state, drafting, _number(_ENDLESS))
    drafter_state = between_calls(
        drafting.drafter, state.drafter_state, len(state.root), state.capacity
    )
    return Result(
        tokens=state.tokens,
        lengths=state.lengths,
        status=state.status,
        stats=state.stats,
        drafter_state=vary(drafter_state, state.lengths),
        logprobs=state.logprobs,
        stop_bytes=state.stop_bytes,
        policy_state=state.policy_state,
    )


@partial(jax.jit, static_argnums=0)
def _first(size: int, values: Array) -> Array:
    """Returns the first places of each row. An index outside of a program is a transfer."""
    return values[:, :size]


def _number(value: int) -> Array:
    """Returns a number that is data of a program, sent to the device as `transfer_guard` asks."""
    return jax.device_put(np.int32(value))


def prefill(
    model: CausalLM,
    params: PyTree,
    prompt: ArrayLike | Sequence[Any],
    prompt_lengths: ArrayLike | None = None,
    *,
    request: "Request | Sequence[Request] | None" = None,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    drafter_state: PyTree = None,
    policy: WidthPolicy = FixedWidth(),
    policy_params: PyTree = None,
    policy_state: PyTree = None,
    max_new_tokens: int | None = None,
    stopping: Stopping | None = None,
    sampling: Sampling | None = None,
    key: jax.Array | int | None = None,
    row_ids: ArrayLike | None = None,
    processors: Any = (),
    capacity: int | None = None,
    earlier: State | None = None,
) -> State:
    """Returns the state before the first round; see `decode` for arguments and errors.

    With `earlier`, the prompt goes on where the texts of a state end, and only the prompt is read:
    the next turn of a conversation, or what comes behind a shared beginning (see `fork`). The
    tokens are those of one call over the whole text, stop strings among it, and limits count from
    here.

    The output buffer may be larger than `max_new_tokens`; the limits hold.

    Args:
        capacity: most tokens that a row will ever hold; static. None: a bucket that holds the
            prompt and `max_new_tokens`. A conversation needs room for all of its turns.
        earlier: a state of this model and drafter, with as many rows; donated. A row of length 0
            goes on without new tokens.

    Returns:
        A state for `step`.

    Raises:
        InputError: as in `decode`, before anything is compiled; also if the earlier state is of
            another model, drafter or size, or has no room for the text.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> state = jspec.prefill(model, model.init(), [[1, 2, 3]], max_new_tokens=4)
        >>> state.root.tolist(), state.positions.tolist()
        ([3], [2])
        >>> state = jspec.prefill(model, model.init(), [[4, 5]], max_new_tokens=4, earlier=state)
        >>> state.root.tolist(), state.positions.tolist()
        ([5], [4])
    """
    drafting = Drafting(drafter, drafter_params, policy, policy_params)
    check_drafting(drafting)
    check_model(model, params)
    for name, memory in (("drafter_state", drafter_state), ("policy_state", policy_state)):
        check_earlier(name, memory)
        if earlier is not None and memory is not None:
            raise InputError(
                f"{name} came with an earlier state, which holds that memory; pass one of them"
            )
    size = output_size(request, max_new_tokens)
    if request is not None:
        from jspec.request import arguments  # decoding can be read without it

        fields = dict(
            stopping=stopping, sampling=sampling, key=key, row_ids=row_ids,
            processors=processors or None,
        )  # fmt: skip
        if extra := [name for name, value in fields.items() if value is not None]:
            raise InputError(
                f"request came with {' and '.join(extra)}, which it has fields for; leave them out"
            )
        tokens, prompt_lengths = read_prompt(prompt, prompt_lengths)
        limit = _MAX_NEW_TOKENS if max_new_tokens is None else max_new_tokens
        asks, prompt = arguments(request, len(tokens), limit), tokens
        stopping, sampling, key, row_ids, processors = (asks[name] for name in fields)
    stopping = Stopping() if stopping is None else stopping
    call = prepare(
        model, prompt, prompt_lengths, size, stopping=stopping, sampling=sampling,
        key=key, row_ids=row_ids, capacity=capacity, earlier=earlier,
    )  # fmt: skip
    entries = processing.list_processors(processors, stopping)
    members = processing.prepare(
        entries,
        len(call.arrays.prompt_lengths),
        model.vocab_size,
        call.end_tokens,
        stopping.min_tokens,
    )
    members = put_like(members, call.arrays.prompt)
    states = drafter_state, policy_state
    return begin(model, params, call, members, drafting, states, earlier)


def begin(
    model: CausalLM,
    params: PyTree,
    call: Prepared,
    processors: tuple[LogitsProcessor, ...],
    drafting: Drafting,
    states: PyTree,
    earlier: State | None,
) -> State:
    """Returns the state before the first round of a checked call; see `prefill`."""
    check_context(drafting.drafter.context, call, earlier)
    text = None
    if earlier is not None:
        if any(member.reads_text for member in processors):
            text = _text_of(earlier)
        check_same_memory(drafting, earlier)
        start = earlier.memory, earlier.positions, (earlier.drafter_state, earlier.policy_state)
    else:
        # Donated, so that memories are held once; the caller's arrays are copied first.
        # Cold or hot, they are arguments: both are one program.
        states = jax.tree.map(jnp.copy, states)
        bare = Drafting(drafting.drafter, None, drafting.policy)
        sizes = model, bare, len(call.arrays.prompt), call.capacity
        mesh = mesh_axes.mesh_of((params, call.arrays))
        start = unshare(_empty(*sizes, states) if mesh is None else _empty_on(mesh, *sizes)(states))
    return _prefill(
        model, params, call.arrays, *start, drafting, call.size, call.capacity, call.chunk,
        processors, text,
    )  # fmt: skip


# One program, and not one for each array: a server makes them anew for every prompt.
@partial(jax.jit, static_argnames=("model", "batch", "capacity"))
def _empty(
    model: CausalLM, drafting: Drafting, batch: int, capacity: int, states: tuple[PyTree, PyTree]
) -> tuple[PyTree, Int[Array, " B"], tuple[PyTree, PyTree]]:
    """Returns the target's memory, positions, and the memories of drafter and policy before a
    prompt is read.
    """
    memory, positions = model.init_memory(batch, capacity), jnp.zeros(batch, jnp.int32)
    return memory, positions, drafting.init(batch, capacity, states)


@lru_cache(maxsize=16)
def _empty_on(
    mesh: Mesh, model: CausalLM, drafting: Drafting, batch: int, capacity: int
) -> Callable[[PyTree], tuple[PyTree, Array, PyTree]]:
    """Returns `_empty`, made where it will lie: no single device may have room for all of it."""
    make = partial(_empty, model, drafting, batch, capacity)
    shapes = jax.eval_shape(make, (None, None))
    places = [NamedSharding(mesh, spec) for spec in mesh_axes.specs(shapes, mesh.shape, batch)]
    flat = jax.jit(lambda states: jax.tree.leaves(make(states)), out_shardings=places)
    return lambda states: jax.tree.unflatten(jax.tree.structure(shapes), flat(states))


def _text_of(earlier: State) -> PyTree:
    """Returns what processors read of an earlier state's text."""
    text = earlier.first("text")
    if text is None:
        raise InputError(
            "processors came with an earlier state that had none, whose text they would not see; "
            "give them to the earlier call too, or pass the whole text as one prompt"
        )
    return text


def step(
    model: CausalLM,
    params: PyTree,
    state: State,
    *,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    policy: WidthPolicy = FixedWidth(),
    policy_params: PyTree = None,
) -> State:
    """Runs one round, in which every running row emits at least one token. Donates `state`.

    Args:
        model: the target; static.
        params: its weights.
        state: of `prefill`, or of the round before.
        drafter: the one that `prefill` was given.
        drafter_params: its weights.
        policy: the one that `prefill` was given, or one without a memory whose rounds have some of
            the same widths, such as `jspec.FixedWidth(0)`.
        policy_params: its own.

    Raises:
        InputError: if the state was made for another drafter, or was donated before.

    Returns:
        The state after the round.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> state = jspec.prefill(model, model.init(), [[1, 2, 3]], max_new_tokens=4)
        >>> while not state.done.all():
        ...     state = jspec.step(model, model.init(), state)
        >>> state.lengths.tolist()
        [4]
    """
    check_alive(state)
    check_policy(policy, drafter)
    drafting = Drafting(drafter, drafter_params, policy, policy_params)
    return decode_rounds(model, params, state, drafting, _number(1))


@partial(
    jax.jit,
    static_argnames=("model", "size", "capacity", "chunk"),
    donate_argnames=("memory", "states", "text"),
)
@automatic
def _prefill(
    model: CausalLM,
    params: PyTree,
    call: PreparedArrays,
    memory: PyTree,
    positions: Int[Array, " B"],
    states: tuple[PyTree, PyTree],
    drafting: Drafting,
    size: int,
    capacity: int,
    chunk: int,
    processors: tuple[LogitsProcessor, ...] = (),
    text: PyTree = None,
) -> State:
    drafter_state, policy_state = states
    batch = len(call.prompt_lengths)
    info = PrefillInfo(call.prompt, call.prompt_lengths, positions, text, size, model.vocab_size)
    # Under `shard_map` all that belongs to the call varies as its rows do, constants too.
    memory, positions, drafter_state = vary((memory, positions, drafter_state), call)
    last = (call.prompt_lengths - 1)[:, None]
    root = jnp.take_along_axis(call.prompt, last, axis=1)[:, 0]
    memory, positions, started, output = chunked_prefill.read(
        *(model, params, call.prompt, call.prompt_lengths, memory, positions, capacity),
        *(drafting.drafter, drafting.drafter_params, drafter_state, chunk),
    )
    keys = None if call.key is None else samplings.row_keys(call.key, call.row_ids)
    controls = replace(call.controls, keys=keys)
    zeros = jnp.zeros(batch, jnp.int32)
    state = State(
        memory=memory,
        positions=positions,
        root=root,
        tokens=jnp.zeros((batch, size), jnp.int32),
        lengths=zeros,
        status=jnp.where(controls.limits == 0, Status.LIMIT, Status.RUNNING).astype(jnp.int32),
        drafter_state=started,
        stats=no_rounds(FixedWidth(), trees.root_only(root)),
        controls=controls,
        capacity=capacity,
        processors=tuple(member.begin(info) for member in processors),
        policy_state=policy_state,
    )
    state = vary(state, call)
    # All that can be wrong with the drafter is said now: nothing has been compiled yet.
    tree = check_drafter_shapes(drafting.complete(model, params), state, output)
    check_round(model, drafting.policy, tree)
    return replace(state, stats=vary(no_rounds(drafting.policy, tree), call))


@partial(Jitted, static_argnames=("model",), donate_argnames=("state",))
@automatic
def decode_rounds(
    model: CausalLM,
    params: PyTree,
    state: State,
    drafting: Drafting,
    rounds: Int[Array, ""],
    until_one_ends: Bool[Array, ""] | bool = False,
    *,
    platform: str,
) -> State:
    """Returns the state after `rounds` rounds, or fewer if every row ends, or one.

    Donates `state`. Raises InputError, while it is traced, for a state of another drafter.
    """
    check_same_memory(drafting, state)
    drafting, had_ended = drafting.complete(model, params), state.done

    def going(carry):
        state, budget = carry
        one_more = (state.done & ~had_ended).any()
        return (budget > 0) & ~state.done.all() & ~(until_one_ends & one_more)

    def should_draft(carry):
        return drafting.policy.should_draft(drafting.policy_params, carry[0].policy_state)

    def round_of(drafts, carry):
        state, budget = carry
        return one_round(model, params, state, drafting, drafts, platform), budget - 1

    carry = state, vary(jnp.asarray(rounds, jnp.int32), state.root)
    return run_rounds(going, round_of, carry, should_draft, platform)[0]
