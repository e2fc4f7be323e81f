"""The tokenizer of a Hugging Face folder, as a `tokenizers.Tokenizer`."""

import json
from pathlib import Path
from typing import Any

from jspec._validate import extras, plain_json
from jspec._validate.errors import InputError
from jspec.models import chat_template
from jspec.models.huggingface import config_json

SLOW = ("tokenizer.model", "vocab.json", "spiece.model")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_MISTRAL = ("mistral", "mistral3", "ministral", "voxtral", "pixtral")

_GAPS = 2**16
"""Numbers that a vocabulary may leave out."""


def read(folder: Path) -> Any:
    """Reads tokenizer.json, or has `transformers` convert an older format.

    A Rust tokenizer opens in milliseconds; `transformers` takes seconds, so it is imported late.
    """
    file = folder / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        try:
            text = file.read_text("utf-8")
            _check_numbers(plain_json.parse(text))
            tokenizer = Tokenizer.from_str(text)
            _add_tokens(tokenizer, folder)
            _mend(tokenizer, config_json.read(folder / "config.json", required=False))
            tokenizer.encode("a")  # fails where special tokens are missing that it writes
        except (KeyboardInterrupt, SystemExit, InputError):
            raise
        except BaseException as error:  # the Rust binding raises bare Exception, and its panics
            raise InputError(f"{file} is not a tokenizer ({error}); download it again") from error
    elif any((folder / name).is_file() for name in SLOW):
        extras.require(f"the tokenizer of {folder}", "transformers", "transformers")
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False
            ).backend_tokenizer
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
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _add_tokens(tokenizer: Any, folder: Path) -> None:
    """Adds the tokens that only files next to tokenizer.json have, as `transformers` does it."""
    from tokenizers import AddedToken

    source, names, beside = (
        config_json.read(folder / f"{name}.json", required=False)
        for name in ("tokenizer_config", "special_tokens_map", "added_tokens")
    )
    tokens = source.get("added_tokens_decoder")
    if tokens is None:
        fields = {**names.values, **source.values}
        special = json.dumps([fields.get(name) for name in (*chat_template.TOKENS, *_LISTS)])
        source, tokens = beside, {}
        for text, number in beside.values.items():
            is_special = json.dumps(text) in special  # by itself, or the text of an object
            tokens[number] = dict(content=text, special=is_special, normalized=not is_special)
    same = {repr(entry) for entry in tokenizer.get_added_tokens_decoder().values()}
    try:
        for number, token in sorted((int(n), AddedToken(**entry)) for n, entry in tokens.items()):
            is_new = tokenizer.token_to_id(token.content) is None
            if repr(token) not in same:
                tokenizer.add_tokens([token])
            if is_new and (place := tokenizer.token_to_id(token.content)) != number:
                raise InputError(
                    f"{source.source} gives {token.content!r:.60} the id {number}, and behind the "
                    f"tokens of tokenizer.json it comes to {place}; save the tokenizer again"
                )
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{source.source} does not describe tokens ({error}); download it again"
        ) from error


def _mend(tokenizer: Any, config: config_json.Settings) -> None:
    """Has a text split and joined as its vocabulary is made for, where files are known to err."""
    from tokenizers import decoders

    from jspec.models.gguf import vocabulary

    if "ByteLevel" not in str(tokenizer.pre_tokenizer):
        return
    if "ByteLevel" not in str(tokenizer.decoder):
        tokenizer.decoder = decoders.ByteLevel()
    # Version 4 of `transformers` wrote Llama 3's pattern into Mistral's files.
    splitter = json.loads(tokenizer.pre_tokenizer.__getstate__())
    first = splitter.get("pretokenizers", [splitter])[0]
    is_wrong = first.get("pattern") == {"Regex": vocabulary.SPLITS["llama-bpe"][0]}
    is_old = str(config.get("transformers_version", "4")).startswith("4")
    is_llamas = tokenizer.token_to_id("<|begin_of_text|>") is not None
    if config.get("model_type") in _MISTRAL and is_wrong and is_old and not is_llamas:
        tokenizer.pre_tokenizer = vocabulary.split(*vocabulary.SPLITS["tekken"])


def _check_numbers(described: Any) -> None:
    """Raises ValueError for a token's number so large that the tables of all up to it have no
    room, for which `tokenizers` ends the process.
    """
    parts = described if isinstance(described, dict) else {}
    model, added = parts.get("model"), parts.get("added_tokens")
    words = model.get("vocab") if isinstance(model, dict) else None
    numbers = [*words.values()] if isinstance(words, dict) else []
    numbers += [entry.get("id") for entry in added or () if isinstance(entry, dict)]
    ids = [number for number in numbers if type(number) is int]
    if ids and max(ids) > 2 * len(ids) + _GAPS and isinstance(words, dict):
        raise ValueError(f"it has a token {max(ids)} among {len(ids)}")
