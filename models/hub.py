"""From a name to a folder on disk: a local one, a bundled one, or a download from the hub."""

from collections.abc import Sequence
from pathlib import Path

from jspec.errors import InputError

WANTED = [
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
]

HEADS = [*WANTED, "*.bin", "*.pt"]
"""The files of a draft head: few are published as safetensors."""

ZOO = Path(__file__).resolve().parent / "zoo"


def bundled() -> list[str]:
    """Names of the models that came with this installation."""
    return sorted(config.parent.name for config in ZOO.glob("*/config.json"))


def folder(name: str | Path, wanted: Sequence[str] = WANTED) -> Path:
    """The folder of a checkpoint. A folder here hides a bundled model of the same name, and that a
    hub id. Only `wanted` is downloaded: configuration, tokenizer and safetensors.

    Raises:
        InputError: if the name is neither a folder nor a checkpoint that the hub gives out.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise InputError(f"{name} is a file; name the folder that holds it")
    if str(name) in bundled():
        return ZOO / str(name)
    parts = str(name).split("/")
    if len(parts) > 2 or not all(parts) or parts[0].startswith((".", "~")):
        raise InputError(
            f"{name} is no folder; name an existing one, or a hub id such as org/model"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(wanted)))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"{name} is no folder here and could not be downloaded from the hub "
            f"({reason[0] if reason else type(error).__name__}); "
            "name an existing folder, or check the id and the network"
        ) from error
