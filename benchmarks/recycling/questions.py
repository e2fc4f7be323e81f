"""Questions by class: the shared texts, or a file in Spec-Bench's schema with its chat template."""

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.prompts import CLASSES, texts

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
        ValueError: if a line is no such question, or there is none.
    """
    found: dict[str, list[Question]] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error}); write it in that") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            name, kind, turns = str(row["question_id"]), str(row["category"]), row["turns"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"line {number} of {path} is no question ({error!r}); each needs question_id, "
                "category and turns"
            ) from error
        if not (isinstance(turns, list) and turns and all(isinstance(t, str) for t in turns)):
            raise ValueError(
                f"line {number} of {path} has the turns {turns!r:.60}; each question needs a list "
                "of one text or more"
            )
        kind = "mt_bench" if kind in CONVERSATION else kind
        found.setdefault(kind, []).append(Question(name, kind, tuple(turns)))
    if not found:
        raise ValueError(f"{path} holds no questions; give a file in Spec-Bench's schema")
    chosen = []
    for rows in found.values():
        step = 1 if count is None else max(1, len(rows) // count)
        chosen += rows[::step][:count]
    return chosen
