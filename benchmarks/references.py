"""Answers that a data set has, and how near a text comes to one."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

from jspec._validate.errors import InputError


def read(path: Path) -> dict[str, str]:
    """Returns the "answer" of each line of a file of prompts, by the line's number as text.

    Raises:
        InputError: if a line has none.
    """
    found = {}
    lines = path.read_text("utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found[str(number)] = str(json.loads(line)["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f'line {number} of {path} has no answer to score by; write {{"prompt": .., '
                '"answer": ..}'
            ) from error
    return found


def rouge_2(text: str, reference: str) -> float:
    """Computes ROUGE-2 (Lin 2004), F-measure: word pairs that both have; no stemming.

    Example:
        >>> round(rouge_2("the cat sat", "the cat sat down"), 2)
        0.8
    """

    def pairs(words: str) -> Counter:
        return Counter(pairwise(re.findall(r"\w+", words.lower())))

    ours, theirs = pairs(text), pairs(reference)
    shared = sum((ours & theirs).values())
    both = sum(ours.values()) + sum(theirs.values())
    return 2 * shared / both if both else 0.0


def number(text: str, reference: str) -> float:
    """Returns 1 if the last number of both is the same, as GSM8K's answers are judged.

    Example:
        >>> number("so she has 1,200 apples.", "600 * 2 = 1200 #### 1200")
        1.0
    """

    def last(words: str) -> float | None:
        found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", words)
        return float(found[-1].replace(",", "")) if found else None

    wanted = last(reference)
    return float(wanted is not None and last(text) == wanted)


SCORES: Mapping[str, Callable[[str, str], float]] = {"rouge2": rouge_2, "number": number}
