"""A GGUF file as the checkpoint that it was made from: config, weights, tokenizer, template."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from jspec._validate import extras
from jspec._validate.errors import InputError
from jspec.models import blocks, chat_template
from jspec.models.chat_template import ChatTemplate
from jspec.models.gguf import architectures, header, vocabulary
from jspec.models.gguf.header import Header, TensorInfo
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.families import Family
from jspec.models.huggingface.weights import Weight
from jspec.models.rope import RopeFactors


def library() -> Any:
    """Returns the `gguf` package."""
    extras.require("a GGUF file", "gguf", "gguf")
    import gguf

    return gguf


@dataclass(frozen=True)
class GGUFTensors:
    """Tensors by Hugging Face's names; each is dequantised when it is asked for, and not kept."""

    folder: Path
    """The file."""
    files: Mapping[str, TensorInfo]
    restore: Callable[[str, np.ndarray], np.ndarray]
    unit: Callable[[str, int], int] = lambda _, __: 1
    """The number of rows that are laid out by themselves, from a name and the number of all."""
    config: str = "its metadata"

    @cached_property
    def content(self) -> np.ndarray:
        return np.memmap(self.folder, np.uint8, "r")

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.files[name].shape
        if not 0 < prod(shape) <= _PER_BYTE * len(self.content):
            raise InputError(
                f"{name} in {self.folder} has {prod(shape):.3g} numbers, and the file has "
                f"{len(self.content)} bytes; download it again"
            )
        # Nothing is read: zero strides give every entry of the array the same byte.
        flat = np.broadcast_to(np.uint8(0), shape)
        return self.restore(name, flat).shape

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor in float32."""
        return self.rows(name, slice(None))

    def read_blocks(self, name: str, kind: str) -> np.ndarray | None:
        """Returns the bytes of one matrix by rows; None if it is not stored in this format, or in
        Q4_0 or Q5_0 where it is Q8_0, which holds the same weights.
        """
        entry, package = self.files[name], library()
        kinds = {member.value: member for member in package.GGMLQuantizationType}
        file_kind = kinds.get(entry.kind)
        called = file_kind.name.lower() if file_kind else None
        zero = _IN_EIGHT_BITS.get(called or "") if kind == "q8_0" else None
        if called != kind and zero is None:
            return None
        stored = self._bytes(name, entry, *package.GGML_QUANT_SIZES[file_kind])
        if zero is not None:
            stored = _widen(stored, package.GGML_QUANT_SIZES[file_kind][1], zero)
        return self.restore(name, stored.reshape(*entry.shape[:-1], -1))

    def kind(self, name: str, default: str | None) -> str | None:
        """Returns the format of blocks that holds a matrix as the file has it; None: none does."""
        kinds = {member.value: member.name.lower() for member in library().GGMLQuantizationType}
        entry = self.files[name]
        kind = kinds.get(entry.kind)
        if kind in _IN_EIGHT_BITS and kind != default:
            kind = "q8_0"
        return kind if kind in blocks.SIZES and blocks.fit(entry.shape, kind) else None

    def rows(self, name: str, rows: slice) -> np.ndarray:
        """Returns rows of one tensor in float32; the others are not dequantised."""
        entry, package = self.files[name], library()
        try:
            kind = package.GGMLQuantizationType(entry.kind)
            block, block_bytes = package.GGML_QUANT_SIZES[kind]
            stored = self._bytes(name, entry, block, block_bytes)
            size = self.shape(name)[0]
            span = range(*rows.indices(size))
            unit = self.unit(name, size) if len(entry.shape) > 1 else size
            first, end = span.start // unit * unit, -(-span.stop // unit) * unit
            lines = stored[first:end] if unit < size else stored
            values = package.quants.dequantize(_join(lines), kind)
        except (ValueError, KeyError, NotImplementedError) as error:
            if isinstance(error, InputError):
                raise
            called = {kind.value: kind.name for kind in package.GGMLQuantizationType}
            raise InputError(
                f"{name} in {self.folder} is quantised as {called.get(entry.kind, entry.kind)}, "
                f"which gguf cannot dequantise ({error}); take the file in Q4_K_M or Q8_0, say"
            ) from error
        weights = self.restore(name, values.reshape(-1, *entry.shape[1:]))
        return weights[span.start - first : span.stop - first]

    def _bytes(self, name: str, entry: TensorInfo, block: int, block_bytes: int) -> np.ndarray:
        row = entry.shape[-1] // block * block_bytes
        if entry.shape[-1] % block:
            raise ValueError(f"rows of {entry.shape[-1]} values do not fill blocks of {block}")
        end = entry.start + prod(entry.shape[:-1]) * row
        if end > len(self.content):
            raise InputError(
                f"{self.folder} ends at byte {len(self.content)} and {name} reaches to {end}; "
                "download it again"
            )
        return np.asarray(self.content[entry.start : end]).reshape(-1, row)


@dataclass(frozen=True)
class File:
    """An open GGUF file; see `jspec.models.huggingface.folder.Folder`, which it stands in for."""

    header: Header

    @cached_property
    def fields(self) -> Settings:
        """The fields that config.json would have."""
        name, layout = architectures.find(self.header)
        values = layout.fields(self.header, name)
        stretch = values.get("rope_scaling") or {}
        if stretch.get("rope_type") == "longrope":
            tensors = architectures.LONG_FACTORS.items()
            stretch |= {here: self._numbers(tensor) for here, tensor in tensors}
        return Settings(values, str(self.header.file))

    @property
    def generation(self) -> Settings:
        """The sampling that it asks for, by the names of generation_config.json."""
        data = self.header.metadata
        values = {name: data.get(f"general.sampling.{field}") for name, field in _SAMPLING.items()}
        return Settings(values, str(self.header.file))

    def config(self, family: Family) -> Any:
        """Returns our config of the model."""
        config = family.parse(self.fields)
        if architectures.ROPE_FACTORS not in self.header.tensors:
            return config
        scaling = RopeFactors(tuple(self._numbers(architectures.ROPE_FACTORS)))
        config = replace(config, rope_scaling=scaling)
        if not getattr(config, "layers", ()):
            return config
        turned = (layer.rope and replace(layer.rope, scaling=scaling) for layer in config.layers)
        pairs = zip(config.layers, turned, strict=True)
        return replace(config, layers=tuple(replace(layer, rope=rope) for layer, rope in pairs))

    def _numbers(self, name: str) -> list[float]:
        """Returns a tensor that is not a weight."""
        entries = {name: self.header.tensors[name]}
        return (
            GGUFTensors(self.header.file, entries, lambda _, array: array)
            .read(name)
            .ravel()
            .tolist()
        )

    def tensors(self, table: Sequence[Weight]) -> GGUFTensors:
        """Returns the weights by the table's names; others keep their names."""
        name, layout = architectures.find(self.header)
        package = library()
        names = package.get_tensor_name_map(
            package.MODEL_ARCH[name.upper()], self.header.metadata.count(f"{name}.block_count")
        )
        entries = dict(self.header.tensors)
        for other in (architectures.ROPE_FACTORS, *architectures.LONG_FACTORS.values()):
            entries.pop(other, None)
        stacks = set()
        for target in (key for weight in table for key in weight.names):
            expert = re.search(r"\.experts\.(\d+)\.", target)
            base = target[: expert.start(1)] + target[expert.end() :] if expert else target
            here = names.get_name(base, try_suffixes=(".weight", ".bias"))
            if here in entries and expert is not None:
                stacks.add(here)
                entries[target] = _one(entries[here], int(expert[1]))
            elif here in entries:
                entries[target] = entries.pop(here)
        for stack in stacks:
            del entries[stack]
        fields = dict(self.fields.values)
        return GGUFTensors(
            self.header.file,
            entries,
            lambda name, array: layout.restore(name, array, fields),
            lambda name, rows: layout.unit(name, rows, fields),
        )

    def weight_format(self, alike: bool = False) -> str | None:
        """Returns the format that a model of these weights is named by; None: it has no blocks."""
        kinds = {member.value: member.name.lower() for member in library().GGMLQuantizationType}
        matrices = {name: t for name, t in self.header.tensors.items() if len(t.shape) > 1}
        tables = {kinds.get(matrices.pop(name).kind) for name in _TABLES & matrices.keys()}
        kinds = kinds | {number: "q8_0" for number, kind in kinds.items() if kind == "q5_0"}
        counts = Counter(
            kinds.get(tensor.kind)
            for tensor in matrices.values()
            if tensor.shape[-1] % blocks.LENGTH == 0
        )
        if counts.keys() == {"bf16"} and tables <= {"bf16"}:
            return "bfloat16"
        block_counts = Counter({kind: counts[kind] for kind in blocks.SIZES if kind in counts})
        if not block_counts or (alike and len(counts) > 1):
            return None
        first = [kind for kind in ("q4_k", "q4_0", "q6_k") if kind in block_counts]
        return first[0] if first else block_counts.most_common(1)[0][0]

    def tokenizer(self) -> Any:
        """Returns the tokenizer; see `vocabulary.tokenizer`."""
        return vocabulary.tokenizer(self.header)

    def chat(self, tokenizer: Any) -> ChatTemplate | None:
        """Returns the chat template; None if the file has none."""
        data, field = self.header.metadata, "tokenizer.chat_template"
        fields = {name: data.text(name) for name in data.values if name.startswith(f"{field}.")}
        texts = {name.removeprefix(f"{field}."): text or "" for name, text in fields.items()}
        default = chat_template.by_name(data.text(field))
        words = vocabulary.special_tokens(self.header)
        source = f"the chat template in {self.header.file}"
        return chat_template.pick_default(texts | default, tokenizer, words, source)

    def special_tokens(self, size: int, _: Any = None) -> tuple[tuple[int, ...], int | None]:
        """Returns end tokens (of a text, a turn, a message) and first token; see `Folder`."""
        data = self.header.metadata
        *ends, first = (data.token(f"tokenizer.ggml.{name}_token_id") for name in (*_ENDS, "bos"))
        eos = tuple(dict.fromkeys(end for end in ends if end is not None and end < size))
        return eos, None if first is None or first >= size else first

    def mask_token_id(self) -> int | None:
        """Returns the mask token of a parallel draft model: llama.cpp has none."""
        return None


def _widen(lines: np.ndarray, size: int, zero: int) -> np.ndarray:
    """Returns rows in blocks of Q4_0 or Q5_0, of so many bytes, as the same weights in Q8_0."""
    blocks = lines.reshape(len(lines), -1, size)
    steps = np.concatenate([blocks[..., -16:] & 15, blocks[..., -16:] >> 4], -1)
    if fifth := size - 18:
        steps |= np.unpackbits(blocks[..., 2 : 2 + fifth], axis=-1, bitorder="little") << 4
    return np.concatenate([blocks[..., :2], steps - np.uint8(zero)], -1).reshape(len(lines), -1)


def _join(lines: np.ndarray) -> np.ndarray:
    """Returns the same blocks in fewer and longer rows: `gguf` dequantises sixteen rows at a
    time, and for short ones that takes longer than their numbers do.
    """
    count, size = lines.shape
    together = max(_ROW_BYTES // size, 1)
    while count % together:
        together -= 1
    return lines.reshape(count // together, size * together)


def _one(stack: TensorInfo, index: int) -> TensorInfo:
    """Returns one expert's matrix; a file has those of all experts of a layer as one tensor."""
    package = library()
    sizes = {kind.value: size for kind, size in package.GGML_QUANT_SIZES.items()}
    block, block_bytes = sizes.get(stack.kind, (1, 0))
    start = stack.start + index * prod(stack.shape[1:]) // block * block_bytes
    return replace(stack, shape=stack.shape[1:], start=start)


_PER_BYTE = 8
"""Numbers that a byte holds, at most."""
_IN_EIGHT_BITS = {"q4_0": 8, "q5_0": 16}
"""Tensor types that Q8_0 holds exactly, and what a weight of 0 is in them."""
_TABLES = {"token_embd.weight", "output.weight"}
_ENDS = ("eos", "eot", "eom")
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Fields below general.sampling, by their names in generation_config.json."""
_ROW_BYTES = 4096


def open_file(file: Path) -> File:
    """Opens a file; weights are read when they are asked for."""
    library()
    return File(header.read(file))
