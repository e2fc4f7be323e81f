"""JAX's checks find nothing, 64 bits change no token, `jax.export` takes decode whole."""

import json
import subprocess
import sys
from pathlib import Path

import compiling
import jax
import numpy as np
import pytest
import tiny

import jspec
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=tiny.VOCAB)
PARAMS = MODEL.init()
LOOKUP = jspec.PromptLookup(2)
DRAWN = dict(sampling=jspec.Sampling(temperature=0.8, top_p=0.9, top_k=9), key=7)


def test_jaxs_checks_find_nothing():
    def call(params, prompt):
        return jspec.decode(MODEL, params, prompt, drafter=LOOKUP, max_new_tokens=4, **DRAWN).tokens

    for mode in (jax.checking_leaks(), jax.debug_key_reuse(True)):
        with mode:
            jax.eval_shape(call, PARAMS, np.ones((2, 3), int))
    with jax.debug_nans(True), jax.debug_infs(True):
        result = jspec.decode(MODEL, PARAMS, [[1, 2, 1], [3]], drafter=LOOKUP, max_new_tokens=4)
    assert result.lengths.tolist() == [4, 4]


# In a process of its own, since constants are made when a module is imported.
SCRIPT = """
import json, sys
import jax, tiny, jspec
from contract.methods import call_of
model = tiny.model()
params = jax.tree.map(lambda leaf: leaf.astype("float32"), tiny.params(model))
assert jax.numpy.arange(2).dtype == "int64"
for name in sys.argv[1:]:
    drafting = call_of(name)
    weights = drafting.pop("drafter_params")
    weights = jax.tree.map(lambda leaf: leaf.astype("float32"), weights)
    result = jspec.decode(
        model, params, tiny.PROMPTS, tiny.LENGTHS, **drafting, drafter_params=weights, key=7,
        max_new_tokens=12, sampling=jspec.Sampling(temperature=0.8, top_p=0.9, top_k=9),
    )
    print(json.dumps(result.tokens.tolist()))
"""


@pytest.mark.slow
def test_the_tokens_of_64_bits_are_those_of_plain_decoding_in_32(target):
    names = ["coupled_tree", "merge", "adaptive", "spine", "pard"]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        env=compiling.environment(JAX_ENABLE_X64="1", PYTHONPATH=str(Path(__file__).parents[1])),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    plain = jspec.decode(*target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=12, **DRAWN)
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert found == [plain.tokens.tolist()] * len(names)


def test_a_call_in_64_bits_has_the_tokens_of_one_in_32():
    """In this process, where constants of modules stay in 32 bits."""
    drafter = jspec.merge(jspec.TokenRecycling(tiny.VOCAB, jspec.tree.branching([2])), LOOKUP)
    options = DRAWN | dict(max_new_tokens=12)
    call = (MODEL, PARAMS, tiny.PROMPTS, tiny.LENGTHS)
    plain = jspec.decode(*call, **options)
    with jax.enable_x64(True):
        assert jax.numpy.arange(2).dtype == "int64"
        drafted = jspec.decode(*call, drafter=drafter, **options)
    assert drafted.tokens.tolist() == plain.tokens.tolist()
    assert int(drafted.stats.num_accepted_tokens.sum()) > 0


def test_a_result_with_a_drafters_state_is_read_again():
    drafter = jspec.Suffix(2, capacity=16, max_match=2, max_depth=2)

    def call(params, prompt, sampling, known):
        return jspec.decode(
            MODEL, params, prompt, drafter=drafter, drafter_state=known, max_new_tokens=4,
            sampling=sampling, key=0, processors=jspec.processors.logprobs(2),
        )  # fmt: skip

    given = PARAMS, np.ones((1, 3), np.int32), jspec.sampling.by_row(jspec.Sampling(), 1)
    given = *given, jax.eval_shape(lambda: jspec.memory_file.empty(drafter))
    exported = jax.export.export(jax.jit(call))(*given)
    again = jax.export.deserialize(exported.serialize())
    assert (again.in_tree, again.out_tree) == (exported.in_tree, exported.out_tree)
    shapes = jax.tree.unflatten(again.out_tree, again.out_avals)
    assert isinstance(shapes, jspec.Result) and isinstance(shapes.stats, jspec.Stats)
    assert shapes.logprobs.top_logprobs.shape == (1, 4, 2)


def test_a_state_can_be_an_exported_programs_too():
    def begin(params, prompt):
        return jspec.prefill(MODEL, params, prompt, max_new_tokens=4)

    exported = jax.export.export(jax.jit(begin))(PARAMS, np.ones((1, 3), np.int32))
    assert jax.export.deserialize(exported.serialize()).out_tree == exported.out_tree


@pytest.mark.parametrize("shape", ["b, 3", "1, t"])
def test_symbolic_sizes_are_refused_in_a_sentence(shape):
    prompt = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.int32)
    with pytest.raises(jspec.InputError, match="prompt has the symbolic shape"):
        jax.export.export(jax.jit(lambda p: jspec.decode(MODEL, PARAMS, p).tokens))(prompt)
