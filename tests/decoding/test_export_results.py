"""`jax.export` takes decode whole, with its result; symbolic sizes are refused."""

import jax
import numpy as np
import pytest

import jspec
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=9)
PARAMS = MODEL.init()
PROMPT = np.array([[1, 2, 3]], np.int32)


def test_a_result_with_a_drafters_state_is_read_again():
    drafter = jspec.Suffix(2, capacity=16, max_match=2, max_depth=2)

    def call(params, prompt, sampling, known):
        return jspec.decode(
            MODEL, params, prompt, drafter=drafter, drafter_state=known, max_new_tokens=4,
            sampling=sampling, key=0, processors=jspec.processors.logprobs(2),
        )  # fmt: skip

    given = PARAMS, PROMPT, jspec.sampling.by_row(jspec.Sampling(), 1)
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

    exported = jax.export.export(jax.jit(begin))(PARAMS, PROMPT)
    assert jax.export.deserialize(exported.serialize()).out_tree == exported.out_tree


@pytest.mark.parametrize("shape", ["b, 3", "1, t"])
def test_symbolic_sizes_are_refused_in_a_sentence(shape):
    prompt = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.int32)
    with pytest.raises(jspec.InputError, match="prompt has the symbolic shape"):
        jax.export.export(jax.jit(lambda p: jspec.decode(MODEL, PARAMS, p).tokens))(prompt)
