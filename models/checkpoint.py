"""A model on disk in orbax's format, with its shape."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, Sharding

from jspec._validate import extras
from jspec._validate.errors import InputError, unreadable
from jspec._validate.whole_files import write_whole
from jspec.models import blocks, columns, eight_bits, precision, records, sharding, stacking
from jspec.models.huggingface import config_json
from jspec.models.hybrid import Hybrid
from jspec.models.learned_positions import LearnedPositionConfig, LearnedPositionDecoder
from jspec.models.llama import Llama, LlamaConfig
from jspec.models.neox import GPTNeoX, GPTNeoXConfig
from jspec.types import PyTree

Model = Llama | Hybrid | LearnedPositionDecoder | GPTNeoX
_KINDS = {
    "Llama": (Llama, LlamaConfig),
    "LearnedPositionDecoder": (LearnedPositionDecoder, LearnedPositionConfig),
    "GPTNeoX": (GPTNeoX, GPTNeoXConfig),
    "Hybrid": (Hybrid, LlamaConfig),
}

_PIECE = 4 << 20
"""Maximum bytes of a parameter stored as one piece. What reads a part of a parameter reads
all of such a piece, so that a device's part needs not all of the parameter at once."""

RECORD = "model.json"
PARAMS = "params"
_MOST_LAYERS = 1024
"""Each is traced."""
FORMAT = 2
"""1, which said no format, had weights by inputs."""


def save(folder: str | Path, model: Model, params: PyTree) -> None:
    """Writes a model to a new folder, in orbax's format.

    Orbax renames a temporary folder, and the record comes last: with a record it is whole.

    Args:
        folder: where; its parents are made.
        model: the network, whose shape and dtypes are written alongside the weights.
        params: its weights, on one device or spread over several.

    Raises:
        InputError: if the folder holds a checkpoint already, or the matrices are in blocks of
            several formats.

    Example:
        >>> import tempfile
        >>> from jspec import models
        >>> model, params, tokenizer = models.load("jspec-800k")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     models.save(f"{folder}/copy", model, params)
        ...     again, weights = models.restore(f"{folder}/copy")
        >>> again == model
        True
    """
    extras.require("a checkpoint of orbax", "train", "orbax")
    import orbax.checkpoint as ocp

    path = Path(folder).expanduser().resolve()
    if (path / PARAMS).exists() or (path / RECORD).exists():
        raise InputError(f"{folder} already holds a checkpoint; name another folder or delete it")
    if eight_bits.by_output(model.param_dtype):
        # Embeddings and head may still be in the blocks of their file.
        tables = {
            name: blocks.table(params["params"][name], leaf.shape[-1])
            for name, leaf in shapes(model)["params"].items()
            if (name,) in eight_bits.TABLES
        }
        params = {**params, "params": {**params["params"], **tables}}
    in_blocks = eight_bits.dtype_name(model.param_dtype) in blocks.FORMATS
    if in_blocks and _flat(shapes(model)) != _flat(params):
        raise InputError(
            "the model's matrices are in blocks of several formats, which is not saved; keep "
            "the GGUF file, or load it with param_dtype='q8_0'"
        )
    path.mkdir(parents=True, exist_ok=True)
    with ocp.StandardCheckpointer() as checkpointer:
        pieces = ocp.SaveArgs(chunk_byte_size=_PIECE)
        checkpointer.save(path / PARAMS, params, save_args=jax.tree.map(lambda _: pieces, params))
    record = {
        "format": FORMAT,
        "model": type(model).__name__,
        "config": asdict(model.config),
        "dtype": jnp.dtype(model.dtype).name,
        "param_dtype": eight_bits.dtype_name(model.param_dtype),
        "kv_dtype": None if model.kv_dtype is None else jnp.dtype(model.kv_dtype).name,
        "scan_layers": model.scan_layers,
        "column_parts": model.tp_size,  # as format 2 has it: files outlive names
    }
    write_whole(path / RECORD, json.dumps(record, indent=2) + "\n")


def restore(
    folder: str | Path,
    model: Model | None = None,
    mesh: Mesh | None = None,
    rules: sharding.Rules = sharding.TARGET,
    strict: bool = False,
) -> tuple[Model, PyTree]:
    """Reads a model that `save` wrote; see there for an example.

    Args:
        folder: what `save` wrote.
        model: the model that the weights are for, to choose other dtypes than those saved, or to
            scan its layers or not; by default the saved one.
        mesh: devices to spread the weights over, in parts, by `sharding.TABLES`; default: one.
        rules: what is split over which axis of the mesh, such as `sharding.DRAFT`.
        strict: True refuses a mesh that does not divide what the rules would split.

    Returns:
        The model and its params.

    Raises:
        InputError: if no whole checkpoint is there, its weights do not fit, or the mesh is refused.
    """
    extras.require("a checkpoint of orbax", "train", "orbax")
    import orbax.checkpoint as ocp

    path = Path(folder).expanduser().resolve()
    if not (path / RECORD).is_file() or not (path / PARAMS).is_dir():
        raise InputError(
            f"{folder} holds no whole checkpoint; it needs {RECORD} and {PARAMS}/ as "
            "jspec.models.save writes them"
        )
    record = config_json.read(path / RECORD)
    record.choice("format", [FORMAT], 1)
    target: Model = sharding.laid_out(model or _rebuild(record), mesh, rules)
    if mesh is not None and strict:
        sharding.check(target, mesh, rules)
    saved = target.clone(
        scan_layers=record.flag("scan_layers", False),
        tp_size=record.size("column_parts", 1),
    )
    expected = shapes(saved)
    fix = "if the files are damaged, restore the folder from a copy"
    with unreadable(f"{PARAMS} in {folder}", fix), ocp.StandardCheckpointer() as checkpointer:
        metadata = checkpointer.metadata(path / PARAMS).item_metadata
        if metadata is None:
            raise ValueError("it has no metadata")
        _check(folder, _flat(expected), _flat(getattr(metadata, "tree", metadata)))
        if mesh is None:
            on_device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            params = checkpointer.restore(path / PARAMS, _place(expected, on_device))
            params = columns.relaid(params, target.fused, saved.tp_size, target.tp_size)
        else:
            place = sharding.params(expected, mesh, rules)
            params = _restore_in_parts(path / PARAMS, expected, saved, target, place)
    return target, params if saved.scan_layers == target.scan_layers else relaid(target, params)


def _restore_in_parts(
    folder: Path, expected: PyTree, saved: Model, target: Model, place: PyTree
) -> PyTree:
    """Returns the weights on their devices, read a part at a time, with the columns of the mesh.

    Orbax would hold copies of each parameter. TensorStore's arrays can be read in parts.
    """
    import tensorstore

    # What was read is not kept.
    context = tensorstore.Context({"cache_pool": {"total_bytes_limit": 0}})

    def restore_leaf(
        path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct, layout: Sharding
    ) -> jax.Array:
        keys = [key.key for key in path]
        base = {"driver": "file", "path": f"{folder}/"}
        stored = {"driver": "ocdbt", "base": base, "path": ".".join(keys) + "/"}
        array = tensorstore.open(
            {"driver": "zarr", "kvstore": stored}, open=True, context=context
        ).result()

        def read(index: tuple[slice, ...]) -> np.ndarray:
            return np.asarray(array[index].read().result(), leaf.dtype)

        fused = columns.find_fused(keys, target.fused)
        if fused is None:
            return sharding.assemble(leaf.shape, layout, read)
        moved = columns.part(
            *(read, keys, leaf.shape, fused, target.tp_size, leaf.dtype, saved.tp_size)
        )
        return sharding.assemble(leaf.shape, layout, moved)

    return jax.tree_util.tree_map_with_path(restore_leaf, expected, place)


def _place(shapes: PyTree, place: jax.sharding.Sharding) -> PyTree:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes
    )


def relaid(model: Model, params: PyTree) -> PyTree:
    """Returns the weights as a model with scanned or unscanned layers holds them.

    Example:
        >>> from jspec import models
        >>> model, params, _ = models.load("jspec-800k")
        >>> scanned = model.clone(scan_layers=True)
        >>> sorted(models.relaid(scanned, params)["params"])
        ['embed', 'layers_0:2:1', 'norm']
    """
    return stacking.stack_layers(params, model.groups)


def shapes(model: Model) -> PyTree:
    """Returns shape and dtype of every parameter; nothing is computed."""
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    mask = jax.ShapeDtypeStruct((1, 1, 1), jnp.bool_)
    return jax.eval_shape(model.init, jax.random.key(0), tokens, tokens, mask)


def _rebuild(record: config_json.Settings) -> Model:
    kind = record.choice("model", list(_KINDS), None)
    fields = record.part("config").values
    if "num_layers" in fields:
        record.part("config").count("num_layers", max_count=_MOST_LAYERS)
    dtype, param_dtype = precision.pair(record.get("dtype"), record.get("param_dtype"))
    try:
        module, config = _KINDS[kind]
        shape = {name: records.part(value) for name, value in fields.items()}
        scan = record.flag("scan_layers", False)
        kv_dtype = precision.find_kv(record.get("kv_dtype"))
        model = module(config(**shape), dtype, param_dtype, scan, kv_dtype=kv_dtype)
        shapes(model)  # fails if a size is not a size
        return model
    except Exception as error:
        raise InputError(
            f"{record.source} does not describe a {kind} ({error}); restore the file"
        ) from error


def _flat(tree: PyTree) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): tuple(leaf.shape) for path, leaf in leaves}


def _check(folder: str | Path, expected: dict[str, Any], actual: dict[str, Any]) -> None:
    wrong = [name for name in sorted(expected | actual) if expected.get(name) != actual.get(name)]
    if wrong:
        name = wrong[0]
        raise InputError(
            f"{folder} does not fit the model in {len(wrong)} of {len(expected)} weights: {name} "
            f"has shape {_text(actual.get(name))} and should have {_text(expected.get(name))}; "
            "restore it with the config that it was saved with"
        )


def _text(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))
