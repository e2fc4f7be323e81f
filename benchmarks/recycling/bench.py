"""A method's answers to questions, and their summary."""

import time
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import typer

import jspec
from benchmarks.recycling.questions import Question
from jspec.models import load
from jspec.request import bucket
from jspec.training.distill import unlooped

_DEEPEST = 32
"""Levels by which a verified tree may reach beyond the last token."""


class Bench:
    """One target, which answers questions with any method.

    An answer ends at an end token, or where the target begins to repeat itself: small models run
    into loops, and a drafter that copies text is right in a loop without end. What the target
    writes by itself decides that, so it is the same for all methods.
    """

    def __init__(self, model: str, new_tokens: int, prompt_tokens: int, timed: bool, loops: bool):
        self.target = load(model)
        self.new_tokens, self.timed, self.loops = new_tokens, timed, loops
        self._limits: dict[tuple[int, ...], int] = {}
        context = self.target.model.context or 1 << 20
        self.longest = min(prompt_tokens, context - new_tokens - _DEEPEST)
        if self.longest < 1:
            raise typer.BadParameter(
                f"--new-tokens {new_tokens} leaves no room for a prompt in a context of {context}; "
                f"ask for at most {context - _DEEPEST - 1}"
            )

    def decode(self, ids: list[int], **options) -> jspec.Result:
        return jspec.decode(
            self.target.model, self.target.params, np.array([ids]),
            max_new_tokens=self.new_tokens, eos=self.target.eos or None, **options,
        )  # fmt: skip

    def read(self, question: Question, said: list[str]) -> list[int]:
        """The prompt of a turn: the end of the conversation so far, or the beginning of a text."""
        ids = self.target.tokenizer.encode(question.prompt(said)).ids
        return ids[-self.longest :] if question.chat else ids[: self.longest]

    def limit(self, ids: list[int]) -> int:
        """Number of tokens in the answer to this prompt."""
        if self.loops:
            return self.new_tokens
        if (known := tuple(ids)) not in self._limits:
            plain = self.decode(ids)
            text = [*ids, *plain.tokens[0, : int(plain.lengths[0])].tolist()]
            self._limits[known] = max(unlooped(np.array(text, np.int32)) - len(ids), 1)
        return self._limits[known]

    def answers(
        self, drafter: jspec.Drafter, drafter_params: Any, questions: Iterable[Question], cold: bool
    ) -> Iterable[dict[str, Any]]:
        """One row a question; with times, plain decoding answers too and its tokens are compared.

        Unless `cold`, the drafter's state goes from turn to turn and question to question. Programs
        are compiled before a time is taken.
        """
        drafter_state, compiled = None, set()
        for question in questions:
            said: list[str] = []
            row: dict[str, Any] = dict(question=question.name, kind=question.kind, tokens=0)
            row |= dict(rounds=0, seconds=0.0, plain_seconds=0.0)
            for _ in question.turns:
                ids = self.read(question, said)
                limits = np.array([self.limit(ids)])
                how: dict[str, Any] = dict(drafter=drafter, drafter_params=drafter_params)
                if not cold:
                    how["drafter_state"] = drafter_state
                if self.timed and (size := bucket(len(ids) + self.new_tokens)) not in compiled:
                    for way in (how, {}):
                        jax.block_until_ready(self.decode(ids, limits=np.zeros(1, int), **way))
                    compiled.add(size)
                begin = time.perf_counter()
                result = jax.block_until_ready(self.decode(ids, limits=limits, **how))
                row["seconds"] += time.perf_counter() - begin
                if self.timed:
                    begin = time.perf_counter()
                    plain = jax.block_until_ready(self.decode(ids, limits=limits))
                    row["plain_seconds"] += time.perf_counter() - begin
                    row["same"] = row.get("same", True) and (
                        plain.tokens.tolist() == result.tokens.tolist()
                    )
                drafter_state = result.drafter_state
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
    plain = np.mean([row["tokens"] / row["plain_seconds"] for row in found])
    return length, float(speed), float(speed / plain)


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
