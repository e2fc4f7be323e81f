"""The text of an answer as its deltas come, and its log-probabilities."""

from collections.abc import Sequence
from typing import Any

from jspec.costs.metrics import Metrics
from jspec.models import reasoning
from jspec.models.detokenise import Detokeniser
from jspec.serve.jobs import Delta, TokenLogprobs
from jspec.types import Status

_LEAST = -9999.0
"""Log-probability that the OpenAI API writes for probability 0: JSON has no infinity."""

FINISHED = {
    Status.EOS: "stop",
    Status.STOP: "stop",
    Status.LIMIT: "length",
    Status.CAPACITY: "length",
}
"""The API's word for each way to end that is not a failure."""

_FAILED = {
    Status.NAN: "the model's output is not a number; nothing was drawn from it",
    Status.MASKED: "the settings of the request leave no token to write",
}


class Answer:
    """One answer, delta by delta."""

    def __init__(
        self,
        index: int,
        tokenizer: Any,
        prompt: Sequence[int],
        stop_token_ids: Sequence[int] | None = None,
        marks: reasoning.Marks | None = None,
    ):
        self.index = index
        marks = marks or reasoning.marks_of(tokenizer)
        self.parts = reasoning.parts(tokenizer, marks, prompt)
        self.text = ""
        self.logprobs: list[TokenLogprobs] = []
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.refused = False
        """True if the error is one of the request."""
        self.rounds = Metrics()
        self._text = Detokeniser(tokenizer, prompt)
        self.places = Detokeniser(tokenizer, prompt)
        """Reads the tokens whose log-probabilities are shown."""
        self._unread: list[int] = []
        self._stop_token_ids = stop_token_ids

    def add(self, delta: Delta, show: bool = True) -> str:
        """Returns the text that is certain after a delta; without `show` none before the last."""
        self.tokens += delta.tokens
        self._unread += delta.tokens
        if delta.logprobs is not None:
            self.logprobs.append(delta.logprobs)
        if not (show or delta.is_last):
            return ""
        unread, self._unread = self._unread, []
        if not delta.is_last:
            new = self._text.push(unread, delta.stop_bytes)
        else:
            stops = unread[-1:] if self._stop_token_ids is None else self._stop_token_ids
            status = Status(delta.status)
            new = self._text.finish(unread, delta.stop_bytes, status, stops)
            self.error = delta.error or _FAILED.get(status)
            self.refused = delta.refused or status == Status.MASKED
            self.finish_reason = FINISHED.get(status)
            self.rounds = delta.rounds or Metrics()
        self.text += new
        return new

    @property
    def is_done(self) -> bool:
        return self.error is not None or self.finish_reason is not None


class Spelling:
    """Tokens as the API shows them alongside log-probabilities."""

    def __init__(self, spelled: Sequence[bytes | None], tokenizer: Any):
        self._spelled = spelled
        self._tokenizer = tokenizer

    def bytes_of(self, token: int) -> bytes:
        """Returns the bytes of a token, or of its name if it has no text."""
        data = self._spelled[token] if token < len(self._spelled) else None
        if data is None:
            data = (self._tokenizer.id_to_token(token) or "").encode()
        return data

    def text_of(self, token: int) -> str:
        """Returns the same as text; of a part of a character, U+FFFD."""
        return self.bytes_of(token).decode("utf-8", errors="replace")

    def chat(self, tokens: Sequence[int], logprobs: TokenLogprobs, num_top: int) -> dict[str, Any]:
        """Returns the `logprobs` of a chat's choice."""
        content = []
        for place, (token, logprob) in enumerate(
            zip(tokens, logprobs.token_logprobs.tolist(), strict=True)
        ):
            beside = [self._entry(*pair) for pair in _likeliest(logprobs, place, num_top)]
            content.append({**self._entry(token, logprob), "top_logprobs": beside})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self.text_of(token),
            "logprob": max(logprob, _LEAST),
            "bytes": list(self.bytes_of(token)),
        }

    def completion(
        self, tokens: Sequence[int], logprobs: TokenLogprobs, num_top: int, offset: int = 0,
        row: Detokeniser | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Returns the `logprobs` of a completion's choice, behind `row`, which is at `offset`."""
        row, offsets = row or Detokeniser(self._tokenizer), []
        for token in tokens:
            # Tokens that are parts of one letter have its offset.
            offsets.append(offset + row.num_letters)
            row.push([token])
        beside: list[dict[str, float]] = []
        for place in range(len(tokens)):
            beside.append({})
            for token, logprob in _likeliest(logprobs, place, num_top):
                # Tokens of the same text are one entry: of the likeliest.
                beside[-1].setdefault(self.text_of(token), max(logprob, _LEAST))
        return {
            "tokens": [self.text_of(token) for token in tokens],
            "token_logprobs": [
                max(logprob, _LEAST) for logprob in logprobs.token_logprobs.tolist()
            ],
            "top_logprobs": beside if num_top else None,
            "text_offset": offsets,
        }


def _likeliest(logprobs: TokenLogprobs, place: int, num_top: int) -> list[tuple[int, float]]:
    """Returns the likeliest tokens at a place, and their log-probabilities."""
    if not num_top:
        return []
    tokens = logprobs.top_tokens[place, :num_top].tolist()
    return list(zip(tokens, logprobs.top_logprobs[place, :num_top].tolist(), strict=True))
