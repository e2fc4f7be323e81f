import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from jspec.models.detokenise import Detokeniser
from jspec.processors import grammar
from jspec.training import tokenizer as tokenizers

BROKEN = "\N{REPLACEMENT CHARACTER}"
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


def metaspace() -> Tokenizer:
    """The same as newer files write it, with added tokens that are text and that are not."""
    tokenizer = byte_fallback()
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), "\n\n"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace("▁", prepend_scheme="first")]
    )
    return tokenizer


def word_pieces() -> Tokenizer:
    words = ["[UNK]", "[CLS]", "[SEP]", "he", "is", "##ing", "##s", ".", ",", "n't", "\N{CAT}"]
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def word_ends() -> Tokenizer:
    words = ["a", "b", "a</w>", "b</w>", ".</w>"]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer


VOCABULARIES = [byte_level, byte_fallback, metaspace, word_pieces, word_ends]


def pieces(tokenizer: Tokenizer, ids: list[int], prompt: int) -> list[str]:
    row = Detokeniser(tokenizer, ids[:prompt])
    return [row.prompt, *(row.push([token]) for token in ids[prompt:]), row.finish()]


def pieces_of_all(tokenizer: Tokenizer, ids: list[int], first: int) -> list[str]:
    """Without a prompt, of so many tokens first."""
    row = Detokeniser(tokenizer)
    return [row.push(ids[:first]), *(row.push([token]) for token in ids[first:]), row.finish()]


def drawn(tokenizer: Tokenizer, chance: random.Random) -> list[int]:
    """Tokens of any kind, in runs: what is text, and what is not."""
    every = range(tokenizer.get_vocab_size())
    text = tokenizer.encode(TEXT, add_special_tokens=False).ids
    if not text:
        return chance.choices(every, k=chance.randint(1, 20))
    runs = [
        chance.choices(every, k=3) if chance.random() < 0.3 else text[chance.randrange(len(text)) :]
        for _ in range(4)
    ]
    return [token for run in runs for token in run[: chance.randint(1, 12)]]


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
        for first in range(1, len(ids)):
            assert "".join(pieces_of_all(tokenizer, ids, first)) == tokenizer.decode(ids)


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


@pytest.mark.parametrize("make", VOCABULARIES)
def test_pieces_join_to_the_whole(make):
    tokenizer, chance = make(), random.Random(0)
    for _ in range(200):
        ids = drawn(tokenizer, chance)
        first = chance.randint(0, len(ids))
        assert "".join(pieces_of_all(tokenizer, ids, first)) == tokenizer.decode(ids)


@pytest.mark.parametrize("make", VOCABULARIES)
def test_a_row_adds_to_its_prompt_what_the_whole_has_more(make):
    tokenizer, chance, followed = make(), random.Random(1), 0
    for _ in range(300):
        ids = drawn(tokenizer, chance)
        size = chance.randint(0, len(ids))
        prompt, whole = tokenizer.decode(ids[:size]), tokenizer.decode(ids)
        before, *after = pieces(tokenizer, ids, size)
        assert "".join(after) == Detokeniser(tokenizer, ids[:size]).finish(ids[size:])
        if whole.startswith(prompt):
            followed += 1
            assert prompt + "".join(after) == whole
        elif whole.startswith(before):  # a letter of the prompt is finished
            assert before + "".join(after) == whole
        else:  # bytes that are not text made such of the prompt's
            assert set(whole[: len(before)]) - set(before) == {BROKEN}
            assert "".join(after).endswith(whole.rpartition(BROKEN)[2])
            assert len("".join(after)) < len(whole)
    assert followed > 150


def test_a_prompt_that_ends_in_bytes_is_not_repeated():
    tokenizer = byte_fallback()
    cat, a = [3 + byte for byte in "猫".encode()], 259
    for prompt, rest, said in (
        ([1, a, 3 + 10], [a, 260], " ab"),
        ([1, a, *cat * 3], [260], "b"),
        ([1, *cat * 3, 2, 3 + 10, 2], [260, 3 + 10], "b\n"),
        ([a, *cat], cat, "猫"),
        ([a, *cat, *cat[:2]], [cat[2], 260], "猫b"),  # a letter that the prompt leaves unfinished
        ([a, *cat, *cat[:2]], [260], "b"),
        (
            [a, *cat],
            [cat[1], 260],
            f"{BROKEN}b",
        ),  # bytes that are not text make none of the prompt's
        ([a, *cat], [], ""),
        ([], [a], "a"),
    ):
        assert Detokeniser(tokenizer, prompt).finish(rest) == said
        assert "".join(pieces(tokenizer, prompt + rest, len(prompt))[1:]) == said
    # A sign of the prompt itself, which looks like a letter that is not whole.
    tokenizer = byte_level()
    prompt = tokenizer.encode(f"so {BROKEN}{BROKEN}").ids
    assert Detokeniser(tokenizer, prompt).finish(tokenizer.encode("ok").ids[1:]) == "ok"


def test_forms_are_whole_behind_any_prompt():
    """Checks that a grammar allows a text however it is cut into tokens."""
    texts, chance = [" a", "b", "猫", "b 猫\n", "\n"], random.Random(0)
    for make in (byte_level, byte_fallback, metaspace):
        tokenizer = make()
        automaton = (made := grammar.choices(texts, tokenizer)).automaton
        shown = ["a b", "b\n", "b 猫猫"]
        prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in shown]
        if make is byte_level:
            prompts.append(prompts[2][:-1])
        for prompt in prompts:
            for _ in range(20):
                state, rest = 0, []
                while not made.accepting[state] or (rest and chance.random() < 0.5):
                    after = automaton.table[state, automaton.classes]
                    if not len(allowed := (after >= 0).nonzero()[0]):
                        break
                    token = int(chance.choice(allowed))
                    state, rest = int(after[token]), [*rest, token]
                assert Detokeniser(tokenizer, prompt).finish(rest) in texts
                assert "".join(pieces(tokenizer, prompt + rest, len(prompt))[1:]) in texts
