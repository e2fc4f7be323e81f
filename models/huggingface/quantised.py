"""Published weights in blocks of 8 or 4 bits, dequantised tensor by tensor while they are read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jspec._validate.errors import InputError
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.shards import Shards

_SCALE = "_scale_inv"
_BLOCKS, _SCALES = "_blocks", "_scales"
_FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FLOAT4 = np.concatenate([_FLOAT4, -_FLOAT4])
"""What 4 bits stand for, E2M1 of the Open Compute Project's Microscaling Formats 1.0."""
_BIAS = 127
"""Of the exponents that blocks are scaled with, E8M0."""


@dataclass(frozen=True)
class Dequantised:
    """Open files, some of whose tensors have low precision and scales beside them."""

    shards: Shards

    @property
    def folder(self) -> Path:
        return self.shards.folder

    @property
    def config(self) -> str:
        return self.shards.config

    @property
    def files(self) -> Mapping[str, Any]:
        """The open file of each tensor, by the name that it has where nothing is quantised."""
        return dict(self.named())

    def named(self) -> Iterator[tuple[str, Any]]:
        raise NotImplementedError

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shards.shape(name)

    def read(self, name: str) -> np.ndarray:
        """One tensor, as `rows`."""
        return self.rows(name, slice(None))

    def indices(self, name: str) -> np.ndarray:
        """A tensor of whole numbers, which is no parameter."""
        return self.shards.indices(name)

    def rows(self, name: str, rows: slice) -> np.ndarray:
        """Rows of one tensor.

        Raises:
            InputError: if it has no scales of its shape, or holds other numbers than these.
        """
        return self.shards.rows(name, rows)

    def fail(self, name: str, what: str) -> InputError:
        return InputError(f"{name} in {self.folder} {what}; download the checkpoint again")


@dataclass(frozen=True)
class Float8(Dequantised):
    """Matrices of float8 with a scale for each block of them, as DeepSeek-V3 has them."""

    block: tuple[int, int] = (128, 128)

    def named(self) -> Iterator[tuple[str, Any]]:
        for name, file in self.shards.files.items():
            if not name.endswith(_SCALE):
                yield name, file

    def rows(self, name: str, rows: slice) -> np.ndarray:
        if f"{name}{_SCALE}" not in self.shards.files:
            return super().rows(name, rows)
        held, scales = self.shards.mapped(name), self.shards.read(f"{name}{_SCALE}")
        if held.dtype != ml_dtypes.float8_e4m3fn or held.ndim != 2:
            raise self.fail(name, f"is {held.dtype} of shape {list(held.shape)} and has scales")
        tall, wide = self.block
        wanted = -(-held.shape[0] // tall), -(-held.shape[1] // wide)
        if scales.shape != wanted:
            raise self.fail(name, f"has scales of shape {list(scales.shape)}, not {list(wanted)}")
        first, end, _ = rows.indices(len(held))
        of_rows = scales.astype(np.float32)[np.arange(first, end) // tall]
        factors = np.repeat(of_rows, wide, axis=1)[:, : held.shape[1]]
        return held[first:end].astype(np.float32) * factors


@dataclass(frozen=True)
class Float4(Dequantised):
    """Matrices of experts in MXFP4, as gpt-oss has them: 32 numbers of an output share a scale."""

    def named(self) -> Iterator[tuple[str, Any]]:
        for name, file in self.shards.files.items():
            if not name.endswith(_SCALES):
                yield name.removesuffix(_BLOCKS), file

    def shape(self, name: str) -> tuple[int, ...]:
        """[experts, inputs, outputs], as the checkpoint that is not quantised has it."""
        if f"{name}{_BLOCKS}" not in self.shards.files:
            return super().shape(name)
        experts, outputs, blocks, packed = self._blocks(name)
        return experts, 2 * blocks * packed, outputs

    def rows(self, name: str, rows: slice) -> np.ndarray:
        if f"{name}{_BLOCKS}" not in self.shards.files:
            return super().rows(name, rows)
        self._blocks(name)
        packed, scales = (
            self.shards.files[f"{name}{end}"].get_slice(f"{name}{end}")[rows]
            for end in (_BLOCKS, _SCALES)
        )
        experts, outputs, blocks, size = packed.shape
        # In bfloat16, which has all of these numbers: half of the room.
        found = np.empty((experts, outputs, blocks * 2 * size), ml_dtypes.bfloat16)
        for expert in range(experts):
            pairs = np.stack([packed[expert] & 15, packed[expert] >> 4], axis=-1)
            wide = _FLOAT4[pairs].reshape(outputs, blocks, 2 * size)
            exponents = scales[expert].astype(np.int32)[..., None] - _BIAS
            found[expert] = np.ldexp(wide, exponents).reshape(outputs, -1)
        return found.swapaxes(1, 2)

    def _blocks(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor's blocks."""
        names = f"{name}{_BLOCKS}", f"{name}{_SCALES}"
        if names[1] not in self.shards.files:
            raise self.fail(names[0], "has no scales beside it")
        shapes = [self.shards.shape(one) for one in names]
        kinds = {self.shards.files[one].get_slice(one).get_dtype() for one in names}
        if kinds != {"U8"} or len(shapes[0]) != 4 or shapes[0][:-1] != shapes[1]:
            raise self.fail(
                names[0],
                f"has shape {list(shapes[0])} and scales of shape {list(shapes[1])} in "
                f"{', '.join(sorted(kinds))}, not [X, O, G, 16] and [X, O, G] in U8",
            )
        return shapes[0]


def reader(fields: Settings) -> Callable[[Shards], Shards | Dequantised]:
    """What makes open files those of weights that are not quantised, by config.json.

    Raises:
        InputError: if the weights are quantised in a way that is not implemented.
    """
    if not fields.get("quantization_config"):
        return lambda shards: shards
    quantised = fields.part("quantization_config")
    kind = quantised.get("quant_method")
    if kind == "mxfp4":
        return Float4
    sizes = quantised.get("weight_block_size")
    if kind == "fp8" and sizes is not None:
        quantised.choice("fmt", ["e4m3"], "e4m3")
        sizes = quantised.listed("weight_block_size", int, [])
        if len(sizes) != 2 or min(sizes) < 1:
            raise InputError(
                f"{quantised.source} has weight_block_size = {sizes!r:.60}; it has to be two "
                "integers of at least 1"
            )
        return partial(Float8, block=(sizes[0], sizes[1]))
    raise InputError(
        f"{fields.source} asks for quantised weights ({kind!r:.40}), which jspec does not "
        "implement; supported: 'mxfp4', and 'fp8' with weight_block_size; or take the checkpoint "
        "that is not quantised"
    )
