"""Which attention is faster: measured once for a setting, kept in a file, never asked on a CPU."""

import json
from dataclasses import replace

import pytest
import tiny

from jspec import InputError
from jspec.models.attention import XLA, Implementation
from jspec.models.block_attention import BlockAttention, ByQueries, Triton, choice, fastest

KERNEL = BlockAttention(nodes=Triton(16, 32, interpret=True))
MODEL = tiny.model(head_dim=16)


class Zero(Implementation):
    """Wrong numbers, as a compiler's bug would give."""

    def own(self, queries, keys, values, seen, soft_cap):
        return super().own(queries, keys, 0 * values, seen, soft_cap)


class Broken(Implementation):
    def own(self, queries, keys, values, seen, soft_cap):
        raise NotImplementedError("no such layout\nand more")


@pytest.fixture
def timed(monkeypatch):
    """Counts measurements, which find the kernel to be the faster one for 4 tokens alone."""
    calls = []

    def measure(where, mask, candidates, repeats):
        tokens = mask.shape[1]
        calls.append(tokens)
        return choice.AttentionTiming(
            tokens, {repr(XLA): 2.0, repr(KERNEL): 1.0 if tokens == 4 else 2.0}, {}
        )

    monkeypatch.setattr(choice, "CANDIDATES", {"cpu": (KERNEL,)})
    monkeypatch.setattr(choice, "measure", measure)
    return calls


def test_on_a_cpu_nothing_is_measured_and_the_model_stays(tmp_path):
    path = tmp_path / "attention.json"
    assert fastest(MODEL, capacity=64, tokens=[4], path=path) is MODEL
    assert not path.exists()


def test_the_faster_one_is_used_where_it_is_faster_and_measured_once(timed, tmp_path):
    path = tmp_path / "kept" / "attention.json"
    mates = MODEL.config.num_heads // MODEL.config.num_kv_heads
    wanted = MODEL.clone(attention_impl=ByQueries(((4 * mates, KERNEL),)))
    for _ in range(2):
        assert fastest(MODEL, capacity=64, tokens=[4, 8], path=path) == wanted
        assert timed == [4, 8]
    assert wanted.attention_impl.of(4 * mates) == KERNEL
    assert wanted.attention_impl.of(8 * mates) == XLA
    fastest(MODEL, capacity=64, tokens=[2, 4], path=path)
    assert timed == [4, 8, 2]


def test_another_setting_other_candidates_and_a_damaged_file_are_measured_anew(
    timed, tmp_path, monkeypatch
):
    path = tmp_path / "attention.json"
    options = dict(capacity=64, tokens=[4], path=path)
    fastest(MODEL, **options)
    fastest(MODEL, **(options | dict(capacity=128)))
    assert timed == [4] * 2
    fastest(MODEL, **(options | dict(capacity=128)))
    assert timed == [4] * 2
    other = replace(KERNEL, nodes=Triton(32, 32, interpret=True))
    monkeypatch.setattr(choice, "CANDIDATES", {"cpu": (KERNEL, other)})
    fastest(MODEL, **(options | dict(capacity=128)))
    assert timed == [4] * 3
    for damaged in ("", "{", "[]", json.dumps({"format": 0})):
        path.write_text(damaged)
        assert choice.load(path, choice.setting(MODEL, 128, 1)) == {}


@pytest.mark.parametrize("good", [(), pytest.param((KERNEL,), marks=pytest.mark.slow)])
def test_what_fails_or_gives_other_numbers_is_not_chosen(monkeypatch, good):
    monkeypatch.setattr(choice, "CHAIN", 1)
    where = choice.setting(MODEL, 64, 1)
    candidates = (Zero(), Broken(), *good)
    found = choice.measure(where, choice.random_mask(4), candidates, repeats=1)
    assert set(found.seconds) == {repr(one) for one in (XLA, *good)}
    assert "differs from XLA" in found.errors[repr(candidates[0])]
    assert found.errors[repr(candidates[1])] == "NotImplementedError: no such layout"
    assert choice.choose(replace(found, seconds={repr(XLA): 1e-9}), candidates) == XLA


@pytest.mark.parametrize(("name", "value"), [("capacity", 0), ("tokens", [0]), ("repeats", 0)])
def test_bad_arguments_are_one_sentence(name, value):
    with pytest.raises(InputError, match=name):
        fastest(MODEL, **({"capacity": 64, "tokens": [4]} | {name: value}))
