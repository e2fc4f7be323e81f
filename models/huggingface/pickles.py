"""Tensors of `torch.save` files, without torch and without running the pickle.

A pickle can call anything. This one may name four functions, all of them from here.
"""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jspec._validate.errors import InputError, unreadable

DTYPES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "BoolStorage": np.bool_,
}


_MOST = 2**26
"""Bytes that say which tensors there are: a hundred for each."""


class Storage(NamedTuple):
    """Numbers in a row, which tensors are views of."""

    dtype: Any
    key: str
    size: int


class TensorView(NamedTuple):
    """A tensor: a view of a storage. Offset and strides count numbers."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Pickled:
    """The tensors of a file; each is read when it is asked for, and not kept."""

    folder: Path
    file: Path
    files: Mapping[str, TensorView]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.files[name].shape

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor."""
        with unreadable(f"tensor {name:.80} in {self.file}", "download it again"):
            return self._read(name)

    def _read(self, name: str) -> np.ndarray:
        storage, offset, shape, strides = self.files[name]
        with zipfile.ZipFile(self.file) as archive:
            entry = archive.getinfo(f"{_root(archive)}/data/{storage.key}")
            if entry.file_size > (max_bytes := storage.size * np.dtype(storage.dtype).itemsize):
                raise InputError(
                    f"{self.file} has {entry.file_size} bytes for tensor {name} and says that they "
                    f"are {max_bytes}; download it again"
                )
            values = np.frombuffer(archive.read(entry), storage.dtype)
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if 0 in shape:
            return np.zeros(shape, storage.dtype)
        if offset < 0 or min(strides, default=0) < 0 or last >= len(values):
            raise InputError(
                f"{self.file} says that tensor {name} reaches beyond its storage; download it again"
            )
        steps = tuple(step * values.itemsize for step in strides)
        return np.lib.stride_tricks.as_strided(values[offset:], shape, steps)

    def indices(self, name: str) -> np.ndarray:
        """Returns a tensor of whole numbers, which is not a parameter."""
        return self.read(name).astype(np.int64)


def open_file(file: Path) -> Pickled:
    """Returns the tensors of a state dict."""
    try:
        with zipfile.ZipFile(file) as archive:
            record = archive.getinfo(f"{_root(archive)}/data.pkl")
            if record.file_size > _MOST:
                raise ValueError(f"it says in {record.file_size} bytes which tensors it holds")
            state = _Reader(archive.open(record)).load()
    except zipfile.BadZipFile as error:
        raise InputError(
            f"{file} is not a whole archive of torch.save ({error}); download it again, or if it "
            "was written by torch before 1.6, save it anew"
        ) from error
    except Exception as error:  # a pickle is a program: it may fail in any way
        raise InputError(
            f"{file} is not a plain state dict ({error}); nothing else in a pickle is read; save "
            "its tensors as safetensors"
        ) from error
    entries = dict(state) if isinstance(state, Mapping) else {}
    if not entries or not all(isinstance(entry, TensorView) for entry in entries.values()):
        raise InputError(f"{file} holds no tensors by name; name the file of a state dict")
    return Pickled(file.parent, file, entries)


def _root(archive: zipfile.ZipFile) -> str:
    """Returns the folder inside the archive, named after the original file."""
    for name in archive.namelist():
        if name.endswith("/data.pkl") and name.count("/") == 1:
            return name.partition("/")[0]
    raise zipfile.BadZipFile("it has no data.pkl")


def _tensor(
    storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> TensorView:
    if not isinstance(storage, Storage):
        raise pickle.UnpicklingError("a tensor has no numbers")
    return TensorView(storage, index(offset), tuple(map(index, shape)), tuple(map(index, strides)))


def _parameter(entry: TensorView, *_: Any) -> TensorView:
    return entry


class _Reader(pickle._Unpickler):  # pyright: ignore
    """Python's own: that in C makes room for all objects up to a number in the file."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in DTYPES:
            return DTYPES[name]
        allowed = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        if (module, name) in allowed:
            return allowed[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Storage:
        _, dtype, key, _, size = pid
        return Storage(dtype, str(key), int(size))
