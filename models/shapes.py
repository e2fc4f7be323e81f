"""A model's network and the shapes of its weights from its configuration; no weight is read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.typing import DTypeLike

from jspec._validate.errors import InputError
from jspec.models import checkpoint, precision, sharding
from jspec.models.huggingface import config_json, families
from jspec.models.load import Loaded, open_checkpoint
from jspec.models.published_shapes import SHAPES

_WANTED = ("config.json", "generation_config.json")
"""All that is downloaded of a hub id."""


def shapes(
    name: str | Path,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike | None = None,
    mesh: Any = None,
    num_layers: int | None = None,
    scan_layers: bool = False,
    kv_dtype: DTypeLike | None = None,
) -> Loaded:
    """Returns the result of `load` with shapes in place of weights.

    Args:
        name: as in `load`, where a folder needs no more than config.json; such a file itself; or
            a published shape: "llama-1b", "llama-3b", "llama-8b", "llama-70b", "llama-405b",
            "qwen3-next-80b", "deepseek-v3", "gemma4-e2b", "gpt-oss-20b", "gpt-oss-120b".
        dtype: as in `load`.
        param_dtype: as in `load`.
        mesh: a `Mesh`, or an `AbstractMesh` of absent devices, that `load` would use.
        num_layers: another number of layers than it has, all else being equal.
        scan_layers: as in `load`.
        kv_dtype: as in `load`.

    Returns:
        The model, and a `jax.ShapeDtypeStruct` for each of its weights. There is no tokenizer.
        In 8 bits a CPU's embeddings and head may be loaded in fewer bits than this says.

    Raises:
        InputError: if there is no such model, or the project does not implement it.

    Example:
        >>> import jax
        >>> model, params, _ = shapes("llama-70b", dtype="bfloat16", scan_layers=True)
        >>> f"{sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e9:.1f}"
        '70.6'
    """
    compute, weight_dtype = precision.pair(dtype, param_dtype)
    memory = precision.find_kv(kv_dtype)
    family, config, ends, mask_token_id = _describe(name)
    if num_layers is not None:
        layers = getattr(config, "layers", ())[:num_layers]
        config = replace(config, num_layers=num_layers, **({"layers": layers} if layers else {}))
    model = family.build(
        config, dtype=compute, param_dtype=weight_dtype, scan_layers=scan_layers, kv_dtype=memory
    )
    params = checkpoint.shapes(model)
    if mesh is not None:
        model = sharding.laid_out(model, mesh)
        params = jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
            params,
            sharding.params(params, mesh),
        )
    return Loaded(model, params, None, eos=ends[0], bos=ends[1], mask_token_id=mask_token_id)


def _describe(
    name: str | Path,
) -> tuple[families.Family, Any, tuple[tuple[int, ...], int | None], int | None]:
    """Returns the family, the config, the end and first tokens, and the mask token of a name."""
    path = Path(name).expanduser()
    if str(name) in SHAPES and not path.exists():
        fields = config_json.Settings(SHAPES[str(name)], f"the shape {name}")
    elif path.is_file() and path.suffix == ".json":
        fields = config_json.read(path)
    else:
        try:
            source = open_checkpoint(name, _WANTED)
        except InputError as error:
            names = ", ".join(SHAPES)
            raise InputError(f"{error}; shapes that need no file: {names}") from error
        family = families.find(source.fields)
        config = source.config(family)
        return family, config, source.special_tokens(config.vocab_size), source.mask_token_id()
    family = families.find(fields)
    return family, family.parse(fields), ((), None), fields.token("pard_token")
