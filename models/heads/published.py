"""Draft heads as their authors publish them: EAGLE-1/2, EAGLE-3, Medusa and blocks, without torch.

Their files do not say for which weights they were trained. What can be told is told: the kind by
the tensors' names, the target by shapes, vocabulary and, where a head holds a copy of the target's
embeddings, by that copy. A wrong target of the same shape still loads; its acceptance stays near 1.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jspec._validate.errors import InputError
from jspec.models import blocks, eight_bits, hub, precision
from jspec.models.heads import block_layouts
from jspec.models.heads.eagle import EAGLEConfig
from jspec.models.heads.eagle3 import Eagle3Config
from jspec.models.heads.medusa import MedusaConfig
from jspec.models.heads.registry import HEAD_KINDS, TARGET, borrow, check_kind, check_target
from jspec.models.huggingface import draft_heads, llama, pickles, settings, shards, weights
from jspec.models.huggingface.draft_heads import EMBED, HEAD, MASK, OFFSETS, Names
from jspec.models.huggingface.pickles import Pickled
from jspec.models.huggingface.shards import Shards
from jspec.models.huggingface.weights import Weight
from jspec.models.llama import LlamaConfig
from jspec.models.load import Loaded
from jspec.types import PyTree

_SAMPLES = 4096
_ROUNDING = 0.02
"""Relative distance of two copies of one table in dtypes of 8 bits and more: 2^-9 at most, and room
for what was cast twice."""


class HeadLayout(NamedTuple):
    """The contents of a head's folder, as its config describes them."""

    config: Any
    table: list[Weight]
    beside: tuple[str, ...]
    """Names of tensors that are no parameters and yet are read."""
    copies: Mapping[str, str] = {EMBED: "embed"}
    """Tensors that are copies of the target's arrays, if they are there; by the names of these."""
    biased: tuple[str, ...] = ()
    """Products with a bias, of which some folders hold none."""


def read(
    name: str | Path,
    target: Loaded,
    only: str | tuple[str, ...] | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Any, PyTree]:
    """Reads a published head; see `jspec.models.heads.read_variables`.

    Args:
        name: a folder in Hugging Face layout, safetensors or torch.save's, or a hub id.
        target: the model that it is to draft for.
        only: the kind that is wanted, or kinds; any if not given.
        dtype: dtype that the weights are held in; the target's if not given.

    Raises:
        InputError: if the folder holds no head of a known kind, of the wanted one, or for such a
            target.
    """
    folder = hub.folder(name, hub.HEADS)
    files = _open(folder)
    found = draft_heads.find(files.files)
    if found is None:
        raise InputError(
            f"{folder} holds no draft head that is known (EAGLE, Medusa or blocks by its tensors, "
            f"of which {weights.listed(files.files, 'tensor')}); name the folder of one"
        )
    check_kind(str(folder), found.kind, only)
    model: Any = target.model
    high = eight_bits.high_precision(model.param_dtype, model.dtype)
    held = precision.find(high if dtype is None else dtype)
    layout = _LAYOUTS[found.kind](folder, files, found, model)
    head = HEAD_KINDS[found.kind].module(layout.config, dtype=model.dtype, param_dtype=held)
    check_target(str(folder), head, model)
    _check(folder, files, found, layout)
    for tensor_name, array in layout.copies.items():
        if tensor_name in files.files:
            _check_copy(folder, files, target.params, tensor_name, array)

    def tensor(name: str) -> np.ndarray:
        return files.read(found.held[name])

    params = weights.tree(
        (weight.path, jax.device_put(weight.join(tensor, held))) for weight in layout.table
    )
    variables = {**params, TARGET: borrow(head, target.params)}
    for fuse in (part for name, part in variables["params"].items() if name in layout.biased):
        fuse.setdefault("bias", jnp.zeros(len(fuse["weight"]), held))
    if OFFSETS in found.held:
        variables["scored"] = {"ids": _scored(folder, files, head.vocab_size)}
    elif getattr(layout.config, "draft_tokens", 0):
        variables["scored"] = {"ids": jnp.arange(head.vocab_size)}
    return head, variables


def _open(folder: Path) -> Shards | Pickled:
    """The weights' files; safetensors go before pickles."""
    if any((folder / name).is_file() for name in (shards.INDEX, shards.SINGLE)):
        return shards.open_folder(folder)
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


def _shape(folder: Path, model: Any) -> LlamaConfig:
    """config.json of an EAGLE head: one layer of the Llama family."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json; download the head again, with its config")
    config = llama.llama(settings.read(folder / "config.json"))
    # Angles are computed, so a head goes on beyond the positions it was trained on, as it does in
    # the authors' code; `tied` is about a head that it does not have.
    return replace(config, num_layers=1, tied=False, context=model.context)


def _eagle(folder: Path, files: Shards | Pickled, names: Names, model: Any) -> HeadLayout:
    bias = "layers.0.self_attn.q_proj.bias" in names.held
    shape = _shape(folder, model)
    given = {**asdict(shape), "rope_scaling": shape.rope_scaling, "qkv_bias": bias}
    config = EAGLEConfig(**given)
    table = draft_heads.eagle(config, bias="fc.bias" in names.held)
    return HeadLayout(config, list(table), (EMBED,), biased=("fuse",))


def _eagle3(folder: Path, files: Shards | Pickled, names: Names, model: Any) -> HeadLayout:
    shape = _shape(folder, model)
    whole = settings.read(folder / "config.json")
    given, name = whole.part("eagle_config"), "eagle_aux_hidden_state_layer_ids"
    for part in (whole, given):
        part.choice("norm_before_residual", [False], False)
        part.choice("use_aux_hidden_state", [True], True)
    layers = model.config.num_layers
    # As the authors tap them: early, in the middle, late.
    usual = [2, layers // 2, layers - 3]
    taps = given.get(name) or whole.get(name) or usual
    bias = f"{names.layer}.self_attn.q_proj.bias" in names.held
    config = Eagle3Config(
        **{**asdict(shape), "rope_scaling": shape.rope_scaling, "qkv_bias": bias},
        taps=tuple(taps),
        draft_tokens=files.shape(names.held[OFFSETS])[0] if OFFSETS in names.held else 0,
    )
    return HeadLayout(config, list(draft_heads.eagle3(config, names.layer)), (EMBED, OFFSETS, MASK))


def _medusa(folder: Path, files: Shards | Pickled, names: Names, model: Any) -> HeadLayout:
    # From the tensors: config.json has no sizes, and is known to name another number of heads.
    indexed = [re.match(r"(\d+)\.(\d+)\.", name) for name in names.held]
    heads, layers = (max(int(found[part]) for found in indexed if found) for part in (1, 2))
    last = names.held.get(f"0.{layers}.weight")
    if last is None:
        raise InputError(
            f"{folder} lacks 0.{layers}.weight, the last layer of its first Medusa head; "
            "download it again"
        )
    vocab_size, width = files.shape(last)
    config = MedusaConfig(vocab_size, width, num_heads=heads + 1, num_layers=max(layers, 1))
    return HeadLayout(config, list(draft_heads.medusa(config)), ())


def _block(folder: Path, files: Shards | Pickled, names: Names, model: Any) -> HeadLayout:
    config, copies = block_layouts.read(folder, names.held, model)
    if HEAD in names.held and HEAD not in copies:
        config = replace(config, draft_tokens=files.shape(names.held[HEAD])[0])
    beside = (*copies, OFFSETS, MASK)
    return HeadLayout(config, list(draft_heads.block_head(config)), beside, copies)


_LAYOUTS: Mapping[str, Callable[[Path, Any, Names, Any], HeadLayout]] = {
    "block": _block,
    "eagle": _eagle,
    "eagle3": _eagle3,
    "medusa": _medusa,
}


def _check(folder: Path, files: Shards | Pickled, names: Names, layout: HeadLayout) -> None:
    """Raises InputError unless the tensors are those of the table, in shape too."""
    wanted = {
        name: shape
        for weight in layout.table
        for name, shape in zip(weight.names, weight.shapes, strict=True)
    }
    if missing := wanted.keys() - names.held.keys():
        raise InputError(
            f"{folder} lacks {weights.listed(missing, 'tensor')} of a head of kind {names.kind}; "
            "download it again"
        )
    if extra := names.held.keys() - wanted.keys() - set(layout.beside):
        raise InputError(
            f"{folder} holds {weights.listed(extra, 'tensor')} that a head of kind {names.kind} "
            "has no place for; it is a variant that jspec does not implement"
        )
    for name, shape in wanted.items():
        if (found := files.shape(names.held[name])) != shape:
            raise InputError(
                f"{name} in {folder} has shape {list(found)}, but its config and this target ask "
                f"for {list(shape)}; load the target that the head was trained for"
            )


def _check_copy(
    folder: Path, files: Shards | Pickled, target: PyTree, name: str, array: str
) -> None:
    """Raises InputError if the head's copy of an array of the target is of another model."""
    held, shape = target["params"], files.shape(name)
    ours = blocks.table(held.get(array, held["embed"]))  # the head may be the embedding
    words = {"embed": "embeddings", "head": "scores"}[array]
    fix = "load the target that the head was trained for"
    if shape != ours.shape:
        raise InputError(
            f"{folder} holds {words} of shape {list(shape)} and the target's have "
            f"{list(ours.shape)}; {fix}"
        )
    rows = np.arange(min(shape[0], _SAMPLES)) * shape[0] // min(shape[0], _SAMPLES)
    columns = np.arange(len(rows)) % shape[1]
    mine = np.asarray(ours[rows, columns], np.float64)
    theirs = files.read(name)[rows, columns].astype(np.float64)
    distance = np.linalg.norm(mine - theirs) / max(float(np.linalg.norm(mine)), 1e-30)
    if distance > _ROUNDING:
        raise InputError(
            f"{folder} was trained on other {words} than this target's ({distance:.0%} away), "
            f"so for another model; {fix}"
        )


def _scored(folder: Path, files: Shards | Pickled, vocab_size: int) -> jax.Array:
    """The target's ids of the tokens that an EAGLE-3 head scores."""
    offsets = files.indices(OFFSETS)
    ids = offsets + np.arange(len(offsets))
    if ids.min() < 0 or ids.max() >= vocab_size or len(np.unique(ids)) < len(ids):
        raise InputError(
            f"{OFFSETS} in {folder} maps draft tokens to ids {ids.min()} .. {ids.max()}, not one "
            f"each of the target's {vocab_size}; load the target that the head was trained for"
        )
    return jnp.asarray(ids, jnp.int32)
