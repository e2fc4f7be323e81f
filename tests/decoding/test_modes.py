"""JAX's checks, transfers, 64 bits, TF32 and export change nothing; a state has one shape."""

import pickle
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from contract.methods import DRAFTERS, call_of
from quick import only

import jspec
import jspec.models
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


@pytest.mark.parametrize("name", only(["merge", "coupled_tree", "adaptive", "spine"], "merge"))
def test_a_call_in_64_bits_has_the_tokens_of_one_in_32(name):
    call = dict(prompt=tiny.PROMPTS, prompt_lengths=tiny.LENGTHS, max_new_tokens=12, **DRAWN)
    plain, drafting = jspec.decode(MODEL, PARAMS, **call), call_of(name)
    with jax.enable_x64(True):
        assert jax.numpy.arange(2).dtype == "int64"
        drafted = jspec.decode(MODEL, PARAMS, **call, **drafting)
    assert drafted.tokens.tolist() == plain.tokens.tolist()
    # A draft model is another model, whose drafts may all be refused.
    assert name == "coupled_tree" or int(drafted.stats.num_accepted_tokens.sum()) > 0


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
    # So can a state be.
    begin = jax.jit(lambda params, prompt: jspec.prefill(MODEL, params, prompt, max_new_tokens=4))
    exported = jax.export.export(begin)(*given[:2])
    assert jax.export.deserialize(exported.serialize()).out_tree == exported.out_tree


@pytest.mark.parametrize("shape", ["b, 3", "1, t"])
def test_symbolic_sizes_are_refused_in_a_sentence(shape):
    prompt = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.int32)
    with pytest.raises(jspec.InputError, match="prompt has the symbolic shape"):
        jax.export.export(jax.jit(lambda p: jspec.decode(MODEL, PARAMS, p).tokens))(prompt)


QUICK = (
    *("suffix", "merge", "adaptive", "speculative_decoding_published", "token_recycling_per_row"),
    *("lookahead", "spine", "rest"),
)
OF_SIX_ROWS = "suffix_of_rollouts", "scripted"


@pytest.mark.parametrize("name", only([*DRAFTERS, "adaptive"], *QUICK))
def test_every_drafters_state_has_one_shape_under_jaxs_strict_modes(name):
    drafting = call_of(name)
    weights, policy = drafting.pop("drafter_params"), drafting.get("policy", jspec.FixedWidth())
    rows = 6 if name in OF_SIX_ROWS else 2
    empty = jax.eval_shape(
        lambda: (jspec.memory_file.empty(drafting["drafter"], rows), policy.init(rows, 8, None))
    )

    def call(params, prompt, weights, known):
        result = jspec.decode(
            MODEL, params, prompt, **drafting, drafter_params=weights, drafter_state=known[0],
            policy_state=known[1], max_new_tokens=5, sampling=jspec.Sampling(0.7), key=0,
        )  # fmt: skip
        return result.drafter_state, result.policy_state

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        after = jax.eval_shape(call, PARAMS, np.ones((rows, 9), int), weights, empty)
    assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, empty)


def test_a_loop_traces_once_and_scan_and_compiled_steps_carry_the_state():
    drafter = jspec.Suffix(num_speculative_tokens=3, capacity=32, max_match=4, max_depth=3)
    prompts = np.random.default_rng(0).integers(0, tiny.VOCAB, (3, 2, 7))
    traces = []

    def call(known, prompt):
        traces.append(jnp.shape(prompt))
        result = jspec.decode(
            MODEL, PARAMS, prompt, drafter=drafter, drafter_state=known, max_new_tokens=6
        )
        return result.drafter_state, result.tokens

    empty = jspec.memory_file.empty(drafter, 2)
    known, want = call(empty, prompts[0])
    del traces[:]
    step = jax.jit(call).lower(known, prompts[0]).compile()
    _, tokens = step(empty, prompts[0])
    np.testing.assert_array_equal(tokens, want)
    for prompt in prompts:
        known, _ = step(known, prompt)
    assert len(traces) == 1
    jax.eval_shape(lambda known, prompts: jax.lax.scan(call, known, prompts), known, prompts)
    # Another length of prompts is another program of the same state.
    longer = jax.eval_shape(call, known, np.ones((2, 30), int))[0]
    assert jax.tree.map(jnp.shape, longer) == jax.tree.map(jnp.shape, known)


SMALL = PrefixLM(vocab_size=9)
ONE = jax.devices()[0]
PLACED = jax.device_put(SMALL.init(), ONE)


def test_arrays_on_the_device_are_decoded_under_a_guard_and_streamed():
    there = jax.device_put(
        dict(
            prompt=np.array([[1, 2, 3], [2, 4, 0]], np.int8), prompt_lengths=np.array([3, 2]),
            row_ids=np.array([7, 5]), stopping=jspec.Stopping(min_tokens=2, eos=np.array([8])),
            key=jax.random.key(2),
            sampling=jspec.sampling.by_row(jspec.Sampling(0.7), 2),
        ),
        ONE,
    )  # fmt: skip
    on = dict(
        max_new_tokens=4, drafter=jspec.Suffix(2, capacity=16, max_match=2),
    )  # fmt: skip
    want = jspec.decode(SMALL, PLACED, **jax.device_get(there | dict(key=2)), **on)
    with jax.transfer_guard("disallow"):
        got = jspec.decode(SMALL, PLACED, **there, **on)
        chunks = list(jspec.stream(SMALL, PLACED, **there | dict(key=2), **on))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert [token for chunk in chunks for token in chunk.tokens[0]] == (
        want.tokens[0, : want.lengths[0]].tolist()
    )


def test_an_engine_that_was_pickled_serves_under_a_guard():
    engine = jspec.Engine(SMALL, 2, 16, room=jspec.Room(min_tokens=True))
    there = pickle.loads(pickle.dumps(engine))
    state, four = engine.init(PLACED), jspec.Request(max_tokens=4)
    with jax.transfer_guard("disallow"):
        prompt = jax.device_put(np.array([1, 2, 3]), ONE)
        state = there.insert(state, 1, there.prefill(PLACED, prompt, four))
        state, _ = there.generate(PLACED, state, rounds=4)
        taken = there.take(state, 1)
        state = there.free(state, 1)
    want = jspec.decode(SMALL, PLACED, [[1, 2, 3]], max_new_tokens=4)
    assert taken.tokens[0, :4].tolist() == want.tokens[0].tolist()


def test_prompts_on_the_device_compile_nothing_at_another_width():
    def call(width, **more):
        lengths = jnp.full(2, width - 1, jnp.uint8)
        prompt = jax.device_put(np.ones((2, width), np.int32), more.pop("place", None))
        jspec.decode(SMALL, PLACED, prompt, lengths, max_new_tokens=4, **more)

    call(3)
    with jspec.no_recompile():
        for width in (2, 5, 11):
            call(width)
    call(3, place=ONE)
    with jspec.no_recompile():
        call(7, place=ONE)


FIXTURES = Path(__file__).parents[1] / "models/fixtures"
FAMILIES = sorted(file.parent.name for file in FIXTURES.glob("*/config.json"))


def products(model, params, precision=None):
    """Whether each product in a GPU's program of prefill and a round of 3 nodes is in float32."""
    drafter = jspec.PromptLookup(num_speculative_tokens=3)
    prompt = jax.ShapeDtypeStruct((1, 4), jnp.int32)
    call = partial(jspec.decode, model, drafter=drafter, max_new_tokens=4)
    # All other tests ask for the highest.
    with jax.default_matmul_precision(precision):
        traced = jax.jit(lambda params, prompt: call(params, prompt).tokens).trace(params, prompt)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    return [
        bool(re.search(r"precision = \[HIGHEST, HIGHEST\]", line))
        for line in text.splitlines()
        if "stablehlo.dot_general" in line
    ]


@pytest.mark.parametrize("name", only(FAMILIES, "llama2"))
def test_a_model_in_float32_multiplies_in_float32(name):
    loaded = jspec.models.load(FIXTURES / name, with_tokenizer=False)
    found = products(loaded.model, loaded.params)
    assert found and all(found)


def test_other_models_and_whoever_asks_have_the_default():
    model = tiny.model(num_layers=1)
    params = tiny.params(model)
    assert not any(products(model, params, "tensorfloat32"))
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert not any(products(model.clone(dtype=jnp.bfloat16), narrow))
    own = jspec.testing.RecurrentLM()
    params = own.init()
    assert all(found := products(own, params)) and found, "without a dtype it goes by its weights"
    narrow = jax.tree.map(
        lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf, params
    )
    assert not any(products(own, narrow))
