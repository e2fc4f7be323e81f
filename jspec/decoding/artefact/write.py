"""Writes an artefact: programs of `jax.export`, weights, and a script."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import jspec
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.whole_files import written_whole
from jspec.decoding import decode
from jspec.decoding.artefact import run
from jspec.decoding.programs import row_counts
from jspec.drafters.autoregressive import Autoregressive
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import CausalLM, Drafter, WidthPolicy
from jspec.types import PyTree, Sampling, Stopping

PLATFORMS = ("cpu", "cuda", "tpu")


def export(
    folder: str | Path,
    model: CausalLM,
    params: PyTree,
    *,
    prompt_tokens: int,
    max_new_tokens: int = 128,
    rows: int | Sequence[int] = 1,
    drafter: Drafter = Autoregressive(),
    drafter_params: PyTree = None,
    policy: WidthPolicy = FixedWidth(),
    policy_params: PyTree = None,
    stopping: Stopping = Stopping(),
    platforms: Sequence[str] = PLATFORMS,
) -> Path:
    """Writes the whole generation as files that a process with only JAX loads and runs.

    `python FOLDER/run.py "[[5, 3, 9]]"` prints the tokens, greedy or sampled, and as a module it
    is a function. The tokens are those of `decode` with the same seed, of 32 bits here. The folder
    holds artefact.json, the weights once, a program of `jax.export` for each number of rows (rows
    that are not needed stay empty) and the script. Nothing is compiled here, and one lowering
    serves all platforms.

    Args:
        folder: where to write: a new one, or an empty one.
        model: the target.
        params: its weights.
        prompt_tokens: most tokens of a prompt.
        max_new_tokens: most tokens that a row writes.
        rows: most prompts of a call; of several numbers the smallest that suffices runs.
        drafter: proposes the trees.
        drafter_params: its weights.
        policy: as in `jspec.decode`.
        policy_params: as in `jspec.decode`.
        stopping: the end tokens of rows, and what else ends them; each call says their most tokens.
        platforms: that it shall run on, of "cpu", "cuda" and "tpu".

    Returns:
        The folder.

    Raises:
        InputError: if an argument is out of range or does not fit, as in `decode`.

    Example:
        >>> import jspec, tempfile
        >>> from jspec.decoding.artefact.run import load
        >>> model = jspec.testing.PrefixLM()
        >>> place = jspec.export(
        ...     tempfile.mkdtemp(), model, model.init(), prompt_tokens=8, max_new_tokens=4,
        ...     platforms=["cpu"],
        ... )
        >>> tokens = jspec.decode(model, model.init(), [[1, 2, 3]], max_new_tokens=4).tokens
        >>> load(place)([[1, 2, 3]]) == tokens.tolist()
        True
    """
    unknown = [name for name in platforms if name not in PLATFORMS]
    if unknown or not platforms:
        raise InputError(
            f"platforms is {list(platforms)!r}; give one or more of {', '.join(PLATFORMS)}"
        )
    batches = row_counts(rows)
    check_integer("prompt_tokens", prompt_tokens, 1, model.context)
    check_integer("max_new_tokens", max_new_tokens, 1, model.context)
    leaves, structure = jax.tree.flatten((params, drafter_params, policy_params))
    # What a head shares with its target is written once.
    held = {id(leaf): leaf for leaf in leaves}
    places = {key: number for number, key in enumerate(held)}
    order = [places[id(leaf)] for leaf in leaves]

    def generate(weights, prompt, lengths, limits, seed, temperature, top_k, top_p, min_p):
        parts = jax.tree.unflatten(structure, [weights[at] for at in order])
        params, drafter_params, policy_params = parts
        result = decode(
            model, params, prompt, lengths, drafter=drafter, drafter_params=drafter_params,
            policy=policy, policy_params=policy_params, max_new_tokens=max_new_tokens,
            stopping=replace(stopping, max_tokens=limits), key=jax.random.key(seed),
            sampling=Sampling(temperature, top_k, top_p, min_p),
        )  # fmt: skip
        return result.tokens, result.lengths

    arrays = [jnp.asarray(leaf) for leaf in held.values()]
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in arrays]
    programs = {}
    for batch in batches:
        asked = [
            jax.ShapeDtypeStruct(shape, kind)
            for shape, kind in (
                ((batch, prompt_tokens), jnp.int32),
                ((batch,), jnp.int32),
                ((batch,), jnp.int32),
                ((), jnp.uint32),
                ((batch,), jnp.float32),
                ((batch,), jnp.int32),
                ((batch,), jnp.float32),
                ((batch,), jnp.float32),
            )
        ]
        programs[batch] = jax.export.export(jax.jit(generate), platforms=tuple(platforms))(
            shapes, *asked
        )
    return _write(Path(folder), programs, arrays, {
        "format": run.FORMAT,
        "jspec": jspec.__version__,
        "jax": jax.__version__,
        "calling_convention": programs[batches[0]].calling_convention_version,
        "platforms": list(platforms),
        "rows": batches,
        "prompt_tokens": prompt_tokens,
        "max_new_tokens": max_new_tokens,
        "vocab_size": model.vocab_size,
        "drafter": type(drafter).__name__,
    })  # fmt: skip


def _write(
    folder: Path,
    programs: dict[int, jax.export.Exported],
    arrays: Sequence[jax.Array],
    told: dict[str, Any],
) -> Path:
    """Returns the folder with all files."""
    with written_whole(folder) as part:
        part.mkdir()
        names = [str(number) for number in range(len(arrays))]
        # NumPy's files know no bfloat16: bytes, with the dtype's name alongside them.
        plain = [np.asarray(leaf) for leaf in arrays]
        np.savez(
            part / "weights.npz",
            allow_pickle=False,
            **{
                name: leaf if leaf.dtype.isbuiltin else leaf.view(f"u{leaf.dtype.itemsize}")
                for name, leaf in zip(names, plain, strict=True)
            },
        )
        written = {batch: program.serialize() for batch, program in programs.items()}
        for batch, content in written.items():
            (part / f"rows-{batch}.bin").write_bytes(content)
        told["programs"] = [hashlib.sha256(content).hexdigest() for content in written.values()]
        shutil.copyfile(run.__file__, part / "run.py")
        told |= {"weights": names, "dtypes": [leaf.dtype.name for leaf in plain]}
        (part / "artefact.json").write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    return folder
