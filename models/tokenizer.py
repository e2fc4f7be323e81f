"""The tokenizer of a Hugging Face folder, as a `tokenizers.Tokenizer`."""

from pathlib import Path
from typing import Any

from jspec.errors import InputError

SLOW = ("tokenizer.model", "vocab.json", "spiece.model")


def read(folder: Path) -> Any:
    """Reads tokenizer.json, or has `transformers` convert an older format.

    A Rust tokenizer opens in milliseconds, while importing `transformers` takes seconds, so it is
    imported only where it is needed.

    Raises:
        InputError: if there is none, or none that can be read.
    """
    file = folder / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        try:
            found = Tokenizer.from_file(str(file))
        except Exception as error:  # the Rust binding raises bare Exception
            raise InputError(f"{file} is no tokenizer ({error}); download it again") from error
    elif any((folder / name).is_file() for name in SLOW):
        from transformers import AutoTokenizer

        try:
            found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
        except (OSError, ValueError, AttributeError, ImportError) as error:
            raise InputError(
                f"{folder} has a tokenizer that cannot be converted ({error}); "
                "save it with transformers as tokenizer.json"
            ) from error
    else:
        raise InputError(
            f"{folder} has no tokenizer; add tokenizer.json, or load with with_tokenizer=False"
        )
    # A stored limit would cut prompts silently, and stored padding would lengthen them.
    found.no_truncation()
    found.no_padding()
    return found
