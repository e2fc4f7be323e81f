"""A draft head by its name, ready to decode with: trained, bundled, or published."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from jax.typing import DTypeLike

from jspec._validate.errors import InputError
from jspec.models import hub
from jspec.models.fingerprint import fingerprint
from jspec.models.heads import published, store
from jspec.models.heads.registry import HEAD_KINDS, kind_of, with_taps
from jspec.models.huggingface import config_json
from jspec.models.load import Loaded
from jspec.types import PyTree

CURVE = "curve.jsonl"
"""The file by which a run of `jspec train` is known."""


class LoadedHead(NamedTuple):
    """A draft head and the target that it drafts for; `head, params, target = load(...)`.

    Example:
        >>> from jspec import models
        >>> target = models.load("jspec-7m")
        >>> loaded = models.heads.load("jspec-7m/eagle", target)
        >>> type(loaded.head).__name__, sorted(loaded.params), loaded.target.model == target.model
        ('EAGLEHead', ['params', 'target'], True)
    """

    head: Any
    """The module: what a drafter such as `jspec.EAGLE` is made of."""
    params: PyTree
    """Its variables, ready to decode with: `drafter_params` of a call."""
    target: Loaded
    """The model to decode with. It hands out the states that the head reads, which for EAGLE-3
    to EAGLE-4 are those of several layers; for other heads it is the target that was given."""


def load(
    name: str | Path,
    target: Loaded,
    only: str | tuple[str, ...] | None = None,
    dtype: DTypeLike | None = None,
) -> LoadedHead:
    """Loads a draft head, ready to decode with.

    Args:
        name: a folder that `save` wrote or the --out of `jspec train`, a bundled head such as
            "jspec-7m/medusa", or a published head of EAGLE, EAGLE-2, EAGLE-3, EAGLE-3.1, EAGLE-4,
            Medusa, DFlash, DSpark or JetSpec: a folder in Hugging Face layout, or a hub id. Of a
            target whose weights come with a head (MTP), its own folder or id.
        target: the model that it is to draft for.
        only: wanted kinds of "block", "eagle", "eagle3", "lyanna", "medusa", "mtp"; None: any.
        dtype: dtype that the weights are held in; the target's if not given.

    Returns:
        The head, its params, and the target as the head reads it.

    Raises:
        InputError: if the folder is not whole, of another kind, or of another target.

    Example:
        >>> import jspec
        >>> from jspec import models
        >>> target = models.load("jspec-7m")
        >>> head, params, target = models.heads.load("jspec-7m/lyanna", target)
        >>> drafter = jspec.Lyanna(head)
        >>> # jspec.decode(target.model, target.params, prompts, drafter=drafter,
        >>> #     drafter_params=params, stopping=jspec.Stopping(eos=target.eos))
    """
    head, variables = read_variables(name, target, only, dtype)
    params = HEAD_KINDS[kind_of(head)].prepare(head, variables)
    return LoadedHead(head, params, replace(target, model=with_taps(target.model, head)))


def read_variables(
    name: str | Path,
    target: Loaded,
    only: str | tuple[str, ...] | None = None,
    dtype: DTypeLike | None = None,
) -> tuple[Any, PyTree]:
    """Reads a draft head as it was trained, to inspect it or to train it further.

    Args:
        name: as in `load`.
        target: the model that it was trained for.
        only: the kind that is wanted, or kinds; any if not given.
        dtype: dtype that the weights are held in; the target's if not given.

    Returns:
        The module, and variables by collection; `target` holds the target's own arrays.

    Raises:
        InputError: as `load`.
    """
    folder = _folder(name)
    if folder is None:
        return published.read(name, target, only, dtype)
    return store.read(folder, target, only, dtype)


def bundled() -> list[str]:
    """Names of the heads that came with this installation.

    Example:
        >>> "jspec-7m/eagle" in bundled()
        True
    """
    files = hub.ZOO.glob(f"*/heads/*/{store.RECORD}")
    return sorted(f"{file.parts[-4]}/{file.parts[-2]}" for file in files)


def find(kind: str, target: Loaded) -> str:
    """Returns the name of the bundled head of a kind that was trained for these weights.

    Raises:
        InputError: if there is none.
    """
    names = [name for name in bundled() if name.endswith(f"/{kind}")]
    ours = fingerprint(target.params, target.model) if names else None
    for name in names:
        trained_for = config_json.read(_bundled_folder(name) / store.RECORD).part("target")
        if trained_for.get("fingerprint") == ours:
            return name
    raise InputError(
        f"no bundled {kind} head was trained for this model; give the folder of one as the option "
        "\"head\" (jspec train head --kind makes EAGLE's, Lyanna's and Medusa's)"
    )


def own(target: Loaded) -> str | None:
    """Returns the folder of a target whose weights come with a draft head (MTP).

    None: they come with none, or the target was not loaded from a folder.
    """
    folder = published.find_own(target)
    return None if folder is None else str(folder)


def _folder(name: str | Path) -> Path | None:
    """Returns the folder of a head in jspec's format; None: a published one, here or on the hub."""
    path = Path(name).expanduser()
    if not path.is_dir() and str(name) in bundled():
        return _bundled_folder(str(name))
    for folder in (path, path / "head"):  # what was saved, or a run that saved it
        if (folder / store.RECORD).is_file():
            return folder
    if (path / CURVE).is_file():
        steps = len((path / CURVE).read_text().splitlines())
        raise InputError(
            f"{name} is a run of jspec train that has no head yet, after {steps} steps; go on with "
            "it: the same command and --resume"
        )
    if (path / store.WEIGHTS).is_file():
        raise InputError(f"{name} lacks {store.RECORD}; restore the folder from a copy")
    return None


def _bundled_folder(name: str) -> Path:
    model, _, head = name.partition("/")
    return hub.ZOO / model / "heads" / head
