"""Processors: functions that change the logits of a node, by the text before it.

Every node of a tree has its own past: the prompt, the output, and the drafted tokens on its own
path. A processor sees exactly that, so drafting changes nothing: the tokens are those of plain
decoding with the same processors. They come before temperature and filters, left to right.

What a processor needs to know are arrays with a row for each prompt, so other values compile
nothing, and neutral ones switch it off in a row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number
from jspec._validate.row_arguments import integers, library_of, reals, to_array
from jspec.processors.functions import Function, Functions, Logits, TextRows
from jspec.processors.history import History
from jspec.types import PyTree

__all__ = [
    "History",
    "Processor",
    "banned_sequences",
    "banned_tokens",
    "frequency_penalty",
    "logit_bias",
    "own",
    "presence_penalty",
    "repetition_penalty",
]

_STEP = 4
"""Lists are padded to multiples of it, so that lengths share programs."""


@dataclass(frozen=True)
class Processor:
    """A function of the nodes' logits, and the values that it needs.

    The functions of this module make them; `own` makes one of a function of yours.

    Args:
        function: from logits [B, N, V], the text before the nodes, and the values, to logits.
        values: as they were given.
        prepare: from (values, B, V) to checked arrays, with a row for each prompt.
        is_on: of these arrays, the rows in which they change anything: while there are none, rounds
            leave the processor out. None: all rows.
    """

    function: Callable[[Logits, History, PyTree], Logits]
    values: Any
    prepare: Callable[[Any, int, int], PyTree]
    is_on: Callable[[PyTree], Bool[Array, " B"]] | None = None

    @property
    def name(self) -> str:
        """The name of its function."""
        return getattr(self.function, "__name__", repr(self.function)).lstrip("_")

    def init(self, batch: int, vocab_size: int, end_tokens: Any) -> Functions:
        """Returns the processor for B rows and V tokens.

        Raises:
            InputError: if a value is out of range, or not one for each row.
        """
        del end_tokens
        values = self.prepare(self.values, batch, vocab_size)
        return Functions(TextRows((values,), None), functions=(self._function,))

    @property
    def _function(self) -> Function:
        return Function(self.function, self.is_on)


def own(function: Callable[[Logits, History, PyTree], Logits], values: PyTree = ()) -> Processor:
    """Returns a processor of your own.

    Args:
        function: from (logits [B, N, V], history, values) to logits [B, N, V]: pure, and the same
            function in every call: a lambda that is made anew is another program, and what it
            refers to is best passed as values. `History` has the tokens before each node.
        values: a pytree of numbers, or of arrays with a row for each prompt.

    Raises:
        InputError: if it is not a function.

    Example:
        >>> import jspec
        >>> def never_twice(logits, history, strength):
        ...     same = jnp.arange(logits.shape[-1]) == history.last(1)
        ...     return jnp.where(same, logits - strength[:, None, None], logits)
        >>> model = jspec.testing.PrefixLM()
        >>> result = jspec.decode(
        ...     model, model.init(), [[1, 2, 3]], max_new_tokens=8,
        ...     processors=[jspec.processors.own(never_twice, 100.0)],
        ... )
        >>> bool((result.tokens[0, 1:] == result.tokens[0, :-1]).any())
        False
    """
    if not callable(function):
        raise InputError(
            f"processor is {function!r:.80}; pass a function of (logits, history, values)"
        )

    return Processor(function, values, _any_per_row)


def repetition_penalty(penalty: ArrayLike) -> Processor:
    """Divides positive logits of tokens in the text by the penalty; multiplies negative ones.
    From CTRL (Keskar et al. 2019, section 4.1), as in `transformers`.

    Args:
        penalty: above 0, a number or [B]; 1 switches it off.

    Example:
        >>> import jspec
        >>> jspec.processors.repetition_penalty(1.2).values
        1.2
    """
    prepare = partial(_prepare_number, "repetition_penalty", 1e-6, "1 is off")
    return Processor(_repetition, penalty, prepare, _not_one)


def frequency_penalty(penalty: ArrayLike) -> Processor:
    """Takes the penalty from a token's logit, times its number of occurrences in the output.

    The prompt does not count (the OpenAI API's definition, and vLLM's).

    Args:
        penalty: a number or [B]; 0 switches it off, and below 0 it is a reward.
    """
    prepare = partial(_prepare_number, "frequency_penalty", -1e6, "0 is off")
    return Processor(_frequency, penalty, prepare, _not_zero)


def presence_penalty(penalty: ArrayLike) -> Processor:
    """Takes the penalty from the logits of all tokens that the output has.

    The prompt does not count (the OpenAI API's definition, and vLLM's).

    Args:
        penalty: a number or [B]; 0 switches it off, and below 0 it is a reward.
    """
    prepare = partial(_prepare_number, "presence_penalty", -1e6, "0 is off")
    return Processor(_presence, penalty, prepare, _not_zero)


def logit_bias(
    bias: Mapping[int, float] | Sequence[Mapping[int, float]], capacity: int = 0
) -> Processor:
    """Adds to the logits of single tokens.

    Args:
        bias: token -> what is added; or one such mapping for each row.
        capacity: places to fill up to: requests of one `jspec.Engine` have as many.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> jspec.decode(
        ...     model, model.init(), [[1, 2, 3]], max_new_tokens=3,
        ...     processors=[jspec.processors.logit_bias({7: 100.0})],
        ... ).tokens.tolist()
        [[7, 7, 7]]
    """
    check_integer("capacity", capacity, 0, None)

    return Processor(_bias, bias, partial(_prepare_bias, capacity), _adds)


def min_tokens(count: ArrayLike) -> Processor:
    """Bans the end tokens, `eos` and `stop_token_ids`, while the output is shorter. Stop strings
    wait too. `Stopping.min_tokens` makes it.
    """
    return Processor(_min_tokens, count, _prepare_min_tokens, _not_zero)


def banned_tokens(tokens: Sequence[int] | Sequence[Sequence[int]], capacity: int = 0) -> Processor:
    """Forbids tokens.

    Args:
        tokens: ids; or one list of ids for each row.
        capacity: places to fill up to: requests of one `jspec.Engine` have as many.

    Raises:
        InputError: if these are not lists; at the call, if these are not tokens of the model.
    """
    check_integer("capacity", capacity, 0, None)
    # Now: what can be gone through once is empty at the next call.
    tokens = _check_list("banned_tokens", tokens, "a list of token ids, or one for each row")

    return Processor(_ban, tokens, partial(_prepare_banned, capacity))


def banned_sequences(sequences: Sequence[Sequence[int]]) -> Processor:
    """Forbids the last token of each sequence where the text ends with those before it.

    Args:
        sequences: lists of token ids, for all rows. Of one token: it is forbidden everywhere.

    Raises:
        InputError: if these are not lists; at the call, if one is empty or has unknown tokens.
    """
    sequences = [
        _check_list(f"banned_sequences[{place}]", sequence, "a list of token ids")
        for place, sequence in enumerate(
            _check_list("banned_sequences", sequences, "lists of token ids")
        )
    ]

    return Processor(_ban_after, sequences, _prepare_sequences)


def _prepare_bias(capacity: int, bias: Any, batch: int, vocab_size: int) -> PyTree:
    is_shared = isinstance(bias, Mapping) or not isinstance(bias, Sequence)
    rows = _rows_of("logit_bias", bias, batch, is_shared, "a mapping of tokens to numbers")
    for entry in rows:
        _check_bias(entry)
    width = _round_up(max(capacity, *map(len, rows)))
    tokens = np.full((batch, width), vocab_size, np.int32)
    added = np.zeros((batch, width), np.float32)
    for row, entry in enumerate(rows):
        for place, (token, value) in enumerate(entry.items()):
            tokens[row, place] = _token("logit_bias", token, vocab_size)
            added[row, place] = value
    return tokens, added


def _prepare_min_tokens(count: Any, batch: int, vocab_size: int) -> PyTree:
    del vocab_size
    return integers(count, batch, "min_tokens", 0, 2**31 - 1, "0 switches it off")


def _prepare_banned(capacity: int, tokens: Any, batch: int, vocab_size: int) -> PyTree:
    is_shared = all(isinstance(token, Integral) for token in tokens)
    rows = _rows_of("banned_tokens", tokens, batch, is_shared, "a list of token ids")
    rows = [_check_list("a row of banned_tokens", entry, "a list of token ids") for entry in rows]
    filled = np.full((batch, _round_up(max(capacity, *map(len, rows)))), vocab_size, np.int32)
    for row, entry in enumerate(rows):
        filled[row, : len(entry)] = [_token("banned_tokens", t, vocab_size) for t in entry]
    return filled


def _prepare_sequences(sequences: Any, batch: int, vocab_size: int) -> PyTree:
    longest = max((len(sequence) for sequence in sequences), default=1)
    size = _round_up(len(sequences)), _round_up(longest - 1)
    before = np.full((batch, *size), -1, np.int32)
    last = np.full((batch, size[0]), vocab_size, np.int32)
    for place, sequence in enumerate(sequences):
        if not len(sequence):
            raise InputError(f"banned_sequences[{place}] is empty; give each at least one token")
        ids = [_token("banned_sequences", token, vocab_size) for token in sequence]
        before[:, place, size[1] - len(ids) + 1 :] = ids[:-1]
        last[:, place] = ids[-1]
    return before, last


def _repetition(logits: Logits, history: History, penalty: Float[Array, " B"]) -> Logits:
    by = penalty[:, None, None]

    def punish(logits, prompt, output):
        punished = jnp.where(logits > 0, logits / by, logits * by)
        return jnp.where(prompt + output > 0, punished, logits)

    return history.by_counts(logits, punish)


def _frequency(logits: Logits, history: History, penalty: Float[Array, " B"]) -> Logits:
    return history.by_counts(
        logits,
        lambda logits, _, output: logits - penalty[:, None, None] * output.astype(logits.dtype),
    )


def _presence(logits: Logits, history: History, penalty: Float[Array, " B"]) -> Logits:
    return history.by_counts(
        logits,
        lambda logits, _, output: (
            logits - penalty[:, None, None] * (output > 0).astype(logits.dtype)
        ),
    )


def _bias(logits: Logits, history: History, values: PyTree) -> Logits:
    del history
    # Over rows, not indexed by them: a sharded batch then writes without communication. The
    # token V, which fills up, is dropped.
    return jax.vmap(lambda row, token, added: row.at[:, token].add(added, mode="drop"))(
        logits, *values
    )


def _min_tokens(logits: Logits, history: History, count: Int[Array, " B"]) -> Logits:
    early = history.num_output_tokens < count[:, None]
    ends = history.end_tokens
    return jnp.where(early[..., None], forbidden(logits, ends), logits)


def _ban(logits: Logits, history: History, tokens: Int[Array, "B X"]) -> Logits:
    del history
    return forbidden(logits, tokens)


def _ban_after(logits: Logits, history: History, values: PyTree) -> Logits:
    before, last = values
    text = history.last(before.shape[-1])
    met = ((before[:, None] == text[:, :, None]) | (before[:, None] < 0)).all(-1)
    tokens = jnp.where(met, last[:, None], logits.shape[-1])
    return jax.vmap(jax.vmap(lambda node, token: node.at[token].set(-jnp.inf, mode="drop")))(
        logits, tokens
    )


def _not_one(values: Array) -> Bool[Array, " B"]:
    return values != 1


def _not_zero(values: Array) -> Bool[Array, " B"]:
    return values != 0


def _adds(values: PyTree) -> Bool[Array, " B"]:
    _, added = values
    return (added != 0).any(-1)


def forbidden(logits: Logits, tokens: Int[Array, "B X"]) -> Logits:
    """Returns the logits with -inf for these tokens, in all nodes of a row; -1 and V fill up."""
    tokens = jnp.where(tokens < 0, logits.shape[-1], tokens)
    return jax.vmap(lambda row, token: row.at[:, token].set(-jnp.inf, mode="drop"))(logits, tokens)


def _prepare_number(
    name: str, low: float, why: str, value: Any, batch: int, vocab_size: int
) -> PyTree:
    """Returns one number for each row."""
    del vocab_size
    return reals(value, batch, name, low, 1e6, why)


def _any_per_row(values: PyTree, batch: int, vocab_size: int) -> PyTree:
    del vocab_size

    def leaf(value: Any) -> Any:
        array = to_array(value, "a processor's value")
        if array.ndim and array.shape[0] != batch:
            raise InputError(
                f"a processor's value has shape {array.shape}; pass a number, or an array with "
                f"{batch} rows"
            )
        return array if array.ndim else library_of(array).broadcast_to(array, (batch,))

    return jax.tree.map(leaf, values)


def _check_list(name: str, value: Any, what: str) -> list[Any]:
    """Returns the entries of a list, or of an array."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r:.80}; pass {what}")
    return list(value)


def _rows_of(name: str, value: Any, batch: int, is_one: bool, what: str) -> list[Any]:
    """Returns one entry for each row, of one for all or of a list of them."""
    rows = [value] * batch if is_one else list(value)
    if len(rows) != batch:
        raise InputError(
            f"{name} has {len(rows)} entries and the prompts {batch} rows; pass {what}, or one for "
            "each row"
        )
    return rows


def _check_bias(bias: Any) -> None:
    if not isinstance(bias, Mapping):
        raise InputError(f"logit_bias is {bias!r:.80}; pass a mapping of token ids to numbers")
    for token, value in bias.items():
        check_number(f"logit_bias of token {token}", value, -1e6, 1e6, "or use banned_tokens")


def _token(name: str, token: Any, vocab_size: int) -> int:
    check_integer(f"{name}: a token", token, 0, vocab_size - 1, "the vocabulary")
    return int(token)


def _round_up(count: int) -> int:
    return max(_STEP, -(-count // _STEP) * _STEP)
