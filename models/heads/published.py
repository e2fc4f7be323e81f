"""Draft heads as their authors publish them: EAGLE, Medusa, blocks and MTP, without torch.

Their files do not say for which weights they were trained. What can be told is told: the kind by
the tensors' names, the target by shapes, vocabulary and, where a head holds a copy of the target's
embeddings, by that copy. A wrong target of the same shape still loads; its acceptance stays near 1.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jspec._validate.errors import InputError
from jspec.models import blocks, eight_bits, hub, precision
from jspec.models.heads import block_layouts, candidates, eagle_layouts
from jspec.models.heads.eagle import EAGLEConfig
from jspec.models.heads.medusa import MedusaConfig
from jspec.models.heads.mtp import MTPConfig
from jspec.models.heads.registry import HEAD_KINDS, TARGET, borrow, check_kind, check_target
from jspec.models.huggingface import (
    config_json,
    draft_heads,
    families,
    fused_experts,
    mtp_tensors,
    pickles,
    quantised,
    shards,
    weights,
)
from jspec.models.huggingface.draft_heads import EMBED, FACTORS, HEAD, MASK, OFFSETS, Names
from jspec.models.huggingface.pickles import Pickled
from jspec.models.huggingface.quantised import Dequantised
from jspec.models.huggingface.shards import Shards
from jspec.models.huggingface.weights import Weight
from jspec.models.llama import Layer, LlamaConfig
from jspec.models.load import Loaded
from jspec.types import PyTree

Files = Shards | Dequantised | Pickled
_SAMPLES = 4096
_WORDS = {"embed": "embeddings", "head": "scores"}
_ROUNDING = 0.02
"""Relative distance of two copies of one table in dtypes of 8 bits and more: 2^-9 at most,
and room for what was cast twice."""


class HeadLayout(NamedTuple):
    """The contents of a head's folder, as its config describes them."""

    config: Any
    table: list[Weight]
    beside: tuple[str, ...]
    """Names of tensors that are not parameters and yet are read."""
    copies: Mapping[str, str] = {}
    """Tensors that are copies of the target's arrays, if they are there; by the names of these."""
    biased: tuple[str, ...] = ()
    """Products with a bias, of which some folders hold none."""


def read(
    name: str | Path,
    target: Loaded,
    only: str | tuple[str, ...] | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Any, PyTree]:
    """Reads a published head; see `jspec.models.heads.read_variables`."""
    folder = hub.folder(name, hub.HEADS)
    files = _open(folder)
    names = draft_heads.find(files.files)
    if names is None:
        raise InputError(
            f"{folder} holds no draft head that is known (EAGLE, Medusa, blocks or MTP by its "
            f"tensors, of which {weights.list_names(files.files, 'tensor')}); name the folder of "
            "one"
        )
    check_kind(str(folder), names.kind, only)
    model: Any = target.model
    high = eight_bits.high_precision(model.param_dtype, model.dtype)
    param_dtype = precision.find(high if dtype is None else dtype)
    layout = _LAYOUTS[names.kind](folder, files, names, target)
    head = HEAD_KINDS[names.kind].module(layout.config, dtype=model.dtype, param_dtype=param_dtype)
    check_target(str(folder), head, model)
    _check(folder, files, names, layout)
    for tensor_name, array in layout.copies.items():
        if tensor_name in names.tensors:
            _check_copy(folder, files, target.params, names.tensors[tensor_name], array)

    def tensor(name: str) -> np.ndarray:
        return files.read(names.tensors[name])

    params = weights.tree(
        (weight.path, jax.device_put(weight.join(tensor, param_dtype))) for weight in layout.table
    )
    variables = {**params, TARGET: borrow(head, target.params)}
    for fuse in (part for name, part in variables["params"].items() if name in layout.biased):
        fuse.setdefault("bias", jnp.zeros(len(fuse["weight"]), param_dtype))
    if OFFSETS in names.tensors:
        variables["scored"] = {"ids": _read_scored(folder, files, head.vocab_size)}
    elif getattr(layout.config, "draft_tokens", 0):
        variables["scored"] = {"ids": jnp.arange(head.vocab_size)}
    if getattr(layout.config, "candidate_rank", 0):
        table = {**variables[TARGET], **variables["params"]}["head"]
        if "head" in variables[TARGET] and "scored" in variables:
            table = table[variables["scored"]["ids"]]
        parts = _factors(folder, files, names, head, table)
        variables[candidates.COLLECTION] = {
            part: jax.device_put(array.astype(param_dtype)) for part, array in parts.items()
        }
    return head, variables


def find_own(target: Loaded) -> Path | None:
    """Returns the folder of a target with a known draft head; None: no such head."""
    folder = target.source
    if folder is None or mtp_tensors.find(shards.open_folder(folder).files) is None:
        return None
    family = families.find(config_json.read(folder / "config.json"))
    return None if family.mtp is None else folder


def _open(folder: Path) -> Files:
    """Returns the weights' files; safetensors go before pickles."""
    if any((folder / name).is_file() for name in (shards.INDEX, shards.SINGLE)):
        # A target's head is quantised as the target is.
        fields = config_json.read(folder / "config.json", required=False)
        return fused_experts.single(quantised.reader(fields)(shards.open_folder(folder)))
    readers = {
        "*.safetensors": shards.open_file,
        "*.bin": pickles.open_file,
        "*.pt": pickles.open_file,
    }
    for pattern, read in readers.items():
        files = sorted(folder.glob(pattern))
        if len(files) > 1:
            raise InputError(
                f"{folder} has {len(files)} files {pattern}, {files[0].name} the first; keep the "
                "one that holds the head"
            )
        if files:
            return read(files[0])
    raise InputError(
        f"{folder} has no weights; it needs {shards.SINGLE}, pytorch_model.bin or medusa_lm_head.pt"
    )


def _eagle(folder: Path, files: Files, names: Names, target: Loaded) -> HeadLayout:
    bias = "layers.0.self_attn.q_proj.bias" in names.tensors
    shape = eagle_layouts.shape(folder, target.model)
    arguments = {**asdict(shape), "rope_scaling": shape.rope_scaling, "qkv_bias": bias}
    config = EAGLEConfig(**arguments | _own(folder, files, names, target, "embed", "head"))
    table = draft_heads.eagle(config, bias="fc.bias" in names.tensors)
    return HeadLayout(config, list(table), (EMBED, HEAD), biased=("fuse",))


def _eagle3(folder: Path, files: Files, names: Names, target: Loaded) -> HeadLayout:
    config = eagle_layouts.read(
        folder,
        target.model,
        qkv_bias=f"{names.layer}.self_attn.q_proj.bias" in names.tensors,
        draft_tokens=files.shape(names.tensors[OFFSETS])[0] if OFFSETS in names.tensors else 0,
    )
    tables = _own(folder, files, names, target, "embed")
    config = replace(config, **tables, own_head=HEAD in names.tensors)
    beside = [EMBED, OFFSETS, MASK, *(FACTORS.values() if config.candidate_rank else ())]
    table = list(draft_heads.eagle3(config, names.layer))
    return HeadLayout(config, table, tuple(beside))


def _own(folder: Path, files: Files, names: Names, target: Loaded, *tables: str) -> dict[str, Any]:
    """Returns whether an EAGLE head has these tables of its own, of the target's shape."""
    flags = {}
    for array in tables:
        distance = 0.0
        if table := names.tensors.get({"embed": EMBED, "head": HEAD}[array]):
            _check_shape(folder, files, target.params, table, array)
            distance = _distance(files, target.params, table, array)
        if flags.setdefault(f"own_{array}", distance > _ROUNDING):
            warnings.warn(
                f"{folder} has {_WORDS[array]} of its own, {distance:.0%} away from this target's; "
                "if hardly a draft is accepted, it was trained for another model",
                stacklevel=2,
            )
    return flags


def _medusa(folder: Path, files: Files, names: Names, target: Loaded) -> HeadLayout:
    # From the tensors: config.json has no sizes, and is known to name another number of heads.
    indexed = [re.match(r"(\d+)\.(\d+)\.", name) for name in names.tensors]
    heads, layers = (max(int(match[part]) for match in indexed if match) for part in (1, 2))
    last = names.tensors.get(f"0.{layers}.weight")
    if last is None:
        raise InputError(
            f"{folder} lacks 0.{layers}.weight, the last layer of its first Medusa head; "
            "download it again"
        )
    vocab_size, width = files.shape(last)
    config = MedusaConfig(vocab_size, width, num_heads=heads + 1, num_layers=max(layers, 1))
    return HeadLayout(config, list(draft_heads.medusa(config)), ())


def _block(folder: Path, files: Files, names: Names, target: Loaded) -> HeadLayout:
    config, copies = block_layouts.read(folder, names.tensors, target.model)
    if HEAD in names.tensors and HEAD not in copies:
        config = replace(config, draft_tokens=files.shape(names.tensors[HEAD])[0])
    beside = (*copies, OFFSETS, MASK)
    return HeadLayout(config, list(draft_heads.block_head(config)), beside, copies)


def _mtp(folder: Path, files: Files, names: Names, target: Loaded) -> HeadLayout:
    model: Any = target.model
    family = families.find(config_json.read(folder / "config.json"))
    if (layout := family.mtp) is None or layout.mark not in names.tensors:
        architectures = ", ".join(entry.architecture for entry in families.FAMILIES if entry.mtp)
        raise InputError(
            f"{folder} holds an MTP head of {family.architecture}, which jspec does not implement; "
            f"supported: {architectures}"
        )
    copies = {} if layout.embed is None else {layout.embed: "embed"}
    has_head = False
    if layout.head is not None and (table := names.tensors.get(layout.head)) is not None:
        has_head = _distance(files, target.params, table, "head") > _ROUNDING
        if not has_head:
            copies[layout.head] = "head"
    shape = {field.name: getattr(model.config, field.name) for field in fields(LlamaConfig)}
    routed = any(".experts." in name for name in names.tensors)
    kinds = model.kinds
    layer = Layer(
        rope=next(kind.rope for kind in kinds if kind.mixer is None),
        experts=next((kind.experts for kind in kinds if kind.experts and routed), None),
    )
    config = MTPConfig(**shape | {"num_layers": 1, "layers": (layer,), "own_head": has_head})
    return HeadLayout(
        config,
        list(mtp_tensors.table(config, layout, family.weights, has_head)),
        (*copies,),
        copies,
    )


_LAYOUTS: Mapping[str, Callable[[Path, Any, Names, Loaded], HeadLayout]] = {
    "block": _block,
    "eagle": _eagle,
    "eagle3": _eagle3,
    "medusa": _medusa,
    "mtp": _mtp,
}


def _factors(
    folder: Path, files: Files, names: Names, head: Any, table: jax.Array
) -> dict[str, np.ndarray]:
    """Returns the two factors that find candidates: from the files, or if there are none by SVD."""
    config = head.config
    rank, rows = config.candidate_rank, len(table)
    shapes = {
        candidates.DOWN: (rank, config.hidden_size),
        candidates.UP: (rows, rank),
    }
    factors = {part: name for part, name in FACTORS.items() if name in names.tensors}
    if not factors:
        settings = config_json.read(folder / "config.json")
        # Weighted ones need the tokens' frequencies in training.
        settings.part("efficient_lm_head_config").choice("type", ["low_rank"], None)
        return candidates.factors(blocks.table(table, config.hidden_size), rank)
    for part, name in FACTORS.items():
        shape = files.shape(names.tensors[name]) if part in factors else None
        if shape != shapes[part]:
            raise InputError(
                f"{folder} has {name} in shape {shape}, but its config asks for {shapes[part]}; "
                "download it again"
            )
    return {part: files.read(names.tensors[name]) for part, name in factors.items()}


def _check(folder: Path, files: Files, names: Names, layout: HeadLayout) -> None:
    """Raises InputError unless the tensors are those of the table, in shape too."""
    shapes = {
        name: shape
        for weight in layout.table
        for name, shape in zip(weight.names, weight.shapes, strict=True)
    }
    if missing := shapes.keys() - names.tensors.keys():
        raise InputError(
            f"{folder} lacks {weights.list_names(missing, 'tensor')} of a head of kind "
            f"{names.kind}; download it again"
        )
    if extra := names.tensors.keys() - shapes.keys() - set(layout.beside):
        raise InputError(
            f"{folder} holds {weights.list_names(extra, 'tensor')} that a head of kind "
            f"{names.kind} has no place for; it is a variant that jspec does not implement"
        )
    for name, shape in shapes.items():
        if (actual := files.shape(names.tensors[name])) != shape:
            raise InputError(
                f"{name} in {folder} has shape {list(actual)}, but its config and this target ask "
                f"for {list(shape)}; load the target that the head was trained for"
            )


def _check_shape(folder: Path, files: Files, target: PyTree, name: str, array: str) -> None:
    shape = files.shape(name)
    if shape != (target_shape := _table(target, array, shape[-1]).shape):
        raise InputError(
            f"{folder} holds {_WORDS[array]} of shape {list(shape)} and the target's have "
            f"{list(target_shape)}; load the target that the head was trained for"
        )


def _check_copy(folder: Path, files: Files, target: PyTree, name: str, array: str) -> None:
    """Raises InputError if the head's copy of an array of the target is of another model."""
    _check_shape(folder, files, target, name, array)
    if (distance := _distance(files, target, name, array)) > _ROUNDING:
        raise InputError(
            f"{folder} was trained on other {_WORDS[array]} than this target's ({distance:.0%} "
            "away), so for another model; load the target that the head was trained for"
        )


def _distance(files: Files, target: PyTree, name: str, array: str) -> float:
    """Returns the relative distance of a tensor's sample and the same of a target's array."""
    shape = files.shape(name)
    ours = _table(target, array, shape[-1])
    if shape != ours.shape:
        return float("inf")
    rows = np.arange(min(shape[0], _SAMPLES)) * shape[0] // min(shape[0], _SAMPLES)
    columns = np.arange(len(rows)) % shape[1]
    mine = np.asarray(ours[rows, columns], np.float64)
    theirs = files.read(name)[rows, columns].astype(np.float64)
    return float(np.linalg.norm(mine - theirs)) / max(float(np.linalg.norm(mine)), 1e-30)


def _table(target: PyTree, array: str, width: int) -> Any:
    params = target["params"]
    return blocks.table(params.get(array, params["embed"]), width)  # the head may be the embedding


def _read_scored(folder: Path, files: Files, vocab_size: int) -> jax.Array:
    """Returns the target's ids of the tokens that an EAGLE-3 head scores."""
    offsets = files.indices(OFFSETS)
    ids = offsets + np.arange(len(offsets))
    if ids.min() < 0 or ids.max() >= vocab_size or len(np.unique(ids)) < len(ids):
        raise InputError(
            f"{OFFSETS} in {folder} maps draft tokens to ids {ids.min()} .. {ids.max()}, not one "
            f"each of the target's {vocab_size}; load the target that the head was trained for"
        )
    return jnp.asarray(ids, jnp.int32)
