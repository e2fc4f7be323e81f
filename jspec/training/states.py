"""A target's hidden states on disk, for heads that are trained on them more than once.

Only the states: the target's scores are one product with its head away, and V / E times as large.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jspec.base import PyTree
from jspec.errors import RunStopped
from jspec.protocols import CausalLM
from jspec.training import checkpoints
from jspec.training.sequences import Sequences
from jspec.training.unroll import states_of

ARRAY = "states.bin"
SETTINGS = "settings.json"


class States:
    """States of every token of the sequences, [M, T+1, F] in one file, row after row.

    The file only grows, so that a kill loses at most a batch and a full disk is an error at its
    write (a memory map would end the process instead). `settings.json` beside it says of which
    weights and which text it is.

    Args:
        folder: made if absent.
        sequences: the text.
        width: F, of a state.
        dtype: that states are held in.
        target: fingerprint of the model's weights.

    Raises:
        InputError: if the folder holds states of another model or text.
    """

    def __init__(
        self, folder: Path, sequences: Sequences, width: int, dtype: DTypeLike, target: str
    ):
        self._dtype = jnp.dtype(dtype)
        self._sequences = sequences
        self._shape = (*sequences.tokens.shape, width)
        self._path = folder / ARRAY
        folder.mkdir(parents=True, exist_ok=True)
        described: Mapping[str, Any] = {
            "dtype": self._dtype.name,
            "shape": list(self._shape),
            "target": target,
            "text": sequences.fingerprint,
        }
        checkpoints.agree(folder / SETTINGS, described)
        self._path.touch()
        self._map: np.ndarray | None = None

    @property
    def bytes_per_row(self) -> int:
        return self._shape[1] * self._shape[2] * self._dtype.itemsize

    def __len__(self) -> int:
        """Rows that are there and whole."""
        return self._path.stat().st_size // self.bytes_per_row

    def fill(self, model: CausalLM, params: PyTree, batch_size: int) -> Iterator[int]:
        """Computes the rows that are missing, batch by batch; gives how many are there.

        Raises:
            RunStopped: if the file cannot grow; the rows before it stay.
        """
        forward = jax.jit(lambda params, tokens: states_of(model, params, tokens))
        tokens = self._sequences.tokens
        with self._path.open("rb+") as file:
            file.truncate(len(self) * self.bytes_per_row)
        while (first := len(self)) < len(tokens):
            part = tokens[first : first + batch_size]
            filled = np.zeros((batch_size, tokens.shape[1]), np.int32)
            filled[: len(part)] = part
            states = np.asarray(forward(params, filled)[: len(part)].astype(self._dtype))
            self._append(states, first)
            yield first + len(part)

    def _append(self, states: np.ndarray, rows: int) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(states.tobytes())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            need = (self._shape[0] - rows) * self.bytes_per_row
            raise RunStopped(
                f"{self._path} cannot grow ({error.strerror}), but its first {rows} rows are "
                f"whole; make room for {need:,} bytes and run the same command again"
            ) from error

    def __getitem__(self, rows: Int[np.ndarray, " B"]) -> Float[np.ndarray, "B T+1 F"]:
        """States of some rows, read from the disk."""
        if self._map is None:
            assert len(self) == self._shape[0], "fill it first"
            self._map = np.memmap(self._path, self._dtype, mode="r", shape=self._shape)
        return np.asarray(self._map[rows])
