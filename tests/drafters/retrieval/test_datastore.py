import numpy as np
import pytest

from jspec import datastore

WORDS = {"a": 0, "b": 1, "c": 2, "\udcff": 3}
CORPUS = np.array([2, 0, 1, 0, 1, 2, 2])


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "store.bin"
    datastore.save(datastore.build(CORPUS, 4), path, WORDS)
    return path


@pytest.mark.parametrize(
    ("vocab", "kind"), [(4, np.uint16), (2**16, np.uint16), (2**16 + 1, np.uint32)]
)
def test_the_suffixes_are_sorted_and_come_back(tmp_path, vocab, kind):
    corpus = np.random.default_rng(vocab).choice([0, 1, 3, vocab - 1], 500)
    store = datastore.build(corpus, vocab)
    order = sorted(range(500), key=lambda place: corpus[place:].tolist())
    assert store.suffixes.tolist() == order and store.suffixes.dtype == np.int32
    assert store.corpus.tolist() == corpus.tolist() and store.corpus.dtype == kind
    datastore.save(store, tmp_path / "x", WORDS)
    loaded = datastore.load(tmp_path / "x", dict(reversed(WORDS.items())))
    for ours, theirs in zip(
        (loaded.corpus, loaded.suffixes), (store.corpus, store.suffixes), strict=True
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert loaded.vocab_size == vocab
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_a_cpu_reads_the_file_in_place(saved):
    store = datastore.load(saved, WORDS)
    with open("/proc/self/maps") as maps:
        spans = [line.split("-", 1) for line in maps if "store.bin" in line]
    starts = [int(start, 16) for start, _ in spans]
    places = [array.unsafe_buffer_pointer() for array in (store.corpus, store.suffixes)]
    assert all(any(start <= place < start + 4096 for start in starts) for place in places)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([], "the corpus has 0 tokens; a datastore holds 1 .. 2147418112, so give it some text"),
        ([[1]], r"shape \(1, 1\)"),
        ([0.5], "dtype float64"),
        ([0, 4], "tokens 0 .. 4, outside the vocabulary of 4"),
        ([-1, 2], "tokens -1 .. 2"),
    ],
)
def test_an_invalid_corpus_is_refused(tokens, said):
    with pytest.raises(ValueError, match=said):
        datastore.build(np.asarray(tokens, None if tokens else np.int64), 4)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydivsufsort", None)
    with pytest.raises(ValueError, match=r"pip install 'jspec-jax\[datastore\]'"):
        datastore.build(CORPUS, 4)


def spoil(change):
    def write(path):
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(content)

    return write


def flip(place):
    def change(content):
        content[place] ^= 1

    return spoil(change)


@pytest.mark.parametrize(
    ("spoils", "said"),
    [
        (lambda path: path.unlink(), "is not a file; make a datastore"),
        (lambda path: path.write_bytes(b""), "is not a datastore"),
        (lambda path: path.write_bytes(b"jspecSA\0"), "is not a datastore"),
        (flip(0), "is not a datastore"),
        (flip(8), "has format 0 and this jspec reads 1"),
        (flip(16), "is damaged"),  # the vocabulary
        (flip(24), "has 220 bytes and its header says"),  # the number of tokens
        (flip(40), "another tokenizer"),
        (flip(70), "is damaged"),  # the checksum itself
        (flip(128), "is damaged"),
        (flip(-1), "is damaged"),
        (spoil(lambda content: content.pop()), "has 219 bytes and its header says 220"),
        (spoil(lambda content: content.append(0)), "has 221 bytes and its header says 220"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(saved, spoils, said):
    spoils(saved)
    with pytest.raises(ValueError, match=said):
        datastore.load(saved, WORDS)


@pytest.mark.parametrize("other", [WORDS | {"d": 4}, {"b": 0, "a": 1, "c": 2, "\udcff": 3}, {}])
def test_another_tokenizer_is_refused(saved, other):
    with pytest.raises(ValueError, match="built with another tokenizer than the target's"):
        datastore.load(saved, other)


def test_an_interrupted_save_leaves_the_older_file(saved, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = saved.read_bytes()
    monkeypatch.setattr(datastore.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        datastore.save(datastore.build(CORPUS[:3], 4), saved, WORDS)
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == ["store.bin"]
