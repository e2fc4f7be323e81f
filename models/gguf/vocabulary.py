"""The tokenizer of a GGUF file, built from its metadata as a `tokenizers.Tokenizer`."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE

from jspec._validate.errors import InputError
from jspec.models.gguf.header import Header

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED = 1, 2, 3, 4, 5
"""Kinds of tokens, `tokenizer.ggml.token_type`."""

_MARK = re.compile(r"<\|\S+\|>|<\S+_of_turn>")
"""Tokens that mark turns and their parts, of whatever kind a file says that they are."""

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's character for a space."""

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's."""
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = _QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
_SEED = _QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_UPPER, _LOWER = (rf"[{kind}\p{{Lm}}\p{{Lo}}\p{{M}}]" for kind in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
_CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SLASHES = _REST.replace(r"[\r\n]*", r"[\r\n/]*")
_TEKKEN = "|".join(_CASES) + r"|\p{N}" + _SLASHES
_GPT4O = "|".join(f"{case}{_SHORT}?" for case in _CASES) + r"|\p{N}{1,3}" + _SLASHES
_CHINESE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_SENTENCES = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Splits by each pattern what those before it have left."""
    return pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_PATTERNS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("gpt-2", "mellum", "trillion", "a.x-4.0"): (_WORDS,),
    ("smollm", "starcoder", "refact", "minerva-7b"): (r"\p{N}", _WORDS),
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"): (_LLAMA3,),
    ("smaug-bpe", "dbrx"): (_LLAMA3,),
    ("qwen2", "deepseek-r1-qwen", "megrez"): (_QWEN2,),
    ("qwen35",): (_QWEN35,),
    ("seed-coder",): (_SEED,),
    ("tekken",): (_TEKKEN,),
    ("gpt-4o",): (_GPT4O,),
    ("deepseek-llm",): (
        r"[\r\n]",
        # Letters that have a case, but for Georgian's, which had none at that time.
        r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^\u10d0-\u10ff]]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _CHINESE,
        r"\p{N}+",
    ),
    ("deepseek-coder",): (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, r"\p{N}"),
    ("superbpe",): (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    ("poro-chat",): (_SENTENCES,),
    ("viking",): (_SENTENCES, r"\p{N}"),
    ("default",): (r"[\p{P}$+<=>^~|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
}

SPLITS = MappingProxyType({name: pattern for names, pattern in _PATTERNS.items() for name in names})
"""Patterns that split a text before the merges, by `tokenizer.ggml.pre`, from llama.cpp."""

OLD = MappingProxyType({"gpt2": "gpt-2", "qwen2": "qwen2", "qwen3": "qwen2"})
"""Pre-tokenizers by architecture, for files without the field."""

_WHOLE = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "tekken"})
"""Vocabularies that keep a piece that is a token whole, and begin a text with a token."""

_COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen", "qwen35"})
"""Vocabularies that compose characters (NFC) first."""


def tokenizer(header: Header) -> Tokenizer:
    """Returns the tokenizer: byte-level BPE ("gpt2") or SentencePiece's BPE ("llama")."""
    data = header.metadata
    kind = data.text("tokenizer.ggml.model")
    tokens = data.list_of("tokenizer.ggml.tokens", str, [])
    if not tokens or kind in (None, "none", "no_vocab"):
        raise InputError(
            f"{header.file} has no tokenizer; take a file with one, or load with "
            "with_tokenizer=False"
        )
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    build = builders[data.choice("tokenizer.ggml.model", list(builders), None)]
    kinds = data.list_of("tokenizer.ggml.token_type", int, []) or [_NORMAL] * len(tokens)
    if len(kinds) != len(tokens):
        raise InputError(
            f"{header.file} has {len(tokens)} tokens and {len(kinds)} kinds of tokens; "
            "download it again"
        )
    kinds = [
        _USER if kind == _NORMAL and _MARK.fullmatch(token) else kind
        for token, kind in zip(tokens, kinds, strict=True)
    ]
    try:
        bpe, begins = build(header, tokens, kinds)
    except InputError:
        raise
    except Exception as error:  # the Rust binding raises bare Exception
        raise InputError(
            f"{header.file} holds a vocabulary that is not a tokenizer ({error}); download it again"
        ) from error
    bpe.add_special_tokens(_list_added(tokens, kinds, (_UNKNOWN, _CONTROL), special=True))
    bpe.add_tokens(_list_added(tokens, kinds, (_USER,), special=False))
    _frame(bpe, header, begins)
    return bpe


def special_tokens(header: Header) -> Mapping[str, str]:
    """Returns texts of the special tokens, by the names that chat templates have for them."""
    data = header.metadata
    tokens = data.list_of("tokenizer.ggml.tokens", str, [])
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {name: data.token(f"tokenizer.ggml.{here}_token_id") for here, name in names.items()}
    return {
        f"{name}_token": tokens[token]
        for name, token in ids.items()
        if token is not None and token < len(tokens)
    }


def _byte_level(
    header: Header, tokens: Sequence[str], kinds: Sequence[int]
) -> tuple[Tokenizer, bool]:
    data = header.metadata
    old = OLD.get(data.get("general.architecture", ""))
    pre = data.choice("tokenizer.ggml.pre", list(SPLITS), old)
    if pre == "default":
        pre = old or pre
    merges = [tuple(merge.split(" ")) for merge in data.get("tokenizer.ggml.merges", [])]
    ignore_merges = pre in _WHOLE
    bpe = Tokenizer(BPE(_ids(tokens, kinds), merges, ignore_merges=ignore_merges))
    if pre in _COMPOSED:
        bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = split(*SPLITS[pre])
    bpe.decoder = decoders.ByteLevel()
    return bpe, ignore_merges


def _sentencepiece(
    header: Header, tokens: Sequence[str], kinds: Sequence[int]
) -> tuple[Tokenizer, bool]:
    data = header.metadata
    scores = data.get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens):
        raise InputError(
            f"{header.file} has {len(tokens)} tokens and {len(scores)} scores; download it again"
        )
    unknown = data.get("tokenizer.ggml.unknown_token_id", 0)
    bpe = Tokenizer(
        BPE(
            _ids(tokens, kinds),
            _merges(tokens, kinds, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = data.flag("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", _SPACE)
    bpe.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    bpe.decoder = decoders.Sequence([*steps, *[decoders.Strip(" ", 1, 0)] * prefix])
    return bpe, True


def _merges(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Returns every pair of tokens that joins to a third, the pair of the best third first."""
    ids = {token: place for place, token in enumerate(tokens) if kinds[place] == _NORMAL}
    pairs = [
        (-scores[place], ids[token[:cut]], ids[token[cut:]])
        for token, place in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    return [(tokens[left], tokens[right]) for _, left, right in sorted(pairs)]


def _ids(tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, int]:
    """Returns the tokens' numbers, without placeholder names."""
    return {token: place for place, token in enumerate(tokens) if kinds[place] != _UNUSED}


def _list_added(
    tokens: Sequence[str], kinds: Sequence[int], selection: Sequence[int], special: bool
) -> list[AddedToken]:
    """Returns the tokens of some kinds, which are found in a text before it is split."""
    return [
        AddedToken(token, special=special, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in selection
    ]


def _frame(bpe: Tokenizer, header: Header, begins: bool) -> None:
    """Has the tokens that a text begins and ends with put around it."""
    data = header.metadata
    words: Any = special_tokens(header)
    ends = {
        "bos_token": data.flag("tokenizer.ggml.add_bos_token", begins),
        "eos_token": data.flag("tokenizer.ggml.add_eos_token", False),
    }
    first, last = ([words[name]] if on and name in words else [] for name, on in ends.items())
    if first or last:
        bpe.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            special_tokens=[(token, bpe.token_to_id(token)) for token in {*first, *last}],
        )
