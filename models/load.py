"""Loads a model, its weights and its tokenizer from a folder, GGUF file or the hub."""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, groupby
from math import inf, prod
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, Sharding
from jax.typing import DTypeLike

from jspec._validate.errors import InputError
from jspec._xla import backend, native
from jspec.models import (
    blocks,
    columns,
    eight_bits,
    gguf,
    hub,
    lora,
    precision,
    sharding,
    stacking,
)
from jspec.models.chat_template import ChatTemplate
from jspec.models.huggingface import families, quantised, weights
from jspec.models.huggingface.config_json import Settings
from jspec.models.huggingface.families import HEAD
from jspec.models.huggingface.folder import Folder
from jspec.models.scanning import LayeredDecoder
from jspec.protocols import CausalLM
from jspec.types import PyTree

_NO_SETTINGS = Settings({}, "generation_config.json")

_READERS = 4
"""Maximum number of threads that read weights; each holds one tensor."""
_WEIGHTS = 0.8
"""The most of a GPU's memory that weights take, alongside keys and values."""


class Tensors(Protocol):
    """Open files of weights."""

    @property
    def folder(self) -> Path: ...

    @property
    def files(self) -> Mapping[str, Any]: ...

    @property
    def config(self) -> str: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> np.ndarray: ...

    def rows(self, name: str, rows: slice) -> np.ndarray: ...


@dataclass(frozen=True)
class Loaded:
    """A model as it was loaded: the network, its weights, its tokenizer and its special tokens.

    Of a model of your own it needs the first two: `Loaded(model, params)`.

    It unpacks as `model, params, tokenizer`. A `decode` call wants its `eos` as well
    (`jspec.Stopping`): without it the text runs on past its end.

    Example:
        >>> import jspec
        >>> target = jspec.models.load("jspec-7m")
        >>> model, params, tokenizer = target
        >>> model.vocab_size, target.eos, tokenizer.encode("The king").ids
        (4096, (0,), [0, 307, 3538])
        >>> # jspec.decode(model, params, [ids], stopping=jspec.Stopping(eos=target.eos))
    """

    model: CausalLM
    params: PyTree
    tokenizer: Any = None
    """A `tokenizers.Tokenizer`: `encode(text).ids`, `decode(ids)`. None if not asked for."""
    eos: tuple[int, ...] = ()
    """End tokens of generation_config.json, else config.json, or GGUF metadata; may be empty."""
    bos: int | None = None
    """The token that a text begins with, if the checkpoint names one."""
    chat: ChatTemplate | None = None
    """Turns a conversation into a prompt, `chat.encode(messages)`; None if there is no template."""
    generation: Settings = _NO_SETTINGS
    """The sampling that its authors ask for, which commands and the server follow."""
    mask_token_id: int | None = None
    """The token that stands for unknown ones in a parallel draft model, `pard_token` of
    config.json; None if it names none. See `jspec.PARD`."""
    source: Path | None = None
    """The folder that it came from, whose weights may hold a draft head too; None: no folder."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.params, self.tokenizer))


def load(
    name: str | Path,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike | None = None,
    with_tokenizer: bool = True,
    mesh: Mesh | None = None,
    scan_layers: bool = False,
    rules: sharding.Rules = sharding.TARGET,
    strict: bool = False,
    kv_dtype: DTypeLike | None = None,
    adapters: Mapping[str, str | Path] | None = None,
) -> Loaded:
    """Loads a model, of one of the families that docs/models.md lists, with its tokenizer.

    Weights are read, cast and put on the device a few at a time, so that host memory holds the
    model once and some tensors more. With a mesh they are read straight into the devices' parts,
    one after the other: alongside these, there is never more than one part and one tensor.

    Args:
        name: a folder in Hugging Face layout, a GGUF file, a bundled model such as "jspec-7m", a
            model that a package carries such as "smollm2-135m", or a hub id such as "org/model".
            "@" and a revision behind an id pin what the hub gives: "org/model@v1.0".
        dtype: dtype of activations and cache; float32 on CPU, else bfloat16. "int8" and
            "float8_e4m3fn" are dtypes of weights and "w8a8", "q8_0", "q4_0", "q4_1", "q4_k" and
            "q6_k" formats of them, and "q8_0a8" and its like, see there; all else is as by default.
        param_dtype: dtype or format that the weights are held in; `dtype` if not given. In 8 bits
            (`jspec.models.eight_bits`) it is a model of its own, whose tokens are exact in
            themselves. In blocks (`jspec.models.blocks`) a GGUF file's weights of that format stay
            as they are, and others are rounded to it; in "q4_k" or "q6_k" each stays in the blocks
            that it is in, and what is in none is dequantised. "auto": as the file has them, in
            bfloat16 or each in its blocks, where a CPU's kernels multiply with them as with
            float32: to the last bit. On a GPU, which multiplies faster with bfloat16, blocks stay
            where that does not fit, and a warning says which it is.
        with_tokenizer: False where the folder has no tokenizer or none is needed.
        mesh: devices to spread the weights over as `sharding.TABLES` says; by default one device.
        scan_layers: True to run layers that are alike as the steps of one scan: a deep model
            compiles as quickly as a shallow one. See `jspec.models.scanning`. On a GPU it warns: a
            step copies its layer's weights there.
        rules: what is split over which axis of the mesh, such as `sharding.DRAFT`.
        strict: True refuses a mesh that does not divide what the rules split; else it stays whole.
        kv_dtype: "int8" or "float8_e4m3fn" keeps keys and values in 8 bits, each vector of a head
            with a scale of its own; by default they are kept in `dtype`. That too is a model of its
            own.
        adapters: LoRA adapters by name, each a folder that PEFT saved or a hub id. The model is
            then a `jspec.models.lora.LoRAModel`, whose `choose` gives each row its own, or none.

    Returns:
        The model, its params, tokenizer and special tokens.

    Raises:
        InputError: if the folder is not whole or not supported, weights are not finite, or the mesh
            is refused.

    Example:
        >>> import jspec
        >>> model, params, tokenizer = jspec.models.load("jspec-800k", dtype="float32")
        >>> model.vocab_size, model.context
        (4096, 1024)
    """
    if adapters and mesh is not None:
        raise InputError(
            "adapters on a mesh are not implemented; leave out mesh, or merge the adapter into the "
            "base's weights"
        )
    cache_dtype, as_in_file = precision.find_kv(kv_dtype), False
    checkpoint = open_checkpoint(name)
    family = families.find(checkpoint.fields)
    config = checkpoint.config(family)
    table = tuple(family.weights(config))
    if param_dtype == precision.AUTO:
        plain = mesh is None and not adapters and not any(weight.transposed for weight in table)
        exact = plain and dtype in (None, "float32", np.float32) and precision.widens_natively()
        param_dtype = checkpoint.weight_format(scan_layers) if exact else None
        if plain and dtype is None and backend.platform() == "gpu":
            param_dtype = _on_gpu(checkpoint.weight_format(scan_layers), table, name)
        as_in_file = True
    compute, weight_dtype = precision.pair(dtype, param_dtype)
    if (
        blocks.FORMATS.get(eight_bits.dtype_name(weight_dtype)) in blocks.FROM_FILES
        and not as_in_file
    ):
        alike = mesh is None and not (scan_layers and checkpoint.weight_format(True) is None)
        _check_blocks(weight_dtype, checkpoint.weight_format(), name, alike)
        as_in_file = True
    model = family.build(
        config,
        dtype=compute,
        param_dtype=weight_dtype,
        scan_layers=scan_layers,
        kv_dtype=cache_dtype,
    )
    model = sharding.laid_out(model, mesh, rules)
    if mesh is not None and strict:
        sharding.check(model, mesh, rules)
    if scan_layers and backend.platform() == "gpu":
        warnings.warn(
            "scan_layers copies the weights of each layer in every round on a GPU, and reads them "
            "again; leave it out: unrolled layers compile in seconds there",
            stacklevel=2,
        )
    # Before the weights: it is quick, and as likely to be missing.
    words = checkpoint.tokenizer() if with_tokenizer else None
    eos, bos = checkpoint.special_tokens(model.vocab_size, words)
    files = checkpoint.tensors(table)
    params = read_weights(files, family, table, model, mesh, rules, as_in_file)
    params = native.hold_in_large_pages(params)
    if adapters:
        model, params = lora.adapt(model, params, family, table, adapters)
    return Loaded(
        model=model,
        params=params,
        tokenizer=words,
        eos=eos,
        bos=bos,
        chat=checkpoint.chat(words) if with_tokenizer else None,
        generation=checkpoint.generation,
        mask_token_id=checkpoint.mask_token_id(),
        source=checkpoint.path if isinstance(checkpoint, Folder) else None,
    )


def open_checkpoint(name: str | Path, files: Sequence[str] = hub.WANTED) -> Folder | gguf.File:
    """Opens a checkpoint, whose parts are read when they are asked for: `tokenizer()`, and what its
    `special_tokens(..)` are.

    Args:
        name: as in `load`.
        files: patterns of what is downloaded of a hub id.

    Raises:
        InputError: as `load`, if there is none.
    """
    path = hub.find(name, files)
    return gguf.open_file(path) if path.is_file() else Folder(path)


def read_weights(
    files: Tensors,
    family: families.Family,
    table: Sequence[weights.Weight],
    model: LayeredDecoder,
    mesh: Mesh | None = None,
    rules: sharding.Rules = sharding.TARGET,
    as_in_file: bool = False,
) -> PyTree:
    """Returns params from open files, whose names and shapes have to be the table's."""
    names = _names(files, family, model)
    shapes = {
        name: shape
        for weight in table
        for name, shape in zip(weight.names, weight.shapes, strict=True)
    }
    if HEAD in names and HEAD not in shapes:
        _untie(files, names, table)
    if missing := [name for name in shapes if name not in names]:
        raise InputError(
            f"{files.folder} lacks {weights.list_names(missing, 'weight')} that {files.config} "
            "asks for; correct it or download the checkpoint again"
        )
    if extra := [name for name in names if name not in shapes]:
        raise InputError(
            f"{files.folder} holds {weights.list_names(extra, 'weight')} that "
            f"{family.architecture} has no place for; correct {files.config} or take a "
            "checkpoint of that architecture"
        )
    for name, shape in shapes.items():
        if (file_shape := files.shape(names[name])) != shape:
            raise InputError(
                f"{name} in {files.folder} has shape {list(file_shape)}, but {files.config} asks "
                f"for {list(shape)}; correct one of them"
            )

    def read(name: str) -> np.ndarray:
        return files.read(names[name])

    high = eight_bits.high_precision(model.param_dtype, model.dtype)
    model_kind = blocks.FORMATS.get(eight_bits.dtype_name(model.param_dtype))
    # Kernels read them as they are, to the bits of the same numbers in float32.
    keeps_tables = (
        mesh is None
        and eight_bits.by_output(model.param_dtype)
        and model.dtype == np.float32
        and precision.widens_natively()
    )

    def place(path: stacking.Path, shape: tuple[int, ...]) -> Sharding | None:
        return None if mesh is None else sharding.parameter(path, shape, mesh, rules)

    def join(
        weight: weights.Weight,
        dtype: DTypeLike,
        read: Callable[[str], np.ndarray] = read,
    ) -> np.ndarray:
        tree = {weight.path[-1]: weight.join(read, dtype)}
        for key in reversed(weight.path[:-1]):
            tree = {key: tree}
        return finite(
            jax.tree.leaves(columns.relaid(tree, model.fused, 1, model.tp_size))[0], weight
        )

    def finite(array: np.ndarray, weight: weights.Weight) -> np.ndarray:
        if weights.finite(array):
            return array
        unusable = (name for name in weight.names if not weights.finite(read(name)))
        if (name := next(unusable, None)) is not None:
            raise InputError(
                f"{name} in {files.folder} holds numbers that are not finite; download the "
                "checkpoint again, or load another"
            )
        raise InputError(
            f"{weight.names[0]} in {files.folder} holds numbers too large for {array.dtype.name}; "
            "load it in bfloat16 or float32"
        )

    def in_blocks(weight: weights.Weight, kind: str) -> np.ndarray:
        if weight.transposed:
            return blocks.pack(join(weight, np.float32), kind)

        def read_packed(name: str) -> np.ndarray:
            file_name = names[name]
            packed = (
                files.read_blocks(file_name, kind) if isinstance(files, gguf.GGUFTensors) else None
            )
            if packed is None:
                return blocks.pack(finite(files.read(file_name), weight), kind)
            finite(blocks.scales(packed, kind), weight)
            return packed

        packed_shapes = tuple(blocks.packed_shape(shape, kind) for shape in weight.shapes)
        return join(replace(weight, shapes=packed_shapes), np.uint8, read_packed)

    def in_files(weight: weights.Weight) -> list[tuple[str | None, weights.Weight]]:
        """Returns a weight as parts, each of outputs in one format; empty: it is in no blocks."""
        table = weight.path in eight_bits.TABLES
        keeps_blocks = (
            as_in_file
            and model_kind is not None
            and (table or eight_bits.is_quantised(weight.path))
        )
        if not isinstance(files, gguf.GGUFTensors) or not (
            keeps_blocks or (table and keeps_tables)
        ):
            return []
        kinds = [files.kind(names[name], None if table else model_kind) for name in weight.names]
        if weight.transposed or (weight.groups is not None and len(set(kinds)) > 1):
            return [(None, weight)]
        runs = [list(run) for _, run in groupby(range(len(kinds)), kinds.__getitem__)]
        parts = [(kinds[run[0]], slice(run[0], run[-1] + 1)) for run in runs]
        return [
            (kind, replace(weight, names=weight.names[part], shapes=weight.shapes[part]))
            for kind, part in parts
        ]

    def put(weight: weights.Weight) -> jax.Array:
        split = place(weight.path, weight.shape)
        kind = high if weight.dtype is None else weight.dtype
        if split is None:
            return jax.device_put(join(weight, kind))

        # What is split across rows of the file needs all of them for each device: the last stay.
        @lru_cache(maxsize=1)
        def rows(name: str, first: int, end: int) -> np.ndarray:
            return files.rows(names[name], slice(first, end))

        def part(index: tuple[slice, ...]) -> np.ndarray:
            values = weight.part(index, lambda name, span: rows(name, span.start, span.stop), kind)
            return finite(values, weight)

        fused = columns.find_fused(weight.path, model.fused)
        if fused is None:
            return sharding.assemble(weight.shape, split, part)
        laid_out = columns.part(*(part, weight.path, weight.shape, fused, model.tp_size, kind))
        return sharding.assemble(weight.shape, split, laid_out)

    def leaves(weight: weights.Weight) -> list[tuple[stacking.Path, jax.Array | np.ndarray]]:
        *path, name = weight.path
        if parts := in_files(weight):
            arrays = {
                f"{name}_{n}" if n else name: in_blocks(part, kind) if kind else join(part, high)
                for n, (kind, part) in enumerate(parts)
            }
        elif keeps_tables and weight.path in eight_bits.TABLES:
            # Numbers that fit into bfloat16 stay in it, as they are in a file of such.
            first = files.rows(names[weight.names[0]], slice(0, 1))
            narrow = first.dtype == jax.numpy.bfloat16
            arrays = {name: join(weight, first.dtype if narrow else high)}
        elif kind := eight_bits.in_blocks(weight.path, weight.shape, model.param_dtype):
            arrays = {name: in_blocks(weight, kind)}
        elif eight_bits.by_output(model.param_dtype) and eight_bits.is_quantised(weight.path):
            # A factor is of all inputs, so that the whole is read first.
            low, factors = eight_bits.quantise(join(weight, np.float32), model.param_dtype)
            arrays = {name: low, f"{name}{eight_bits.SUFFIX}": factors}
        else:
            return [(weight.path, put(weight))]
        paths = {(*path, name): array for name, array in arrays.items()}
        return [
            (leaf_path, jax.device_put(x, place(leaf_path, x.shape)))
            for leaf_path, x in paths.items()
        ]

    # Casts and transposes let other threads run; with a mesh, room counts more.
    count = min(_READERS, os.cpu_count() or 1) if mesh is None else 1
    with ThreadPoolExecutor(count, "jspec-weights") as readers:
        flat = chain.from_iterable(readers.map(leaves, table))
        return weights.tree(stacking.collect(flat, model.groups, place))


def _on_gpu(kind: str | None, table: Sequence[weights.Weight], name: str | Path) -> str | None:
    """Returns the blocks in which a GPU holds a file's weights, if bfloat16 is too large for it."""
    if kind not in blocks.SIZES:
        return None
    size = 2 * sum(prod(shape) for weight in table for shape in weight.shapes)
    room = _room()
    large = size > _WEIGHTS * room
    reason = (
        f"stays so: in bfloat16 its weights take {size / 1e9:.3g} of {room / 1e9:.3g} GB"
        if large
        else f"is held in bfloat16, with which a GPU multiplies faster; dtype {kind} keeps it"
    )
    warnings.warn(f"{name} is in {kind} and {reason}", stacklevel=3)
    return kind if large else None


def _room() -> float:
    """Returns the bytes that JAX has of its device's memory."""
    return (jax.devices()[0].memory_stats() or {}).get("bytes_limit", inf)


def _check_blocks(param_dtype: str, file_kind: str | None, name: str | Path, alike: bool) -> None:
    """Raises InputError if blocks that come from files alone are not there, or of unlike layers."""
    kind = blocks.FORMATS[param_dtype]
    if file_kind != kind:
        raise InputError(
            f"nothing is rounded to {kind}, and the matrices of {name} are in "
            f"{file_kind or 'no blocks'}; load a GGUF file that holds them, or use "
            f"{file_kind or 'q8_0'}"
        )
    if not alike:
        raise InputError(
            f"{param_dtype} keeps each matrix in the format that {name} has it in, and scan_layers "
            "and a mesh need layers that are alike on one device; leave them out, or use q8_0"
        )


def _names(files: Tensors, family: families.Family, model: LayeredDecoder) -> dict[str, str]:
    """Returns each weight's name in a whole model, and its name in these files."""
    buffers = re.compile(f"{family.buffers}|{quantised.OF_MEMORY}")
    names = [name for name in files.files if not buffers.fullmatch(name)]
    if family.extra_layers:
        numbers = {name: re.match(r"(?:model\.)?layers\.(\d+)\.", name) for name in names}
        names = [
            name
            for name in names
            if not (match := numbers[name]) or int(match[1]) < model.num_layers
        ]
    by_name = family.names(names)
    unread = "(?!)" if family.unread is None else family.unread(model.config)
    return {ours: theirs for ours, theirs in by_name.items() if not re.fullmatch(unread, ours)}


def _untie(files: Tensors, names: dict[str, str], table: Sequence[weights.Weight]) -> None:
    """Leaves one of embeddings and head where they are tied; a file may hold either, or both."""
    embed = next(weight for weight in table if weight.path == ("embed",)).names[0]
    head = names.pop(HEAD)
    here = names.setdefault(embed, head)
    if files.shape(head) != files.shape(here) or not (here == head or _equal(files, head, here)):
        raise InputError(
            f"{files.folder} ties the head to the embeddings but holds a {HEAD} that differs from "
            f"{embed}; set tie_word_embeddings to false in config.json"
        )


def _equal(files: Tensors, first: str, other: str) -> bool:
    """Returns whether two tensors hold the same, of which some rows are read at a time."""
    size = files.shape(first)[0]
    parts = (slice(start, min(start + 4096, size)) for start in range(0, size, 4096))
    return all(np.array_equal(files.rows(first, part), files.rows(other, part)) for part in parts)
