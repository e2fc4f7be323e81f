"""Streaming: `decode` round by round, for those who want the tokens as they come."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

import jax
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec._validate.row_arguments import of_rows
from jspec.decoding import Asked, prefill, step
from jspec.protocols import CausalLM
from jspec.types import Logprobs, PyTree, State, Status


@struct.dataclass
class Chunk:
    """The tokens of one round, on the host, as `stream` yields them.

    Attributes:
        tokens: The round's tokens of each row.
        drafted: True for a draft that the target confirmed. False for the round's last token, the
            target's own draw; if an end token or a limit cut the round, it may have been drafted
            too.
        state: The state after the round; asking for the next chunk donates it.
        logprobs: The log-probabilities of these tokens, [B, most tokens of a row], or None.
        texts: What these tokens add to each row's text; None but from `jspec.LLM.stream`, since
            this module knows no tokenizer. The texts of all chunks join to the whole.
    """

    tokens: list[list[int]]
    drafted: list[list[bool]]
    state: State
    logprobs: Logprobs | None = None
    texts: list[str] | None = None


def stream(
    model: CausalLM,
    params: PyTree,
    prompt: ArrayLike | Sequence[Any],
    prompt_lengths: ArrayLike | None = None,
    **request: Unpack[Asked],
) -> Iterator[Chunk]:
    """Decodes round by round, with a `Chunk` after each; together they are decode's tokens.

    Runs the very program that `decode` runs, one round at a time.

    Args:
        model: the target; static.
        params: its weights.
        prompt: [B, T] token ids, padded on the right; or a list for each row, of any lengths.
        prompt_lengths: [B] tokens per row; None: every row is full, or as long as its list.
        request: all else as in `decode`.

    Returns:
        An iterator of chunks, one per round, until every row has ended.

    Raises:
        InputError: as in `decode`, before the first chunk is asked for.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> chunks = jspec.stream(model, model.init(), [[1, 2, 3]], max_new_tokens=4)
        >>> sum(len(chunk.tokens[0]) for chunk in chunks)
        4
    """
    request["drafter_params"] = of_rows(request.get("drafter_params"), prompt)
    state = prefill(model, params, prompt, prompt_lengths, **request)

    if isinstance(state.root, Tracer):
        raise InputError(
            "stream was called inside a program, and gives tokens to the host; call it outside of "
            "jit, or call jspec.decode"
        )
    names = "drafter", "drafter_params", "policy", "policy_params"
    arguments: dict[str, Any] = {**request}
    drafting = {name: arguments[name] for name in names if name in arguments}
    return chunks(state, partial(step, model, params, **drafting))


def chunks(state: State, advance: Callable[[State], State]) -> Iterator[Chunk]:
    """Yields the tokens of each round, until every row has ended."""
    seen = jax.device_get(state.lengths)
    while (jax.device_get(state.status) == Status.RUNNING).any():
        state = advance(state)
        tokens, ends = jax.device_get((state.tokens, state.lengths))
        parts = [slice(*places) for places in zip(seen, ends, strict=True)]
        new = [row[part].tolist() for row, part in zip(tokens, parts, strict=True)]
        yield Chunk(
            tokens=new,
            drafted=[[True] * (len(row) - 1) + [False] * min(len(row), 1) for row in new],
            state=state,
            logprobs=_between(state.logprobs, seen, ends),
        )
        seen = ends


def _between(logprobs: Logprobs | None, begins: np.ndarray, ends: np.ndarray) -> Logprobs | None:
    """Returns the log-probabilities of places `begins` to `ends` of each row, on the host."""
    offsets = np.arange((ends - begins).max())

    def part(values: jax.Array) -> np.ndarray:
        host = np.asarray(values)
        places = np.minimum(begins[:, None] + offsets, host.shape[1] - 1)
        valid = begins[:, None] + offsets < ends[:, None]
        picked = host[np.arange(len(host))[:, None], places]
        return np.where(valid.reshape(*valid.shape, *[1] * (picked.ndim - 2)), picked, 0)

    return jax.tree.map(part, logprobs)
