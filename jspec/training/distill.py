"""Text that the target generates to train its draft heads.

Heads are trained on what they will have to foretell, the target's own output (self-distillation,
as Medusa does where the chat data of a target is not at hand).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

import jspec
from jspec._validate import plain_json
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError, RunStopped
from jspec.protocols import CausalLM
from jspec.training import checkpoints, sequences
from jspec.types import PyTree, Sampling, Status, Stopping

LOOP = 32
"""Tokens over which a repetition has to go on before its row ends."""
PERIOD = 64
"""Longest repetition that is looked for, in tokens."""


@dataclass(frozen=True)
class RowsRecipe:
    """The recipe of the rows to write. Row i is a function of it, of the texts and of i alone.

    Args:
        max_new_tokens: most tokens after a prompt.
        shortest: least tokens of a prompt.
        longest: most tokens of a prompt.
        temperatures: pairs (temperature, share of the rows).
        seed: seed of the choice of prompts and of the sampling.

    Raises:
        InputError: if one is out of range.
    """

    max_new_tokens: int = 192
    shortest: int = 8
    longest: int = 64
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.6), (0.7, 0.2), (1.0, 0.2))
    seed: int = 0

    def __post_init__(self):
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}; use at least 1")
        if not 1 <= self.shortest <= self.longest:
            raise InputError(
                f"prompts of {self.shortest} to {self.longest} tokens do not exist; use "
                f"1 <= shortest <= longest"
            )
        for temperature, share in self.temperatures:
            if not (0 <= temperature <= 1e6 and 0 < share < float("inf")):
                raise InputError(
                    f"temperature {temperature:g} with share {share:g} is out of range; use "
                    f"temperatures in 0 .. 1e+06 and shares > 0"
                )
        if not self.temperatures:
            raise InputError("no temperature was given; give one, such as 0")
        check_integer("seed", self.seed, 0, None)


@dataclass(frozen=True)
class RowStart:
    """The prompt and temperature that one row starts with."""

    row: int
    label: str
    """Class of the text that the prompt was taken from."""
    prompt: list[int]
    temperature: float


def starts(
    texts: Mapping[str, Sequence[str]],
    weights: Mapping[str, float],
    encode: Callable[[str], Sequence[int]],
    recipe: RowsRecipe,
    first: int,
    count: int,
    choose: "Choose | None" = None,
) -> Iterator[RowStart]:
    """Yields rows `first` .. `count` - 1: classes by weight, shuffled documents.

    Args:
        encode: token ids of a document, with what begins a text.
        choose: the prompt that a row takes from a document; `piece` if not given.

    Raises:
        InputError: if a document has no tokens.
    """
    order = sequences.order({k: len(v) for k, v in texts.items()}, weights, count, recipe.seed)
    documents = [(label, text) for label, members in texts.items() for text in members]
    shares = np.cumsum([share for _, share in recipe.temperatures])
    seen: Counter[int] = Counter()
    for row, index in enumerate(order.tolist()):
        seen[index] += 1
        if row < first:
            continue
        label, text = documents[index]
        draws = np.random.default_rng([recipe.seed, 2, row])
        size = int(draws.integers(recipe.shortest, recipe.longest + 1))
        kind = int(np.searchsorted(shares, draws.random() * shares[-1], side="right"))
        ids = list(encode(text))
        if not ids:
            raise InputError(
                f"a text of class {label} has no tokens: {text!r:.40}; leave it out, or use a "
                "tokenizer that begins texts with a token"
            )
        prompt = (choose or piece)(ids, size, seen[index] == 1, draws)
        temperature = recipe.temperatures[min(kind, len(shares) - 1)][0]
        yield RowStart(row, label, prompt, temperature)


Choose = Callable[[list[int], int, bool, np.random.Generator], list[int]]
"""From a document's tokens, a size drawn for the row, and whether it is its first: a prompt."""


def piece(ids: list[int], size: int, is_first: bool, draws: np.random.Generator) -> list[int]:
    """Returns the beginning of a document, later any part, at most half of it."""
    size = max(min(size, len(ids) // 2), 1)
    begin = 0 if is_first else int(draws.integers(len(ids) - size + 1))
    return ids[begin : begin + size]


def whole(ids: list[int], size: int, is_first: bool, draws: np.random.Generator) -> list[int]:
    """Returns a conversation as it is."""
    del size, is_first, draws
    return ids


def write(
    model: CausalLM,
    params: PyTree,
    eos: Sequence[int],
    rows: Sequence[RowStart],
    recipe: RowsRecipe,
    batch_size: int,
) -> list[tuple[list[int], str]]:
    """Returns (tokens, finish) of each row: prompt and continuation, and why it ended.

    `finish` is "stop" at an end token, "length" at a limit, "loop" where a repetition was cut.
    Fewer rows than `batch_size` are filled up, so that all calls run one compiled program.

    Raises:
        RunStopped: if the target's logits are not numbers.
    """
    prompt = np.zeros((batch_size, recipe.longest), np.int32)
    # The rows that only fill up the batch emit nothing.
    lengths, limits = np.ones(batch_size, np.int32), np.zeros(batch_size, np.int32)
    temperatures = np.zeros(batch_size, np.float32)
    for place, start in enumerate(rows):
        prompt[place, : len(start.prompt)] = start.prompt
        lengths[place] = len(start.prompt)
        limits[place] = recipe.max_new_tokens
        temperatures[place] = start.temperature
    numbers = np.zeros(batch_size, np.int32)
    numbers[: len(rows)] = [start.row for start in rows]
    # Plain decoding: in batches of this size a tree's nodes cost more than they save.
    result = jspec.decode(
        model,
        params,
        prompt,
        lengths,
        max_new_tokens=recipe.max_new_tokens,
        stopping=Stopping(max_tokens=limits, eos=tuple(eos)),
        sampling=Sampling(jnp.asarray(temperatures)),
        key=recipe.seed,
        row_ids=numbers,
    )
    done = jax.device_get((result.tokens, result.lengths, result.status))
    results = []
    for start, tokens, length, status in zip(rows, *done, strict=False):
        if status == Status.NAN:
            raise RunStopped(
                f"the target's logits are not numbers in row {start.row}; load it in a dtype of "
                "higher precision"
            )
        full = np.array([*start.prompt, *tokens[:length]], np.int32)
        size = max(count_unlooped(full), len(start.prompt))
        finish = "loop" if size < len(full) else "stop" if status == Status.EOS else "length"
        results.append((full[:size].tolist(), finish))
    return results


def count_unlooped(tokens: Int[np.ndarray, " T"]) -> int:
    """Returns the number of tokens to keep: up to where a repetition has gone on for long.

    A repetition of period p <= PERIOD has gone on for long once each of the last max(LOOP, p)
    tokens equals the one p before it. Greedy text of small models runs into such loops, and a
    head learns nothing from the hundredth turn.
    """
    count = len(tokens)
    for period in range(1, min(PERIOD, len(tokens) - 1) + 1):
        run = max(LOOP, period)
        same = np.concatenate([[0], np.cumsum(tokens[period:] == tokens[:-period])])
        if len(same) > run:
            long = np.flatnonzero(same[run:] - same[:-run] == run)
            if len(long):
                count = min(count, period + int(long[0]) + run)
    return count


def record(start: RowStart, tokens: Sequence[int], finish: str, text: str) -> dict[str, Any]:
    """Returns the object in one line of the file."""
    return {
        "tokens": list(tokens),
        "holds_prompt": True,
        "prompt_tokens": len(start.prompt),
        "class": start.label,
        "temperature": start.temperature,
        "finish": finish,
        "text": text,
    }


class RowFile:
    """The file that rows are written to, one JSON object a line, in their order.

    Alongside it `FILE.settings.json` says what must not change when the same command goes on.

    Args:
        path: made if absent; a line that a kill cut short is removed.
        settings: JSON values.

    Raises:
        InputError: if the file holds rows of other settings, or a line that is not a row.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        self.path = path
        if path.is_dir():
            raise InputError(f"{path} is a folder; name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        settings_file = path.with_name(path.name + ".settings.json")
        if path.is_file() and path.stat().st_size and not settings_file.is_file():
            raise InputError(
                f"{path} is not a file of this command, which keeps its settings in "
                f"{settings_file.name}; name another file"
            )
        checkpoints.agree(settings_file, settings)
        self.rows, self.tokens, size = 0, 0, 0
        path.touch()
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    self.tokens += len(plain_json.parse(line)["tokens"])
                except (ValueError, KeyError, TypeError):
                    raise InputError(
                        f"{path}, line {self.rows + 1} is not a row that this command wrote; keep "
                        f"the {self.rows} before it, or choose another --out"
                    ) from None
                self.rows += 1
                size += len(line)
        with path.open("rb+") as file:
            file.truncate(size)

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows.

        Raises:
            RunStopped: if the file cannot grow, for want of space for instance.
        """
        text = "".join(json.dumps(record) + "\n" for record in records)
        try:
            with self.path.open("a") as file:
                file.write(text)
        except OSError as error:
            raise RunStopped(
                f"{self.path} cannot grow ({error.strerror}), but its first {self.rows} rows are "
                f"whole; make room and run the same command again"
            ) from error
        self.rows += len(records)
        self.tokens += sum(len(record["tokens"]) for record in records)


def settings(recipe: RowsRecipe, weights: Mapping[str, float], texts: str, target: str) -> dict:
    """Returns the settings that decide the rows.

    Args:
        texts: digest of the documents.
        target: fingerprint of the model's weights.
    """
    return {**asdict(recipe), "weights": dict(weights), "texts": texts, "target": target}
