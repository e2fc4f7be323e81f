"""The peers of a bench decode the very weights that jspec does, where they are installed."""

import jax
import numpy as np
import pytest
import tiny

import jspec
import jspec.models
from benchmarks import peers
from benchmarks.peers import Peer
from benchmarks.peers.__main__ import start
from benchmarks.peers.contenders import PeerRun
from jspec._validate.errors import InputError
from jspec.models import export
from jspec.models.learned_positions import LearnedPositionDecoder
from jspec.models.rope import RopeScaling
from jspec.sessions.batches import groups
from jspec.sessions.run_settings import RunSettings

PROMPT = [5, 3, 9, 1, 7, 2, 5, 3]


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """A tiny model and a draft model of its vocabulary, loaded from disk."""
    target, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    # Sizes that llama.cpp's kernels take.
    shape = dict(hidden_size=64, intermediate_size=96, head_dim=16)
    model = tiny.model(**shape)
    export.save_hf(model, tiny.params(model, scale=8), target, dtype="float32")
    small = tiny.draft(**shape)
    export.save_hf(small, tiny.params(small, scale=8), draft, dtype="float32")
    loaded = jspec.models.load(target, with_tokenizer=False)
    return PeerRun(target, draft, loaded, RunSettings(max_new_tokens=24), room=64)


@pytest.mark.parametrize("name", peers.PEERS)
def test_a_peer_says_the_same(name, setting):
    peer = peers.PEERS[name]
    for package in peer.packages:
        pytest.importorskip(package)
    contender = peer.start(setting)
    (group,) = groups([PROMPT], setting.run)
    contender.warm_up(group)
    contender.prefill(group)
    target = setting.target
    plain = jspec.decode(target.model, target.params, [PROMPT], max_new_tokens=24)
    for _ in range(2):  # the same call gives the same again
        answer = contender.answer(group)
        (reply,) = contender.replies(group, answer)
        assert reply.tokens == plain.tokens[0].tolist()
        contender.remember(answer)
    assert reply.finish_reason == "length" and 1 <= reply.num_rounds <= 24 + 24
    if name in ("transformers", "llama.cpp"):
        assert reply.num_rounds == 24


def test_transformers_takes_prompts_of_unequal_length(setting):
    pytest.importorskip("torch")
    prompts = [PROMPT, PROMPT[:3]]
    run = RunSettings(max_new_tokens=12, batch_size=2)
    contender = peers.PEERS["transformers"].start(
        PeerRun(setting.path, None, setting.target, run, room=64)
    )
    (group,) = groups(prompts, run)
    replies = contender.replies(group, contender.answer(group))
    for prompt, reply in zip(prompts, replies, strict=True):
        target = setting.target
        plain = jspec.decode(target.model, target.params, [prompt], max_new_tokens=12)
        assert reply.tokens == plain.tokens[0].tolist()


def read(path):
    gguf = pytest.importorskip("gguf")
    found = gguf.GGUFReader(path)
    tensors = {one.name: np.array(one.data) for one in found.tensors}
    return found.fields, tensors


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_1", "int8"])
def test_the_gguf_file_holds_the_bytes_of_blocks(kind, setting, tmp_path):
    pytest.importorskip("gguf")
    from benchmarks.peers import gguf_file
    from jspec.models import blocks

    held = jspec.models.load(setting.path, kind, with_tokenizer=False)
    gguf_file.write(held.model, held.params, tmp_path / "m.gguf")
    _, tensors = read(tmp_path / "m.gguf")
    down = held.params["params"]["layers_0"]["down"]
    if kind == "int8":
        wide = np.asarray(down["weight"], np.float32) * np.asarray(down["weight_scale"])[:, None]
        np.testing.assert_array_equal(tensors["blk.0.ffn_down.weight"], wide)
        return
    again = jspec.models.load(tmp_path / "m.gguf", kind, with_tokenizer=False)
    for one, other in zip(
        *(jax.tree.leaves(loaded.params) for loaded in (held, again)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(tensors["blk.0.ffn_down.weight"], down["weight"])
    assert tensors["token_embd.weight"].shape[1] == 64 // 32 * blocks.SIZES["q8_0"]


def test_the_gguf_file_of_stacked_layers_and_of_each_architecture(setting, tmp_path):
    pytest.importorskip("gguf")
    from benchmarks.peers import gguf_file

    for name, stacked in ("one", False), ("other", True):
        held = jspec.models.load(setting.path, with_tokenizer=False, scan_layers=stacked)
        gguf_file.write(held.model, held.params, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    for changes, kind in (
        ({}, "llama"),
        ({"qkv_bias": True, "output_bias": True}, "llama"),
        ({"qkv_bias": True}, "qwen2"),
        ({"qk_norm": True}, "qwen3"),
        ({"rope_scaling": RopeScaling(8.0, 1.0, 4.0, 64)}, "llama"),
    ):
        model = tiny.model(tied=True, **changes)
        gguf_file.write(model, tiny.params(model), tmp_path / "m.gguf")
        fields, tensors = read(tmp_path / "m.gguf")
        assert fields["general.architecture"].contents() == kind
        assert "output.weight" not in tensors
    factors = tensors["rope_freqs.weight"]  # stretched
    assert factors[0] == 1 and factors[-1] == pytest.approx(8)
    with pytest.raises(InputError, match="LearnedPositionDecoder is not implemented"):
        gguf_file.write(LearnedPositionDecoder(None), None, tmp_path / "m.gguf")


def test_peers_are_chosen_by_name():
    assert peers.choose("") == () and peers.choose("all") == tuple(peers.PEERS)
    assert peers.choose("llama.cpp, llama.cpp") == ("llama.cpp",)
    with pytest.raises(InputError, match="did you mean transformers"):
        peers.choose("transformer")


def test_peers_that_cannot_take_part_say_why(setting, monkeypatch):
    def broken(self, setting):
        raise ValueError("cannot read that")

    monkeypatch.setattr(Peer, "start", broken)
    known = {
        "absent": Peer("absent", ("no_such_engine",), "x", "plain"),
        "needy": Peer("needy", ("json",), "x", "plain", needs_draft_model=True),
        "broken": Peer("there", ("json",), "x", "plain"),
    }
    monkeypatch.setattr(peers, "PEERS", known)
    assert start(tuple(known), setting, None) == {
        "absent": "no_such_engine is not installed (pip install 'jspec-jax[peers]')",
        "needy": "it needs a draft model (--draft-model)",
        "broken": "it did not start: ValueError: cannot read that",
    }
    assert known["broken"].missing(None, 4) == "it decodes one prompt at a time (--batch-size 1)"
