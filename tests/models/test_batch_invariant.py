"""By XLA's operations too a token has the same bits along a tree, in company, and alone."""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny

import jspec
import jspec.models
from jspec import testing
from jspec._xla import native
from jspec.decoding import decode_rounds
from jspec.models import BatchInvariant
from jspec.models.attention import Implementation
from jspec.protocols import Drafting

FAMILIES = (
    "deepseek_v3", "gemma2", "gemma4", "gpt2", "gpt_oss", "llama31", "mistral", "opt", "pythia",
    "qwen3_moe",
)  # fmt: skip
"""Latents, soft caps, windows, shared keys, sinks and experts among them."""
QUICK = ("gemma2", "float32"), ("llama31", "bfloat16")


@pytest.fixture(autouse=True)
def without_kernels():
    with native.disable():
        yield


def bits(model, params, sizes=(3, 8), batch_size=1, longest=20):
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, model.vocab_size, size).tolist() for size in (longest, 11)]
    return testing.check_bits(model, params, texts, sizes=sizes, batch_size=batch_size)


@pytest.mark.parametrize(
    "family", quick.only(itertools.product(FAMILIES, ("float32", "bfloat16")), *QUICK), ids="-".join
)
def test_every_family(family, fixtures):
    name, dtype = family
    loaded = jspec.models.load(fixtures / name, with_tokenizer=False, dtype=dtype)
    model = loaded.model.clone(attention_impl=BatchInvariant(8))
    found = bits(model, loaded.params, sizes=[8], batch_size=2)
    assert found.equal and found.kernels is None and found.num_tokens == 8, found
    assert "no bit differs" in str(found) and ", 8 tokens)" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"kv_dtype": "int8"}, {"scan_layers": True}, {"dtype": "q8_0"}])
def test_every_memory_and_weight(more):
    loaded = jspec.models.load("jspec-800k", **more)
    model = loaded.model.clone(attention_impl=BatchInvariant(16))
    found = bits(model, loaded.params, (1, 5, 16), batch_size=3, longest=50)
    assert found.equal, found


@dataclass(frozen=True)
class NodesLast(BatchInvariant):
    """One shape, and the order of all other models: the nodes, then the slots."""

    softmax = Implementation.softmax


@pytest.mark.parametrize(("way", "sizes"), [
    (Implementation(), [8]), pytest.param(NodesLast(8), [8], marks=pytest.mark.slow),
    (BatchInvariant(8, depth=2), [8]), pytest.param(BatchInvariant(8), [9], marks=pytest.mark.slow),
], ids=["no value", "today's order", "too small a depth", "another width"])  # fmt: skip
def test_what_makes_bits_differ(way, sizes, fixtures):
    """Negative controls."""
    loaded = jspec.models.load(fixtures / "llama31", with_tokenizer=False)
    found = bits(loaded.model.clone(attention_impl=way), loaded.params, sizes)
    assert found.num_different > 50 and 0 < found.num_different_nodes < found.num_nodes + 1
    if way.num_tokens == 8 and sizes == [8]:  # layer 0 holds what embeddings make, in one shape
        assert found.first_layer == 1, found
    assert f"layer {found.first_layer} is the first that differs" in str(found)


def written(model, params, drafter, policy, costs=None, **request):
    """Returns the state after a generation."""
    drafting = Drafting(drafter, None, policy, costs)
    state = jspec.prefill(
        model, params, tiny.PROMPTS, tiny.LENGTHS, **vars(drafting), max_new_tokens=24, **request
    )
    return jax.device_get(decode_rounds(model, params, state, drafting, jnp.int32(99)))


@pytest.mark.parametrize(
    ("depth", "policy", "sampling"),
    [
        (3, jspec.FixedWidth(3), None),
        pytest.param(7, jspec.Adaptive((0, 3, 7)), jspec.Sampling(0.8), marks=pytest.mark.slow),
    ],
)
def test_no_drafter_or_policy_changes_a_bit(depth, policy, sampling):
    """Tokens are equal, and so are all keys and values, which follow from all layers."""
    model = tiny.model().clone(attention_impl=BatchInvariant(8, depth))
    params, request = tiny.params(model), dict(sampling=sampling, key=0)
    plain = written(model, params, jspec.Autoregressive(), jspec.FixedWidth(), **request)
    drafter = jspec.PromptLookup(num_speculative_tokens=7)
    costs = jspec.CostCurve.of({1: 1.0, 8: 1.1})
    drafted = written(model, params, drafter, policy, costs, **request)
    assert (drafted.stats.num_drafts > 0).any()
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    for row, (one, other) in enumerate(zip(plain.positions, drafted.positions, strict=True)):
        count = min(one, other)
        held = [
            [leaf[row, :, :count] for leaf in (*state.memory.keys, *state.memory.values)]
            for state in (plain, drafted)
        ]
        jax.tree.map(np.testing.assert_array_equal, *held)


def test_bad_input_is_a_sentence(fixtures):
    refused = ((1,), "num_tokens is 1"), ((8, 8), "depth is 8"), ((8, 0), "depth is 0")
    for arguments, said in refused:
        with pytest.raises(jspec.InputError, match=said):
            BatchInvariant(*arguments)
    hybrid = jspec.models.shapes(fixtures / "qwen3_next").model
    with pytest.raises(jspec.InputError, match="the model has recurrent layers"):
        hybrid.clone(attention_impl=BatchInvariant(8))
    params = tiny.params(tiny.model())
    drafter = jspec.PromptLookup(num_speculative_tokens=8)
    for way, policy, said in (
        (BatchInvariant(8), jspec.FixedWidth(), "has 9 tokens .*draft at most 7, .*invariant. 9"),
        (BatchInvariant(16, 4), jspec.FixedWidth(), "trees have depth 8 and .*pass depth=8"),
        (BatchInvariant(16, 4), jspec.FixedWidth(6), "trees have depth 6 and .*pass depth=6"),
    ):
        model = tiny.model().clone(attention_impl=way)
        with pytest.raises(jspec.InputError, match=said):
            jspec.decode(model, params, tiny.PROMPTS, drafter=drafter, policy=policy)
