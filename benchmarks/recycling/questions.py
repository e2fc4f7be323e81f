"""Questions by class: the shared texts, or a file in Spec-Bench's schema with its chat template."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.prompts import CLASSES, texts
from jspec.app.bench import questions

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
"""FastChat's template "vicuna_v1.1", which Spec-Bench runs all models with."""
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
class Question:
    """One or more turns of one conversation."""

    name: str
    kind: str
    turns: tuple[str, ...]
    chat: bool = True
    """True where the turns are put in the chat template; else the text is the prompt."""

    def prompt(self, answers: list[str]) -> str:
        """The text that the model reads at the turn after these answers."""
        if not self.chat:
            return self.turns[len(answers)]
        text = SYSTEM
        for turn, answer in zip(self.turns, [*answers, None], strict=False):
            text += f" USER: {turn} ASSISTANT:" + ("" if answer is None else f" {answer}</s>")
        return text


def shared(count: int, classes: str = ",".join(CLASSES)) -> list[Question]:
    """`count` of each class of `benchmarks.prompts`."""
    return [
        Question(f"{kind}-{index}", kind, (text,), chat=False)
        for kind in classes.split(",")
        for index, text in enumerate(texts(kind, count))
    ]


def read(path: Path, count: int | None = None) -> list[Question]:
    """The questions of a file in Spec-Bench's schema.

    Args:
        path: JSON lines with question_id, category and turns.
        count: of each task at most, spread over the file; None: all.

    Raises:
        InputError: if a line is no such question, or there is none.
    """
    found: dict[str, list[Question]] = {}
    for one in questions.read(path):
        kind = "mt_bench" if one.category in CONVERSATION else one.category
        turns = tuple(str(turn) for turn in one.turns)
        found.setdefault(kind, []).append(Question(one.name, kind, turns))
    chosen = []
    for rows in found.values():
        step = 1 if count is None else max(1, len(rows) // count)
        chosen += rows[::step][:count]
    return chosen
