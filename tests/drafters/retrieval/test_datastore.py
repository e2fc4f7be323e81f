import numpy as np
import pytest
import refusals
from safetensors import safe_open
from safetensors.numpy import save_file

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


def test_an_invalid_corpus_is_refused_and_without_the_library_the_extra_is_named(monkeypatch):
    refusals.check([
        ([], "the corpus has 0 tokens; a datastore holds 1 .. 2147418112, so give it some text"),
        ([[1]], r"shape \(1, 1\)"), ([0.5], "dtype float64"), ([-1, 2], "tokens -1 .. 2"),
        ([0, 4], "tokens 0 .. 4, outside the vocabulary of 4"),
    ], lambda x: datastore.build(np.asarray(x, None if x else np.int64), 4))  # fmt: skip
    monkeypatch.setitem(__import__("sys").modules, "pydivsufsort", None)
    with pytest.raises(ValueError, match=r"pip install 'jspec-jax\[datastore\]'"):
        datastore.build(CORPUS, 4)


def test_damaged_files_are_refused(saved):
    whole = saved.read_bytes()
    for content in (b"", b"jspecSA\0", whole[:-1], whole + b"\0", b"\0" + whole):
        saved.write_bytes(content)
        with pytest.raises(ValueError, match=r"is not a datastore of this version .*; build it a"):
            datastore.load(saved, WORDS)
    saved.write_bytes(whole)
    with safe_open(saved, "np") as file:
        metadata = file.metadata()
        corpus, suffixes = (file.get_tensor(name) for name in ("corpus", "suffixes"))
    for arrays, changes, said in (
        ((corpus, suffixes), {"format": "jspec datastore 3"}, "is not a datastore of this version"),
        ((corpus, suffixes), {"vocab_size": "many"}, "is damaged"),
        ((corpus, suffixes), {"vocab_size": str(2**17)}, "is damaged"),  # whose tokens are wider
        ((corpus, suffixes[1:]), {}, "is damaged"),
        ((corpus[:0], suffixes[:0]), {}, "is damaged"),
        ((corpus, suffixes.astype(np.int64)), {}, "is damaged"),
    ):
        save_file(dict(zip(("corpus", "suffixes"), arrays, strict=True)), saved, metadata | changes)
        with pytest.raises(ValueError, match=said):
            datastore.load(saved, WORDS)
    saved.unlink()
    with pytest.raises(ValueError, match="is not a file; make a datastore"):
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
