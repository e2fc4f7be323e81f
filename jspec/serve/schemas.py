"""Fields of requests. Everything else is refused by name: nothing is ever ignored.

Fields and bounds are those of the OpenAI API, and vLLM's alongside them. A field that is null is
one that was not given, and so is one that asks for what is done anyway.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from jspec.serve.device import NUM_BIASES, NUM_STOP_TOKENS
from jspec.serve.errors import APIError

Asked = TypeVar("Asked", bound="Body")

MOST_ANSWERS = 128
MOST_PROMPTS = 256
_MOST_WRONG = 64
"""Fields that are wrong: a body of more is not told which."""

NEUTRAL: Mapping[str, Sequence[Any]] = {
    "add_generation_prompt": (True,),
    "annotations": ([],),
    "bad_words": ([],),
    "best_of": (1,),
    "cache_control": ({"type": "ephemeral"},),
    "continue_final_message": (False,),
    "continuous_usage_stats": (False,),
    "detokenize": (True,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_obfuscation": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "metadata": ({},),
    "mirostat": (0,),
    "modalities": (["text"],),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "priority": (0,),
    "provider_specific_fields": ({},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "stream_options": ({}, {"include_usage": False}),
    "suffix": ("",),
    "tfs_z": (1,),
    "tool_calls": ([],),
    "tools": ([],),
    "top_a": (0,),
    "top_logprobs": (0,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "xtc_probability": (0,),
}
"""Values with which a field asks for nothing; most of these fields have no other here."""

Text = Annotated[str, Field(min_length=1)]
Token = Annotated[int, Field(ge=0)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]


def _list(minimum: int, maximum: int | None = None) -> Any:
    """Returns the bounds of a list, of whose entries the first that is wrong is enough."""
    return Field(min_length=minimum, max_length=maximum, fail_fast=True)


class Body(BaseModel):
    """Strict: text is not a number, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _asked(cls, fields: Any) -> Any:
        if isinstance(fields, dict):
            # Templates tell a message whose content is null from one that has none.
            names = (
                n for n, value in fields.items() if n == "content" or not _is_neutral(n, value)
            )
            return {name: fields[name] for name in names}
        return fields


def _is_neutral(name: str, value: Any) -> bool:
    # True is not a number here, though Python's is.
    return value is None or any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in NEUTRAL.get(name, ())
    )


class StreamOptions(Body):
    include_usage: bool = False


class NamedSchema(Body):
    name: str
    description: str = ""
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = True


class AsText(Body):
    type: Literal["text"]


class AsObject(Body):
    type: Literal["json_object"]


class AsJSON(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class StructuredOutputs(Body):
    """vLLM's; one of these."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool = False
    regex: Text | None = None
    choice: Annotated[list[Text], _list(1, 1024)] | None = None

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        forms = self.json_, self.json_object or None, self.regex, self.choice
        if sum(form is not None for form in forms) != 1:
            raise ValueError("give one of json, json_object, regex and choice")
        return self


class SamplingParams(Body):
    """Fields that both kinds of requests have."""

    model: str
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(ge=1e-6, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Text | Annotated[list[Text], _list(0, 16)] = Field(default_factory=list)
    stop_token_ids: Annotated[list[Token], _list(0, NUM_STOP_TOKENS)] = Field(default_factory=list)
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=100)] = 1.0
    logit_bias: Annotated[dict[str, Bias], Field(max_length=NUM_BIASES)] = Field(
        default_factory=dict
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    """Says who asks; it is written into the log."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """vLLM's: what is read of the prompt is shared within it."""

    @property
    def stop_texts(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @model_validator(mode="after")
    def _streamed(self) -> "SamplingParams":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options came without stream; leave it out, or stream")
        return self


class CompletionRequest(SamplingParams):
    """The body of /v1/completions."""

    prompt: (
        Text
        | Annotated[list[Text], _list(1, MOST_PROMPTS)]
        | Annotated[list[Token], _list(1)]
        | Annotated[list[Annotated[list[Token], _list(1)]], _list(1, MOST_PROMPTS)]
    )
    logprobs: Annotated[int, Field(ge=0)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """All prompts, one or several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]


class TextPart(Body):
    type: Literal["text"]
    text: str


class FunctionCall(Body):
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Body):
    id: str = ""
    index: int = 0
    """Of a streamed call, which clients put together and send as it is."""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], _list(0)] | None = None
    id: str | None = None
    """Of an answer, which clients send as it is; no template reads it."""
    name: str | None = None
    reasoning_content: str | None = None
    """The model's reasoning, for the template, which may show it."""
    tool_calls: Annotated[list[ToolCall], _list(0)] | None = None
    tool_call_id: str | None = None


class FunctionBody(Body):
    name: Text
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: FunctionBody


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(SamplingParams):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], _list(1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    response_format: AsText | AsObject | AsJSON | None = Field(None, discriminator="type")
    tools: Annotated[list[Tool], _list(1, 128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    """True if an answer may have several calls. Where one is asked for it has one in any case."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


def parse(kind: type[Asked], body: bytes, most_messages: int) -> Asked:
    """Returns the request that a body holds."""
    if "messages" in kind.model_fields:
        _check_messages(body, most_messages)
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        if error.error_count() > _MOST_WRONG:
            raise APIError(
                400, f"the body has {error.error_count()} wrong or unknown fields; leave them out"
            ) from None
        wrong = error.errors(include_url=False, include_context=True)
    except RecursionError:
        raise APIError(400, "the body is nested too deep; make it flatter") from None
    if wrong[0]["type"] == "json_invalid":
        reason = wrong[0].get("ctx", {}).get("error")
        raise APIError(400, f"the body is not JSON: {reason}", code="invalid_json")
    document = json.loads(body)
    # Of several forms that a field may have, that one counts which fits furthest.
    field = wrong[0]["loc"][:1]
    places = [(_param(document, detail), detail) for detail in wrong if detail["loc"][:1] == field]
    param, first = max(places, key=lambda pair: pair[0].count(".") + pair[0].count("["))
    if first["type"] == "extra_forbidden":
        neutral = NEUTRAL.get(str(first["loc"][-1]), ())
        but = "".join(f" but for {json.dumps(value)}" for value in neutral[:1])
        raise APIError(
            400, f"{param} is not a field of this path{but}; leave it out", param,
            "unsupported_parameter",
        )  # fmt: skip
    if first["type"] == "missing":
        raise APIError(400, f"{param} is missing; give it", param, "missing_required_parameter")
    message = first["msg"].removeprefix("Value error, ")
    if not param:
        raise APIError(400, message)
    value = repr(first["input"])
    text = value if len(value) <= 60 else f"{value[:60]}..."
    raise APIError(
        400, f"{param} is {text}: {message[0].lower()}{message[1:]}", param, "invalid_value"
    )


_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def _check_messages(body: bytes, limit: int) -> None:
    """Refuses what no row holds, by the number of its parts."""
    try:
        document = _ANY.validate_json(body)
    except ValueError:
        return  # it is not JSON, as its reader will say
    messages = document.get("messages") if isinstance(document, dict) else None
    if not isinstance(messages, list):
        return
    entries = [entry for entry in messages if isinstance(entry, dict)]
    for what, lists in (
        ("messages", [messages]),
        ("the content of messages", [entry.get("content") for entry in entries]),
        ("tool_calls of messages", [entry.get("tool_calls") for entry in entries]),
    ):
        if (size := sum(len(part) for part in lists if isinstance(part, list))) > limit:
            raise APIError(
                400, f"{what} are {size}, and a row of this server holds {limit} tokens; shorten "
                "the conversation, or start the server with more --max-model-len", "messages",
                "context_length_exceeded",
            )  # fmt: skip


def _param(body: Any, error: Any) -> str:
    """Returns the name of a place in a body, such as messages[0].content."""
    path, place = "", error["loc"]
    for number, part in enumerate(place, 1):
        if isinstance(part, int):
            inside = isinstance(body, list) and part < len(body)
            name = f"[{part}]"
        else:
            inside = isinstance(body, dict) and part in body
            name = f".{part}" if path else part
        if inside:
            path, body = path + name, body[part]
        elif number == len(place) and error["type"] == "missing":
            path += name
    return path
