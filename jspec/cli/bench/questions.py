"""Questions by class: a file in Spec-Bench's schema, SPEED-Bench, a file of prompts, or ours."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jspec._validate import plain_json
from jspec._validate.arguments import shorten
from jspec._validate.errors import InputError
from jspec.cli import prompts
from jspec.cli.bench.chat import Said

SAMPLE = Path(__file__).with_name("sample.jsonl")
"""The questions that are asked if no others are given."""

_KEYS = "each question needs question_id, category and turns"
_SPEED_BENCH = ("qualitative", *(f"throughput_{size}k" for size in (1, 2, 8, 16, 32)))
"""The parts of SPEED-Bench: 11 classes, and three of other prompts for each length of context."""
_PREPARE = (
    "write its files with the prepare.py of nvidia/SPEED-Bench (nemo_skills/dataset/speed-bench in "
    "NeMo-Skills)"
)
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""The begin of what the published files have in place of text that others own."""


@dataclass(frozen=True)
class Question:
    """A user's turns in one conversation."""

    name: str
    category: str
    """Its class: "writing", "coding", .."""
    turns: tuple[Said, ...]
    """The user's side, turn by turn."""
    source: str
    """Its file and line, for messages."""


def read(path: Path, option: str = "--questions") -> list[Question]:
    """Returns the questions of a file in Spec-Bench's schema."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(
            f"{option} {path} cannot be read ({error.strerror}); name a file of JSON lines, {_KEYS}"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{option} {path} is not UTF-8 (byte {error.start}); encode it so"
        ) from error
    questions = [
        _question(line, f"line {number} of {path}")
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]
    if not questions:
        raise InputError(f"{option} {path} holds no question; write JSON lines, {_KEYS}")
    return questions


def from_speed_bench(folder: Path) -> list[Question]:
    """Returns the questions in a folder of SPEED-Bench (Abramovich et al., arXiv 2604.09557)."""
    files = [folder / f"{part}.jsonl" for part in _SPEED_BENCH]
    existing = [file for file in files if file.is_file()]
    if not existing:
        raise InputError(
            f"--speed-bench {folder} has no {files[0].name} and none of {files[1].name} to "
            f"{files[-1].name.removeprefix('throughput_')}; {_PREPARE}"
        )
    questions = []
    for file in existing:
        size = file.stem.removeprefix(_SPEED_BENCH[0]).removeprefix("throughput_")
        for question in read(file, "--speed-bench"):
            if any(str(turn).startswith(_PLACEHOLDER) for turn in question.turns):
                raise InputError(
                    f"{question.source} has a placeholder in place of its text; {_PREPARE}"
                )
            questions.append(replace(question, category=f"{size} {question.category}".strip()))
    return questions


def from_prompts(path: Path) -> list[Question]:
    """Returns the prompts of a file, one a line, as questions of one class."""
    return [
        Question(str(number), "prompts", (prompt.content,), prompt.source)
        for number, prompt in enumerate(prompts.many(path, "--prompts"), 1)
    ]


def choose(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """Takes at most `limit` questions, spread evenly over the classes; None: all of them."""
    classes: dict[str, list[Question]] = {}
    for question in questions:
        classes.setdefault(question.category, []).append(question)
    limit = len(questions) if limit is None else min(limit, len(questions))
    # Of more classes than questions, some that are spread over them too.
    labels = _spread(list(classes), min(limit, len(classes)))
    shares = dict.fromkeys(labels, 0)
    while sum(shares.values()) < limit:
        for name in labels:
            if shares[name] < len(classes[name]) and sum(shares.values()) < limit:
                shares[name] += 1
    return [
        question for name, share in shares.items() for question in _spread(classes[name], share)
    ]


def _spread(items: list[Any], count: int) -> list[Any]:
    return [items[place * len(items) // count] for place in range(count)]


def _question(line: str, source: str) -> Question:
    try:
        row = plain_json.parse(line)
    except ValueError as error:
        raise InputError(f"{source} is not JSON ({error}); {_KEYS}") from error
    if not isinstance(row, dict):
        raise InputError(f"{source} is {shorten(row)}, which is not a JSON object; {_KEYS}")
    if "turns" not in row and isinstance(messages := row.get("messages"), list):
        # SPEED-Bench's, which are the user's alone.
        row["turns"] = [
            message.get("content") if isinstance(message, dict) else message for message in messages
        ]
    for key in ("question_id", "category", "turns"):
        if key not in row:
            raise InputError(f"{source} has no {key}; {_KEYS}")
    name, category = row["question_id"], row["category"]
    turns: Any = row["turns"]
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise InputError(f"{source} has question_id {shorten(name)}; write an integer or a text")
    if not isinstance(category, str) or not category.strip():
        raise InputError(f"{source} has category {shorten(category)}; write a text")
    if not isinstance(turns, list) or not turns:
        raise InputError(f"{source} has turns {shorten(turns)}; write a list of one text or more")
    for turn in turns:
        if not isinstance(turn, str) or not turn.strip():
            raise InputError(f"{source} has {shorten(turn)} among its turns; write a text")
    return Question(str(name), category.strip(), tuple(turns), source)
