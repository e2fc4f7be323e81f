"""A fuzzer of files: a reader answers any bytes with a model or with one sentence.

    PYTHONPATH=tests:tests/models python -m damage --seconds 3600

Each file may take so many seconds and so much memory. It prints the reader and the number of each
damage that was answered otherwise; add these to `FOUND`, which the tests go through.
"""

import argparse
import json
import random
import resource
import shutil
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import published_heads
import tiny_gguf

import jspec
from jspec.drafters.contrib import ngrams
from jspec.models.heads.medusa import MedusaConfig, MedusaHeads
from jspec.models.huggingface import pickles
from jspec.training.checkpoints import Checkpoints

FIXTURES = Path(__file__).parent / "fixtures"
SECONDS = 10
"""Seconds that a file may take to be read."""
MEGABYTES = 200
"""Most bytes on top of the process's while a file is read."""
FOUND: dict[str, tuple[int, ...]] = {
    "gguf": (0, 1, 2694, 501489), "folder": (0, 1, 47), "tokenizer": (0, 45), "head": (0, 1),
    "orbax": (1, 7, 10, 12, 22, 26), "run": (9, 20), "published": (0, 1), "memory": (0, 1),
    "pickle": (0, 5, 144, 147, 275), "datastore": (0, 1), "ngrams": (0, 2082),
    "qwen3_next": (7, 93, 98, 225), "qwen3_5_moe": (0,), "granite4": (0,),
    "deepseek_v2": (0,), "deepseek_v3": (0,), "gpt_oss": (0,), "gemma4": (0,),
    "gemma4_moe": (0,),
}  # fmt: skip
"""The corpus: numbers of damages that a reader once had no sentence for, and a few others."""

FAMILIES = (
    *("qwen3_next", "qwen3_5_moe", "granite4", "deepseek_v2", "deepseek_v3", "gpt_oss"),
    *("gemma4", "gemma4_moe"),
)
"""Folders of families whose config.json says more than Llama's."""
NUMBERS = (0, 1, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 10**6, 4 * 10**9, 10**12, 10**30, 1.5, float("nan"), 1e-30, "", "x",
    "x" * 10**5, [], [1], [[]], {}, {"a": 1}, {"type": "linear", "factor": -1},
    [{"name": "default"}], "\ud800",
)  # fmt: skip
DEEP = (b"[" * 10**5, b'{"a":' * 10**5, b"[" * 900 + b"]" * 900, b"", b"\xff", b"null", b"[1]")


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The bytes with a few changes: single ones, numbers, pieces that are cut, moved or doubled."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        # Most of what can be wrong is at the beginning.
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
    while inner := [part for part in _parts(place) if isinstance(part, dict | list) and part]:
        if not draw.randrange(3):
            break
        place = draw.choice(inner)
    key = draw.choice([*place] if isinstance(place, dict) else range(len(place)))
    if draw.randrange(4):
        place[key] = draw.choice(VALUES)
    else:
        del place[key]
    return json.dumps(held).encode("utf-8", "surrogatepass")


def _parts(held: Any) -> list[Any]:
    return [*held.values()] if isinstance(held, dict) else held


class Readers:
    """Each kind of files: whole ones in a folder, and what reads them.

    Args:
        folder: to write in.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        zoo = Path(jspec.models.__file__).parent / "zoo/jspec-800k"
        shutil.copytree(zoo, folder / "whole.folder")
        (folder / "whole.tokenizer").mkdir()
        shutil.copy(zoo / "tokenizer.json", folder / "whole.tokenizer")
        tiny_gguf.convert(FIXTURES / "llama2", folder / "whole.gguf")
        self._target = target = jspec.models.load(FIXTURES / "llama2", with_tokenizer=False)
        jspec.models.save(folder / "whole.orbax", target.model, target.params)
        self._state = {"a": np.arange(6.0), "step": np.arange(3)}
        Checkpoints(folder / "whole.run", {"a": 1}).save(1, self._state)
        sizes = target.model.vocab_size, target.model.features
        head = MedusaHeads(MedusaConfig(*sizes, num_heads=2))
        variables = head.init(jax.random.key(0), jnp.zeros((1, 1, sizes[1])))
        jspec.models.heads.save(folder / "whole.head", head, variables, target)
        published = published_heads.eagle_tensors()
        published["embed_tokens.weight"] = published_heads.EMBED
        published_heads.write(folder / "whole.published", published, published_heads.LLAMA)
        model, self._suffix = jspec.testing.PrefixLM(), jspec.Suffix(capacity=64)
        ask = dict(drafter=self._suffix, max_new_tokens=4)
        state = jspec.decode(model, model.init(), [[1, 2, 3]], **ask).drafter_state
        jspec.memory_file.save(folder / "whole.memory", self._suffix, state)
        self._words = {"a": 0, "b": 1, "c": 2}
        store = jspec.datastore.build(np.random.default_rng(0).integers(0, 3, 200), 3)
        jspec.datastore.save(store, folder / "whole.datastore", self._words)
        distributions = np.array([[[1], [2], [0]]]), np.array([[[0.9], [0.8], [0.7]]])
        lines = ngrams.build(np.array([[0, 1, 2]]), distributions, vocab_size=3, k=1)
        ngrams.save(folder / "whole.ngrams", lines, "mine")
        with zipfile.ZipFile(folder / "whole.pickle", "w") as archive:
            archive.writestr("a/data.pkl", _PICKLE)
            archive.writestr("a/data/0", b"\0" * 64)

        for family in FAMILIES:
            shutil.copytree(FIXTURES / family, folder / f"whole.{family}")
            (folder / f"whole.{family}/reference.safetensors").unlink()

    def whole(self, kind: str) -> Any:
        """Reads the file of a kind that nothing has happened to."""
        return self.read(kind, self.folder / f"whole.{kind}")

    def damage(self, kind: str, number: int) -> Callable[[], Any]:
        """Returns what reads a file of a kind with the damage of a number; the file is written.

        One kind is no file, but a reader that takes memory.
        """
        if kind == "takes memory":
            return lambda: np.ones(2 * MEGABYTES * 2**17).sum()
        draw, place = random.Random(f"{kind} {number}"), self.folder / f"damaged.{kind}"
        whole = self.folder / f"whole.{kind}"
        if whole.is_dir():
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(whole, place)
            self._damage_one(place, draw)
        elif kind == "pickle" and draw.randrange(4):
            with zipfile.ZipFile(place, "w") as archive:
                archive.writestr("a/data.pkl", damaged(_PICKLE, draw))
                archive.writestr("a/data/0", b"\0" * 64)
        else:
            place.write_bytes(damaged(whole.read_bytes(), draw))
        return lambda: self.read(kind, place)

    def read(self, kind: str, place: Path) -> Any:
        load = jspec.models.heads.load
        return (dict.fromkeys(FAMILIES, self._read_family) | {
            "head": lambda place: load(place, self._target),
            "published": lambda place: load(place, published_heads.TARGET),
            "folder": jspec.models.load, "gguf": jspec.models.load,
            "tokenizer": _read_tokenizer, "orbax": jspec.models.restore,
            "run": lambda place: Checkpoints(place, {"a": 1}).restore(self._state),
            "pickle": _read_pickle,
            "memory": lambda place: jspec.memory_file.load(place, self._suffix),
            "datastore": lambda place: jspec.datastore.load(place, self._words),
            "ngrams": lambda place: ngrams.load(place, "mine", 3),
        })[kind](place)  # fmt: skip

    def _read_family(self, place: Path) -> Any:
        return jspec.models.load(place, with_tokenizer=False)

    def _damage_one(self, folder: Path, draw: random.Random) -> None:
        """Damages a file of a folder."""
        files = [file for file in folder.rglob("*") if file.is_file()]
        # Orbax gives some of its files names of chance.
        files.sort(key=lambda file: (file.suffix, file.stat().st_size, file.name))
        # Most files of orbax are small ones of JSON, which is in binary ones too.
        file = draw.choice([file for file in files if file.suffix not in (".py", ".md")])
        content = file.read_bytes()
        try:
            change = damaged_json if isinstance(json.loads(content), dict) else damaged
        except ValueError:
            change = damaged
        if not draw.randrange(16):
            file.unlink()
        else:
            file.write_bytes(change(content, draw))


def _read_tokenizer(place: Path) -> Any:
    found = jspec.models.tokenizer.read(place)
    return found.decode(found.encode("The king and the Queen").ids), len(
        jspec.grammar.token_bytes(found)
    )


def _read_pickle(place: Path) -> Any:
    found = pickles.open_file(place)
    return [found.read(name) for name in found.files]


_PICKLE = (
    b"\x80\x02}q\x00X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
    b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x10tQK\x00K\x04K\x04\x86K\x04K"
    b"\x01\x86\x89ccollections\nOrderedDict\n)RtRs."
)
"""The bytes that torch.save writes for one matrix."""


def wrong(readers: Readers, kind: str, number: int) -> str | None:
    """Returns what a damage is answered with, if it is neither a model nor a sentence."""
    read = readers.damage(kind, number)
    try:
        read()
    except jspec.InputError as error:
        return f"{len(str(error))} letters" if len(str(error)) > 1000 else None
    except BaseException as error:  # PyO3's PanicException is not an Exception
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} at {where.filename}:{where.lineno}"
    return None


def wrong_or_dear(readers: Readers, kind: str, number: int) -> str | None:
    """The same, and what an answer costs, if that is too much."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = _held("VmHWM"), time.monotonic()
    if said := wrong(readers, kind, number):
        return said
    seconds, taken = time.monotonic() - began, (_held("VmHWM") - before) / 1024
    if seconds > SECONDS:
        return f"{seconds:.1f} s"
    return f"{taken:.0f} MB" if taken > MEGABYTES else None


def _held(name: str) -> int:
    """Kilobytes of this process."""
    status = Path("/proc/self/status").read_text("utf-8")
    return int(status.partition(f"{name}:")[2].split()[0])


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
    asked, count, otherwise = parser.parse_args(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        readers = Readers(Path(folder))
        for kind in FOUND:  # what is made at the first of a kind is not a file's
            wrong(readers, kind, 0)
        most = _held("VmData") * 1024 + 4 * 2**30  # the machine is not to suffer
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        for kind, number in numbers(asked.seconds, asked.first):
            count += 1
            if said := wrong_or_dear(readers, kind, number):
                otherwise += 1
                print(f"{kind} {number}: {said:.300}", flush=True)
    print(f"{count} damaged files, {otherwise} otherwise")


if __name__ == "__main__":
    main()
