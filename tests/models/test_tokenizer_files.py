"""Tokens that files next to tokenizer.json have, and files that are known to err."""

import json

import pytest
import tiny_gguf
from tokenizers import Regex, decoders, pre_tokenizers

import jspec
from jspec.models import tokenizer
from jspec.models.detokenise import Detokeniser
from jspec.models.gguf import vocabulary

START, END = "<|im_start|>", "<|im_end|>"
TALK = f"{START}user\nOnce{END} <tool>"


def folder(path, made, **files):
    made.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def files(size):
    """Both ways to write three tokens that tokenizer.json has not."""
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    words = {text: {"content": text, "special": True} | flags for text in (START, END)}
    words["<tool>"] = {"content": "<tool>", "special": False} | flags
    numbers = {text: size + place for place, text in enumerate(words)}
    named = {"eos_token": END, "additional_special_tokens": [START]}
    return (
        {"tokenizer_config": {"added_tokens_decoder": {numbers[t]: words[t] for t in words}}},
        {"added_tokens": numbers, "special_tokens_map": named},
        {"added_tokens": numbers, "tokenizer_config": named},
    )


@pytest.mark.parametrize("kind", range(3))
def test_tokens_next_to_tokenizer_json_are_one_id_each(tmp_path, kind):
    made = tiny_gguf.words(special=["<|endoftext|>"])
    size = made.get_vocab_size()
    found = tokenizer.read(folder(tmp_path, made, **files(size)[kind]))
    ids = found.encode(TALK, add_special_tokens=False).ids
    assert ids == [size, *made.encode("user\nOnce").ids, size + 1, *made.encode(" ").ids, size + 2]
    assert Detokeniser(found).finish(ids) == "user\nOnce <tool>"


def test_tokens_that_fit_nowhere_are_one_sentence(tmp_path):
    made = tiny_gguf.words(special=["<|endoftext|>"])
    size = made.get_vocab_size()
    for content, said in (
        ({"<a>": size + 1}, f"added_tokens.json gives '<a>' the id {size + 1}, .* to {size}"),
        ({"<a>": None}, "does not describe tokens"),
        ({"<a>": size, "<b>": "x"}, "added_tokens.json does not describe tokens"),
    ):
        with pytest.raises(jspec.InputError, match=said):
            tokenizer.read(folder(tmp_path, made, added_tokens=content))
    for one in ([], {"content": 5}, {"other": "a"}):
        with pytest.raises(jspec.InputError, match=r"tokenizer_config.json does not describe"):
            tokenizer.read(
                folder(tmp_path, made, tokenizer_config={"added_tokens_decoder": {"9": one}})
            )


def test_mistrals_files_are_split_as_the_vocabulary_is_made_for(tmp_path):
    llama, tekken = (vocabulary.split(*vocabulary.SPLITS[one]) for one in ("llama-bpe", "tekken"))
    made = tiny_gguf.words(["1999 NaOH HTTPServer a/b"] * 9, split=llama)
    text, by_llama = "1999 NaOH", made.encode("1999 NaOH").ids
    made.pre_tokenizer = tekken
    by_tekken = made.encode(text).ids
    assert by_llama != by_tekken
    made.pre_tokenizer = llama
    for wanted, config in (
        (by_tekken, {"model_type": "mistral3", "transformers_version": "4.52.4"}),
        (by_tekken, {"model_type": "mistral"}),
        (by_llama, {"model_type": "mistral", "transformers_version": "5.1.0"}),
        (by_llama, {"model_type": "llama"}),
    ):
        found = tokenizer.read(folder(tmp_path, made, config=config))
        assert found.encode(text).ids == wanted
    for kept in (tekken, pre_tokenizers.Split(Regex(" "), "isolated")):
        made.pre_tokenizer = kept
        found = tokenizer.read(folder(tmp_path, made, config={"model_type": "mistral"}))
        assert found.encode(text).ids == made.encode(text).ids


def test_a_vocabulary_of_bytes_decodes_by_bytes(tmp_path):
    made = tiny_gguf.words()
    ids = made.encode(TALK).ids
    for other in (None, decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])):
        made.decoder = other
        found = tokenizer.read(folder(tmp_path, made))
        assert found.decode(ids) == "user\nOnce <tool>" == Detokeniser(made).finish(ids)
