"""Turns requests into jobs: tokens, settings, grammars and stop strings."""

import json
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jspec._validate.errors import InputError
from jspec.models import reasoning
from jspec.processors import grammar
from jspec.request import Request, Room
from jspec.serve import calls
from jspec.serve.errors import APIError
from jspec.serve.forms import Automata, Forms, FormSpec
from jspec.serve.limits import ServerLimits
from jspec.serve.schemas import AsJSON, AsObject, ChatRequest, CompletionRequest, Message, NamedTool
from jspec.serve.schemas import SamplingParams as Asked
from jspec.serve.workers import Patience
from jspec.sessions import conversations

if TYPE_CHECKING:
    from jspec.models import Loaded

_COMPLETION = 16
"""Tokens of a completion that names no bound, as in the OpenAI API."""
_OWN = {"messages", "tools", "add_generation_prompt", "watch", "self", "target"}
"""Names that the server itself gives a template, and reserved words."""
_PENALTIES = (
    "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "min_tokens",
)  # fmt: skip
"""Fields for which rows have room only if the server was started so."""


@dataclass(frozen=True)
class ParsedRequest:
    """A request, ready for rows."""

    prompts: Sequence[list[int]]
    request: Request
    spec: FormSpec
    has_seed: bool
    num_answers: int = 1
    num_top: int | None = None
    goes_on: bool = False
    function: str | None = None
    reader: Callable[..., calls.ContentReader] = calls.ContentReader
    marks: reasoning.Marks | None = None
    salt: Hashable = ""
    adapter: int = 0

    def with_automata(self, automata: Automata) -> "ParsedRequest":
        """Returns the request with its automata."""
        return replace(self, request=replace(self.request, grammar=automata[0], stop=automata[1]))


class RequestParser:
    """Parses requests; from any thread."""

    def __init__(
        self,
        target: "Loaded",
        max_model_len: int,
        room: Room,
        call_parser: str | None = None,
        limits: ServerLimits = ServerLimits(),
        sampling: Mapping[str, float] = {},
    ):
        self.target = target
        self._sampling = sampling
        self._call_parser = call_parser
        template = "" if target.chat is None else target.chat.template
        self._marks = reasoning.marks_of(target.tokenizer, template)
        self.max_model_len = max_model_len
        self._room = room
        self.spelled = grammar.token_bytes(target.tokenizer)
        """The bytes of each token."""
        self.limits = limits
        self.forms = Forms(self.spelled, room, limits)
        texts = *self.spelled, *self.spelled.names.values()
        longest = max([1, *(len(text) for text in texts if text)])
        self._most_bytes = max_model_len * longest
        """Of a text: more have no room in a row whatever its tokens are."""

    def completion(self, body: CompletionRequest, patience: Patience) -> ParsedRequest:
        """Returns the request of a completion."""
        vocab_size = self.target.model.vocab_size
        prompts = []
        for prompt in body.prompts:
            patience.check("the prompt")
            self._check_room("prompt", prompt)
            ids = self.target.tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
            if not ids:
                raise APIError(400, "prompt has no tokens; give it text", "prompt")
            if (largest := max(ids)) >= vocab_size:
                raise APIError(
                    400, f"prompt has token {largest}, outside the vocabulary of {vocab_size}",
                    "prompt",
                )  # fmt: skip
            prompts.append(ids)
        limit = self._limit("prompt", prompts, body.max_tokens, _COMPLETION, "max_tokens")
        spec = self.forms.specify(body.stop_texts, body.structured_outputs)
        num_top = self._num_top("logprobs", body.logprobs)
        request = self._request(body, limit, spec, num_top)
        return ParsedRequest(
            prompts, request, spec, body.seed is not None, body.n, num_top,
            salt=body.cache_salt or "",
        )  # fmt: skip

    def chat(self, body: ChatRequest, patience: Patience) -> ParsedRequest:
        """Returns the request of a chat's next turn."""
        prompt = self._conversation(body, patience)
        if body.max_tokens and body.max_completion_tokens:
            raise APIError(
                400, "max_tokens and max_completion_tokens were both given; give one of them",
                "max_tokens",
            )  # fmt: skip
        limit_name = "max_tokens" if body.max_tokens else "max_completion_tokens"
        max_tokens = body.max_tokens or body.max_completion_tokens
        limit = self._limit("messages", [prompt], max_tokens, None, limit_name)
        function, schema, reader = self._find_call(body)
        form: Any = body.structured_outputs
        if isinstance(body.response_format, AsJSON | AsObject):
            if form is not None:
                raise APIError(
                    400, "response_format and structured_outputs were both given; give one of them",
                    "structured_outputs",
                )  # fmt: skip
            form = body.response_format
        if schema is not None and form is not None:
            raise APIError(
                400, "tool_choice asks for a call, which has a form of its own; leave out "
                "response_format and structured_outputs", "tool_choice",
            )  # fmt: skip
        lead = reasoning.lead(self.target.tokenizer, self._marks, prompt)
        form = form if schema is None else schema
        spec = self.forms.specify(body.stop_texts, form, lead)
        # A grammar that waits for no mark leaves no thoughts to be told apart.
        marks = self._marks if form is None or lead is not None else None
        if body.top_logprobs is not None and not body.logprobs:
            raise APIError(
                400, "top_logprobs came without logprobs; add logprobs: true", "top_logprobs"
            )
        top = (body.top_logprobs or 0) if body.logprobs else None
        num_top = self._num_top("top_logprobs" if top else "logprobs", top)
        request = self._request(body, limit, spec, num_top)
        return ParsedRequest(
            [prompt], request, spec, body.seed is not None, body.n, num_top, goes_on=True,
            function=function, reader=reader, marks=marks, salt=body.cache_salt or "",
        )  # fmt: skip

    def _conversation(self, body: ChatRequest, patience: Patience) -> list[int]:
        """Returns the tokens of a conversation, by the model's template."""

        def watch(size: int) -> None:
            patience.check("messages")
            self._check_size("messages", size)

        if wrong := _OWN & set(body.chat_template_kwargs):
            name = f"chat_template_kwargs.{min(wrong)}"
            raise APIError(400, f"{name} is not the client's to give; leave it out", name)
        messages = [*map(_for_template, body.messages)]
        variables = dict(body.chat_template_kwargs)
        write = partial(conversations.write, self.target, messages, watch=watch, **variables)
        try:
            if not body.tools or body.tool_choice == "none":
                text = write()
            else:
                tools = [tool.model_dump(exclude_none=True) for tool in body.tools]
                text = write(tools=tools)
                # A template that has another one for tools may know no results of calls itself.
                with suppress(InputError):
                    if text == write():
                        raise APIError(
                            400, "tools is not supported by the model's chat template, which does "
                            "not show them; leave it out", "tools", "unsupported_parameter",
                        )  # fmt: skip
            self._check_room("messages", text)
            return conversations.encode(self.target, text)
        except InputError as error:
            message = str(error)
            param = message.partition(" ")[0] if message.startswith("messages[") else "messages"
            raise APIError(400, message, param) from None

    def _find_call(
        self, body: ChatRequest
    ) -> tuple[str | None, str | None, Callable[..., calls.ContentReader]]:
        """Returns the called function and the schema, None if absent, and the answer's reader."""
        choice, parser = body.tool_choice, self._call_parser
        # Without parameters the only arguments are {}.
        tools = {
            tool.function.name: {"type": "object", "properties": {}, **tool.function.parameters}
            for tool in body.tools or ()
        }
        if choice == "none" or (choice == "auto" and not tools):
            return None, None, calls.ContentReader
        if not tools:
            raise APIError(
                400, f"tool_choice is {_name_of(choice)!r:.60} and there are no tools; give some",
                "tool_choice",
            )  # fmt: skip
        if choice == "auto":
            if parser is None:
                raise APIError(
                    400, "tool_choice is 'auto', and the chat template does not show how the model "
                    "writes calls; name a function, or start the server with --tool-call-parser",
                    "tool_choice",
                )  # fmt: skip
            if not body.parallel_tool_calls:
                raise APIError(
                    400, "parallel_tool_calls is false and tool_choice is 'auto', where an answer "
                    "is free text with any number of calls; ask for one call by tool_choice "
                    "'required' or a function's name", "parallel_tool_calls",
                    "unsupported_parameter",
                )  # fmt: skip
            return None, None, calls.reader_of(parser, tools)
        name = _name_of(choice) if isinstance(choice, NamedTool) else None
        if name is not None and name not in tools:
            raise APIError(
                400, f"tool_choice names {name!r:.60}, which tools does not have", "tool_choice"
            )
        if name is None and len(tools) == 1:
            name = next(iter(tools))
        if name is not None:
            return name, json.dumps(tools[name]), calls.ContentReader
        return None, calls.schema_of(list(tools.items())), calls.reader_of(calls.LLAMA, tools)

    def _check_room(self, param: str, text: str | list[int]) -> None:
        """Refuses a prompt that no row holds, before it is made into tokens."""
        if isinstance(text, str):
            self._check_size(param, len(text.encode()))
        else:
            self._check_tokens(param, len(text))

    def _check_size(self, param: str, size: int) -> None:
        if size > self._most_bytes:
            raise APIError(
                400, f"{param} has {size} bytes of text or more, and a row of "
                f"{self.max_model_len} tokens holds {self._most_bytes} at most; shorten it, "
                "or start the server with more --max-model-len", param, "context_length_exceeded",
            )  # fmt: skip

    def _check_tokens(self, param: str, size: int) -> None:
        if size >= (room := self.max_model_len):
            raise APIError(
                400, f"{param} has {size} tokens and a row holds {room}, prompt and answer; "
                "shorten it, or start the server with more --max-model-len", param,
                "context_length_exceeded",
            )  # fmt: skip

    def _limit(
        self,
        param: str,
        prompts: Sequence[list[int]],
        max_tokens: int | None,
        default: int | None,
        limit_name: str,
    ) -> int:
        """Returns most tokens of an answer."""
        longest, room = max(map(len, prompts)), self.max_model_len
        self._check_tokens(param, longest)
        if max_tokens is not None and longest + max_tokens > room:
            raise APIError(
                400, f"{limit_name} is {max_tokens}, {param} has {longest} tokens, and a row holds "
                f"{room}; ask for at most {room - longest}", limit_name, "context_length_exceeded",
            )  # fmt: skip
        free = room - longest
        return max_tokens or min(default or free, free)

    def _num_top(self, param: str, count: int | None) -> int | None:
        max_count = self._room.logprobs
        if count is not None and (max_count is None or count > max_count):
            text = "none" if max_count is None else f"{max_count} at a place"
            raise APIError(
                400, f"{param} is {count} and the server keeps {text}; ask for fewer, or start it "
                "with --max-logprobs", param,
            )  # fmt: skip
        return count

    def _request(self, body: Asked, limit: int, spec: FormSpec, logprobs: int | None) -> Request:
        defaults = {k: v for k, v in self._sampling.items() if k not in body.model_fields_set}
        body = body.model_copy(update=defaults)
        vocab_size, bias = self.target.model.vocab_size, {}
        for name in () if self._room.penalties else _PENALTIES:
            if getattr(body, name) != type(body).model_fields[name].get_default(
                call_default_factory=True
            ):
                raise APIError(
                    400, f"{name} is not supported by this server, which was started with "
                    "--no-penalties; leave it out", name, "unsupported_parameter",
                )  # fmt: skip
        for name, value in body.logit_bias.items():
            # As JSON writes a number; Python reads none of thousands of digits.
            plain = name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name
            if not plain or int(name) >= vocab_size:
                raise APIError(
                    400, f"logit_bias has {name!r:.40}, which is not a token of the vocabulary of "
                    f"{vocab_size}", "logit_bias",
                )  # fmt: skip
            bias[int(name)] = value
        if body.stop_token_ids and max(body.stop_token_ids) >= vocab_size:
            raise APIError(
                400, f"stop_token_ids has {max(body.stop_token_ids)}, outside the vocabulary of "
                f"{vocab_size}", "stop_token_ids",
            )  # fmt: skip
        if spec.kind is not None and body.ignore_eos:
            raise APIError(
                400, "ignore_eos came with a grammar, whose answers have an end; leave it out",
                "ignore_eos",
            )  # fmt: skip
        return Request(
            max_tokens=limit,
            temperature=body.temperature,
            top_k=body.top_k,
            top_p=body.top_p,
            min_p=body.min_p,
            # Unlike any other: an answer without a seed shall not repeat itself.
            seed=int.from_bytes(os.urandom(7), "big") if body.seed is None else body.seed,
            repetition_penalty=body.repetition_penalty,
            frequency_penalty=body.frequency_penalty,
            presence_penalty=body.presence_penalty,
            logit_bias=bias,
            min_tokens=body.min_tokens,
            stop_token_ids=tuple(body.stop_token_ids),
            eos=() if body.ignore_eos else None,
            logprobs=logprobs,
        )


def _name_of(choice: str | NamedTool) -> str:
    return choice if isinstance(choice, str) else choice.function.name


def _for_template(message: Message) -> dict[str, Any]:
    """Returns a message as templates read it."""
    without = {"id": True, "tool_calls": {"__all__": {"index"}}}
    entry = message.model_dump(exclude=without, exclude_none=True)
    # A message without calls is its text.
    if "content" in message.model_fields_set or not message.tool_calls:
        entry.setdefault("content", None if message.tool_calls else "")
    return entry
