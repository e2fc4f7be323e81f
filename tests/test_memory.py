"""A drafter's memory on disk: what rows share comes back, and what does not fit is refused."""

import jax
import numpy as np
import pytest

import jspec
from jspec.testing.prefix_lm import PrefixLM

MODEL = PrefixLM()
PARAMS = MODEL.init()
SIZE = MODEL.vocab_size
TREE = jspec.tree.branching([2, 1])
DRAFTERS = {
    "matrix": (jspec.TokenRecycling(SIZE, TREE), None),
    "past": (jspec.Suffix(num_speculative_tokens=4, capacity=64), None),
    "widths": (
        jspec.adaptive(
            jspec.merge(
                jspec.DynamicTokenRecycling(SIZE, 4),
                jspec.Suffix(4, capacity=64),
                num_speculative_tokens=4,
            ),
            (0, 4),
        ),
        jspec.AdaptiveParams((None, None), jspec.CostCurve.of({1: 1.0, 5: 1.01})),
    ),
}


def run(name, state=None):
    drafter, params = DRAFTERS[name]
    return jspec.decode(
        MODEL, PARAMS, [[1, 2, 3, 1, 2]], drafter=drafter, drafter_params=params,
        drafter_state=state, max_new_tokens=30,
    )  # fmt: skip


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_start_from_disk_is_a_hot_start(tmp_path, name):
    drafter, _ = DRAFTERS[name]
    cold = run(name)
    jspec.memory.save(tmp_path / "new" / "memory", drafter, cold.drafter_state, "toy")
    known = jspec.memory.load(tmp_path / "new" / "memory", drafter, "toy")
    hot, loaded = run(name, cold.drafter_state), run(name, known)
    for ours, theirs in zip(*map(jax.tree.leaves, (loaded, hot)), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert loaded.stats.num_rounds[0] < cold.stats.num_rounds[0]
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["memory"]


def test_other_numbers_of_nodes_share_a_memory(tmp_path):
    jspec.memory.save(tmp_path / "m", DRAFTERS["past"][0], run("past").drafter_state)
    jspec.memory.load(tmp_path / "m", jspec.Suffix(num_speculative_tokens=9, capacity=64))


def test_what_does_not_fit_is_one_sentence(tmp_path):
    (matrix, _), (past, _) = DRAFTERS["matrix"], DRAFTERS["past"]
    file, state = tmp_path / "m", run("matrix").drafter_state
    jspec.memory.save(file, matrix, state, "smollm")
    wrong = {
        "is a memory of smollm and this is qwen": lambda: jspec.memory.load(file, matrix, "qwen"),
        "is a memory of TokenRecycling and does not fit this Suffix": lambda: jspec.memory.load(
            file, past, "smollm"
        ),
        r"its array is \(1, 23, 8\) of int32 there and \(1, 24, 8\) of int32 here": (
            lambda: jspec.memory.load(file, jspec.TokenRecycling(SIZE + 1, TREE), "smollm")
        ),
        "PromptLookup keeps nothing that outlives a call": lambda: jspec.memory.save(
            file, jspec.PromptLookup(), ()
        ),
        "pass the drafter that it is of": lambda: jspec.memory.save(
            file, DRAFTERS["widths"][0], state
        ),
        "cannot be read as a drafter's memory": lambda: jspec.memory.load(
            tmp_path / "none", matrix
        ),
    }
    for sentence, call in wrong.items():
        with pytest.raises(jspec.InputError, match=sentence):
            call()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(jspec.InputError, match="cannot be read"):
        jspec.memory.load(file, matrix, "smollm")
