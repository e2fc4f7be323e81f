"""A model, its weights and its tokenizer from a Hugging Face folder or hub id, without torch."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jspec.base import PyTree
from jspec.errors import InputError
from jspec.models import chat_template, hub, precision, sharding, tokenizer
from jspec.models.chat_template import ChatTemplate
from jspec.models.huggingface import families, settings, shards, weights
from jspec.protocols import CausalLM

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Loaded:
    """A model as it was loaded: the network, its weights, its tokenizer and its special tokens.

    It unpacks as `model, params, tokenizer`. Pass `eos` to a decode call as well: without it the
    text runs on past its end.

    Example:
        >>> import jspec
        >>> target = jspec.models.load("jspec-7m")
        >>> model, params, tokenizer = target
        >>> model.vocab_size, target.eos, tokenizer.encode("The king").ids
        (4096, (0,), [0, 307, 3538])
        >>> # jspec.decode(model, params, [ids], eos=target.eos, max_new_tokens=64)
    """

    model: CausalLM
    params: PyTree
    tokenizer: Any
    """A `tokenizers.Tokenizer`: `encode(text).ids`, `decode(ids)`. None if not asked for."""
    eos: tuple[int, ...]
    """End tokens of generation_config.json, else of config.json; empty if neither names one."""
    bos: int | None
    """The token that a text begins with, if the checkpoint names one."""
    chat: ChatTemplate | None = None
    """Turns a conversation into a prompt, `chat.encode(messages)`; None if there is no template."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.params, self.tokenizer))


def load(
    name: str | Path,
    dtype: DTypeLike | None = None,
    param_dtype: DTypeLike | None = None,
    with_tokenizer: bool = True,
    mesh: Mesh | None = None,
) -> Loaded:
    """Loads a model of the Llama, GPT-2 or OPT family with its tokenizer.

    Weights are read, cast and put on the device one by one, so that host memory holds the model
    once and one tensor more.

    Args:
        name: a folder in Hugging Face layout, a bundled model such as "jspec-7m", or a hub id.
        dtype: dtype of activations and cache; float32 on CPU, else bfloat16.
        param_dtype: dtype that the weights are held in; `dtype` if not given.
        with_tokenizer: False where the folder has no tokenizer or none is needed.
        mesh: devices to spread the weights over as `sharding.TABLE` says; by default one device.

    Returns:
        The model, its params, tokenizer and special tokens.

    Raises:
        InputError: if the folder is not whole or holds what the project does not implement.

    Example:
        >>> import jspec
        >>> model, params, tokenizer = jspec.models.load("jspec-800k", dtype="float32")
        >>> model.vocab_size, model.context
        (4096, 1024)
    """
    compute = precision.find(precision.default() if dtype is None else dtype)
    held = precision.find(compute if param_dtype is None else param_dtype)
    folder = hub.folder(name)
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json; name a folder in Hugging Face layout")
    fields = settings.read(folder / "config.json")
    family = families.find(fields)
    if fields.get("quantization_config"):
        raise InputError(
            f"{fields.source} asks for quantised weights, which jspec does not implement; "
            "take the checkpoint that is not quantised"
        )
    config = family.parse(fields)
    # Before the weights: it is quick, and as likely to be missing.
    words = tokenizer.read(folder) if with_tokenizer else None
    eos, bos = special_tokens(folder, fields)
    table = tuple(family.weights(config))
    params = read_weights(shards.open_folder(folder), family, table, held, mesh)
    return Loaded(
        model=family.build(config, dtype=compute, param_dtype=held),
        params=params,
        tokenizer=words,
        eos=eos,
        bos=bos,
        chat=chat_template.read(folder, words) if with_tokenizer else None,
    )


def read_weights(
    files: shards.Shards,
    family: families.Family,
    table: Sequence[weights.Weight],
    dtype: DTypeLike,
    mesh: Mesh | None = None,
) -> PyTree:
    """Params from open files, after their names and shapes are found to be those of the table.

    Raises:
        InputError: if weights are missing, unknown, or of another shape.
    """
    held = _names(files, family)
    wanted = {
        name: shape
        for weight in table
        for name, shape in zip(weight.names, weight.shapes, strict=True)
    }
    if HEAD in held and HEAD not in wanted:
        _check_tied(files, held, table)
        del held[HEAD]
    if missing := [name for name in wanted if name not in held]:
        raise InputError(
            f"{files.folder} lacks {weights.listed(missing, 'weight')} that its config.json asks "
            "for; correct config.json or download the checkpoint again"
        )
    if extra := [name for name in held if name not in wanted]:
        raise InputError(
            f"{files.folder} holds {weights.listed(extra, 'weight')} that {family.architecture} "
            "has no place for; correct config.json or take a checkpoint of that architecture"
        )
    for name, shape in wanted.items():
        if (found := files.shape(held[name])) != shape:
            raise InputError(
                f"{name} in {files.folder} has shape {list(found)}, but its config.json asks for "
                f"{list(shape)}; correct one of them"
            )

    def read(name: str) -> np.ndarray:
        return files.read(held[name])

    def place(weight: weights.Weight) -> jax.Array:
        split = None if mesh is None else sharding.parameter(weight.path, weight.shape, mesh)
        return jax.device_put(weight.join(read, dtype), split)

    return weights.tree((weight.path, place(weight)) for weight in table)


def _names(files: shards.Shards, family: families.Family) -> dict[str, str]:
    """Each weight's name in a whole model, and its name in these files."""
    names = [name for name in files.files if not re.fullmatch(family.buffers, name)]
    whole = any(name.startswith(family.base) for name in names)
    return {name if whole or name == HEAD else family.base + name: name for name in names}


def _check_tied(
    files: shards.Shards, held: dict[str, str], table: Sequence[weights.Weight]
) -> None:
    """A head beside tied embeddings is a copy of them, or config.json is wrong about the tie."""
    embed = next(weight for weight in table if weight.path == ("embed",)).names[0]
    same = files.shape(held[HEAD]) == files.shape(held.get(embed, held[HEAD])) and np.array_equal(
        files.read(held[HEAD]), files.read(held.get(embed, held[HEAD]))
    )
    if not same:
        raise InputError(
            f"{files.folder} ties the head to the embeddings but holds a {HEAD} that differs from "
            f"{embed}; set tie_word_embeddings to false in config.json"
        )


def special_tokens(folder: Path, fields: settings.Settings) -> tuple[tuple[int, ...], int | None]:
    """End tokens and first token; generation_config.json goes before config.json."""
    file = folder / "generation_config.json"
    generation = settings.read(file) if file.is_file() else settings.Settings({}, str(file))
    ends = generation.get("eos_token_id", fields.get("eos_token_id", ()))
    eos = (ends,) if isinstance(ends, int) else tuple(ends)
    if not all(isinstance(end, int) for end in eos):
        raise InputError(f"{folder} has eos_token_id = {ends!r}; it has to be token ids")
    return eos, generation.get("bos_token_id", fields.get("bos_token_id"))
