"""What a request asks for, and the room that an engine has for it.

A `Request` is plain numbers on the host, checked when it is made. `arguments` makes the arrays of
rows of it, which `jspec.decode` takes one by one: what no request asks for is not in the program.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import isnan
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number

if TYPE_CHECKING:
    import numpy as np

    from jspec.processors import Processor
    from jspec.processors.grammar import Capacity, Grammar
    from jspec.processors.grammar.stops import StopStrings
    from jspec.types import PyTree

_NUMBERS = {
    "temperature": (0, 10**6, "0 is greedy"),
    "top_p": (1e-6, 1, "1 is off"),
    "min_p": (0, 1, "0 is off"),
    "repetition_penalty": (1e-6, 10**6, "1 is off"),
    "frequency_penalty": (-(10**6), 10**6, "0 is off"),
    "presence_penalty": (-(10**6), 10**6, "0 is off"),
}
_INTEGERS = {"top_k": 0, "min_tokens": 0, "max_tokens": 0, "logprobs": 0, "row_id": -(2**31)}


@dataclass(frozen=True)
class Request:
    """What one request asks for, in the words of vLLM's `SamplingParams`. By default greedy tokens.

    Temperature comes first, then top_k, top_p and min_p, each on what the one before left; see
    `jspec.sampling.probabilities`. Penalties and biases come before, on the logits.

    Attributes:
        max_tokens: Maximum number of tokens to emit, 0 or more; None: the call's `max_new_tokens`,
            128 by default, or what a row of an engine has room for.
        min_tokens: While the output has fewer, end and stop tokens are forbidden and stop strings
            do nothing; 0 or more. `max_tokens` ends a row all the same.
        eos: Tokens that end the row with `Status.EOS`, one or several. None: the checkpoint's, if
            the call has one (`jspec.LLM`), else no token; () is vLLM's `ignore_eos`.
        stop_token_ids: Tokens that end the row with `Status.STOP`.
        stop: Texts that end the row with `Status.STOP`: of `jspec.stop_strings`; `jspec.LLM` takes
            the texts themselves.
        temperature: 0, greedy, to 10^6.
        top_k: The number of likeliest tokens that are left; 0 or -1: all.
        top_p: The likeliest tokens that together have this probability are left, 10^-6 to 1.
        min_p: Tokens are left that are at least this times as likely as the likeliest, 0 to 1.
        seed: An int of 64 bits or a random key; needed with a temperature. The token at a position
            depends on (seed, row_id, position) and the model alone.
        row_id: Tells answers of one seed apart, 32 bits. Of a request for all rows it is the first
            row's, and the others count up.
        repetition_penalty: Divides positive logits of tokens that the text has, and multiplies
            negative ones: 10^-6 to 10^6; 1 is off. Of `jspec.processors`, as the three below.
        frequency_penalty: Is taken off a logit for each time that the output has the token: -10^6
            to 10^6; 0 is off.
        presence_penalty: Is taken off the logit of a token that the output has: -10^6 to 10^6; 0 is
            off.
        logit_bias: Numbers that are added to logits, by token id.
        grammar: Of `jspec.grammar`; the row needs an end token.
        logprobs: Log-probabilities of the emitted tokens, and of so many likeliest ones at each
            place; None: none.
        logprobs_mode: "raw_logprobs", "processed_logprobs" or "temp_scaled_logprobs", see
            `jspec.processors.logprobs`; the same for all rows of a call.
        processors: Further members of `jspec.processors`, such as `own`. Requests of one call, or
            one engine, have the same functions in the same order, each with its values.

    Raises:
        InputError: if a value is out of its bounds or of another kind, when it is made; of `stop`,
            `grammar` and `processors` in the call.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> drawn = jspec.Request(temperature=0.8, seed=1, max_tokens=5)
        >>> asks = [jspec.Request(max_tokens=3), drawn]
        >>> result = jspec.decode(model, model.init(), [[1, 2], [3]], request=asks)
        >>> result.lengths.tolist()
        [3, 5]
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    eos: Sequence[int] | int | None = None
    stop_token_ids: Sequence[int] = ()
    stop: "StopStrings | str | Sequence[str] | None" = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: Any = None
    row_id: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: "Grammar | None" = None
    logprobs: int | None = None
    logprobs_mode: str = "raw_logprobs"
    processors: "Sequence[Processor]" = ()

    def __post_init__(self):
        for name, bounds in _NUMBERS.items():
            check_number(name, getattr(self, name), *bounds)
        if isinstance(self.top_k, Integral) and self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        for name, low in _INTEGERS.items():
            value = getattr(self, name)
            if value is not None or name not in ("max_tokens", "logprobs"):
                check_integer(name, value, low, 2**31 - 1)
        for name in ("eos", "stop_token_ids"):
            tokens = getattr(self, name)
            tokens = tokens.tolist() if hasattr(tokens, "tolist") else tokens
            listed = [tokens] if isinstance(tokens, Integral) else tokens
            if not isinstance(listed, Iterable | None) or (listed is None and name != "eos"):
                raise InputError(f"{name} is {tokens!r:.80}; pass token ids")
            for token in listed or ():
                check_integer(f"{name}: a token", token, 0, 2**31 - 1)
            object.__setattr__(self, name, None if listed is None else tuple(listed))
        for name in ("stop", "grammar", "logprobs_mode", "processors"):
            if hasattr(value := getattr(self, name), "shape"):
                raise InputError(f"{name} is {value!r:.80}, an array; see jspec.Request")
        if self.logprobs_mode != _NO_MODE:
            _check_mode(self.logprobs_mode)
        if not isinstance(self.logit_bias, Mapping):
            raise InputError(
                f"logit_bias is {self.logit_bias!r:.80}; pass a mapping of token ids to numbers"
            )
        for token, bias in self.logit_bias.items():
            check_integer("logit_bias: a token", token, 0, 2**31 - 1)
            if not isinstance(bias, Real) or isnan(bias):
                raise InputError(f"logit_bias of token {token} is {bias!r:.40}; pass a number")
        is_int = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        if not (self.seed is None or hasattr(self.seed, "dtype") or is_int):
            raise InputError(f"seed is {self.seed!r:.80}; pass an integer or a random key")
        if self.temperature and self.seed is None:
            raise InputError(
                f"temperature is {self.temperature} and seed is None; pass a seed such as 0, or "
                "temperature=0, which is greedy"
            )


@dataclass(frozen=True)
class Room:
    """What the requests of a `jspec.Engine` may ask for: each has its place in the programs, so
    that no request compiles anything.

    Raises:
        InputError: if a number is out of range.

    Example:
        >>> import jspec
        >>> room = jspec.Room(penalties=True, stop=jspec.grammar.Capacity(states=32, classes=64))
    """

    min_tokens: bool = False
    penalties: bool = False
    """Repetition, frequency and presence penalties."""
    num_biases: int = 0
    """Maximum number of tokens of a `logit_bias`."""
    num_end_tokens: int = 8
    """Maximum number of end tokens of a row, and of its stop tokens."""
    stop: "Capacity | None" = None
    """For the automaton of a row's stop strings."""
    grammar: "Capacity | None" = None
    logprobs: int | None = None
    """Maximum number of likeliest tokens at a place; None: no log-probabilities."""
    logprobs_mode: str = "raw_logprobs"
    processors: "Sequence[Processor]" = ()
    """Those that requests may have, with neutral values."""

    def __post_init__(self):
        check_integer("num_biases", self.num_biases, 0, None)
        check_integer("num_end_tokens", self.num_end_tokens, 1, None)
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, 0, None)
        if self.logprobs_mode != _NO_MODE:
            _check_mode(self.logprobs_mode)
        for name in ("stop", "grammar"):
            value = getattr(self, name)
            if value is not None:
                from jspec.processors.grammar import Capacity  # JAX is imported here

                if not isinstance(value, Capacity):
                    raise InputError(
                        f"{name} is {value!r:.80}; pass jspec.grammar.Capacity(states, classes)"
                    )

    @property
    def names(self) -> list[str]:
        """The fields of which there is something."""
        return [name for name in _NO_ROOM if _has(self, name)]

    def check(self, request: Request) -> None:
        """Raises InputError if a request asks for what has no place."""
        ends: Any = request.eos or ()
        for name, (place, example) in _PLACES.items():
            if _asks(request, name) and not _has(self, place):
                example = request.logprobs if name == "logprobs" else example
                raise InputError(
                    f"the request has {name} and the engine no room for it; make the engine with "
                    f"room=jspec.Room({place}={example})"
                )
        for name, count, limit, place in (
            ("eos", len(ends), self.num_end_tokens, "num_end_tokens"),
            ("stop_token_ids", len(request.stop_token_ids), self.num_end_tokens, "num_end_tokens"),
            ("logit_bias", len(request.logit_bias), self.num_biases, "num_biases"),
            ("logprobs", request.logprobs or 0, self.logprobs or 0, "logprobs"),
        ):
            if count > limit:
                raise InputError(
                    f"{name} has {count} tokens and the engine room for {limit}; make the engine "
                    f"with room=jspec.Room({place}={count})"
                )
        if request.logprobs is not None and request.logprobs_mode != self.logprobs_mode:
            raise InputError(
                f"logprobs_mode is {request.logprobs_mode!r} and the engine's is "
                f"{self.logprobs_mode!r}; ask for that, or make the engine with "
                f"room=jspec.Room(logprobs_mode={request.logprobs_mode!r})"
            )


_NO_MODE = "raw_logprobs"
_CAPACITY = "jspec.grammar.Capacity(states, classes)"
_PLACES = {
    "min_tokens": ("min_tokens", "True"),
    "logit_bias": ("num_biases", "300"),
    "repetition_penalty": ("penalties", "True"),
    "frequency_penalty": ("penalties", "True"),
    "presence_penalty": ("penalties", "True"),
    "processors": ("processors", "[..]"),
    "grammar": ("grammar", _CAPACITY),
    "logprobs": ("logprobs", "0"),
    "stop": ("stop", _CAPACITY),
}
"""Fields of a request that are in a program where they are asked for: their place in a room, in
the order in which they come to bear."""
_NEUTRAL = {each.name: each.default for each in fields(Request)}
_NO_ROOM = {each.name: each.default for each in fields(Room)}


def _check_mode(mode: Any) -> None:
    from jspec.processors.log_probabilities import MODES  # JAX is imported here

    if mode not in MODES:
        raise InputError(f"logprobs_mode is {mode!r:.80}; pass one of {', '.join(MODES)}")


def _asks(request: Request, name: str) -> bool:
    value = getattr(request, name)
    return bool(value) if name in ("processors", "logit_bias") else value != _NEUTRAL[name]


def _has(room: Room, place: str) -> bool:
    return getattr(room, place) != _NO_ROOM[place]


def by_row(request: Any, batch: int) -> list[Request]:
    """Returns the request of each row. Raises InputError unless there is one for all or each."""
    rows = [request] * batch if isinstance(request, Request) else request
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Request) for row in rows):
        raise InputError(f"request is {request!r:.80}; pass a jspec.Request, or a list of them")
    if len(rows) != batch:
        raise InputError(
            f"request has {len(rows)} entries and the prompt {batch} rows; pass one for each row, "
            "or one for all"
        )
    return list(rows)


def arguments(
    request: Request | Sequence[Request], batch: int, size: int, room: Room | None = None
) -> dict[str, Any]:
    """Returns the arguments of `jspec.prefill` that rows with such requests have."""
    import numpy as np

    from jspec.types import Sampling, Stopping

    rows = by_row(request, batch)

    def each(name: str) -> list[Any]:
        return [getattr(row, name) for row in rows]

    def wants(name: str) -> bool:
        if room is not None:
            return _has(room, _PLACES[name][0])
        return any(_asks(row, name) for row in rows)

    greedy = room is None and not any(each("temperature"))
    is_single = isinstance(request, Request)
    row_ids = np.array(each("row_id"))
    if is_single and room is None:
        row_ids = row_ids + np.arange(batch) if request.row_id else None
    seeds = tuple(0 if seed is None else seed for seed in each("seed"))
    limits = [size if limit is None else limit for limit in each("max_tokens")]
    min_columns = 0 if room is None else room.num_end_tokens
    stop_token_ids = pad_tokens(each("stop_token_ids"), min_columns)
    return dict(
        stopping=Stopping(
            max_tokens=np.array(limits),
            min_tokens=np.array(each("min_tokens")) if wants("min_tokens") else None,
            eos=pad_tokens([eos or () for eos in each("eos")], min_columns),
            stop_token_ids=stop_token_ids if stop_token_ids.size else None,
            stop=_stops(each("stop"), room) if wants("stop") else None,
        ),
        sampling=None
        if greedy
        else Sampling(*(np.array(each(n)) for n in ("temperature", "top_k", "top_p", "min_p"))),
        key=seeds[0] if is_single else seeds,
        row_ids=row_ids,
        processors=_processors(rows, wants, room),
    )


def _processors(
    rows: Sequence[Request], wants: Callable[[str], bool], room: Room | None
) -> list[Any]:
    """Returns `processors` of a call, without the fewest tokens and stop strings."""
    import numpy as np

    from jspec import processors
    from jspec.processors.grammar import Grammar
    from jspec.processors.grammar.automaton import ByRow
    from jspec.processors.log_probabilities import logprobs

    specs: list[Any] = []
    if wants("logit_bias"):
        capacity = 0 if room is None else room.num_biases
        specs.append(processors.logit_bias([row.logit_bias for row in rows], capacity))
    penalties = [name for name, (place, _) in _PLACES.items() if place == "penalties"]
    for name in filter(wants, penalties):
        specs.append(getattr(processors, name)(np.array([getattr(row, name) for row in rows])))
    if wants("processors"):
        specs += _further_processors(rows, room)
    if wants("grammar"):
        grammars = [row.grammar for row in rows]
        for grammar in grammars:
            if not isinstance(grammar, Grammar | None):
                raise InputError(f"grammar is {grammar!r:.80}; pass what jspec.grammar makes")
        specs.append(ByRow(Grammar, grammars, room and room.grammar))
    if wants("logprobs"):
        counts = [row.logprobs for row in rows if row.logprobs is not None]
        modes = {row.logprobs_mode for row in rows if row.logprobs is not None}
        if room is not None:
            counts, modes = [room.logprobs or 0], {room.logprobs_mode}
        if len(modes) > 1:
            raise InputError(f"logprobs_mode is {' and '.join(sorted(modes))}; pass one for all")
        read = np.array([row.logprobs is not None for row in rows])
        every = room is None and read.all()
        specs.append(replace(logprobs(max(counts), *modes), read=None if every else read))
    return specs


def _further_processors(rows: Sequence[Request], room: Room | None) -> "list[Processor]":
    """Returns the processors of rows, each with the values of all of them."""
    from jspec.processors import Processor

    places = rows[0].processors if room is None else room.processors
    for owner in (rows[0] if room is None else room, *rows):
        listed = owner.processors
        if not isinstance(listed, list | tuple) or not all(
            isinstance(processor, Processor) for processor in listed
        ):
            raise InputError(
                f"processors is {listed!r:.80}; pass a list of what jspec.processors makes, but "
                "for log-probabilities and grammars: these are the fields logprobs and grammar"
            )
        names, room_names = ([entry.name for entry in part] for part in (listed, places))
        other = any(
            processor.function not in {place.function for place in places} for processor in listed
        )
        if other or (room is None and len(listed) != len(places)):
            what = "the first request" if room is None else "the engine's room"
            raise InputError(
                f"a request has the processors {names} and {what} {room_names}; give all requests "
                "the same functions, with neutral values where one asks for nothing"
            )

    def of_row(row: Request, place: Processor) -> Processor:
        return next(
            (processor for processor in row.processors if processor.function is place.function),
            place,
        )

    return [
        Processor(
            place.function,
            [of_row(row, place) for row in rows],
            partial(_prepare_rows, place if room else None),
            place.is_on,
        )
        for place in places
    ]


def _prepare_rows(
    place: "Processor | None", rows: "Sequence[Processor]", batch: int, vocab_size: int
) -> "PyTree":
    """Returns the values of rows side by side, in the shapes that an engine has for them."""
    import jax
    import numpy as np

    values = [processor.prepare(processor.values, 1, vocab_size) for processor in rows]
    first = values[0] if place is None else place.prepare(place.values, 1, vocab_size)
    room = jax.tree.map(np.shape, first)
    for processor, value in zip(rows, values, strict=True):
        if (shapes := jax.tree.map(np.shape, value)) != room:
            what = "the first row's" if place is None else "the engine's"
            raise InputError(
                f"the value of {processor.name} has shape {shapes} and {what} has room for {room}; "
                "give it more capacity"
            )
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *values)


def _stops(stops: list[Any], room: Room | None) -> Any:
    from jspec.processors.grammar.automaton import ByRow
    from jspec.processors.grammar.stops import StopStrings

    for stop in stops:
        if stop is not None and not isinstance(stop, StopStrings):
            raise InputError(
                f"stop is {stop!r:.80}; pass jspec.stop_strings(texts, tokenizer), or texts to a "
                "jspec.LLM"
            )
    return ByRow(StopStrings, stops, room and room.stop)


def pad_tokens(rows: Sequence[Any], width: int = 0) -> "np.ndarray":
    """Returns tokens [B, X], X at least `width`; -1 fills up."""
    import numpy as np

    longest = max([width, *map(len, rows)])
    # Of 64 bits, so that what is not a token is found to be none.
    return np.array([[*row, *[-1] * (longest - len(row))] for row in rows], np.int64)
