"""Caches a target's hidden states of a text on disk.

Hidden states and the likeliest tokens: all scores would be V / E times as large.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Int

from jspec._validate.errors import RunStopped
from jspec.protocols import CausalLM
from jspec.training import checkpoints
from jspec.training.distributions import Distributions, Observed, observe
from jspec.training.sequences import Sequences
from jspec.types import PyTree

ARRAY = "states.bin"
SETTINGS = "settings.json"


class States:
    """States [T+1, F] and distributions [T+1, K] of every sequence in one file, row after row.

    The file only grows, so that a kill loses at most a batch and a full disk is an error at its
    write (a memory map would end the process instead). `settings.json` alongside it says of which
    weights and which text it is.
    """

    def __init__(
        self,
        folder: Path,
        sequences: Sequences,
        width: int,
        dtype: DTypeLike,
        target: str,
        num_target_tokens: int = 0,
    ):
        self._sequences, self._num_target_tokens = sequences, num_target_tokens
        self._shape = (*sequences.tokens.shape, width)
        distribution = (self._shape[1], num_target_tokens)
        fields = [("hidden", jnp.dtype(dtype), self._shape[1:])]
        fields += (
            [("tokens", np.int32, distribution), ("probs", np.float32, distribution)]
            if num_target_tokens
            else []
        )
        self._row = np.dtype(fields)
        self._path = folder / ARRAY
        folder.mkdir(parents=True, exist_ok=True)
        described: Mapping[str, Any] = {
            "dtype": jnp.dtype(dtype).name,
            "shape": list(self._shape),
            **({"distributions": num_target_tokens} if num_target_tokens else {}),
            "target": target,
            "text": sequences.fingerprint,
        }
        checkpoints.agree(folder / SETTINGS, described)
        self._path.touch()
        self._map: np.ndarray | None = None

    @property
    def total(self) -> int:
        """Rows when all are there."""
        return self._shape[0]

    @property
    def bytes_per_row(self) -> int:
        return self._row.itemsize

    def __len__(self) -> int:
        """Returns rows that are there and whole."""
        return self._path.stat().st_size // self.bytes_per_row

    def fill(self, model: CausalLM, params: PyTree, batch_size: int) -> Iterator[int]:
        """Computes the rows that are missing, batch by batch; gives how many are there."""
        width = self._shape[-1]

        @jax.jit
        def forward(params: PyTree, tokens: Array) -> Observed:
            seen = observe(model, params, tokens, self._num_target_tokens)
            return Observed(seen.hidden[..., :width], seen.distributions)

        tokens = self._sequences.tokens
        with self._path.open("rb+") as file:
            file.truncate(len(self) * self.bytes_per_row)
        while (first := len(self)) < len(tokens):
            part = tokens[first : first + batch_size]
            filled = np.zeros((batch_size, tokens.shape[1]), np.int32)
            filled[: len(part)] = part
            seen = jax.device_get(forward(params, filled))
            rows = np.zeros(len(part), self._row)
            rows["hidden"] = seen.hidden[: len(part)]
            if seen.distributions is not None:
                rows["tokens"] = seen.distributions.tokens[: len(part)]
                rows["probs"] = seen.distributions.probs[: len(part)]
            self._append(rows, first)
            yield first + len(part)

    def _append(self, values: np.ndarray, rows: int) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(values.tobytes())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            need = (self._shape[0] - rows) * self.bytes_per_row
            raise RunStopped(
                f"{self._path} cannot grow ({error.strerror}), but its first {rows} rows are "
                f"whole; make room for {need:,} bytes and run the same command again"
            ) from error

    def __getitem__(self, rows: Int[np.ndarray, " B"]) -> Observed:
        """Returns what the target made of some rows, read from the disk."""
        if self._map is None:
            assert len(self) == self._shape[0], "fill it first"
            self._map = np.memmap(self._path, self._row, mode="r", shape=self._shape[:1])
        entries: Any = np.asarray(self._map[rows])
        distributions = (
            Distributions(entries["tokens"], entries["probs"]) if self._num_target_tokens else None
        )
        return Observed(entries["hidden"], distributions)
