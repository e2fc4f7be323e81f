"""Prompts for Token Recycling's questions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.texts import ChatQuestions, Texts
from jspec.cli.bench import chat
from jspec.models import Loaded

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
CONVERSATION = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
"""MT-bench's categories, one task in Spec-Bench's tables."""


@dataclass(frozen=True)
class Vicuna:
    """FastChat's template "vicuna_v1.1", which Spec-Bench runs all models with."""

    tokenizer: Any
    name: str = "Vicuna's template"

    def ids(self, turns: Sequence[chat.Said], answers: Sequence[str]) -> list[int]:
        """Returns the prompt of the last turn; the earlier ones have been answered."""
        text = SYSTEM
        for turn, answer in zip(turns, [*answers, None], strict=True):
            text += f" USER: {turn} ASSISTANT:" + ("" if answer is None else f" {answer}</s>")
        return self.tokenizer.encode(text).ids


def wording(target: Loaded, texts: Texts) -> chat.Wording:
    """Returns bare text where texts are continued; else the chat template, or Vicuna's."""
    if not isinstance(texts, ChatQuestions):
        return chat.Bare(target.tokenizer)
    return Vicuna(target.tokenizer) if target.chat is None else chat.wording(target)


def task(category: str) -> str:
    """Returns the task that Spec-Bench counts a category to."""
    return "mt_bench" if category in CONVERSATION else category
