"""A fuzzer of files: whatever bytes a reader is given, it answers with a model or a sentence.

    PYTHONPATH=tests:tests/models python -m damage --seconds 3600

It prints the reader and the number of each damage that was answered otherwise; add these to
`FOUND`, which the tests go through.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tiny_gguf

import jspec
from jspec.models.huggingface import pickles

FIXTURES = Path(__file__).parent / "fixtures"
FOUND: dict[str, tuple[int, ...]] = {
    "gguf": (0, 1, 2, 3), "folder": (0, 1, 47), "pickle": (0, 5, 18, 22, 24, 29), "memory": (0, 1),
    "datastore": (0, 1),
}  # fmt: skip
"""The corpus: damages by their numbers that a reader once had no sentence for, and a few others."""

NUMBERS = (0, 1, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 10**6, 10**12, 10**30, 1.5, float("nan"), 1e-30, "", "x", "x" * 10**5,
    [], [1], [[]], {}, {"a": 1}, {"type": "linear", "factor": -1}, [{"name": "default"}], "\ud800",
)  # fmt: skip
DEEP = (b"[" * 10**5, b'{"a":' * 10**5, b"", b"\xff", b"null", b"[1]")


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The bytes with a few changes: single ones, numbers, pieces that are cut, moved or doubled."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        # Most of what can be wrong stands at the begin.
        place = draw.randrange(max(min(len(made), draw.choice((64, 4096, len(made)))), 1))
        size = draw.randint(1, 64)
        change = draw.randrange(6)
        if change == 0 and made:
            made[place : place + 1] = bytes([draw.randrange(256)])
        elif change == 1:
            made[place : place + 8] = draw.choice(NUMBERS).to_bytes(8, "little")
        elif change == 2:
            made[place : place + 4] = (draw.choice(NUMBERS) % 2**32).to_bytes(4, "little")
        elif change == 3:
            del made[place:]
        elif change == 4:
            del made[place : place + size]
        else:
            made[place:place] = made[place : place + size]
    return bytes(made)


def damaged_json(content: bytes, draw: random.Random) -> bytes:
    """A JSON object with another value somewhere, or none at all."""
    if not draw.randrange(8):
        return draw.choice(DEEP)
    if not draw.randrange(4):
        return damaged(content, draw)
    held = json.loads(content)
    place = held
    while isinstance(inner := draw.choice([*place.values()]), dict) and inner:
        place = inner
    place[draw.choice([*place])] = draw.choice(VALUES)
    return json.dumps(held).encode("utf-8", "surrogatepass")


class Readers:
    """Each kind of files: whole ones in a folder, and what reads them.

    Args:
        folder: to write in.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._gguf = tiny_gguf.convert(FIXTURES / "llama2", folder / "whole.gguf")
        zoo = Path(jspec.models.__file__).parent / "zoo/jspec-800k"
        self._zoo = shutil.copytree(zoo, folder / "zoo")
        model, self._suffix = jspec.testing.PrefixLM(), jspec.Suffix(capacity=64)
        ask = dict(drafter=self._suffix, max_new_tokens=4)
        state = jspec.decode(model, model.init(), [[1, 2, 3]], **ask).drafter_state
        jspec.memory.save(folder / "whole.memory", self._suffix, state)
        self._words = {"a": 0, "b": 1, "c": 2}
        store = jspec.datastore.build(np.random.default_rng(0).integers(0, 3, 200), 3)
        jspec.datastore.save(store, folder / "whole.store", self._words)

    def damage(self, kind: str, number: int) -> Callable[[], Any]:
        """What reads a file of a kind with the damage of a number; the file is written."""
        draw = random.Random(f"{kind} {number}")
        return getattr(self, f"_damaged_{kind}")(draw)

    def _one(self, whole: str, draw: random.Random) -> Path:
        file = self._folder / f"damaged.{whole.partition('.')[2]}"
        file.write_bytes(damaged((self._folder / whole).read_bytes(), draw))
        return file

    def _damaged_gguf(self, draw: random.Random) -> Callable[[], Any]:
        file = self._one("whole.gguf", draw)
        return lambda: jspec.models.load(file)

    def _damaged_memory(self, draw: random.Random) -> Callable[[], Any]:
        file = self._one("whole.memory", draw)
        return lambda: jspec.memory.load(file, self._suffix)

    def _damaged_datastore(self, draw: random.Random) -> Callable[[], Any]:
        file = self._one("whole.store", draw)
        return lambda: jspec.datastore.load(file, self._words)

    def _damaged_folder(self, draw: random.Random) -> Callable[[], Any]:
        folder = self._folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._zoo, folder)
        files = sorted(
            file for file in folder.iterdir() if file.suffix in (".json", ".safetensors")
        )
        file = draw.choice(files)
        change = damaged_json if file.suffix == ".json" else damaged
        # `tokenizers` ends the process for some numbers in its file.
        if file.name != "tokenizer.json":
            file.write_bytes(change(file.read_bytes(), draw))
        return lambda: jspec.models.load(folder)

    def _damaged_pickle(self, draw: random.Random) -> Callable[[], Any]:
        file = self._folder / "damaged.bin"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a/data.pkl", damaged(_PICKLE, draw))
            archive.writestr("a/data/0", b"\0" * 64)
        return lambda: pickles.open_file(file)


_PICKLE = (
    b"\x80\x02}q\x00X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
    b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x10tQK\x00K\x04K\x04\x86K\x04K"
    b"\x01\x86\x89ccollections\nOrderedDict\n)RtRs."
)
"""What torch.save writes of one matrix."""


def wrong(readers: Readers, kind: str, number: int) -> str | None:
    """What a damage is answered with, if it is neither a model nor a sentence."""
    read = readers.damage(kind, number)
    try:
        read()
    except jspec.InputError as error:
        return f"{len(str(error))} letters" if len(str(error)) > 1000 else None
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} at {where.filename}:{where.lineno}"
    return None


def numbers(seconds: float, first: int = 0) -> Iterator[tuple[str, int]]:
    """Kinds and numbers of damages in turn, for so long."""
    ends, number = time.monotonic() + seconds, first
    while time.monotonic() < ends:
        for kind in FOUND:
            yield kind, number
        number += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--first", type=int, default=0)
    asked, count = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as folder:
        readers = Readers(Path(folder))
        for kind, number in numbers(asked.seconds, asked.first):
            count += 1
            if said := wrong(readers, kind, number):
                print(f"{kind} {number}: {said:.300}", flush=True)
    print(f"{count} damaged files")


if __name__ == "__main__":
    main()
