"""Damaged files of all kinds: a sentence, or a model."""

import json
import shutil
import zipfile
from pathlib import Path

import damage
import numpy as np
import pytest
import quick
import refusals

import jspec
from jspec._validate.errors import InputError
from jspec.models import tokenizer
from jspec.models.huggingface import pickles
from jspec.processors.grammar import token_bytes
from jspec.training.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return damage.Readers(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("part", quick.only(range(6), 1, 4))
def test_the_corpus_is_answered_in_sentences(readers, part):
    for kind in list(damage.FOUND)[part::6]:
        for number in damage.FOUND[kind]:
            assert damage.wrong(readers, kind, number) is None, (kind, number)


@pytest.mark.slow
def test_a_minute_of_damages_is_answered_in_sentences_within_bounds(tmp_path):
    readers = damage.Readers(tmp_path)
    for kind in damage.FOUND:  # what is made at the first of a kind is not a file's
        damage.wrong(readers, kind, 0)
    for kind, number in damage.numbers(45):
        assert damage.wrong_or_dear(readers, kind, number) is None, (kind, number)
    assert "MB" in damage.wrong_or_dear(readers, "takes memory", 0), "the negative control"


def test_tokens_of_numbers_without_end_and_unwritten_ones_are_one_sentence(tmp_path):
    zoo = Path(jspec.models.__file__).parent / "zoo/jspec-800k/tokenizer.json"

    def read(change):
        held = json.loads(zoo.read_text("utf-8"))
        change(held)
        (tmp_path / "tokenizer.json").write_text(json.dumps(held))
        return tokenizer.read(tmp_path)

    def numbered(number):
        return lambda held: held["model"]["vocab"].update(the=number)

    said = "not a tokenizer .it has a token {} among 4097"
    cases = [(numbered(n), said.format(n)) for n in (10**8, 4 * 10**9, 10**30)]
    without = (lambda held: held["post_processor"].update(special_tokens={}), "is not a tokenizer")
    refusals.check([*cases, without], read)
    assert len(token_bytes(read(numbered(5000)))) == 5001


def test_damaged_checkpoints_are_one_sentence(tmp_path, fixtures):
    target = jspec.models.load(fixtures / "llama2", with_tokenizer=False)
    jspec.models.save(tmp_path / "orbax", target.model, target.params)
    for file in (tmp_path / "orbax/params").rglob("*"):
        if file.is_file() and "ocdbt" in str(file):
            file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(
        InputError, match=r"params in .* cannot be read .*damaged, restore the folder"
    ):
        jspec.models.restore(tmp_path / "orbax")
    state = {"a": np.arange(6.0)}
    Checkpoints(tmp_path / "run", {"a": 1}).save(1, state)
    (tmp_path / "run/steps/1/_CHECKPOINT_METADATA").write_text("[1]")
    with pytest.raises(
        InputError,
        match=r"a checkpoint in .*steps cannot be read .*; .* delete its folder to go on",
    ):
        Checkpoints(tmp_path / "run", {"a": 1}).restore(state)


@pytest.mark.parametrize(
    ("kind", "name", "changes", "said"),
    [
        ("head", "head.json", {"num_layers": 10**6}, "num_layers = 1000000; it has to be at most"),
        ("head", "head.json", {"num_heads": 10**6}, "have 1000000 residual blocks; use at most"),
        ("orbax", "model.json", {"num_layers": 10**6}, "num_layers = 1000000; it has to be at"),
        ("orbax", "model.json", {"num_kv_heads": []}, "does not describe a Llama"),
        ("orbax", "model.json", {"num_heads": 10**30}, "does not describe a Llama"),
    ],
)
def test_invalid_sizes(readers, tmp_path, kind, name, changes, said):
    folder = shutil.copytree(readers.folder / f"whole.{kind}", tmp_path / "changed")
    held = json.loads((folder / name).read_text("utf-8"))
    held["config"] |= changes
    (folder / name).write_text(json.dumps(held))
    with pytest.raises(InputError, match=said):
        readers.read(kind, folder)


def test_an_invalid_pickle_is_one_sentence_and_takes_no_more_than_it_has(tmp_path):
    """A large key, up to which C's reader makes room; text that is packed to a thousandth."""
    read = pickles.open_file

    def saved(data, tensor=b""):
        with zipfile.ZipFile(tmp_path / "a.bin", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/data.pkl", data)
            archive.writestr("a/data/0", tensor)
        return tmp_path / "a.bin"

    refusals.check([
        *((lambda data=data: read(saved(data)), "holds no tensors|not a plain state dict")
          for data in (b"P1\n.", b"\x82\x01.", b"(" * 10**5, b"N.", b"0.")),
        (lambda: read(saved(b"\x80\x02Nr\xff\xff\xff\x0f.")), "holds no tensors"),
        (lambda: read(saved(damage._PICKLE, b"\0" * 10**7)).read("w"),
         "has 10000000 bytes for tensor w and says that they are 64"),
        (lambda: read(saved(b"0" * (2**26 + 1))), "it says in 67108865 bytes which tensors"),
    ])  # fmt: skip


def test_a_sentence_fits_a_screen_and_keeps_its_fix():
    said = str(InputError(f"a is {'x' * 10**6}; pass less"))
    assert len(said) == 1000 and said.startswith("a is xx") and said.endswith("; pass less")


def test_whole_files_are_read(readers):
    """Checks that damaged files give a model or an error."""
    for kind in damage.FOUND:
        assert readers.whole(kind) is not None, kind
