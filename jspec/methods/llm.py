"""A model and a drafter as one object: texts or tokens in and out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Unpack

from jspec._validate.errors import InputError
from jspec._validate.kinds import to_utf8

if TYPE_CHECKING:
    from pathlib import Path

    from jax.typing import ArrayLike

    from jspec.decoding import Arguments
    from jspec.decoding.engine import Engine
    from jspec.decoding.streaming import Chunk
    from jspec.models import Loaded
    from jspec.protocols import CausalLM, Drafter, WidthPolicy
    from jspec.request import Request, Room
    from jspec.types import PyTree, Result, State, Stopping


class LLM:
    """A language model that decodes with a drafter, as vLLM's `LLM`.

    Options that are not given have the defaults of the command line: trees that the default device
    scores cheaply, and for a bundled target the bundled head or draft model. Its calls are those of
    `jspec.decode`, which is pure, with its own arguments filled in; `jit` and what else transforms
    a function take `jspec.decode(llm.model, llm.params, ..)` itself.

    Args:
        model: what is to be decoded from: a bundled name, a folder, a GGUF file or a hub id, as
            `jspec.models.load` takes it; or what that gives; or `jspec.models.Loaded(model,
            params)` for a model of your own.
        method: one of `jspec.methods.names()`. "auto" is what is recommended.
        draft: the draft model of a method that needs one, as `model`. If it is not given, the
            bundled draft model serves every target that has its vocabulary.
        drafter: a drafter of your own, in place of a method.
        drafter_params: its weights, or other ones than the method finds.
        policy: says how much is drafted and verified, in place of the method's.
        policy_params: what the policy knows, such as what `jspec.costs.measure` gives. By default a
            guess at what rounds cost.
        num_speculative_tokens: drafted nodes.
        widths: numbers of drafted nodes that a round may verify, such as (0, 3, 7).
        options: the other fields of `jspec.methods.describe(method).options`, which
            `--speculative-config` takes too.

    Attributes:
        target: the model, its weights, its tokenizer and its end tokens. The model of an EAGLE-3
            head gives the states that the head reads, too.
        drafter, drafter_params, policy, policy_params: as in `jspec.decode`.

    Raises:
        InputError: if the method or an option is unknown, a value is of the wrong kind or out of
            range, or the method needs what is not there. Nothing has been compiled then.

    Example:
        >>> import jspec
        >>> llm = jspec.LLM("jspec-800k", "prompt_lookup", num_speculative_tokens=4)
        >>> llm.drafter.num_speculative_tokens
        4
        >>> llm.decode(["Once upon a time", "The end"], max_new_tokens=8).texts  # doctest: +SKIP
        [', there was a little girl named', ...]
        >>> model = jspec.testing.PrefixLM()  # a model that jspec has not loaded
        >>> llm = jspec.LLM(jspec.models.Loaded(model, model.init()))
        >>> llm.decode([[1, 2, 1, 2, 1]], max_new_tokens=8).result.tokens.shape  # doctest: +SKIP
        (1, 8)
    """

    target: "Loaded"
    drafter: "Drafter"
    drafter_params: "PyTree"
    policy: "WidthPolicy"
    policy_params: "PyTree"

    def __init__(
        self,
        model: "str | Path | Loaded",
        method: str = "auto",
        *,
        draft: "str | Path | Loaded | None" = None,
        drafter: "Drafter | None" = None,
        drafter_params: "PyTree" = None,
        policy: "WidthPolicy | None" = None,
        policy_params: "PyTree" = None,
        num_speculative_tokens: int | None = None,
        widths: "Sequence[int] | None" = None,
        **options: Any,
    ):
        from jspec.methods import DEFAULT, describe

        # Nothing of JAX is imported before a wrong name is answered.
        sizes = {"num_speculative_tokens": num_speculative_tokens, "widths": widths}
        options |= {name: size for name, size in sizes.items() if size is not None}
        if drafter is None:
            built = describe(method).build(model, draft, **options)
            model, drafter = built.target, built.drafter
            if drafter_params is None:
                drafter_params = built.drafter_params
            if policy is None:
                policy, built_params = built.policy, built.policy_params
                policy_params = built_params if policy_params is None else policy_params
        elif method != DEFAULT or draft is not None or options:
            raise InputError(
                f"drafter and {'draft' if draft is not None else next(iter(options), 'method')} "
                "were both given; leave one out, and give options to the drafter itself"
            )
        from jspec.policies.fixed_width import FixedWidth
        from jspec.round.request import check_drafter, check_policy

        check_drafter(drafter)
        check_policy(policy := FixedWidth() if policy is None else policy, drafter)
        self.target, self.drafter, self.policy = read_model("model", model), drafter, policy
        if policy_params is None:
            policy_params = policy.init_params(self.model, self.params)
        self.drafter_params, self.policy_params = drafter_params, policy_params

    def __repr__(self) -> str:
        return f"LLM({type(self.model).__name__}, {self.drafter!r}, {self.policy!r})"

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

    def decode(
        self,
        prompts: "str | Sequence[str] | Sequence[Sequence[int]] | ArrayLike",
        request: "Request | Sequence[Request] | None" = None,
        prompt_lengths: "ArrayLike | None" = None,
        **call: "Unpack[Arguments]",
    ) -> "Completions":
        """Generates tokens for prompts, as `jspec.decode` does.

        Args:
            prompts: a text or several; or token ids, of one prompt, [B, T], or a list for each row.
            request: a `jspec.Request` for all rows, or a list with one for each.
            prompt_lengths: as in `jspec.decode`.
            call: all else as in `jspec.decode`. End tokens are by default those of the checkpoint;
                stop strings may be texts.

        Returns:
            The result, and its texts.

        Raises:
            InputError: as `jspec.decode`; also if there are texts and no tokenizer.
        """
        from jspec.decoding import decode

        prompts, asks, stops = self._call(prompts, request, call)
        result = decode(self.model, self.params, prompts, prompt_lengths, **self.drafting, **asks)
        return Completions(result, prompts, prompt_lengths, self.target.tokenizer, stops)

    def stream(
        self,
        prompts: Any,
        request: "Request | Sequence[Request] | None" = None,
        prompt_lengths: "ArrayLike | None" = None,
        **call: "Unpack[Arguments]",
    ) -> "Iterator[Chunk]":
        """Decodes round by round, as `jspec.stream` does, with the texts of each round.

        Args:
            prompts: as in `decode`.
            request: as in `decode`.
            prompt_lengths: as in `decode`.
            call: as in `decode`.

        Returns:
            An iterator of chunks, one per round. `Chunk.texts` of all of them join to the texts of
            `decode`; without a tokenizer they are None.

        Raises:
            InputError: as `decode`, before the first chunk is asked for.
        """
        from jspec.decoding.streaming import stream

        prompts, asks, stops = self._call(prompts, request, call)
        chunks = stream(self.model, self.params, prompts, prompt_lengths, **self.drafting, **asks)
        if self.target.tokenizer is None:
            return chunks
        return self._with_texts(_rows(prompts, prompt_lengths), chunks, stops)

    def engine(self, num_slots: int, capacity: int, room: "Room | None" = None) -> "LLMEngine":
        """Makes an engine of this model and drafter, for rows that come and go.

        Args:
            num_slots: rows that decode together.
            capacity: most tokens that a row holds, prompt and output.
            room: for what requests may ask for.

        Returns:
            The engine, whose calls need no weights and no end tokens.

        Raises:
            InputError: as `jspec.Engine`.
        """
        from jspec.decoding.engine import Engine

        arguments: dict[str, Any] = {"drafter": self.drafter, "policy": self.policy}
        arguments |= {} if room is None else {"room": room}
        return LLMEngine(self, Engine(self.model, num_slots, capacity, **arguments))

    def with_jump_forward(self) -> "LLM":
        """Returns the model with its drafter in a merge with `jspec.JumpForward`, which drafts what
        a grammar forces; itself where the drafter draws by a rule of its own, or drafts nothing.
        """
        from jspec.drafters.autoregressive import Autoregressive
        from jspec.drafters.jump_forward import JumpForward
        from jspec.drafters.merge import merge
        from jspec.verify.choice import verifier_of
        from jspec.verify.schemes import COUPLED

        drafter, widths = self.drafter, self.policy.widths
        if isinstance(drafter, Autoregressive) or verifier_of(drafter) != COUPLED.verifier:
            return self
        # Longer chains would not be verified; the policy takes the nodes of largest value.
        usual = JumpForward.num_speculative_tokens
        forced = JumpForward(min(usual, max(widths[-1], 1)) if widths else usual)
        params = (self.drafter_params, None)
        drafting = {"drafter": merge(drafter, forced), "drafter_params": params}
        return LLM(self.target, **self.drafting | drafting)

    def _call(self, prompts: Any, request: Any, call: Any) -> tuple[Any, dict[str, Any], Any]:
        """Returns prompts as tokens, a call's arguments with end tokens, and its stop tokens."""
        from jspec.request import by_row, pad_tokens

        prompts = [prompts] if _is_prompt(prompts) else prompts
        if _are_texts(prompts):
            tokenizer = self._tokenizer("prompts")
            for text in prompts:
                to_utf8("a prompt", text)
            prompts = [tokenizer.encode(text).ids for text in prompts]
        if isinstance(request, list | tuple):
            rows = [self.with_ends(row) for row in by_row(request, len(request))]
            return prompts, call | {"request": rows}, pad_tokens([r.stop_token_ids for r in rows])
        if request is None:
            ends = self.with_ends(call.get("stopping"))
            return prompts, call | {"stopping": ends}, ends.stop_token_ids
        by_row(request, 1)
        ends = self.with_ends(request)
        return prompts, call | {"request": ends}, ends.stop_token_ids

    def with_ends(self, ends: "Stopping | Request | None") -> Any:
        """Returns it with the checkpoint's end tokens, and its stop strings as automata."""
        from jspec.processors.grammar.stops import stop_strings
        from jspec.request import Request
        from jspec.round.request import check_stopping
        from jspec.types import Stopping

        ends = Stopping() if ends is None else ends
        if not isinstance(ends, Request):
            check_stopping(ends)
        texts: Any = [ends.stop] if isinstance(ends.stop, str) else ends.stop
        if isinstance(texts, list | tuple) and not texts:  # vLLM's way to ask for none
            texts, ends = None, replace(ends, stop=None)
        if _are_texts(texts):
            ends = replace(ends, stop=stop_strings(texts, self._tokenizer("stop")))
        return replace(ends, eos=self.target.eos) if ends.eos is None else ends

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
        from jspec.types import Status

        rows = [Detokeniser(self.target.tokenizer, prompt) for prompt in prompts]
        running = [True] * len(rows)
        for chunk in chunks:
            about = chunk.state.status, chunk.state.stop_bytes
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


class LLMEngine:
    """A `jspec.Engine` with the weights and end tokens of an `LLM`: what `LLM.engine` gives.

    Its calls are the engine's without the arguments that an `LLM` has.

    Example:
        >>> import jspec
        >>> engine = jspec.LLM("jspec-800k", "prompt_lookup").engine(num_slots=2, capacity=64)
        >>> state = engine.init()  # doctest: +SKIP
        >>> state = engine.insert(state, 0, engine.prefill([1, 2, 3]))  # doctest: +SKIP
        >>> state, output = engine.generate(state, rounds=4)  # doctest: +SKIP
    """

    def __init__(self, llm: LLM, engine: "Engine"):
        weights: Any = {"drafter_params": llm.drafter_params, "policy_params": llm.policy_params}
        self.engine, self._llm, self._weights = engine, llm, weights
        self.init = partial(engine.init, llm.params, **weights)
        self.generate = partial(engine.generate, llm.params, **weights)
        self.warmup = partial(engine.warmup, llm.params, **weights)
        self.memory = partial(engine.memory, llm.params, **weights)
        self.insert, self.free, self.take = engine.insert, engine.free, engine.take

    def prefill(
        self,
        prompt: "Sequence[int] | ArrayLike",
        request: "Request | None" = None,
        *,
        earlier: "State | None" = None,
    ) -> "State":
        """Returns a request whose prompt is read, as `Engine.prefill`.

        Args:
            prompt: [T] token ids.
            request: what is asked for; its stop strings may be texts.
            earlier: as in `Engine.prefill`.
        """
        from jspec.request import Request

        if not isinstance(request, Request | None):
            raise InputError(f"request is {request!r:.80}; pass a jspec.Request")
        asks = self._llm.with_ends(Request() if request is None else request)
        params = self._llm.params
        return self.engine.prefill(params, prompt, asks, earlier=earlier, **self._weights)


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

    def __repr__(self) -> str:
        what = f"lengths={self.result.lengths}" if self.tokenizer is None else repr(self.texts)
        return f"Completions({what})"

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
        result = self.result
        fields = result.tokens, result.lengths, result.stop_bytes, result.status
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


def _is_prompt(value: Any) -> bool:
    """Returns whether this is a text or the tokens of one."""
    import numpy as np

    if isinstance(value, str) or not hasattr(value, "__len__") or not len(value):
        return isinstance(value, str)
    return not isinstance(value[0], str) and np.ndim(value[0]) == 0


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and {type(entry) for entry in value} == {str}


def _rows(prompts: Any, lengths: Any) -> list[list[int]]:
    """Returns the tokens of each prompt, without what fills up."""
    import numpy as np

    rows = [np.asarray(row).tolist() for row in prompts]
    return rows if lengths is None else [row[:n] for row, n in zip(rows, lengths, strict=True)]


def _row_of(stops: Any, row: int) -> list[int]:
    """Returns a row's stop tokens, which may be for all rows or of each."""
    import numpy as np

    ids = np.asarray([] if stops is None else stops)
    return (ids[row] if ids.ndim == 2 else ids.reshape(-1)).tolist()


def read_model(name: str, model: "str | Path | Loaded") -> "Loaded":
    """Returns the model, read if it was named. Raises InputError if it is neither."""
    from jspec.models import Loaded, load
    from jspec.round.request import check_model

    if isinstance(model, Loaded):
        check_model(model.model, ())  # the weights may be shapes, of a plan
        return model
    if isinstance(model, str | PurePath):
        return load(model)
    raise InputError(
        f"{name} is of type {type(model).__name__}; pass a name or what jspec.models.load gives, "
        "or jspec.models.Loaded(model, params) of a model of your own"
    )
