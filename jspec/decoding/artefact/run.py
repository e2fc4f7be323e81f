"""Runs an exported generation. Needs JAX, and neither jspec nor the model's code.

    python run.py "[[5, 3, 9], [8, 1]]" --max-new-tokens 40

As a module: `load(folder)` gives a function from lists of token ids to lists of token ids.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

FORMAT = 3
"""Of the folder; another number is another layout."""

BOUNDS = {
    "seed": (0, 2**32 - 1),
    "temperature": (0, 1e6),
    "top_k": (0, 2**31 - 1),
    "top_p": (1e-6, 1),
    "min_p": (0, 1),
}
"""Least and most of each setting, as in `decode`; seeds are of 32 bits here."""


def load(folder: str | Path) -> Callable[..., list[list[int]]]:
    """Returns the generation of a folder that `jspec.export` wrote."""
    place = Path(folder)
    told = _read_about(place)
    names, kinds = told["weights"], told["dtypes"]
    with _whole(place / "weights.npz") as file, np.load(file) as held:
        weights = [
            jax.numpy.asarray(held[name].view(np.dtype(kind)))
            for name, kind in zip(names, kinds, strict=True)
        ]
    programs = {}

    def program(rows: int) -> Callable[..., Any]:
        if rows not in programs:
            with _whole(place / f"rows-{rows}.bin") as file:
                exported = _program(file.read_bytes(), rows, weights, told)
            programs[rows] = jax.jit(exported.call)
        return programs[rows]

    def generate(
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int | None = None,
        seed: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> list[list[int]]:
        most = told["max_new_tokens"] if max_new_tokens is None else max_new_tokens
        settings = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        _check(prompts, most, dict(seed=seed) | settings, told)
        rows = min(size for size in told["rows"] if size >= len(prompts))
        call = program(rows)
        # Rows beyond the prompts are given nothing to write.
        tokens = np.zeros((rows, told["prompt_tokens"]), np.int32)
        lengths, limits = np.ones(rows, np.int32), np.zeros(rows, np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
            lengths[row], limits[row] = len(prompt), most
        kinds = [np.float32, np.int32, np.float32, np.float32]
        given = zip(settings.values(), kinds, strict=True)
        filled = [np.full(rows, value, kind) for value, kind in given]
        found, counts = call(weights, tokens, lengths, limits, np.uint32(seed), *filled)
        pairs = zip(np.asarray(found), np.asarray(counts), strict=True)
        return [row[:count].tolist() for row, count in pairs][: len(prompts)]

    return generate


_NAMES = {
    "calling_convention": int,
    "max_new_tokens": int,
    "dtypes": str,
    "platforms": str,
    "programs": str,
    "prompt_tokens": int,
    "rows": int,
    "vocab_size": int,
    "weights": str,
}
_LISTS = ("dtypes", "platforms", "programs", "rows", "weights")
"""Required fields of artefact.json; these are lists."""


@contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """Yields whatever reading the file raises is said in a sentence: its readers have errors of
    many kinds for one that is cut or another.
    """
    try:
        yield file
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{file} cannot be read ({reason:.300}); export the model again"
        ) from error


def _read_about(place: Path) -> dict[str, Any]:
    """Returns what artefact.json says, if it is of this version."""
    with _whole(place / "artefact.json") as file:
        told = json.loads(file.read_text("utf-8"))
        if not isinstance(told, dict):
            raise ValueError(f"it holds a {type(told).__name__}")
    if told.get("format") != FORMAT:
        raise ValueError(
            f"{file} was written by jspec {told.get('jspec')!s:.20} in format "
            f"{told.get('format')!r:.20} and this program reads format {FORMAT}; "
            "run the run.py next to it"
        )
    for name, entries in _NAMES.items():
        value = told.get(name)
        values = value if isinstance(value, list) else [value]
        listed = name in _LISTS
        right = listed == isinstance(value, list) and (bool(value) or name in ("dtypes", "weights"))
        if not right or not all(type(one) is entries for one in values):
            raise ValueError(f"{file} has {name} = {value!r:.60}; export the model again")
    low = jax.export.minimum_supported_calling_convention_version
    high = jax.export.maximum_supported_calling_convention_version
    if not low <= told["calling_convention"] <= high:
        raise ValueError(
            f"{file} was written by JAX {told.get('jax')!s:.20} with calling convention "
            f"{told['calling_convention']}, and JAX {jax.__version__} runs {low} to {high}; "
            "export the model again, or install that JAX"
        )
    here = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    if here not in told["platforms"]:
        raise ValueError(
            f"{file} was exported for {', '.join(told['platforms']):.60} and this process runs on "
            f"{here}; export it for {here} too"
        )
    return told


def _program(content: bytes, rows: int, weights: Sequence[Any], told: dict[str, Any]) -> Any:
    """Returns the program of so many rows."""
    if hashlib.sha256(content).hexdigest() not in told["programs"]:
        raise ValueError("its bytes have changed")
    found = jax.export.deserialize(bytearray(content))
    asked = [(rows, told["prompt_tokens"]), *((array.shape, array.dtype) for array in weights)]
    given = [(array.shape, array.dtype) for array in found.in_avals[: len(weights)]]
    given.insert(0, found.in_avals[len(weights)].shape)
    if asked != given or found.out_avals[0].shape != (rows, told["max_new_tokens"]):
        raise ValueError("it is not for what artefact.json says")
    return found


def _check(
    prompts: Sequence[Sequence[int]], most: int, settings: dict[str, float], told: dict[str, Any]
) -> None:
    """Raises ValueError for what the programs have no room for, and settings out of bounds."""
    rows, longest, size = max(told["rows"]), told["prompt_tokens"], told["vocab_size"]
    if not isinstance(prompts, list | tuple | np.ndarray):
        raise ValueError(f"prompts is {prompts!r:.60}; give a list of lists of token ids")
    if not 1 <= len(prompts) <= rows:
        raise ValueError(f"there are {len(prompts)} prompts; give 1 to {rows}")
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt, list | tuple | np.ndarray):
            raise ValueError(f"prompt {row} is {prompt!r:.60}; give a list of token ids")
        if not 1 <= len(prompt) <= longest:
            raise ValueError(f"prompt {row} has {len(prompt)} tokens; give 1 to {longest}")
        for token in prompt:
            known = isinstance(token, int | np.integer) and not isinstance(token, bool)
            if not known or not 0 <= token < size:
                raise ValueError(
                    f"prompt {row} holds {token!r:.60}, no token id; give 0 to {size - 1}"
                )
    if not 0 <= most <= told["max_new_tokens"]:
        raise ValueError(f"max_new_tokens is {most}; give at most {told['max_new_tokens']}")
    for name, value in settings.items():
        low, high = BOUNDS[name]
        if not low <= value <= high:  # nor NaN
            raise ValueError(f"{name} is {value}; give {low} to {high}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Continues prompts of token ids.")
    parser.add_argument("prompts", help='such as "[[5, 3, 9], [8, 1]]"')
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--seed", type=int, default=0)
    for name, kind, off in (
        ("temperature", float, 0.0),
        ("top-k", int, 0),
        ("top-p", float, 1.0),
        ("min-p", float, 0.0),
    ):
        parser.add_argument(f"--{name}", type=kind, default=off)
    given = vars(parser.parse_args(arguments))
    try:
        prompts = _parse(given.pop("prompts"))
        print(json.dumps(load(Path(__file__).parent)(prompts, **given)), flush=True)
    except BrokenPipeError:
        os._exit(141)  # as a shell reports it; an orderly exit would write once more
    except (TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"prompts is {text!r:.60}, which is not JSON ({error}); give lists of token ids, such "
            'as "[[5, 3, 9], [8, 1]]"'
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
