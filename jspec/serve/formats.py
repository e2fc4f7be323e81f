"""The JSON of answers, whole and in deltas: of completions and of chats."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from jspec.serve.answers import Answer, Spelling
from jspec.serve.calls import Call, ContentReader
from jspec.serve.jobs import TokenLogprobs

JSON = dict[str, Any]


class Format(Protocol):
    """The format of the answers to one request."""

    id: str

    def first(self, answer: Answer) -> JSON | None:
        """Returns the choice that opens a streamed answer; None if there is none."""
        ...

    def delta(self, answer: Answer, text: str, tokens: list[int], token_logprobs: Any) -> JSON:
        """Returns the choice of a delta of a streamed answer; with the last one, why it ended."""
        ...

    def chunk(self, choices: list[JSON], usage: JSON | None) -> JSON:
        """Returns what is streamed around choices."""
        ...

    def whole(self, answers: Sequence[Answer], usage: JSON) -> JSON:
        """Returns all answers at once."""
        ...


class CompletionFormat:
    """Of /v1/completions."""

    def __init__(self, model: str, spelling: Spelling, num_top: int | None):
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self._head = {
            "id": self.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._spelling = spelling
        self._num_top = num_top

    def first(self, answer: Answer) -> JSON | None:
        """Returns None: a completion begins with its text."""
        del answer
        return None

    def delta(self, answer: Answer, text: str, tokens: list[int], token_logprobs: Any) -> JSON:
        """Returns the choice of a delta."""
        return {
            "index": answer.index,
            "text": text,
            "logprobs": self._logprobs(answer, tokens, token_logprobs),
            "finish_reason": answer.finish_reason,
        }

    def chunk(self, choices: list[JSON], usage: JSON | None) -> JSON:
        """Returns an event, with the head of the whole answer."""
        return {**self._head, "choices": choices, "usage": usage}

    def whole(self, answers: Sequence[Answer], usage: JSON) -> JSON:
        """Returns all answers at once."""
        choices = [
            self.delta(answer, answer.text, answer.tokens, _join(answer)) for answer in answers
        ]
        return self.chunk(choices, usage)

    def _logprobs(self, answer: Answer, tokens: list[int], token_logprobs: Any) -> JSON | None:
        if token_logprobs is None or self._num_top is None:
            return None
        return self._spelling.completion(tokens, token_logprobs, self._num_top, row=answer.places)


class ChatFormat:
    """Of /v1/chat/completions."""

    def __init__(
        self,
        model: str,
        spelling: Spelling,
        num_top: int | None,
        function: str | None = None,
        reader: Callable[..., ContentReader] = ContentReader,
    ):
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._head = {"id": self.id, "created": int(time.time()), "model": model}
        self._spelling = spelling
        self._num_top = num_top
        self._function = function
        self._reader = reader
        self._readers: dict[int, ContentReader] = {}
        self._num_calls: dict[int, int] = {}

    def first(self, answer: Answer) -> JSON | None:
        """Says who speaks, and which function is called."""
        delta: JSON = {"role": "assistant", "content": ""}
        if self._function is not None:
            call = {"index": 0, **_to_api(Call(self._function, ""))}
            delta = {"role": "assistant", "content": None, "tool_calls": [call]}
        return _choice(answer.index, "delta", delta, None, None)

    def delta(self, answer: Answer, text: str, tokens: list[int], token_logprobs: Any) -> JSON:
        """Returns the choice of a delta."""
        before = self._num_calls.get(answer.index, 0)
        thoughts, content, called = self._read(answer, text, answer.is_done)
        delta: JSON = {"reasoning_content": thoughts} if thoughts else {}
        if content and self._function is not None:
            delta["tool_calls"] = [{"index": 0, "function": {"arguments": content}}]
        elif content:
            delta["content"] = content
        if called:
            entries = [{"index": n, **_to_api(call)} for n, call in enumerate(called, before)]
            delta["tool_calls"] = entries
        logprobs = self._logprobs(tokens, token_logprobs)
        return _choice(answer.index, "delta", delta, logprobs, self._reason(answer))

    def chunk(self, choices: list[JSON], usage: JSON | None) -> JSON:
        """Returns an event, which says that it is a chunk."""
        return {
            **self._head,
            "object": "chat.completion.chunk",
            "choices": choices,
            "usage": usage,
        }

    def whole(self, answers: Sequence[Answer], usage: JSON) -> JSON:
        """Returns all answers at once."""
        choices = []
        for answer in answers:
            thoughts, content, called = self._read(answer, answer.text, is_last=True)
            if self._function is not None:
                content, called = "", [Call(self._function, content)]
            message: JSON = {"role": "assistant", "content": content, "refusal": None}
            if thoughts:
                message |= {"content": content or None, "reasoning_content": thoughts}
            if called:
                message |= {"content": content or None, "tool_calls": [*map(_to_api, called)]}
            logprobs = self._logprobs(answer.tokens, _join(answer))
            choices.append(
                _choice(answer.index, "message", message, logprobs, self._reason(answer))
            )
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage}

    def _read(self, answer: Answer, text: str, is_last: bool) -> tuple[str, str, list[Call]]:
        """Returns thoughts, content and calls that are certain after more text of an answer."""
        if answer.index not in self._readers:
            self._readers[answer.index] = self._reader(answer.parts)
        reader = self._readers[answer.index]
        content, called = reader.read(text, is_last)
        self._num_calls[answer.index] = self._num_calls.get(answer.index, 0) + len(called)
        return reader.thoughts, content, called

    def _reason(self, answer: Answer) -> str | None:
        called = self._function is not None or self._num_calls.get(answer.index)
        return "tool_calls" if called and answer.finish_reason == "stop" else answer.finish_reason

    def _logprobs(self, tokens: list[int], token_logprobs: Any) -> JSON | None:
        if token_logprobs is None or self._num_top is None:
            return None
        return self._spelling.chat(tokens, token_logprobs, self._num_top)


def usage(prompt: int, completion: int, reused: int) -> JSON:
    """Returns the tokens of a request."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": reused},
    }


def _to_api(call: Call) -> JSON:
    """Returns a call as the API has it."""
    function = {"name": call.name, "arguments": call.arguments}
    # Nine letters or digits: Mistral's templates take no other id back.
    return {"id": uuid.uuid4().hex[:9], "type": "function", "function": function}


def _choice(index: int, key: str, value: JSON, logprobs: Any, reason: str | None) -> JSON:
    return {"index": index, key: value, "logprobs": logprobs, "finish_reason": reason}


def _join(answer: Answer) -> TokenLogprobs | None:
    """Returns the log-probabilities of all deltas."""
    if not answer.logprobs:
        return None
    parts = [
        (entry.token_logprobs, entry.top_tokens, entry.top_logprobs) for entry in answer.logprobs
    ]
    return TokenLogprobs(
        *(None if part[0] is None else np.concatenate(part) for part in zip(*parts, strict=True))
    )
