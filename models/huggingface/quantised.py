"""Published weights of 8 or 4 bits, dequantised tensor by tensor while they are read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jspec._validate.errors import InputError
from jspec.models.huggingface.config_json import Settings, read
from jspec.models.huggingface.shards import Shards

_SCALES_OF = ("_scale_inv", "_scale")
"""Suffixes of the names that makers give a float8 matrix's scales."""
_OF_INPUTS = (".input_scale", ".input_scale_ub", ".activation_scale")
_TRACES = (*(f".weight{end}" for end in _SCALES_OF), ".weight_packed", ".qweight")
"""Ends of names that only quantised weights have."""
OF_MEMORY = r".*\.self_attn\.([kv]_proj\.)?([qkv]|kv|prob|output)_scale"
"""Scales of keys and values in 8 bits, which are not weights: the memory here has its own."""
HF_QUANT = "hf_quant_config.json"
"""ModelOpt's description of the weights, in its earlier versions the only one."""
_BLOCKS, _SCALES = "_blocks", "_scales"
_FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FLOAT4 = np.concatenate([_FLOAT4, -_FLOAT4])
"""Values of 4 bits, E2M1 of the Open Compute Project's Microscaling Formats 1.0."""
_BIAS = 127
"""Of the exponents that blocks are scaled with, E8M0."""


@dataclass(frozen=True)
class Dequantised:
    """Open files, some of whose tensors have low precision and scales alongside them."""

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
        return dict(self.list_tensors())

    def list_tensors(self) -> Iterator[tuple[str, Any]]:
        raise NotImplementedError

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shards.shape(name)

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor, as `rows`."""
        return self.rows(name, slice(None))

    def indices(self, name: str) -> np.ndarray:
        """Returns a tensor of whole numbers, which is not a parameter."""
        return self.shards.indices(name)

    def rows(self, name: str, rows: slice) -> np.ndarray:
        """Returns rows of one tensor."""
        return self.shards.rows(name, rows)

    def fail(self, name: str, what: str) -> InputError:
        return InputError(f"{name} in {self.folder} {what}; download the checkpoint again")


@dataclass(frozen=True)
class Float8(Dequantised):
    """Matrices of float8 with scales for blocks of them, as DeepSeek-V3 has them, or for rows."""

    block: tuple[int, int] | None = None
    """None: a scale for each row, or one for the matrix, as its shape says."""

    def list_tensors(self) -> Iterator[tuple[str, Any]]:
        scales = tuple(f".weight{end}" for end in _SCALES_OF) + _OF_INPUTS
        for name, file in self.shards.files.items():
            if not name.endswith(scales):
                yield name, file

    def rows(self, name: str, rows: slice) -> np.ndarray:
        scale_names = [f"{name}{end}" for end in _SCALES_OF if f"{name}{end}" in self.shards.files]
        if not scale_names:
            return super().rows(name, rows)
        values, scales = (
            self.shards.memory_map(name),
            np.asarray(self.shards.memory_map(scale_names[0])),
        )
        if values.dtype != ml_dtypes.float8_e4m3fn or values.ndim != 2:
            raise self.fail(name, f"is {values.dtype} of shape {list(values.shape)} and has scales")
        tall, wide = self.block or (1 if scales.size > 1 else len(values), values.shape[1])
        grid = -(-values.shape[0] // tall), -(-values.shape[1] // wide)
        if self.block is None and scales.size == grid[0]:
            scales = scales.reshape(grid)
        if scales.shape != grid:
            raise self.fail(name, f"has scales of shape {list(scales.shape)}, not {list(grid)}")
        first, end, _ = rows.indices(len(values))
        of_rows = scales.astype(np.float32)[np.arange(first, end) // tall]
        factors = np.repeat(of_rows, wide, axis=1)[:, : values.shape[1]]
        return values[first:end].astype(np.float32) * factors


@dataclass(frozen=True)
class Float4(Dequantised):
    """Matrices of experts in MXFP4, as gpt-oss has them: 32 numbers of an output share a scale."""

    def list_tensors(self) -> Iterator[tuple[str, Any]]:
        for name, file in self.shards.files.items():
            if not name.endswith(_SCALES):
                yield name.removesuffix(_BLOCKS), file

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns [experts, inputs, outputs], as in the unquantised checkpoint."""
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
        weights = np.empty((experts, outputs, blocks * 2 * size), ml_dtypes.bfloat16)
        for expert in range(experts):
            pairs = np.stack([packed[expert] & 15, packed[expert] >> 4], axis=-1)
            wide = _FLOAT4[pairs].reshape(outputs, blocks, 2 * size)
            exponents = scales[expert].astype(np.int32)[..., None] - _BIAS
            weights[expert] = np.ldexp(wide, exponents).reshape(outputs, -1)
        return weights.swapaxes(1, 2)

    def _blocks(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor's blocks."""
        names = f"{name}{_BLOCKS}", f"{name}{_SCALES}"
        if names[1] not in self.shards.files:
            raise self.fail(names[0], "has no scales")
        shapes = [self.shards.shape(part) for part in names]
        kinds = {self.shards.files[part].get_slice(part).get_dtype() for part in names}
        if kinds != {"U8"} or len(shapes[0]) != 4 or shapes[0][:-1] != shapes[1]:
            raise self.fail(
                names[0],
                f"has shape {list(shapes[0])} and scales of shape {list(shapes[1])} in "
                f"{', '.join(sorted(kinds))}, not [X, O, G, 16] and [X, O, G] in U8",
            )
        return shapes[0]


def with_quantisation(folder: Path, fields: Settings) -> Settings:
    """Returns config.json's fields, completed by `HF_QUANT`."""
    if fields.get("quantization_config") or not (folder / HF_QUANT).is_file():
        return fields
    quantisation = {
        "quant_method": "modelopt",
        **read(folder / HF_QUANT).part("quantization").values,
    }
    return replace(fields, values={**fields.values, "quantization_config": quantisation})


def reader(fields: Settings) -> Callable[[Shards], Shards | Dequantised]:
    """Returns a function that opens files as unquantised weights, by config.json."""
    if not fields.get("quantization_config"):
        return _plain
    quantised = fields.part("quantization_config")
    kind = quantised.get("quant_method")
    if kind == "mxfp4":
        return Float4
    if kind == "fp8":
        quantised.choice("fmt", ["e4m3"], "e4m3")
    if kind == "fp8" and quantised.get("weight_block_size") is not None:
        return partial(Float8, block=_block(quantised, "weight_block_size"))
    if kind == "compressed-tensors" and (blocks := _in_float8(quantised)) and len(blocks) == 1:
        return partial(Float8, block=blocks.pop())
    how = quantised.get("quant_algo", quantised.get("format"))
    in_float8 = {"fp8": True, "fbgemm_fp8": True, "modelopt": how == "FP8"}
    if in_float8.get(kind, False):
        return Float8
    formats = ", ".join(f"{name!r:.40}" for name in (kind, how) if name is not None)
    raise InputError(
        f"{fields.source} asks for quantised weights ({formats}), which jspec does not implement; "
        "supported: 'mxfp4', 'fp8', and 'fbgemm_fp8', 'modelopt' and 'compressed-tensors' in "
        "float8 with a scale for each matrix, row or block; or take the checkpoint that is not "
        "quantised"
    )


def _block(fields: Settings, name: str) -> tuple[int, int]:
    """Returns the rows and columns that share a scale."""
    sizes = fields.list_of(name, int, [])
    if len(sizes) != 2 or min(sizes) < 1:
        raise InputError(
            f"{fields.source} has {name} = {sizes!r:.60}; it has to be two integers of at least 1"
        )
    return sizes[0], sizes[1]


def _in_float8(quantised: Settings) -> set[tuple[int, int] | None]:
    """Returns what shares a scale, by compressed-tensors' groups; nothing if any is not float8."""
    groups, shapes = quantised.part("config_groups"), set()
    if quantised.get("format") not in ("float-quantized", "naive-quantized"):
        return set()
    for name in groups.values:
        weights = groups.part(name).part("weights")
        if (weights.get("num_bits"), weights.get("type")) != (8, "float"):
            return set()
        if weights.get("strategy") == "block":
            shapes.add(_block(weights, "block_structure"))
        elif weights.get("strategy") in ("tensor", "channel"):
            shapes.add(None)
        else:
            return set()
    return shapes


def _plain(shards: Shards) -> Shards:
    """Returns the files themselves, unless they are quantised and nothing says so."""
    scales = sorted(name for name in shards.files if name.endswith(_TRACES))
    if scales:
        raise InputError(
            f"{shards.folder} holds quantised weights ({scales[0]}), and its config.json has no "
            "quantization_config that says how; download the checkpoint again, or take the one "
            "that is not quantised"
        )
    return shards
