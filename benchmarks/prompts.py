"""Prompts by class, from texts that the project does not ship."""

import json
from pathlib import Path

from benchmarks.harness import SHARED

CLASSES = ("stories", "maths", "code", "books", "speeches")
LEARNING = ("articles", "plays", "instructions", "novels", "addresses")
"""Classes from other files: what is tuned on these may be reported on those above."""

PUBLISHED = ("mbpp",)
"""Data sets as papers put them to a model."""
OURS = ("summarization", "translation")
"""Stand-ins for tasks of Spec-Bench that the shared questions lack."""


def texts(name: str, count: int) -> list[str]:
    """Returns `count` prompts of a class, spread over its file.

    Raises:
        FileNotFoundError: if the shared texts are absent.
        ValueError: if there is no such class.
    """
    known = (*CLASSES, *LEARNING, *PUBLISHED, *OURS)
    if name not in known:
        raise ValueError(f"no prompts of class {name!r}; there are {', '.join(known)}")
    found = {
        "stories": lambda: _read("tinystories/stories.txt").split("<|endoftext|>"),
        "maths": lambda: [row["question"] for row in _rows("gsm8k/train.jsonl")],
        "code": lambda: [row["text"] + "\n" for row in _rows("mbpp/mbpp.jsonl")],
        "books": lambda: _paragraphs("books/sherlock_holmes.txt"),
        "speeches": lambda: _paragraphs("speeches/inaugural.txt"),
        "mbpp": lambda: [_mbpp(row) for row in _rows("mbpp/mbpp.jsonl")],
        "articles": lambda: _read("wikitext2/valid.txt").split("\n"),
        "plays": lambda: _read("shakespeare/input.txt").split("\n\n"),
        "instructions": lambda: [
            row["instruction"] for row in _rows("instructions/seed_tasks.jsonl")
        ],
        "novels": lambda: _paragraphs("books/war_and_peace.txt"),
        "addresses": lambda: _paragraphs("speeches/state_union.txt"),
        "summarization": lambda: [
            f"{line.strip()}\n\nTL;DR:"
            for line in _read("wikitext2/valid.txt").split("\n")
            if 800 < len(line) < 1600
        ],
        "translation": lambda: [
            f"English: {' '.join(part.split())}\nFrench:"
            for part in _paragraphs("books/war_and_peace.txt")
            if len(part) < 400
        ],
    }[name]()
    long_enough = [text.strip() for text in found if len(text.strip()) > 60]
    return long_enough[:: max(1, len(long_enough) // count)][:count]


def _read(name: str) -> str:
    path: Path = SHARED / "data" / name
    if not path.is_file():
        raise FileNotFoundError(f"no {path}; set JSPEC_SHARED to the folder with data/ and models/")
    return path.read_text(encoding="utf-8", errors="replace")


def _rows(name: str) -> list[dict]:
    return [json.loads(line) for line in _read(name).splitlines() if line.strip()]


def _mbpp(row: dict) -> str:
    """Returns the prompt of Austin et al. 2021, figure 1, without examples."""
    tests = "\n".join(row["test_list"])
    return (
        f"You are an expert Python programmer, and here is your task: {row['text']} Your code "
        f"should pass these tests:\n\n{tests}\n[BEGIN]"
    )


def _paragraphs(name: str) -> list[str]:
    return [part for part in _read(name).split("\n\n") if len(part) > 200]
