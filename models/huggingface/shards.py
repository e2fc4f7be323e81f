"""Tensors by name from a folder of safetensors, one file or many, without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from jspec._validate.errors import InputError
from jspec.models.huggingface import config_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_LONGEST = 200
"""Letters of a file's name: systems have no longer ones."""
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Shards:
    """Open, memory-mapped files: a tensor is read from disk when it is asked for, and not kept."""

    folder: Path
    files: Mapping[str, Any]
    """The open file of each tensor."""
    config: str = "its config.json"
    """The source of the names of required tensors, for messages."""
    paths: Mapping[str, Path] = field(default_factory=dict)
    """The file of each tensor."""
    places: dict[Path, dict[str, int]] = field(default_factory=dict, init=False, compare=False)
    """Offsets of tensors in the files that `memory_map` has read."""

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.files[name].get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor."""
        return self.rows(name, slice(None))

    def rows(self, name: str, rows: slice) -> np.ndarray:
        """Returns rows of one tensor; the others are not read."""
        kind = self.files[name].get_slice(name).get_dtype()
        if kind not in DTYPES:
            raise InputError(
                f"tensor {name} in {self.folder} holds {kind}; supported: {', '.join(DTYPES)}; "
                "take a checkpoint that is not quantised"
            )
        return self.files[name].get_slice(name)[rows]

    def memory_map(self, name: str) -> np.ndarray:
        """Returns a tensor of any dtype where it lies, memory-mapped: NumPy has no 8-bit floats."""
        kind = self.files[name].get_slice(name).get_dtype()
        if kind not in (dtypes := {**DTYPES, "F8_E4M3": ml_dtypes.float8_e4m3fn}):
            raise InputError(
                f"tensor {name} in {self.folder} holds {kind}; supported: {', '.join(dtypes)}"
            )
        place = self._places(self.paths[name])[name]
        return np.memmap(self.paths[name], dtypes[kind], "r", place, self.shape(name))

    def _places(self, path: Path) -> dict[str, int]:
        """Returns the offsets of a file's tensors; its header is read once."""
        if path not in self.places:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(size))
            self.places[path] = {
                name: 8 + size + entry["data_offsets"][0]
                for name, entry in header.items()
                if name != "__metadata__"
            }
        return self.places[path]

    def indices(self, name: str) -> np.ndarray:
        """Returns a tensor of whole numbers, which is not a parameter."""
        return self.files[name].get_tensor(name).astype(np.int64)


def open_folder(folder: Path) -> Shards:
    """Opens a folder's only safetensors file, or those that its index names.

    As in `transformers`, a whole file goes before an index that names others, and a tensor is read
    from the file that the index names for it, whatever else the files hold.
    """
    index = read_index(folder)
    if (folder / SINGLE).is_file() and SINGLE not in index.values():
        return open_file(folder / SINGLE)
    if (folder / INDEX).is_file():
        return _open_all(folder, index)
    pickles = sorted(
        file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)
    )
    if pickles:
        raise InputError(
            f"{folder} holds its weights as pickle ({pickles[0]}), which can run any code and is "
            f"never loaded; convert it to {SINGLE}"
        )
    raise InputError(f"{folder} has no weights; it needs {SINGLE}, or {INDEX} and its shards")


def open_file(file: Path) -> Shards:
    """Opens one safetensors file."""
    opened = _open(file)
    names = list(opened.keys())
    return Shards(file.parent, dict.fromkeys(names, opened), paths=dict.fromkeys(names, file))


def read_index(folder: Path) -> Mapping[str, str]:
    """Returns the file of each tensor, as a folder's index has it; nothing where there is none."""
    if not (folder / INDEX).is_file():
        return {}
    index = config_json.read(folder / INDEX).part("weight_map").values
    if not all(isinstance(name, str) for name in index.values()):
        raise InputError(f"{folder / INDEX} names files that are not texts; download it again")
    return index


def _open_all(folder: Path, index: Mapping[str, str]) -> Shards:
    listed = sorted(set(index.values()))
    absent = [name for name in listed if len(name) > _LONGEST or not (folder / name).is_file()]
    if absent:
        raise InputError(
            f"{folder} lacks {len(absent)} of the files that its {INDEX} names, "
            f"the first being {absent[0]:.200}; download the checkpoint again"
        )
    opened = {name: _open(folder / name) for name in listed}
    keys = {name: set(file.keys()) for name, file in opened.items()}
    astray = sorted(name for name, file in index.items() if name not in keys[file])
    if astray:
        raise InputError(
            f"{folder} lacks {len(astray)} of the tensors that its {INDEX} names, the first being "
            f"{astray[0]}, which is not in {index[astray[0]]}; download the checkpoint again"
        )
    return Shards(
        folder,
        {name: opened[file] for name, file in index.items()},
        paths={name: folder / file for name, file in index.items()},
    )


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="numpy")
    except (SafetensorError, OSError) as error:
        size = file.stat().st_size
        raise InputError(
            f"{file} ({size} bytes) is not a whole safetensors file ({error}); download it again"
        ) from error
