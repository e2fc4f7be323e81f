"""Reads the header of a GGUF file: metadata by name, and where each tensor lies.

The `gguf` package reads this in seconds for 49,152 tokens, one numpy view per string.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jspec._validate.errors import InputError
from jspec.models.huggingface.config_json import Settings

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32

# Kinds of metadata by their numbers in the file.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_FLOAT, _STRING, _ARRAY = 6, 8, 9
_DEEPEST = 8
"""Lists within lists; llama.cpp writes none."""


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as it is stored."""

    shape: tuple[int, ...]
    """In NumPy's order; the file's is reversed."""
    kind: int
    """Number of its quantisation, `gguf.GGMLQuantizationType`."""
    start: int
    """Its first byte in the file."""


@dataclass(frozen=True)
class Header:
    """All of a file but the weights."""

    file: Path
    metadata: Settings
    tensors: Mapping[str, TensorInfo]


def is_gguf(file: Path) -> bool:
    """Returns True for a file that is a GGUF, or that is named as one."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return file.suffix == ".gguf" or opened.read(len(MAGIC)) == MAGIC


def read(file: Path) -> Header:
    """Reads the header of a file."""
    content = np.memmap(file, np.uint8, "r").data if file.stat().st_size else memoryview(b"")
    if bytes(content[:4]) != MAGIC:
        raise InputError(f"{file} does not begin with {MAGIC.decode()}; name a GGUF file")
    try:
        return _read(file, content)
    except (struct.error, ValueError, MemoryError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        reason = "it ends within its header" if isinstance(error, struct.error) else error
        raise InputError(
            f"{file} ({len(content)} bytes) is not a whole GGUF file ({reason}); download it again"
        ) from error


def _read(file: Path, content: memoryview) -> Header:
    version, num_tensors, num_fields = struct.unpack_from("<IQQ", content, 4)
    if version not in VERSIONS:
        raise InputError(
            f"{file} is GGUF of version {version}; supported: {', '.join(map(str, VERSIONS))}, "
            "little-endian; convert it again"
        )
    cursor = _Cursor(content, 24)
    fields = {}
    for _ in range(num_fields):
        name = cursor.text()
        fields[name] = cursor.value(cursor.number("I"))
    metadata = Settings(fields, str(file))
    parts = metadata.get("split.count", 1)
    if not isinstance(parts, int) or parts > 1:
        raise InputError(
            f"{file} is one of {parts!r:.60} parts; join them with `llama-gguf-split --merge`"
        )
    listed = {}
    for _ in range(num_tensors):
        name = cursor.text()
        sizes = struct.unpack_from(f"<{(rank := cursor.number('I'))}Q", content, cursor.place)
        cursor.place += 8 * rank
        listed[name] = (tuple(reversed(sizes)), cursor.number("I"), cursor.number("Q"))
    align = metadata.size("general.alignment", ALIGNMENT)
    base = -(-cursor.place // align) * align
    tensors = {
        name: TensorInfo(shape, kind, base + offset)
        for name, (shape, kind, offset) in listed.items()
    }
    return Header(file, metadata, tensors)


class _Cursor:
    """Reads one value after the other."""

    def __init__(self, content: memoryview, place: int):
        self.content, self.place = content, place

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.content, self.place)
        self.place += struct.calcsize(code)
        return value

    def text(self) -> str:
        length = self.number("Q")
        end = self.place + length
        if end > len(self.content):
            raise ValueError("it ends within a text")
        text = str(self.content[self.place : end], "utf-8", "replace")
        self.place = end
        return text

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            if depth == _DEEPEST:
                raise ValueError(f"a field is nested more than {_DEEPEST} deep")
            inner, count = self.number("I"), self.number("Q")
            if inner in _NUMBERS:
                code = f"<{count}{_NUMBERS[inner]}"
                values = struct.unpack_from(code, self.content, self.place)
                self.place += struct.calcsize(code)
                return list(values)
            return [self.value(inner, depth + 1) for _ in range(count)]
        if kind not in _NUMBERS:
            raise ValueError(f"a field is of the unknown kind {kind}")
        number = self.number(_NUMBERS[kind])
        # The shortest decimal: the value in config.json before it was rounded to float32.
        return float(str(np.float32(number))) if kind == _FLOAT else number
