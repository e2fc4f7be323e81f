"""Labels of single tokens: their text within a text, not at its beginning."""

from collections.abc import Iterable
from typing import Any

from jspec.models import reasoning


def strings(tokenizer: Any, tokens: Iterable[int]) -> dict[int, str | dict[str, str]]:
    """Returns the text of each token. One that has none by itself is {"bytes": in hexadecimal}
    if it is a part of a character, and else {"sign": its name}, such as an end token.
    """
    vocabulary, texts = reasoning.readable(tokenizer), {}
    for token in tokens:
        spelled = vocabulary.bytes_of(token)
        try:
            text = (spelled or b"").decode()
            texts[token] = text or {"sign": tokenizer.id_to_token(token) or f"#{token}"}
        except UnicodeDecodeError:
            texts[token] = {"bytes": (spelled or b"").hex(" ").upper()}
    return texts
