import random

import pytest
import tiny
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from jspec.cli.trace.token_text import strings
from jspec.models.detokenise import Detokeniser
from jspec.models.gguf import vocabulary
from jspec.processors import grammar
from jspec.processors.grammar.spelling import Vocabulary
from jspec.serve.answers import Spelling

BROKEN = "\N{REPLACEMENT CHARACTER}"
BAR = "\N{FULLWIDTH VERTICAL LINE}"
TEXT = "naïve 猫 🐈‍⬛ — «Žofie»\n\tok"


def byte_level() -> Tokenizer:
    return tiny.words([TEXT] * 3, 260)


def byte_fallback() -> Tokenizer:
    """The layout of Llama's: words with a mark for the space, other characters as bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "b", "▁"]
    tokenizer = Tokenizer(
        models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True)
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    parts = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
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


def added_words() -> Tokenizer:
    """Words whose letters stand for bytes in this vocabulary, or for none."""
    tokenizer = byte_level()
    tokenizer.add_tokens(["đem", "ilÖve", "猫", AddedToken("  ", normalized=False)])
    return tokenizer


def saved_again() -> Tokenizer:
    """A vocabulary of bytes whose folder was saved as if it were SentencePiece's."""
    tokenizer = byte_level()
    tokenizer.decoder = byte_fallback().decoder
    return tokenizer


def gemma() -> Tokenizer:
    """Runs of spaces are added words there, written as in the vocabulary."""
    tokenizer = byte_fallback()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_tokens([AddedToken("▁▁", normalized=False)])
    return tokenizer


def unigram() -> Tokenizer:
    words = ["<unk>", "▁", "▁a", "b", "猫", "n", "o", "k"]
    tokenizer = Tokenizer(models.Unigram([(word, -1.0) for word in words], 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    return tokenizer


def deepseek() -> Tokenizer:
    """SentencePiece's sign in the names of special tokens, over a vocabulary of bytes."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = vocabulary.split(*vocabulary.SPLITS["deepseek-llm"])
    tokenizer.add_special_tokens([f"<{BAR}begin▁of▁sentence{BAR}>"])
    tokenizer.add_tokens(["ø", f"<{BAR}User{BAR}>"])
    return tokenizer


BYTES = [byte_level, added_words, saved_again, deepseek]
PIECES = [byte_fallback, metaspace, gemma, unigram]
VOCABULARIES = [*BYTES, *PIECES, word_pieces, word_ends]


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Returns the text that grammars, stop strings and log-probabilities take tokens for."""
    spelled = grammar.token_bytes(tokenizer)
    text = b"".join(spelled[token] or b"" for token in ids).decode("utf-8", "replace")
    return text.removeprefix(" ") if Vocabulary(tokenizer).drops_space else text


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


def test_letters_come_whole_and_broken_bytes_spoil_none():
    tokenizer = byte_level()
    ids = tokenizer.encode("a猫b").ids
    assert len(ids) == 6  # the end token first, and three bytes for the cat
    assert pieces(tokenizer, ids, 2) == ["a", "", "", "猫", "b", ""]
    assert pieces(tokenizer, ids, 4) == ["a", "猫", "b", ""]  # a prompt that ends inside of it
    assert pieces(tokenizer, ids[:4], 2) == ["a", "", "", BROKEN]
    tokenizer = byte_fallback()
    byte, end, b = 3 + 0xF0, 2, tokenizer.token_to_id("b")
    # A token that is not written does not part a letter.
    for ids in ([3 + 65, end, end, byte, b], [3 + 0xC3, end, 3 + 0xA9, b], [b, byte, end]):
        for first in range(1, len(ids)):
            assert "".join(pieces_of_all(tokenizer, ids, first)) == text_of(tokenizer, ids)
    cat = [3 + byte for byte in "猫".encode()]
    assert pieces(tokenizer, [1, 259, *cat, 260], 2) == ["a", "", "", "猫", "b", ""]
    ids = [1, 259, *cat, cat[0], 260]
    assert pieces(tokenizer, ids, 2) == ["a", "", "", "猫", "", f"{BROKEN}b", ""]
    # The space before the first token is the decoder's affair.
    assert pieces(tokenizer, [1, 259, 259], 1) == ["", "a", " a", ""]


@pytest.mark.parametrize("make", VOCABULARIES)
def test_every_token_has_one_spelling(make):
    tokenizer = make()
    spelled, shown = grammar.token_bytes(tokenizer), Spelling(grammar.token_bytes(tokenizer), None)
    words = {token: one.content for token, one in tokenizer.get_added_tokens_decoder().items()}
    anchor = next(
        token for token in (tokenizer.token_to_id(one) for one in ("a", "b", "he")) if token
    )
    labels = strings(tokenizer, range(len(spelled)))
    for token, written in enumerate(spelled):
        text = Detokeniser(tokenizer, [anchor]).finish([token])
        if written is None:
            assert tokenizer.decode([anchor, token]) == tokenizer.decode([anchor]) and not text
            continue
        assert text == written.decode("utf-8", "replace") == shown.text_of(token)
        assert labels[token] in (text, {"bytes": written.hex(" ").upper()})
        if make in BYTES and token in words:
            assert text == words[token]
        elif make not in (saved_again, word_ends) and BROKEN not in text:
            assert tokenizer.decode([anchor, token]) == tokenizer.decode([anchor]) + text


@pytest.mark.parametrize("make", [*BYTES, byte_fallback, gemma])
def test_the_tokens_of_a_text_are_its_bytes(make):
    tokenizer = make()
    spaces = tokenizer.normalizer or normalizers.Replace(" ", "▁")
    for text in (TEXT, "đemilÖve Ġđ猫", " the  ø a\r\n", f"a<{BAR}User{BAR}>猫"):
        ids = tokenizer.encode(
            text if make is not byte_fallback else spaces.normalize_str(text),
            add_special_tokens=False,
        ).ids
        assert Detokeniser(tokenizer, [tokenizer.token_to_id("b")]).finish(ids) == text


@pytest.mark.parametrize("make", VOCABULARIES)
def test_pieces_join_to_the_whole_and_add_to_a_prompt_what_it_has_more(make):
    tokenizer, chance, followed = make(), random.Random(0), 0
    for _ in range(100):
        ids = drawn(tokenizer, chance)
        size, whole = chance.randint(0, len(ids)), text_of(tokenizer, ids)
        assert "".join(pieces_of_all(tokenizer, ids, size)) == whole
        before, *after = pieces(tokenizer, ids, size)
        assert "".join(after) == Detokeniser(tokenizer, ids[:size]).finish(ids[size:])
        if whole.startswith(before + "".join(after)):
            followed += 1
        else:  # bytes that are not text made such of the prompt's
            assert whole[len(before)] == BROKEN
    assert followed > 70


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
        ([a, *cat], [cat[1], 260], f"{BROKEN}b"),  # bytes that are not text make none of its own
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
    for make in (byte_level, added_words, saved_again, byte_fallback, metaspace):
        tokenizer = make()
        automaton = (made := grammar.choices(texts, tokenizer)).automaton
        shown = ["a b", "b\n", "b 猫猫"]
        prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in shown]
        if make in BYTES:
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
