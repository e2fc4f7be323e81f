"""Rows that come and go: a batch in which each row is a request of its own.

    init     a batch of free rows
    prefill  reads a prompt, as a state of one row
    insert   puts it into a free row
    generate rounds of all rows, and the tokens that they brought
    free     frees a slot; `jspec.decoding.rows` has what moves them

These are the words of JetStream's engine. A row's tokens are those of `decode` alone: whenever it
came, in whichever slot, whoever its neighbours are. Which row is data, so one program of each
function serves all rows and all requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

from jspec import _struct as struct
from jspec import decoding
from jspec import request as requests
from jspec import sampling as samplings
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.row_arguments import on_host, put_like, to_array
from jspec._xla.backend import Jitted
from jspec._xla.explicit_axes import automatic
from jspec._xla.in_place import unshare
from jspec.decoding import rows
from jspec.drafters.autoregressive import Autoregressive
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import CausalLM, Drafter, Drafting, LogitsProcessor, WidthPolicy
from jspec.request import Request, Room
from jspec.round import processing
from jspec.round.request import (
    Prepared,
    check_alive,
    check_drafter,
    check_model,
    check_policy,
    prepare,
)
from jspec.types import Logprobs, PyTree, State, Stats, Status


@struct.dataclass
class StepOutput:
    """Tokens and status of `Engine.generate`: all that a server reads.

    E: most tokens that a row can have got.

    Attributes:
        tokens: The tokens of each row since the step before; entries at or beyond `counts` are 0.
            What may yet turn out to be of a stop string comes later, or never.
        counts: The number of these tokens.
        status: A `Status` per row.
        stats: Of each row since it was inserted.
        logprobs: Of these tokens, [B, E]; None if they are not kept.
        stop_bytes: As in `Result`; of a row that runs, the bytes that may become a stop string, for
            `Detokeniser.push`. None if there is no room for stop strings.
    """

    tokens: Int[Array, "B E"]
    counts: Int[Array, " B"]
    status: Int[Array, " B"]
    stats: Stats
    logprobs: Logprobs | None
    stop_bytes: Int[Array, " B"] | None


@dataclass(frozen=True, eq=False)
class Engine:
    """A batch of rows that come and go. Pure: the state is passed in, and out.

    Everything that a request may ask for has its place in the programs from the start, by `room`:
    no request compiles anything.

    The drafter's memory is a row's own where it has an entry for each row: that comes with the
    request and goes with it. What rows share stays, and learns from all of them.

    Args:
        model: the target.
        num_slots: B, the slots of the batch: rows that decode together.
        capacity: most tokens that a row holds, prompt and output.
        drafter: proposes the trees.
        room: what requests may ask for besides temperature, filters, limits and end tokens.
        policy: says how much is drafted and verified in a round, for all rows together.

    Raises:
        InputError: if a number is out of range.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> engine, params = jspec.Engine(model, num_slots=2, capacity=16), model.init()
        >>> state = engine.init(params)
        >>> arrival = engine.prefill(params, [1, 2, 3], jspec.Request(max_tokens=4))
        >>> state = engine.insert(state, 1, arrival)
        >>> while not state.done.all():
        ...     state, output = engine.generate(params, state, rounds=2)
        >>> jspec.Status(int(output.status[1])).name, jspec.Status(int(output.status[0])).name
        ('LIMIT', 'FREE')
        >>> alone = jspec.decode(model, params, [[1, 2, 3]], max_new_tokens=4)
        >>> bool((state.tokens[1, :4] == alone.tokens[0]).all())
        True
        >>> state = engine.free(state, 1)
    """

    model: CausalLM
    num_slots: int
    capacity: int
    drafter: Drafter = Autoregressive()  # noqa: RUF009 (frozen)
    room: Room = Room()  # noqa: RUF009 (frozen)
    policy: WidthPolicy = FixedWidth()  # noqa: RUF009 (frozen)

    def __post_init__(self):
        check_model(self.model, ())
        check_drafter(self.drafter)
        check_policy(self.policy, self.drafter)
        check_integer("num_slots", self.num_slots, 1, None)
        context = self.model.context
        limit = 2**31 - 2 if context is None else context
        check_integer("capacity", self.capacity, 2, limit, "what the model's context holds")
        if not isinstance(self.room, Room):
            raise InputError(f"room is {self.room!r:.80}; pass a jspec.Room")

    def init(
        self,
        params: PyTree,
        drafter_params: PyTree = None,
        drafter_state: PyTree = None,
        policy_params: PyTree = None,
        policy_state: PyTree = None,
    ) -> State:
        """Returns a state of free rows.

        Args:
            params: the model's weights.
            drafter_params: the drafter's, if it has any.
            drafter_state: an earlier state's, for a hot start.
            policy_params: the policy's.
            policy_state: an earlier state's.

        Raises:
            InputError: if the model, the drafter and the rest do not fit together.
        """
        check_model(self.model, params)
        batch, (call, members) = self.num_slots, self._prepare([0])
        shapes = jax.eval_shape(
            lambda params, drafter_params, policy_params: self.prefill(
                params, [0], drafter_params=drafter_params, policy_params=policy_params
            ),
            params,
            drafter_params,
            policy_params,
        )

        def zeros(part: PyTree) -> Any:
            return jax.tree.map(lambda leaf: jnp.zeros((batch, *leaf.shape[1:]), leaf.dtype), part)

        memories = jax.tree.map(jnp.copy, (drafter_state, policy_state))
        drafter_state, policy_state = self._drafting().init(batch, self.capacity, memories)
        # As a plain integer: an enum makes a weak type, and `insert` would then be compiled twice,
        # for the rows as they are at first and as a step leaves them.
        nobody = jnp.full(batch, int(Status.FREE), jnp.int32)
        keys = samplings.row_keys(jax.random.key(0), jnp.arange(batch))
        plain = replace(shapes, controls=replace(shapes.controls, keys=None), processors=())
        state = zeros(replace(plain, memory=None, drafter_state=None, policy_state=None))
        return unshare(
            replace(
                state,
                memory=self.model.init_memory(batch, self.capacity),
                drafter_state=drafter_state,
                policy_state=policy_state,
                controls=replace(state.controls, keys=keys),
                status=nobody,
                processors=rows.repeat(
                    members, call.arrays, call.size, self.model.vocab_size, batch
                ),
            )
        )

    def prefill(
        self,
        params: PyTree,
        prompt: Sequence[int] | ArrayLike,
        request: Request = Request(),
        *,
        drafter_params: PyTree = None,
        policy_params: PyTree = None,
        earlier: State | None = None,
    ) -> State:
        """Returns a request whose prompt is read: a state of one row, for `insert`.

        Args:
            params: the model's weights.
            prompt: [T] token ids. If they are on a device, all of the request is sent there.
            request: what is asked for, by default greedy tokens until the row is full. Rounds in
                which nobody reads log-probabilities are shorter, and leave zeros.
            drafter_params: the drafter's weights, if it has any.
            policy_params: the policy's.
            earlier: a state of one row, of `prefill` or `take`; donated. The prompt goes on where
                its text ends, and may be empty: a long prompt can be read in chunks, a beginning
                that requests share once.

        Raises:
            InputError: if an argument is out of range, or the engine has no room for it.
        """
        check_model(self.model, params)
        call, members = self._prepare(prompt, request, earlier)
        drafting = self._drafting(drafter_params, policy_params)
        return decoding.begin(self.model, params, call, members, drafting, (None, None), earlier)

    def insert(self, state: State, slot: int | Int[Array, ""], arrival: State) -> State:
        """Inserts a prefilled request into a slot. Donates `state`.

        Args:
            state: of `init`, `generate`, `insert` or `free`.
            slot: its number.
            arrival: of `prefill`; not donated.

        Raises:
            InputError: if there is no such row, or the request is not one of this engine.
        """
        _check_slot(slot, state)
        rows.check_arrival(state, arrival)
        place = _send(slot, jnp.int32)
        return rows.insert(state, place, arrival, self._drafting())

    def free(self, state: State, slot: int | Int[Array, ""]) -> State:
        """Frees a slot, whose request is over or abandoned. Donates `state`.

        Raises:
            InputError: if there is no such row.
        """
        _check_slot(slot, state)
        return rows.free(state, _send(slot, jnp.int32), self.model)

    def take(self, state: State, slot: int | Int[Array, ""]) -> State:
        """Returns a copy of a row's text and memory, for `prefill` to go on from. Not for `insert`.

        Of a row that was freed there is none to go on from.

        Raises:
            InputError: if there is no such row.
        """
        _check_slot(slot, state)
        place = _send(slot, jnp.int32)[None]
        return processing.with_text(rows.copies(state, place, None, None, self._drafting()))

    def generate(
        self,
        params: PyTree,
        state: State,
        *,
        drafter_params: PyTree = None,
        policy_params: PyTree = None,
        rounds: int = 8,
        until_one_ends: bool | Bool[Array, ""] = False,
    ) -> tuple[State, StepOutput]:
        """Rounds of all rows, in one call of the device. Donates `state`.

        Args:
            params: the model's weights.
            state: of `init`, `generate`, `insert` or `free`.
            drafter_params: the drafter's weights, if it has any.
            policy_params: the policy's.
            rounds: most rounds, fewer if all rows have ended. Static: how wide the tokens that come
                back are follows from it, so every other number is a program of its own, which
                `jspec.no_recompile` says.
            until_one_ends: come back as soon as a row ends, since someone waits for a place.

        Raises:
            InputError: if `rounds` is not a number of rounds, or the state is of another drafter.
        """
        check_integer("rounds", rounds, 1, None)
        check_alive(state)
        drafting = self._drafting(drafter_params, policy_params)
        return _step(self.model, params, state, drafting, rounds, _send(until_one_ends, bool))

    def warmup(
        self, params: PyTree, drafter_params: PyTree = None, policy_params: PyTree = None,
        rounds: int = 8,
    ) -> None:  # fmt: skip
        """Compiles what rows run that come and go.

        `jspec.fork` of one prefilled row with a key is among it; other forks are other programs.

        The arguments are as in `generate`; every other number of `rounds` is another program.

        Raises:
            InputError: as `init` and `generate`.
        """
        weights: Any = dict(drafter_params=drafter_params, policy_params=policy_params)
        state = self.init(params, **weights)
        for seed in (1, -1, 2**40):  # which are made into keys in different ways
            options: Any = dict(
                request=Request(max_tokens=0, temperature=1.0, seed=seed), **weights
            )
            arrival = self.prefill(params, [0], **options)
            again = rows.fork(
                arrival, np.zeros(1, int), drafter=self.drafter, policy=self.policy, key=seed
            )
            state, _ = self.generate(params, self.insert(state, 0, again), rounds=rounds, **weights)
            for earlier in (self.take(state, 0), self.take(arrival, 0)):
                state = self.insert(state, 0, self.prefill(params, [0], earlier=earlier, **options))
            state = self.free(state, 0)

    def memory(
        self, params: PyTree, drafter_params: PyTree = None, policy_params: PyTree = None
    ) -> dict[str, int]:
        """Returns the bytes of a state, before it is allocated: memory, drafter's memory, the rest.

        Raises:
            InputError: as `init` does.
        """
        state = jax.eval_shape(self.init, params, drafter_params, None, policy_params)

        def size(part: PyTree) -> int:
            return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(part))

        parts = dict(memory=size(state.memory), drafter=size(state.drafter_state))
        return parts | dict(rest=size(state) - sum(parts.values()))

    def _drafting(self, drafter_params: PyTree = None, policy_params: PyTree = None) -> Drafting:
        return Drafting(self.drafter, drafter_params, self.policy, policy_params)

    def _prepare(
        self, prompt: Any, request: Request = Request(), earlier: State | None = None
    ) -> tuple[Prepared, tuple[LogitsProcessor, ...]]:
        """Returns the checked arguments of a request, in the shapes that all requests have."""
        passed = to_array(prompt, "prompt")
        tokens = np.asarray(on_host(passed))
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise InputError(
                f"prompt has shape {tokens.shape} and dtype {tokens.dtype}; pass one row of token "
                "ids"
            )
        count = len(tokens)
        if not count:
            tokens = tokens.astype(np.int32)  # an empty list has no dtype of its own
            if earlier is None:
                raise InputError(
                    "the prompt is empty; pass at least one token, or earlier= with the text that "
                    "goes on"
                )
        if count > self.capacity:
            raise InputError(
                f"the prompt has {count} tokens and a row holds {self.capacity}; shorten it, or "
                "make the engine with more capacity"
            )
        if not isinstance(request, Request):
            raise InputError(f"request is {request!r:.80}; pass a jspec.Request")
        self.room.check(request)
        if request.max_tokens is not None:
            check_integer("max_tokens", request.max_tokens, 0, self.capacity, "what a row holds")
        asks = requests.arguments(request, 1, self.capacity, self.room)
        processors, stopping = asks.pop("processors"), asks.pop("stopping")
        call = prepare(
            self.model,
            np.pad(tokens, (0, max(1 - count, 0)))[None],
            np.array([count]),
            self.capacity,
            stopping=stopping,
            **asks,
            capacity=None if earlier is not None else self.capacity,
            earlier=earlier,
        )
        members = processing.prepare(
            processing.list_processors(processors, stopping),
            1,
            self.model.vocab_size,
            call.end_tokens,
            stopping.min_tokens,
        )
        return call._replace(arrays=put_like(call.arrays, passed)), put_like(members, passed)


def _check_slot(slot: Any, state: Any) -> None:
    check_alive(state)
    if not isinstance(slot, jax.Array):
        check_integer("slot", slot, 0, len(state.root) - 1, "the slots of the engine")


def _send(value: Any, dtype: Any) -> Array:
    """Returns data of a program, sent to the device as `transfer_guard` asks."""
    on_device = isinstance(value, jax.Array)
    return jnp.asarray(value if on_device else jax.device_put(np.asarray(value, dtype)), dtype)


@partial(Jitted, static_argnames=("model", "rounds"), donate_argnames=("state",))
@automatic
def _step(
    model: CausalLM,
    params: PyTree,
    state: State,
    drafting: Drafting,
    rounds: int,
    until_one_ends: Bool[Array, ""],
    *,
    platform: str,
) -> tuple[State, StepOutput]:
    after = decoding.decode_rounds(
        model, params, state, drafting, rounds, until_one_ends, platform=platform
    )
    size, stop_bytes = after.tokens.shape[1], after.stop_bytes
    width = min(size, rounds * after.stats.acceptance_histogram.shape[1])
    offsets = jnp.arange(width, dtype=jnp.int32)
    counts = after.lengths - state.lengths
    places = jnp.minimum(state.lengths[:, None] + offsets, size - 1)
    valid = offsets < counts[:, None]

    def new(values: Array) -> Array:
        further = [1] * (values.ndim - 2)
        entries = jnp.take_along_axis(values, places.reshape(*places.shape, *further), axis=1)
        return jnp.where(valid.reshape(*valid.shape, *further), entries, 0)

    output = StepOutput(
        tokens=new(after.tokens),
        counts=counts,
        status=after.status,
        stats=after.stats,
        logprobs=jax.tree.map(new, after.logprobs),
        stop_bytes=None
        if stop_bytes is None
        else jnp.where(after.status == Status.FREE, 0, stop_bytes),
    )
    return after, output
