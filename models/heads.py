"""Trained heads on disk: one format for every kind, bound to the target they were trained for.

A folder with two files. `head.json` says what the head is (format, kind, the module's config), for
which weights it was trained (vocabulary, width, fingerprint) and how; `head.safetensors` holds its
variables, "collection/path/to/leaf" each. What a head borrows of its target is in neither.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.typing import DTypeLike
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jspec.base import PyTree
from jspec.models import hub, precision
from jspec.models.eagle import EagleHead
from jspec.models.fingerprint import fingerprint
from jspec.models.huggingface import settings
from jspec.models.load import Loaded
from jspec.models.lyanna import LyannaHead, collapse
from jspec.models.medusa import MedusaHeads

RECORD = "head.json"
WEIGHTS = "head.safetensors"
FORMAT = 1
TARGET = "target"
"""The collection of a head's variables that holds arrays of the target."""


@dataclass(frozen=True)
class Kind:
    """A kind of head: a Flax module with fields `config`, `dtype` and `param_dtype`.

    Its config is a frozen dataclass that JSON can hold, with properties `vocab_size` and
    `features` on the module: the width of what it reads.
    """

    module: Callable[..., Any]
    pairs: bool
    """Whether it reads pairs of state and token, as `jspec.base.DraftHead`; else states alone."""


KINDS: Mapping[str, Kind] = {
    "eagle": Kind(EagleHead, pairs=True),
    "lyanna": Kind(LyannaHead, pairs=True),
    "medusa": Kind(MedusaHeads, pairs=False),
}


def kind(head: nn.Module) -> str:
    """The name of a head's kind.

    Raises:
        ValueError: if it is of none.
    """
    for name, known in KINDS.items():
        if type(head) is known.module:
            return name
    raise ValueError(
        f"{type(head).__name__} is no kind of head that can be saved; known: {', '.join(KINDS)}"
    )


def shapes(head: Any) -> PyTree:
    """Shape and dtype of every variable, by collection; nothing is computed."""
    state = jax.ShapeDtypeStruct((1, 1, head.features), head.dtype)
    inputs = (state,)
    if KINDS[kind(head)].pairs:
        one = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        inputs = (state, one, one, jax.ShapeDtypeStruct((1, 1, 1), jnp.bool_))
    return jax.eval_shape(head.init, jax.random.key(0), *inputs)


def borrow(head: Any, target: PyTree) -> PyTree:
    """The collection `target` of a head's variables: arrays of the target itself, not copies.

    Args:
        head: the module.
        target: params of the model that it drafts for.

    Raises:
        ValueError: if the target's embedding or head is of another shape than the head reads.
    """
    held = target["params"]
    arrays = {"embed": held["embed"], "head": held.get("head", held["embed"])}
    lent = {}
    for path, wanted in _leaves(shapes(head).get(TARGET, {})):
        array = arrays[path[-1]]
        if array.shape != wanted.shape:
            raise ValueError(
                f"the head reads the target's {path[-1]} as {list(wanted.shape)} and this target's "
                f"has shape {list(array.shape)}; load the model that the head was trained for"
            )
        lent[path] = array
    return unflatten_dict(lent)


def save(
    folder: str | Path,
    head: Any,
    variables: Mapping[str, PyTree],
    target: Loaded,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Writes a trained head to a new folder: whole, or not at all.

    Args:
        folder: where; its parents are made.
        head: the module.
        variables: its variables by collection. `target` need not be there and is not written, nor
            is what was made of the others after training; dtypes are kept.
        target: the model that it was trained for.
        training: how it was trained, as JSON values.

    Raises:
        ValueError: if the folder exists, or the variables are not those of the head.
        OSError: if the files cannot be written.
    """
    path = Path(folder).expanduser()
    if path.exists():
        raise ValueError(f"{folder} exists already; name another folder or delete it")
    name = kind(head)
    _check_target(str(folder), head, target)
    wanted = _own(shapes(head))
    collections = {key.partition("/")[0] for key in wanted}
    arrays = _own({key: value for key, value in variables.items() if key in collections})
    _check_shapes(str(folder), wanted, arrays)
    part = path.with_name(f"{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a save that was killed
    try:
        part.mkdir(parents=True)
        save_file({key: np.asarray(value) for key, value in arrays.items()}, part / WEIGHTS)
        record = {
            "format": FORMAT,
            "kind": name,
            "config": asdict(head.config),
            "target": {
                "vocab_size": head.vocab_size,
                "features": head.features,
                "fingerprint": fingerprint(target.params),
            },
            "weights": _digest(part / WEIGHTS),
            "training": dict(training or {}),
        }
        (part / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        os.rename(part, path)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise OSError(f"{folder} could not be written ({error}); make room and save again") from (
            error
        )


def load(
    name: str | Path,
    target: Loaded,
    only: str | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Any, PyTree]:
    """Reads a head: `(module, variables)`, the variables' `target` being the target's own arrays.

    Args:
        name: a folder that `save` wrote, or a bundled head such as "jspec-7m/medusa".
        target: the model that it is to draft for.
        only: the kind that is wanted; any if not given.
        dtype: dtype that the weights are held in; the target's if not given.

    Raises:
        ValueError: if the folder is not whole, of another kind, or of another target.
    """
    folder = _folder(name)
    record = settings.read(folder / RECORD)
    head = _rebuild(record, target, dtype, only)
    _check_target(str(folder), head, target)
    found, ours = record.part(TARGET).get("fingerprint"), fingerprint(target.params)
    if found != ours:
        raise ValueError(
            f"{folder} was trained for a model of the same shape with other weights (fingerprint "
            f"{str(found)[:8]}, and this target's is {ours[:8]}); load the target that it was "
            "trained for, in float32 or bfloat16"
        )
    wanted = _own(shapes(head))
    arrays = _read(folder, str(record.get("weights")))
    _check_shapes(str(folder), wanted, arrays)
    placed = {
        tuple(key.split("/")): jax.device_put(np.asarray(arrays[key]).astype(leaf.dtype))
        for key, leaf in wanted.items()
    }
    return head, {**unflatten_dict(placed), TARGET: borrow(head, target.params)}


def ready(head: Any, variables: PyTree) -> PyTree:
    """The variables as decoding wants them: what can be computed beforehand, is."""
    return collapse(head, variables) if isinstance(head, LyannaHead) else variables


def bundled() -> list[str]:
    """Names of the heads that came with this installation."""
    files = hub.ZOO.glob(f"*/heads/*/{RECORD}")
    return sorted(f"{file.parts[-4]}/{file.parts[-2]}" for file in files)


def find(wanted: str, target: Loaded) -> str:
    """The bundled head of a kind that was trained for these weights.

    Raises:
        ValueError: if there is none.
    """
    names = [name for name in bundled() if name.endswith(f"/{wanted}")]
    ours = fingerprint(target.params) if names else None
    for name in names:
        if settings.read(_folder(name) / RECORD).part(TARGET).get("fingerprint") == ours:
            return name
    raise ValueError(
        f"no bundled {wanted} head was trained for this model; train one with jspec train {wanted} "
        "and name its folder as head"
    )


def _folder(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if not path.is_dir() and str(name) in bundled():
        model, _, head = str(name).partition("/")
        return hub.ZOO / model / "heads" / head
    if not (path / RECORD).is_file():
        known = ", ".join(bundled()) or "none"
        raise ValueError(
            f"{name} is no folder with a {RECORD}; name one that jspec train wrote, or a bundled "
            f"head ({known})"
        )
    return path


def _rebuild(
    record: settings.Settings, target: Loaded, dtype: DTypeLike | None, only: str | None
) -> Any:
    """The module that a record describes."""
    model: Any = target.model
    record.choice("format", [FORMAT], None)
    name = record.choice("kind", list(KINDS), None)
    if only not in (None, name):
        raise ValueError(
            f"{record.source} is of a {name} head and one of kind {only} is wanted; name such a "
            "folder, or choose the method of that head"
        )
    module = KINDS[name].module
    shape = get_type_hints(module)["config"]
    try:
        config = _dataclass(shape, record.part("config").values)
        held = precision.find(model.param_dtype if dtype is None else dtype)
        return module(config, dtype=model.dtype, param_dtype=held)
    except TypeError as error:
        raise ValueError(
            f"{record.source} does not describe a {name} head ({error}); restore the file"
        ) from error


def _dataclass(shape: Any, fields: Mapping[str, Any]) -> Any:
    """A frozen dataclass from JSON: objects are dataclasses again, and lists tuples."""
    hints, values = get_type_hints(shape), {}
    for name, value in fields.items():
        hint = hints.get(name)
        inner = [part for part in (hint, *get_args(hint)) if is_dataclass(part)]
        if isinstance(value, Mapping) and inner:
            value = _dataclass(inner[0], value)
        values[name] = tuple(value) if isinstance(value, list) else value
    return shape(**values)


def _check_target(folder: str, head: Any, target: Loaded) -> None:
    """Raises ValueError unless the head reads what the target gives."""
    model: Any = target.model
    if head.vocab_size != model.vocab_size:
        raise ValueError(
            f"{folder} is of a head for a vocabulary of {head.vocab_size} tokens and the target "
            f"has {model.vocab_size}; load the target that it was trained for"
        )
    width = model.features
    if head.features != width:
        raise ValueError(
            f"{folder} is of a head that reads states of width {head.features} and the target's "
            f"have {width}; load the target that it was trained for"
        )


def _own(variables: Mapping[str, PyTree]) -> dict[str, Any]:
    """The leaves that are the head's, by "collection/path/to/leaf"."""
    mine = {name: leaves for name, leaves in variables.items() if name != TARGET}
    return {"/".join(path): leaf for path, leaf in _leaves(mine)}


def _leaves(tree: PyTree) -> list[tuple[tuple[str, ...], Any]]:
    """Each leaf and the keys that lead to it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(tuple(key.key for key in path), leaf) for path, leaf in leaves]


def _check_shapes(folder: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name in sorted({*wanted, *found}):
        have, need = (
            None if name not in arrays else tuple(arrays[name].shape) for arrays in (found, wanted)
        )
        if have != need:
            has = "lacks it" if have is None else f"has it in shape {list(have)}"
            asks = "has no place for it" if need is None else f"asks for {list(need)}"
            raise ValueError(
                f"{folder} does not hold the weights of the head that it describes: of {name}, the "
                f"file {has} and the config {asks}; restore the folder from a copy"
            )


def _read(folder: Path, digest: str) -> dict[str, np.ndarray]:
    """The arrays of a file that is the one its record was written for."""
    file = folder / WEIGHTS
    if not file.is_file():
        raise ValueError(f"{folder} lacks {WEIGHTS}; restore the folder from a copy")
    try:
        arrays = load_file(file)
    except SafetensorError as error:
        raise ValueError(
            f"{file} is not a whole safetensors file ({error}); restore the folder from a copy"
        ) from error
    if _digest(file) != digest:
        raise ValueError(
            f"{file} is not the file that {RECORD} was written for: its bytes have changed; "
            "restore the folder from a copy"
        )
    return arrays


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
