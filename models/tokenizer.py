"""The tokenizer of a Hugging Face folder, as a `tokenizers.Tokenizer`."""

from pathlib import Path
from typing import Any

from jspec._validate import extras, plain_json
from jspec._validate.errors import InputError

SLOW = ("tokenizer.model", "vocab.json", "spiece.model")


_GAPS = 2**16
"""Numbers that a vocabulary may leave out."""


def read(folder: Path) -> Any:
    """Reads tokenizer.json, or has `transformers` convert an older format.

    A Rust tokenizer opens in milliseconds; `transformers` takes seconds, so it is imported late.

    Raises:
        InputError: if there is none, or none that can be read.
    """
    file = folder / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        try:
            text = file.read_text("utf-8")
            _check_numbers(plain_json.parsed(text))
            found = Tokenizer.from_str(text)
            found.encode("a")  # fails where special tokens are missing that it writes
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the Rust binding raises bare Exception, and its panics
            raise InputError(f"{file} is not a tokenizer ({error}); download it again") from error
    elif any((folder / name).is_file() for name in SLOW):
        extras.require(f"the tokenizer of {folder}", "transformers", "transformers")
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


def _check_numbers(described: Any) -> None:
    """Raises ValueError for a token's number so large that the tables of all up to it have no
    room, for which `tokenizers` ends the process.
    """
    parts = described if isinstance(described, dict) else {}
    model, added = parts.get("model"), parts.get("added_tokens")
    words = model.get("vocab") if isinstance(model, dict) else None
    numbers = [*words.values()] if isinstance(words, dict) else []
    numbers += [one.get("id") for one in added or () if isinstance(one, dict)]
    known = [number for number in numbers if type(number) is int]
    if known and max(known) > 2 * len(known) + _GAPS and isinstance(words, dict):
        raise ValueError(f"it has a token {max(known)} among {len(known)}")
