"""The bytes that each token of a vocabulary stands for."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jspec._validate.errors import InputError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class TokenBytes(list[bytes | None]):
    """The bytes of each token in a text; None for special tokens, which have names alone.

    Args:
        spelled: the bytes of each token.
        names: the texts of special tokens by their ids, such as "<|im_end|>".
    """

    def __init__(self, spelled: Iterable[bytes | None] = (), names: Mapping[int, bytes] = {}):
        super().__init__(spelled)
        self.names = dict(names)


def token_bytes(tokenizer: Any) -> TokenBytes:
    """Returns the bytes of each token of a tokenizer, in a text; None for special tokens.

    The bytes of the tokens of a text are those of the text. This holds for vocabularies of bytes
    (GPT-2's: Llama 3, Qwen, SmolLM) and of SentencePiece (Llama 2, Mistral).

    Args:
        tokenizer: a `tokenizers.Tokenizer`, a tokenizer of `transformers` that has one, or the
            bytes themselves, one entry a token.

    Raises:
        InputError: if it is not one of them, or of another kind.

    Example:
        >>> token_bytes([b"a", b"bc", None])
        [b'a', b'bc', None]
    """
    if isinstance(tokenizer, Sequence) and not isinstance(tokenizer, str | bytes):
        if wrong := [one for one in tokenizer if not isinstance(one, bytes | None)]:
            raise InputError(
                f"the vocabulary has {wrong[0]!r:.40}; pass the bytes of each token, None where it "
                "has no text"
            )
        return TokenBytes(tokenizer, getattr(tokenizer, "names", {}))
    inner: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(inner, "to_str"):
        raise InputError(
            f"tokenizer is {tokenizer!r:.80}; pass a tokenizers.Tokenizer, or the bytes of each "
            "token"
        )
    described = json.loads(inner.to_str())
    read = _reader(described)
    known = inner.get_vocab()
    # Numbers may be left out.
    found = TokenBytes([None] * (max(known.values(), default=-1) + 1))
    for token, number in known.items():
        found[number] = read(token)
    for added in described["added_tokens"]:
        text = added["content"].encode()
        found[added["id"]] = None if added["special"] else text
        if added["special"]:
            found.names[added["id"]] = text
    return found


def _reader(described: dict[str, Any]) -> Any:
    """Returns what makes bytes of a token's name, by the decoder of the tokenizer."""
    decoder = described.get("decoder") or {}
    parts = decoder.get("decoders", [decoder])
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        known: Any = _byte_letters()
        # A letter that stands for no byte is written as itself, as the decoder does.
        return lambda token: b"".join(known.get(letter, letter.encode()) for letter in token)
    if "Metaspace" in kinds or any(
        part.get("type") == "Replace" and part.get("pattern", {}).get("String") == _SPACE
        for part in parts
    ):
        fallback = "ByteFallback" in kinds

        def read(token: str) -> bytes:
            if fallback and (byte := _BYTE.fullmatch(token)):
                return bytes([int(byte[1], 16)])
            return token.replace(_SPACE, " ").encode()

        return read
    raise InputError(
        f"the tokenizer decodes by {sorted(map(str, kinds))}; bytes of tokens are known for "
        "ByteLevel, Metaspace and ByteFallback: pass the bytes of each token instead"
    )


def _byte_letters() -> dict[str, bytes]:
    """Returns the letters by which GPT-2's vocabulary writes bytes (Radford et al. 2019):
    printable ones stand for themselves, the others for those after 255, in their order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    return letters | {chr(256 + place): bytes([byte]) for place, byte in enumerate(others)}
