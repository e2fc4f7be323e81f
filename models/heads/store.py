"""Trained heads on disk: one format for every kind, bound to their target.

A folder with two files. `head.json` says what the head is (format, kind, the module's config), for
which weights it was trained (vocabulary, width, fingerprint) and how; `head.safetensors` holds its
variables, "collection/path/to/leaf" each. What a head borrows of its target is in neither.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.typing import DTypeLike
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jspec._validate.errors import InputError
from jspec._validate.whole_files import written_whole
from jspec.models import eight_bits, precision, records
from jspec.models.fingerprint import fingerprint
from jspec.models.heads.registry import (
    HEAD_KINDS,
    TARGET,
    borrow,
    check_kind,
    check_target,
    kind_of,
    leaves,
    shapes,
)
from jspec.models.huggingface import config_json
from jspec.models.load import Loaded
from jspec.types import PyTree

RECORD = "head.json"
WEIGHTS = "head.safetensors"
FORMAT = 2
"""1 had weights by inputs."""
_MOST_LAYERS = 256
"""Of a head: each is traced."""


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
        InputError: if the folder exists, or the variables do not fit the head.
        OSError: if the files cannot be written.

    Example:
        >>> import tempfile
        >>> from jspec import models
        >>> target = models.load("jspec-7m")
        >>> head, variables = models.heads.read_variables("jspec-7m/eagle", target)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     models.heads.save(f"{folder}/mine", head, variables, target, {"steps": 500})
        ...     models.heads.load(f"{folder}/mine", target).head == head
        True
    """
    path = Path(folder).expanduser()
    if path.exists():
        raise InputError(f"{folder} exists already; name another folder or delete it")
    kind = kind_of(head)
    check_target(str(folder), head, target.model)
    layout = _own_leaves(shapes(head))
    collections = {key.partition("/")[0] for key in layout}
    arrays = _own_leaves({key: value for key, value in variables.items() if key in collections})
    _check_shapes(str(folder), layout, arrays)
    with written_whole(path) as part:
        part.mkdir()
        save_file({key: np.asarray(value) for key, value in arrays.items()}, part / WEIGHTS)
        (part / WEIGHTS).chmod(0o644)  # it is written so that nobody else may read it
        record = {
            "format": FORMAT,
            "kind": kind,
            "config": asdict(head.config),
            "target": {
                "vocab_size": head.vocab_size,
                "features": head.features,
                "fingerprint": fingerprint(target.params, target.model),
            },
            "weights": _digest(part / WEIGHTS),
            "training": dict(training or {}),
        }
        (part / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read(
    folder: Path,
    target: Loaded,
    only: str | tuple[str, ...] | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Any, PyTree]:
    """Reads a head from a folder that `save` wrote; see `jspec.models.heads.read_variables`."""
    record = config_json.read(folder / RECORD)
    head = _rebuild(record, target, dtype, only)
    check_target(str(folder), head, target.model)
    theirs, ours = (
        record.part("target").get("fingerprint"),
        fingerprint(target.params, target.model),
    )
    if theirs != ours:
        raise InputError(
            f"{folder} was trained for a model of the same shape with other weights (fingerprint "
            f"{str(theirs)[:8]}, and this target's is {ours[:8]}); load the target that it was "
            "trained for, in float32 or bfloat16"
        )
    layout = _own_leaves(shapes(head))
    arrays = _read_arrays(folder, str(record.get("weights")))
    _check_shapes(str(folder), layout, arrays)
    placed = {
        tuple(key.split("/")): jax.device_put(np.asarray(arrays[key]).astype(leaf.dtype))
        for key, leaf in layout.items()
    }
    return head, {**unflatten_dict(placed), TARGET: borrow(head, target.params)}


def _rebuild(
    record: config_json.Settings,
    target: Loaded,
    dtype: DTypeLike | None,
    only: str | tuple[str, ...] | None,
) -> Any:
    """Returns the module that a record describes."""
    model: Any = target.model
    record.choice("format", [FORMAT], None)
    kind = record.choice("kind", list(HEAD_KINDS), None)
    check_kind(record.source, kind, only)
    module = HEAD_KINDS[kind].module
    shape = get_type_hints(module)["config"]
    fields = record.part("config").values
    if "num_layers" in fields:
        record.part("config").count("num_layers", max_count=_MOST_LAYERS)
    try:
        config = shape(**{name: records.part(value) for name, value in fields.items()})
        high = eight_bits.high_precision(model.param_dtype, model.dtype)
        param_dtype = precision.find(high if dtype is None else dtype)
        head = module(config, dtype=model.dtype, param_dtype=param_dtype)
        shapes(head)  # fails if a size is not a size
        return head
    except Exception as error:  # a size that is not a size may fail in any way
        raise InputError(
            f"{record.source} does not describe a {kind} head ({error}); restore the file"
        ) from error


def _own_leaves(variables: Mapping[str, PyTree]) -> dict[str, Any]:
    """Returns the leaves that are the head's, by "collection/path/to/leaf"."""
    mine = {name: part for name, part in variables.items() if name != TARGET}
    return {"/".join(path): leaf for path, leaf in leaves(mine)}


def _check_shapes(folder: str, layout: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    for name in sorted({*layout, *weights}):
        have, need = (
            None if name not in arrays else tuple(arrays[name].shape)
            for arrays in (weights, layout)
        )
        if have != need:
            has = "lacks it" if have is None else f"has it in shape {list(have)}"
            asks = "has no place for it" if need is None else f"asks for {list(need)}"
            raise InputError(
                f"{folder} does not hold the weights of the head that it describes: of {name}, the "
                f"file {has} and the config {asks}; restore the folder from a copy"
            )


def _read_arrays(folder: Path, digest: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a file that is the one its record was written for."""
    file = folder / WEIGHTS
    if not file.is_file():
        raise InputError(f"{folder} lacks {WEIGHTS}; restore the folder from a copy")
    try:
        arrays = load_file(file)
    except SafetensorError as error:
        raise InputError(
            f"{file} is not a whole safetensors file ({error}); restore the folder from a copy"
        ) from error
    if _digest(file) != digest:
        raise InputError(
            f"{file} is not the file that {RECORD} was written for: its bytes have changed; "
            "restore the folder from a copy"
        )
    return arrays


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
