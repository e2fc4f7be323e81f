"""A target, and the questions that it is asked."""

from typing import Any

import numpy as np

import jspec
from benchmarks.texts import Prompts, pad
from benchmarks.whole_rounds import DEEPEST, Decoding
from jspec._validate.errors import InputError
from jspec.cli.bench.chat import Bare, Wording
from jspec.cli.bench.questions import Question
from jspec.methods import LLM
from jspec.models import Loaded
from jspec.training.distill import count_unlooped


class Bench:
    """One target, which answers questions with any method.

    An answer ends with the first round that passes its limit: the new tokens asked for, or where
    the target begins to repeat itself. Small models run into loops, and a drafter that copies text
    is right in a loop without end. What the target writes by itself decides that, so it is the same
    for all methods.

    Args:
        target: the model.
        wording: makes prompts of questions.
        new_tokens: most tokens of an answer, a round's own apart.
        prompt_tokens: first tokens of a text that are read. Chats are read whole, or their end
            where they are longer than the context.
        temperature: of the target; all methods draw one text from the same noise.
    """

    def __init__(
        self,
        target: Loaded,
        wording: Wording,
        new_tokens: int,
        prompt_tokens: int,
        temperature: float = 0.0,
    ):
        self.target, self.wording, self.new_tokens = target, wording, new_tokens
        self._limits: dict[tuple[int, ...], int] = {}
        self.request: dict[str, Any] = {}
        if temperature:
            self.request = {"sampling": jspec.Sampling(temperature), "key": 0}
        context = target.model.context or 1 << 20
        self.room = context - new_tokens - 2 * DEEPEST
        if self.room < 1:
            raise InputError(
                f"--new-tokens {new_tokens} leaves no room for a prompt in a context of {context}; "
                f"ask for at most {context - 2 * DEEPEST - 1}"
            )
        self.prompt_tokens = min(prompt_tokens or self.room, self.room)

    @property
    def eos(self) -> tuple[int, ...] | None:
        return self.target.eos or None

    def plain(self, prompts: Prompts, limits: np.ndarray) -> jspec.Result:
        """Returns plain decoding of as many tokens."""
        return jspec.decode(
            self.target.model, self.target.params, prompts.tokens, prompts.lengths,
            max_new_tokens=self.new_tokens + DEEPEST,
            stopping=jspec.Stopping(max_tokens=limits, eos=self.eos), **self.request,
        )  # fmt: skip

    def decoding(self, built: LLM) -> Decoding:
        return Decoding(
            built.model, self.target.params, built.drafter, built.drafter_params, self.new_tokens
        )

    def read(self, question: Question, said: list[str]) -> list[int]:
        """Returns the prompt of a turn: the beginning of a text, or the conversation so far."""
        ids = self.wording.ids(question.turns[: len(said) + 1], said)
        if isinstance(self.wording, Bare):
            return ids[: self.prompt_tokens]
        return ids[-self.room :]

    def limit(self, ids: list[int]) -> int:
        """Returns number of tokens that an answer to this prompt has at least."""
        if (known := tuple(ids)) not in self._limits:
            plain = self.plain(pad([ids]), np.array([self.new_tokens]))
            text = [*ids, *plain.tokens[0, : int(plain.lengths[0])].tolist()]
            self._limits[known] = max(count_unlooped(np.array(text, np.int32)) - len(ids), 1)
        return self._limits[known]
