"""A drafter's memory on disk: what rows share comes back, and what does not fit is refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
from safetensors.numpy import save_file

import jspec
from jspec.testing.prefix_lm import PrefixLM

MODEL = PrefixLM()
PARAMS = MODEL.init()
SIZE = MODEL.vocab_size
TREE = jspec.tree.branching([2, 1])
MATRIX, PAST = jspec.TokenRecycling(SIZE, TREE), jspec.Suffix(4, capacity=64)
DRAFTERS = {"matrix": MATRIX, "past": PAST}
DRAFTERS |= {"merge": jspec.merge(MATRIX, PAST, num_speculative_tokens=4)}


def run(name):
    ask = dict(drafter=DRAFTERS[name], max_new_tokens=30)
    return jspec.decode(MODEL, PARAMS, [[1, 2, 3, 1, 2]], **ask)


@pytest.mark.parametrize("name", DRAFTERS)
def test_what_is_loaded_is_what_was_saved(tmp_path, name):
    drafter, state = DRAFTERS[name], run(name).drafter_state
    jspec.memory_file.save(tmp_path / "new" / "memory", drafter, state, "toy")
    known = jspec.memory_file.load(tmp_path / "new" / "memory", drafter, "toy")
    start = drafter.init(1, 40, state), drafter.init(1, 40, known)
    for ours, theirs in zip(*map(jax.tree.leaves, start), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["memory"]
    if name == "past":  # other numbers of nodes share a memory
        other = jspec.Suffix(num_speculative_tokens=9, capacity=64)
        jspec.memory_file.load(tmp_path / "new" / "memory", other, "toy")


def test_misfits_are_refused_in_one_sentence(tmp_path):
    matrix, past = MATRIX, PAST
    file, state = tmp_path / "m", run("matrix").drafter_state
    jspec.memory_file.save(file, matrix, state, "smollm")
    files, larger = jspec.memory_file, jspec.TokenRecycling(SIZE + 1, TREE)
    refusals.check([
        (lambda: files.load(file, matrix, "qwen"), "is a memory of smollm and this is qwen"),
        (lambda: files.load(file, past, "smollm"), "TokenRecycling and does not fit this Suffix"),
        (lambda: files.load(file, larger, "smollm"),
         r"lines is \(1, 23, 8\) of int32 there and \(1, 24, 8\) of int32 here"),
        (lambda: files.save(file, jspec.PromptLookup(), ()),
         "PromptLookup keeps nothing that outlives a call"),
        (lambda: files.check_outlives(jspec.Spine(SIZE)),
         "Spine keeps nothing .*Token.* or jspec.Suffix"),
        (lambda: files.save(file, DRAFTERS["merge"], state), "pass the drafter that it is of"),
        # A good file is not replaced by one that would be refused.
        (lambda: files.save(file, larger, state),
         r"\(1, 23, 8\) of int32 in it and \(1, 24, 8\) of int32 here; pass the drafter"),
        (lambda: files.save(file, past, matrix.init(1, 8, None)), "the memory is not a Suffix's"),
        (lambda: files.load(tmp_path / "none", matrix), "cannot be read as a drafter's memory"),
    ])  # fmt: skip
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(jspec.InputError, match="cannot be read"):
        jspec.memory_file.load(file, matrix, "smollm")


def test_a_memory_of_version_0_1_is_refused_by_name(tmp_path):
    said = {"format": "jspec memory 1", "drafter": "TokenRecycling", "about": ""}
    save_file({"": np.zeros((1, SIZE, 8), np.int32)}, tmp_path / "m", said)
    with pytest.raises(jspec.InputError, match=r"m is a drafter's memory that jspec 0\.1 wrote"):
        jspec.memory_file.load(tmp_path / "m", MATRIX)


def test_a_merged_matrix_has_the_lines_of_all_replicas():
    drafter = jspec.TokenRecycling(4, jspec.tree.branching([1]), k=2)
    first = [[1, 2], [0, 0], [3, 1], [0, 0]]
    second = [[3, 3], [2, 0], [0, 0], [0, 0]]
    states = [drafter.init(1, 8, None).replace(lines=jnp.array([it])) for it in (first, second)]
    merged = jspec.memory_file.merge(drafter, states)
    assert merged.lines.tolist() == [[[1, 2], [2, 0], [3, 1], [0, 0]]]
    # A line of a pair comes with its key: of two pairs, the one whose line is taken.
    drafter = replace(drafter, pairs=2)
    both = (first, [[0, 0], [1, 3]], [0, 7]), (second, [[2, 1], [3, 1]], [5, 9])
    states = [
        drafter.init(1, 8, None).replace(
            lines=jnp.array([[*it, *pairs]]), keys=jnp.array([keys], jnp.uint32)
        )
        for it, pairs, keys in both
    ]
    merged = jspec.memory_file.merge(drafter, states)
    assert merged.lines[0, 4:].tolist() == [[2, 1], [3, 1]]
    assert merged.keys.tolist() == [[5, 9]]


def test_a_merged_past_has_the_newest_of_all_replicas():
    drafter = jspec.Suffix(num_speculative_tokens=2, capacity=8)
    states = [
        drafter.init(1, 16, None).replace(past=jnp.arange(10 * n, 10 * n + 8)) for n in (1, 2)
    ]
    merged = jspec.memory_file.merge(drafter, states)
    past = merged.past.tolist()
    assert past[1:4] == [15, 16, 17]
    assert past[5:] == [25, 26, 27]
    assert past[0] == past[4] < 0
    drafter.init(3, 32, merged)  # a start for any number of rows


def test_unmergeable_memories_are_refused():
    sizes = [jspec.TokenRecycling(size, jspec.tree.chain(1), k=1) for size in (4, 5)]
    cases = [
        ((jspec.PromptLookup(), [jnp.zeros(3)]), "PromptLookup, whose memories cannot be merged"),
        ((sizes[0], [one.init(1, 8, None) for one in sizes]),
         r"states\[1\] has arrays of shapes \[\(1, 5, 1\)\]"),
        ((jspec.Suffix(capacity=8), [jnp.zeros(8)]), "not memories of Suffix"),
    ]  # fmt: skip
    refusals.check(cases, lambda given: jspec.memory_file.merge(*given))
