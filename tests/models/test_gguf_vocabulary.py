"""Tokenizers from metadata, against the tokenizers that the metadata was taken from."""

import json
from pathlib import Path

import pytest
import tiny_gguf
from tokenizers import Regex, normalizers, pre_tokenizers, processors

from jspec.models.chat_template import ChatTemplate
from jspec.models.gguf import vocabulary
from jspec.models.gguf.header import Header
from jspec.models.huggingface.config_json import Settings

TEXTS = [
    *tiny_gguf.TEXTS,
    "12345 3.14 ½ Ⅷ x² 10,000",
    "  two  spaces \n\n\n tab\t\r\nwin ",
    "It'S THEY'LL i'd don't",
    "e\u0301 \u00a0nbsp \u200bzero 🐈‍⬛ a.b/c_d",
    "def f(x):\n    return {x: 'y'}  # 7",
    "a<|im_end|> <tool>b <|im_start|>",
    "",
]
# As the tokenizer.json of Llama 3 and Qwen2 have them.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501

GPT4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501


def split(pattern):
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), whole])


SPLITS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": split(LLAMA3),
    "qwen2": split(QWEN2),
    "gpt-4o": split(GPT4O),
    "deepseek-coder": pre_tokenizers.Sequence(
        [
            *(
                pre_tokenizers.Split(Regex(pattern), "isolated")
                for pattern in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")
            ),
            pre_tokenizers.Digits(True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    ),
}


def build(fields: dict, architecture: str = "llama"):
    named = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    values = {"general.architecture": architecture, **named}
    return vocabulary.tokenizer(Header(Path("model.gguf"), Settings(values, "model.gguf"), {}))


@pytest.mark.parametrize("pre", SPLITS)
def test_byte_level_ids_are_those_of_the_original(pre):
    theirs = tiny_gguf.words(TEXTS * 4, split=SPLITS[pre])
    if pre == "qwen2":
        theirs.normalizer = normalizers.NFC()
    ours = build(tiny_gguf.vocabulary(theirs, pre, add_bos_token=False))
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.encode(text).ids
        composed = normalizers.NFC().normalize_str(text) if pre == "qwen2" else text
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == composed


def test_old_files_name_their_split_by_their_architecture():
    fields = tiny_gguf.vocabulary(tiny_gguf.words(), None)
    for architecture, pre in vocabulary.OLD.items():
        new = build(fields | {"pre": pre})
        assert build(fields, architecture).encode(TEXTS[2]).ids == new.encode(TEXTS[2]).ids


def test_texts_are_split_as_llama_cpp_does():
    """The cases where families differ: digits, short forms, upper case, slashes, line ends."""
    text = "It's We'LL 12345 HTTPServer, a/b//\n\nნახვა 1"
    for pre, wanted in (
        ("default", "It|'|s| We|'|LL| |123|45| HTTPServer|,| a|/|b|//|\n|\n|ნახვა| |1"),
        ("mellum", "It|'s| We|'|LL| 12345| HTTPServer|,| a|/|b|//|\n|\n|ნახვა| 1"),
        ("refact", "It|'s| We|'|LL| |1|2|3|4|5| HTTPServer|,| a|/|b|//|\n|\n|ნახვა| |1"),
        ("dbrx", "It|'s| We|'LL| |123|45| HTTPServer|,| a|/b|//\n\n|ნახვა| |1"),
        ("megrez", "It|'s| We|'LL| |1|2|3|4|5| HTTPServer|,| a|/b|//\n\n|ნახვა| |1"),
        ("seed-coder", "It|'s| We|'LL| |1|2|3|4|5| HTTPServer|,| a|/b|//|\n\n|ნახვა| |1"),
        ("tekken", "It|'s| We|'LL| |1|2|3|4|5| HTTPServer|,| a|/b|//\n\n|ნახვა| |1"),
        ("gpt-4o", "It's| We'LL| |123|45| HTTPServer|,| a|/b|//\n\n|ნახვა| |1"),
        ("deepseek-llm", "It|'|s| We|'|LL| |12345| HTTPServer|,| a|/|b|//|\n|\n|ნახვა| |1"),
        ("deepseek-coder", "It|'|s| We|'|LL| |1|2|3|4|5| HTTPServer|,| a|/|b|//|\n|\n|ნახვა| |1"),
        ("superbpe", "It's We'LL |12|345| HTTPServer, a/b//\n\nნახვა |1"),
    ):
        fields = tiny_gguf.vocabulary(tiny_gguf.words(), pre)
        pieces = build(fields).pre_tokenizer.pre_tokenize_str(text)
        assert [text[begin:end] for _, (begin, end) in pieces] == wanted.split("|"), pre
    # Old files of the same name are split as their architecture's.
    old = build(tiny_gguf.vocabulary(tiny_gguf.words(), "default"), "qwen2").pre_tokenizer
    assert len(old.pre_tokenize_str(text)) == len(
        build(fields | {"pre": "megrez"}).pre_tokenizer.pre_tokenize_str(text)
    )


def test_a_piece_that_is_a_token_is_not_merged_from_parts():
    """Llama 3 has tokens that its merges do not reach."""
    fields = tiny_gguf.vocabulary(tiny_gguf.words(), "llama-bpe", add_bos_token=False)
    fields["tokens"] = [*fields["tokens"], "zqx"]
    fields["token_type"] = [*fields["token_type"], 1]
    last = len(fields["tokens"]) - 1
    assert build(fields).encode("zqx").ids == [last]
    assert last not in build(fields | {"pre": "gpt-2"}).encode("zqx").ids


def test_a_text_begins_and_ends_as_the_file_says():
    fields = tiny_gguf.vocabulary(tiny_gguf.words(), "gpt-2")
    bare = build(fields).encode("upon").ids
    assert build(fields | {"add_bos_token": True}).encode("upon").ids == [1, *bare]
    both = build(fields | {"add_bos_token": True, "add_eos_token": True})
    assert both.encode("upon").ids == [1, *bare, 2]
    assert both.encode("upon", add_special_tokens=False).ids == bare
    # Llama 3's texts begin with a token where the file does not say.
    assert build(fields | {"pre": "llama-bpe"}).encode("upon").ids[0] == 1


def test_users_tokens_are_found_in_a_text_and_are_not_special():
    fields = tiny_gguf.vocabulary(tiny_gguf.words(special=[*tiny_gguf.SPECIAL, "<tool>"]), "gpt-2")
    place = fields["tokens"].index("<tool>")
    fields["token_type"][place] = 4
    found = build(fields)
    ids = found.encode("a<tool>b<|im_end|>").ids
    assert place in ids
    assert found.decode(ids) == "a<tool>b"


def test_marks_are_tokens_of_their_own_whatever_kind_a_file_says():
    fields = tiny_gguf.vocabulary(tiny_gguf.words(), "gpt-2")
    place = fields["tokens"].index("<|im_end|>")
    for kind in (1, 3, 4):
        fields["token_type"][place] = kind
        made = build(fields)
        assert made.encode("a<|im_end|>").ids[-1] == place
        assert ChatTemplate(tiny_gguf.CHAT, made).end_of_turn == (place,)


def test_sentencepiece_ids_are_those_of_sentencepiece():
    recorded = json.loads((Path(__file__).parent / "sentencepiece.json").read_text("utf-8"))
    texts = recorded.pop("texts")
    fields = recorded | {"model": "llama", "bos_token_id": 1, "eos_token_id": 2}
    found = build(fields)
    for text, ids in texts:
        assert found.encode(text).ids == [1, *ids]
        assert found.decode(ids) == text
    bare = build(fields | {"add_space_prefix": False, "add_bos_token": False})
    assert bare.encode("On").tokens == ["On"]
    assert found.encode("On</s>On").tokens == ["<s>", "▁", "On", "</s>", "▁", "On"]
    assert found.post_processor is not None
    assert isinstance(found.post_processor, processors.TemplateProcessing)


def test_the_converters_placeholder_names_are_not_tokens():
    """A model of 151,936 scores and one of 152,064 have the same tokens so."""
    fields = tiny_gguf.vocabulary(tiny_gguf.words(), "qwen2")
    held, size = build(fields).get_vocab(), len(fields["tokens"])
    for more in (1, 7):
        padding = [f"[PAD{size + place}]" for place in range(more)]
        kinds = [*fields["token_type"], *[5] * more]
        padded = build(fields | {"tokens": [*fields["tokens"], *padding], "token_type": kinds})
        assert padded.get_vocab() == held
        assert padded.decode([5, size]) == padded.decode([5])
