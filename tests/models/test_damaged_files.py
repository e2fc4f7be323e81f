"""Damaged files of all kinds: a sentence, or a model."""

import json
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import damage
import numpy as np
import pytest
import quick
import tiny_gguf

import jspec
from jspec._validate.errors import InputError
from jspec.models import precision, tokenizer
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


def _folder(tmp_path, fixtures, name, content):
    folder = shutil.copytree(fixtures / "llama2", tmp_path / "folder")
    (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", b"[" * 10**5, "as JSON .nested too deep to be read.*; restore"),
        ("generation_config.json", b'{"a":' * 10**5, "nested too deep"),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"a": "' + b"x" * 5000 + b'"}}',
            "lacks 1 of the files",
        ),
    ],
)
def test_a_damaged_folder_is_one_sentence(tmp_path, fixtures, name, content, said):
    folder = _folder(tmp_path, fixtures, name, content)
    (folder / "model.safetensors").unlink()  # which goes before an index
    with pytest.raises(InputError, match=said):
        jspec.models.load(folder, with_tokenizer=False)


def test_a_model_has_so_many_layers_and_no_more(tmp_path, fixtures):
    config = json.loads((fixtures / "llama2/config.json").read_text())
    folder = _folder(tmp_path, fixtures, "config.json", b"")
    for count in (10**6, 10**12, 10**30):
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": count}))
        said = f"num_hidden_layers = {count}; it has to be at most 8192"
        with pytest.raises(InputError, match=said):
            jspec.models.load(folder, with_tokenizer=False)


def test_fields_of_other_kinds_are_one_sentence(tmp_path, fixtures):
    for changes, said in (
        ({"tokenizer.chat_template": 5}, "chat_template = 5; it has to be a text"),
        ({"split.count": "two"}, "is one of 'two' parts"),
        ({"tokenizer.ggml.tokens": 5}, "tokens = 5; it has to be a list of str"),
        ({"tokenizer.ggml.token_type": 5}, "token_type = 5; it has to be a list of int"),
        ({"tokenizer.ggml.eos_token_id": [1]}, "it has to be a token id"),
        ({"llama.block_count": 2**32 - 1}, "block_count = 4294967295; it has to be at most 8192"),
    ):
        file = tiny_gguf.convert(fixtures / "llama2", tmp_path / "a.gguf", changes=changes)
        with pytest.raises(InputError, match=said):
            jspec.models.load(file)


def test_a_token_of_a_number_without_end_is_one_sentence(tmp_path):
    zoo = Path(jspec.models.__file__).parent / "zoo/jspec-800k/tokenizer.json"
    held = json.loads(zoo.read_text("utf-8"))
    words = held["model"]["vocab"]
    for number in (10**8, 4 * 10**9, 10**30):
        words["the"] = number
        (tmp_path / "tokenizer.json").write_text(json.dumps(held))
        with pytest.raises(
            InputError, match=f"not a tokenizer .it has a token {number} among 4097"
        ):
            tokenizer.read(tmp_path)
    words["the"] = 5000
    (tmp_path / "tokenizer.json").write_text(json.dumps(held))
    assert len(token_bytes(tokenizer.read(tmp_path))) == 5001


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


def test_an_unknown_dtype():
    for dtype in ("\ud800", "f4,(", "x" * 10**5, [1]):
        with pytest.raises(InputError, match="is unknown; use one of"):
            precision.find(dtype)


def test_a_tokenizer_that_lacks_a_token_that_it_writes(tmp_path):
    zoo = Path(jspec.models.__file__).parent / "zoo/jspec-800k/tokenizer.json"
    held = json.loads(zoo.read_text("utf-8"))
    held["post_processor"]["special_tokens"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(held))
    with pytest.raises(InputError, match="is not a tokenizer"):
        tokenizer.read(tmp_path)


def test_a_field_that_is_nested_without_end_is_one_sentence(tmp_path):
    file = tmp_path / "deep.gguf"
    field = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
    file.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + field)
    with pytest.raises(InputError, match="nested more than 8 deep"):
        jspec.models.load(file)


def test_an_invalid_pickle_is_refused_in_one_sentence(tmp_path):
    for content in (b"P1\n.", b"\x82\x01.", b"(" * 10**5, b"N.", b"0."):
        with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
            archive.writestr("a/data.pkl", content)
        with pytest.raises(InputError, match=r"holds no tensors|not a plain state dict"):
            pickles.open_file(tmp_path / "a.bin")


def test_a_pickle_takes_no_more_than_it_has(tmp_path):
    """A large key, up to which C's reader makes room; text that is packed to a thousandth."""
    with zipfile.ZipFile(tmp_path / "a.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02Nr\xff\xff\xff\x0f.")
    with pytest.raises(InputError, match="holds no tensors"):
        pickles.open_file(tmp_path / "a.bin")
    with zipfile.ZipFile(tmp_path / "a.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", damage._PICKLE)
        archive.writestr("a/data/0", b"\0" * 10**7)
    with pytest.raises(
        InputError, match="has 10000000 bytes for tensor w and says that they are 64"
    ):
        pickles.open_file(tmp_path / "a.bin").read("w")
    with zipfile.ZipFile(tmp_path / "a.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"0" * (2**26 + 1))
    with pytest.raises(InputError, match="it says in 67108865 bytes which tensors"):
        pickles.open_file(tmp_path / "a.bin")


def test_files_of_torch_are_read(tmp_path):
    """The pickle that the fuzzer damages is a whole one."""
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        archive.writestr("a/data.pkl", damage._PICKLE)
        archive.writestr("a/data/0", b"\0" * 64)
    assert pickles.open_file(tmp_path / "a.bin").read("w").shape == (4, 4)
    assert pickle.PROTO in damage._PICKLE


def test_a_sentence_fits_a_screen_and_keeps_its_fix():
    said = str(InputError(f"a is {'x' * 10**6}; pass less"))
    assert len(said) == 1000 and said.startswith("a is xx") and said.endswith("; pass less")


def test_whole_files_are_read(readers):
    """Checks that damaged files give a model or an error."""
    for kind in damage.FOUND:
        assert readers.whole(kind) is not None, kind
