"""A model and a method's drafter as one object: texts or tokens in and out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jspec._validate.errors import InputError

if TYPE_CHECKING:
    from jspec.decoding.engine import Engine
    from jspec.decoding.streaming import Chunk
    from jspec.models import Loaded
    from jspec.protocols import CausalLM, Drafter, WidthPolicy
    from jspec.types import PyTree, Result


def _whole() -> "WidthPolicy":
    """Returns the default policy, which imports JAX."""
    from jspec.policies.fixed_width import FixedWidth

    return FixedWidth()


@dataclass(frozen=True, eq=False)
class LLM:
    """A language model that decodes with a drafter: what `jspec.methods.build` makes.

    Its calls are those of `jspec.decode`, which is pure, with its own arguments filled in; `jit`
    and what else transforms a function take `jspec.decode(llm.model, llm.params, ..)` itself.

    Args:
        target: the model, its weights, its tokenizer and its end tokens. The model of an EAGLE-3
            head gives the states that the head reads, too.
        drafter: proposes the trees.
        drafter_params: the weights of the draft model or the head, or the datastore; None if there
            is nothing.
        policy: says how much is drafted and verified; as much as the drafter gives if not given.
        policy_params: what the policy knows, such as a guess at what rounds cost; None if nothing.

    Example:
        >>> import jspec
        >>> llm = jspec.methods.build("prompt_lookup", "jspec-800k")
        >>> llm.decode(["Once upon a time", "The end"], max_new_tokens=8).texts  # doctest: +SKIP
        [', there was a little girl named', ...]
    """

    target: "Loaded"
    drafter: "Drafter"
    drafter_params: "PyTree" = None
    policy: "WidthPolicy" = field(default_factory=_whole)
    policy_params: "PyTree" = None

    def __post_init__(self):
        if not hasattr(self.target, "eos"):
            raise InputError(
                f"target is of type {type(self.target).__name__}; pass what jspec.models.load "
                "gives, or jspec.models.Loaded(model, params) of a model of your own"
            )

    @property
    def model(self) -> "CausalLM":
        """The network to decode with."""
        return self.target.model

    @property
    def params(self) -> "PyTree":
        """Its weights."""
        return self.target.params

    @property
    def drafting(self) -> dict[str, Any]:
        """The arguments of `jspec.decode` that say how drafts are made."""
        names = "drafter", "drafter_params", "policy", "policy_params"
        return {name: getattr(self, name) for name in names}

    def decode(self, prompts: Any, **request: Any) -> "Completions":
        """Generates tokens for prompts, as `jspec.decode` does.

        Args:
            prompts: a text or several; or token ids, [B, T] or a list for each row.
            request: all else as in `jspec.decode`. The end tokens of `stopping` are those of the
                checkpoint if it has none, and its stop strings may be texts.

        Returns:
            The result, and its texts.

        Raises:
            InputError: as `jspec.decode`; also if there are texts and no tokenizer.
        """
        from jspec.decoding import decode

        prompts, call = self._call(prompts, request)
        result = decode(self.model, self.params, prompts, **self.drafting, **call)
        stops = _stop_token_ids(call)
        lengths = call.get("prompt_lengths")
        return Completions(result, prompts, lengths, self.target.tokenizer, stops)

    def stream(self, prompts: Any, **request: Any) -> "Iterator[Chunk]":
        """Decodes round by round, as `jspec.stream` does, with the texts of each round.

        Args:
            prompts: as in `decode`.
            request: as in `decode`.

        Returns:
            An iterator of chunks, one per round. `Chunk.texts` of all of them join to the texts of
            `decode`; without a tokenizer they are None.

        Raises:
            InputError: as `decode`, before the first chunk is asked for.
        """
        from jspec.decoding.streaming import stream

        prompts, call = self._call(prompts, request)
        chunks = stream(self.model, self.params, prompts, **self.drafting, **call)
        if self.target.tokenizer is None:
            return chunks
        stops = _stop_token_ids(call)
        return self._with_texts(_rows(prompts, call.get("prompt_lengths")), chunks, stops)

    def engine(self, num_slots: int, capacity: int, **options: Any) -> "Engine":
        """Makes an engine of this model and drafter, for rows that come and go.

        Args:
            num_slots: rows that decode together.
            capacity: most tokens that a row holds, prompt and output.
            options: all else as in `jspec.Engine`.

        Returns:
            The engine. Its calls take `llm.params`, `llm.drafter_params`, `llm.policy_params` and,
            in the `stopping` of a request, `llm.target.eos`.

        Raises:
            InputError: as `jspec.Engine`.
        """
        from jspec.decoding.engine import Engine

        drafting = {"drafter": self.drafter, "policy": self.policy}
        return Engine(self.model, num_slots, capacity, **drafting, **options)

    def _call(self, prompts: Any, request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Returns the prompts as tokens, and a call's arguments with the checkpoint's."""
        from jspec.processors.grammar.stops import stop_strings
        from jspec.round.request import check_stopping
        from jspec.types import Stopping

        if isinstance(prompts, str):
            prompts = [prompts]
        if _are_texts(prompts):
            prompts = [self._tokenizer("prompts").encode(text).ids for text in prompts]
        if (asks := request.get("request")) is not None:
            listed = isinstance(asks, list | tuple)
            asks = [self._complete(one) for one in asks] if listed else self._complete(asks)
            return prompts, request | {"request": asks}
        check_stopping(stopping := request.get("stopping", Stopping()))
        if stopping.eos is None:
            stopping = replace(stopping, eos=self.target.eos)
        texts = [stopping.stop] if isinstance(stopping.stop, str) else stopping.stop
        if _are_texts(texts):
            stopping = replace(stopping, stop=stop_strings(texts, self._tokenizer("stop")))
        return prompts, request | {"stopping": stopping}

    def _complete(self, request: Any) -> Any:
        """Returns a request with the checkpoint's end tokens, and with automata of its texts."""
        from jspec.processors.grammar.stops import stop_strings

        stop = [request.stop] if isinstance(request.stop, str) else request.stop
        if _are_texts(stop):
            request = replace(request, stop=stop_strings(stop, self._tokenizer("stop")))
        return request if request.eos is not None else replace(request, eos=self.target.eos)

    def _tokenizer(self, name: str) -> Any:
        if self.target.tokenizer is None:
            raise InputError(
                f"{name} is text and the target was loaded without a tokenizer; pass token ids, or "
                "load it with one"
            )
        return self.target.tokenizer

    def _with_texts(
        self, prompts: Sequence[Sequence[int]], chunks: "Iterator[Chunk]", stops: Any
    ) -> "Iterator[Chunk]":
        import jax

        from jspec.models.detokenise import Detokeniser
        from jspec.round.processing import first
        from jspec.types import Status

        rows = [Detokeniser(self.target.tokenizer, prompt) for prompt in prompts]
        running = [True] * len(rows)
        for chunk in chunks:
            about = chunk.state.status, first(chunk.state, "stop_bytes")
            status, stop_bytes = jax.device_get(about)
            texts = []
            for row, text in enumerate(rows):
                ends = running[row] and status[row] != Status.RUNNING
                running[row] = running[row] and not ends
                cut = 0 if stop_bytes is None else int(stop_bytes[row])
                new, why = chunk.tokens[row], int(status[row])
                last = _row_of(stops, row)
                texts.append(text.finish(new, cut, why, last) if ends else text.push(new, cut))
            yield replace(chunk, texts=texts)


@dataclass(frozen=True, eq=False)
class Completions:
    """The completions of prompts: what `LLM.decode` gives."""

    result: "Result"
    prompts: Any
    """The tokens of the prompts, as `jspec.decode` was given them."""
    prompt_lengths: Any
    """Their lengths, if these were given."""
    tokenizer: Any
    stop_token_ids: Any = None
    """The tokens that end rows besides end tokens, as `Stopping` has them."""

    @cached_property
    def texts(self) -> list[str]:
        """Generated texts of each prompt, without end tokens and stop strings.

        Raises:
            InputError: if the target was loaded without a tokenizer.
        """
        import jax

        from jspec.models.detokenise import Detokeniser

        if self.tokenizer is None:
            raise InputError("there is no tokenizer to make texts of tokens; read result.tokens")
        found = self.result
        fields = found.tokens, found.lengths, found.stop_bytes, found.status
        tokens, lengths, cuts, status = jax.device_get(fields)
        return [
            Detokeniser(self.tokenizer, prompt).finish(
                tokens[row, : lengths[row]].tolist(),
                0 if cuts is None else int(cuts[row]),
                int(status[row]),
                _row_of(self.stop_token_ids, row),
            )
            for row, prompt in enumerate(_rows(self.prompts, self.prompt_lengths))
        ]


def _are_texts(given: Any) -> bool:
    return isinstance(given, list | tuple) and {type(one) for one in given} == {str}


def _rows(prompts: Any, lengths: Any) -> list[list[int]]:
    """Returns the tokens of each prompt, without what fills up."""
    import numpy as np

    rows = [np.asarray(row).tolist() for row in prompts]
    return rows if lengths is None else [row[:n] for row, n in zip(rows, lengths, strict=True)]


def _stop_token_ids(call: dict[str, Any]) -> Any:
    """Returns the stop tokens of a call's rows, as `Stopping` has them."""
    from jspec.request import Request, pad_tokens

    asks = call.get("request")
    if asks is None:
        return call["stopping"].stop_token_ids
    if isinstance(asks, Request):
        return list(asks.stop_token_ids)
    return pad_tokens([one.stop_token_ids for one in asks])


def _row_of(stops: Any, row: int) -> list[int]:
    """Returns a row's stop tokens, which may be for all rows or of each."""
    import numpy as np

    ids = np.asarray([] if stops is None else stops)
    return (ids[row] if ids.ndim == 2 else ids.reshape(-1)).tolist()
