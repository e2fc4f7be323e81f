import random

import pytest
from tokenizers import Tokenizer, decoders, models

from jspec.sessions.detokenise import Detokeniser
from jspec.training import tokenizer as tokenizers

TEXT = "naïve 猫 🐈‍⬛ — «Žofie»\n\tok"


def byte_level() -> Tokenizer:
    return tokenizers.train([TEXT] * 3, 260)


def byte_fallback() -> Tokenizer:
    """The layout of Llama's: words with a mark for the space, other characters as bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "b", "▁"]
    tokenizer = Tokenizer(
        models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True)
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def pieces(tokenizer: Tokenizer, ids: list[int], prompt: int) -> list[str]:
    row = Detokeniser(tokenizer, ids[:prompt])
    return [row.prompt, *(row.push([token]) for token in ids[prompt:]), row.finish()]


def test_a_character_of_several_tokens_comes_whole():
    tokenizer = byte_level()
    ids = tokenizer.encode("a猫b").ids
    assert len(ids) == 6  # the end token first, and three bytes for the cat
    assert pieces(tokenizer, ids, 2) == ["a", "", "", "猫", "b", ""]
    assert pieces(tokenizer, ids, 4) == ["a", "猫", "b", ""]  # a prompt that ends inside of it
    assert pieces(tokenizer, ids[:4], 2) == ["a", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_a_token_that_is_not_written_does_not_end_a_run_of_bytes():
    tokenizer = byte_fallback()
    byte, end, b = 3 + 0xF0, 2, tokenizer.token_to_id("b")
    for ids in ([3 + 65, end, end, byte, b], [3 + 0xC3, end, 3 + 0xA9, b], [b, byte, end]):
        for prompt in range(1, len(ids)):
            assert "".join(pieces(tokenizer, ids, prompt)) == tokenizer.decode(ids)


def test_a_run_of_bytes_is_held_until_it_is_over():
    # The decoder gives U+FFFD for every byte of a run that is not valid to its end.
    tokenizer = byte_fallback()
    cat = [3 + byte for byte in "猫".encode()]
    ids = [1, 259, *cat, cat[0], 260]
    assert tokenizer.decode(ids).count("\N{REPLACEMENT CHARACTER}") == 4
    assert pieces(tokenizer, [1, 259, *cat, 260], 2) == ["a", "", "", "", "猫b", ""]
    assert "".join(pieces(tokenizer, ids, 2)) == tokenizer.decode(ids)


def test_the_space_before_the_first_token_is_the_decoders_affair():
    tokenizer = byte_fallback()
    assert pieces(tokenizer, [1, 259, 259], 1) == ["", "a", " a", ""]


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_pieces_join_to_the_whole(make):
    tokenizer, chance = make(), random.Random(0)
    known = tokenizer.get_vocab_size()
    whole = list(range(3, known)) if make is byte_level else [*range(3, 262), 1, 2]
    for _ in range(200):
        ids = [chance.choice(whole) for _ in range(chance.randint(1, 30))]
        if chance.random() < 0.5:
            ids[chance.randrange(len(ids)) :] = tokenizer.encode(TEXT, add_special_tokens=False).ids
        prompt = chance.randint(0, len(ids))
        assert "".join(pieces(tokenizer, ids, prompt)) == tokenizer.decode(ids)
