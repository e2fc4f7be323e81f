"""A method's answers to questions, and their summary."""

import time
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

import jspec
from benchmarks.recycling.wordings import task
from benchmarks.texts import Prompts, pad
from benchmarks.whole_rounds import DEEPEST, Decoding
from jspec._validate.errors import InputError
from jspec.cli.bench.chat import Bare, Wording
from jspec.cli.bench.questions import Question
from jspec.methods import Built
from jspec.models import Loaded
from jspec.training.distill import unlooped


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
        timed: whether plain decoding answers too, and both are timed.
        loops: True goes on where the target repeats itself.
    """

    def __init__(
        self,
        target: Loaded,
        wording: Wording,
        new_tokens: int,
        prompt_tokens: int,
        timed: bool,
        loops: bool,
    ):
        self.target, self.wording = target, wording
        self.new_tokens, self.timed, self.loops = new_tokens, timed, loops
        self._limits: dict[tuple[int, ...], int] = {}
        self.num_cut = 0
        """Chats that were longer than the context."""
        context = target.model.context or 1 << 20
        self.room = context - new_tokens - 2 * DEEPEST
        if self.room < 1:
            raise InputError(
                f"--new-tokens {new_tokens} leaves no room for a prompt in a context of {context}; "
                f"ask for at most {context - 2 * DEEPEST - 1}"
            )
        self.prompt_tokens = min(prompt_tokens, self.room)

    @property
    def eos(self) -> tuple[int, ...] | None:
        return self.target.eos or None

    def plain(self, prompts: Prompts, limits: np.ndarray) -> jspec.Result:
        """Plain decoding of as many tokens."""
        return jspec.decode(
            self.target.model, self.target.params, prompts.tokens, prompts.lengths,
            max_new_tokens=self.new_tokens + DEEPEST, limits=limits, eos=self.eos,
        )  # fmt: skip

    def decoding(self, built: Built) -> Decoding:
        return Decoding(
            built.model, self.target.params, built.drafter, built.drafter_params, self.new_tokens
        )

    def read(self, question: Question, said: list[str]) -> list[int]:
        """The prompt of a turn: the beginning of a text, or the conversation so far."""
        ids = self.wording.ids(question.turns[: len(said) + 1], said)
        if isinstance(self.wording, Bare):
            return ids[: self.prompt_tokens]
        self.num_cut += len(ids) > self.room
        return ids[-self.room :]

    def limit(self, ids: list[int]) -> int:
        """Number of tokens that an answer to this prompt has at least."""
        if self.loops:
            return self.new_tokens
        if (known := tuple(ids)) not in self._limits:
            plain = self.plain(pad([ids]), np.array([self.new_tokens]))
            text = [*ids, *plain.tokens[0, : int(plain.lengths[0])].tolist()]
            self._limits[known] = max(unlooped(np.array(text, np.int32)) - len(ids), 1)
        return self._limits[known]

    def answers(
        self, built: Built, questions: Iterable[Question], cold: bool
    ) -> Iterable[dict[str, Any]]:
        """One row a question; with times, plain decoding answers too and its tokens are compared.

        Unless `cold`, the drafter's state goes from turn to turn and question to question. Each
        answer is counted before it is timed, so that its programs are compiled.
        """
        one, state, compiled = self.decoding(built), None, set()
        for question in questions:
            said: list[str] = []
            row: dict[str, Any] = dict(question=question.name, kind=task(question.category))
            row |= dict(tokens=0, rounds=0, seconds=0.0, plain_seconds=0.0)
            for _ in question.turns:
                prompts = pad([self.read(question, said)])
                earlier = None if cold else state
                wanted = self.limit(prompts.tokens[0].tolist())
                limits = one.count(prompts, wanted, earlier, eos=self.eos).tokens
                begin = time.perf_counter()
                result = jax.block_until_ready(
                    one.run(prompts, limits, drafter_state=earlier, eos=self.eos)
                )
                row["seconds"] += time.perf_counter() - begin
                if self.timed:
                    if (size := prompts.tokens.shape[1]) not in compiled:
                        jax.block_until_ready(self.plain(prompts, np.zeros(1, int)))
                        compiled.add(size)
                    begin = time.perf_counter()
                    plain = jax.block_until_ready(self.plain(prompts, limits))
                    row["plain_seconds"] += time.perf_counter() - begin
                    row["same"] = row.get("same", True) and (
                        plain.tokens.tolist() == result.tokens.tolist()
                    )
                state = result.drafter_state.inner
                count = int(result.lengths[0])
                row["tokens"] += count
                row["rounds"] += int(result.stats.num_rounds[0])
                said.append(self.target.tokenizer.decode(result.tokens[0, :count].tolist()))
            yield row


def summary(found: list[dict[str, Any]]) -> tuple[float, float, float]:
    """(MAT, tokens per second, speed-up) of a class, averaged as Spec-Bench averages them.

    The mean accepted tokens (MAT) are over all rounds, the speed is a mean over questions, and the
    speed-up is the ratio of two such means.
    """
    length = sum(row["tokens"] for row in found) / sum(row["rounds"] for row in found)
    if not found[0]["plain_seconds"]:
        return length, float("nan"), float("nan")
    speed = np.mean([row["tokens"] / row["seconds"] for row in found])
    return length, float(speed), float(speed / plain_speed(found))


def plain_speed(found: list[dict[str, Any]]) -> float:
    """Plain decoding's tokens per second on the same questions."""
    return float(np.mean([row["tokens"] / row["plain_seconds"] for row in found]))


def ahead(answered: dict[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """Relative lead of each mixture's MAT over the best single method's, class by class."""
    kinds = dict.fromkeys(row["kind"] for found in answered.values() for row in found)
    length = {
        label: [summary([row for row in found if row["kind"] == kind])[0] for kind in kinds]
        for label, found in answered.items()
    }
    single = [found for label, found in length.items() if "+" not in label]
    if not single:
        return {}
    best = np.max(single, axis=0)
    mixed = {label: found for label, found in length.items() if "+" in label}
    return {label: (np.array(found) / best - 1).tolist() for label, found in mixed.items()}
