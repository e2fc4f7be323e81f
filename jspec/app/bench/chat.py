"""The words that a model reads: a conversation in its chat template, or the bare text."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jspec.errors import InputError

Said = str | tuple[int, ...]


class Wording(Protocol):
    """Turns a conversation into the token ids of a prompt."""

    @property
    def name(self) -> str:
        """What it is, for the report."""
        ...

    def ids(self, turns: Sequence[Said], answers: Sequence[str]) -> list[int]:
        """The prompt of the last turn; the earlier ones have been answered."""
        ...


@dataclass(frozen=True)
class Bare:
    """The text as it is, as `jspec generate` reads it; later turns follow the answers."""

    tokenizer: Any
    name: str = "bare text"

    def ids(self, turns: Sequence[Said], answers: Sequence[str]) -> list[int]:
        if not isinstance(turns[0], str):
            return list(turns[0])
        text = turns[0]
        for answer, turn in zip(answers, turns[1:], strict=True):
            text += f"{answer}\n\n{turn}"
        return self.tokenizer.encode(text).ids


@dataclass(frozen=True)
class Templated:
    """The chat template of the model's tokenizer; token ids are taken as they are."""

    tokenizer: Any
    """A `tokenizers.Tokenizer`."""
    template: Any
    """The tokenizer of `transformers`, which has the template."""
    name: str = "chat template"

    def ids(self, turns: Sequence[Said], answers: Sequence[str]) -> list[int]:
        if not isinstance(turns[0], str):
            return list(turns[0])
        messages: list[dict[str, Any]] = [{"role": "user", "content": turns[0]}]
        for answer, turn in zip(answers, turns[1:], strict=True):
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": turn})
        text = self.template.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        # The template itself writes what stands before a text.
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def wording(folder: Path, tokenizer: Any, raw: bool = False) -> Wording:
    """The chat template where the folder has one, else the bare text.

    Args:
        folder: of the model.
        tokenizer: of the model, a `tokenizers.Tokenizer`.
        raw: True leaves the template out.

    Raises:
        InputError: if there is a template that cannot be used.
    """
    if raw or not _has_template(folder):
        return Bare(tokenizer)
    # Torch is not needed for a template, so that it need not be said that it is absent.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer

    found = Templated(tokenizer, AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    try:
        found.ids(["Hello"], [])
    except Exception as error:  # templates are programs: whatever they raise is theirs
        raise InputError(
            f"the chat template of {folder} fails ({error}); pass --raw to leave it out"
        ) from error
    return found


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    file = folder / "tokenizer_config.json"
    try:
        return file.is_file() and bool(json.loads(file.read_text("utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{file} is no JSON object ({error}); mend it, or pass --raw") from error
