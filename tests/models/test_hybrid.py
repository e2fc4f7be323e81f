"""Decoders with recurrent layers, as the engine runs them: a tree, a batch, rows that move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import jspec
import jspec.models
from jspec.models import recurrence
from jspec.models.hybrid import HybridMemory
from jspec.testing import check_model

NAMES = ("qwen3_next", "granite4")
TREE = jspec.tree.branching([3, 2, 1])


@pytest.fixture(params=NAMES)
def hybrid(request, recorded, fixtures):
    """The model, and 40 greedy tokens of `transformers` after each of its texts."""
    return recorded(request.param), load_file(fixtures / request.param / "reference.safetensors")


def test_40_greedy_tokens_are_those_of_transformers(hybrid):
    """By plain decoding, by trees and by `auto`, which `transformers` decodes step by step."""
    found, reference = hybrid
    wanted = reference["greedy"]
    ask = dict(prompt=found.tokens, max_new_tokens=wanted.shape[1])
    drafters = (jspec.Autoregressive(), jspec.TokenRecycling(64, TREE, k=3))
    for drafter in drafters:
        result = jspec.decode(found.model, found.params, drafter=drafter, **ask)
        np.testing.assert_array_equal(result.tokens, wanted)
    built = jspec.auto(found.model, found.params, widths=(0, 3))
    result = jspec.decode(
        built.model, found.params, drafter=built.drafter, drafter_params=built.drafter_params, **ask
    )
    np.testing.assert_array_equal(result.tokens, wanted)


def test_one_key_is_one_text(hybrid):
    """Rows of unequal prompts, sampled."""
    found, _ = hybrid
    ask = dict(
        prompt=found.tokens, lengths=[16, 3], max_new_tokens=20, key=5,
        sampling=jspec.Sampling(temperature=1.0),
    )  # fmt: skip
    plain = jspec.decode(found.model, found.params, **ask)
    assert len(set(plain.tokens[0].tolist())) > 5
    for options in (
        dict(drafter=jspec.TokenRecycling(64, TREE, k=3)),
        dict(drafter=jspec.PromptLookup(4)),
    ):
        drafted = jspec.decode(found.model, found.params, **ask, **options)
        np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    other = jspec.decode(found.model, found.params, **(ask | dict(key=6)))
    assert (other.tokens != plain.tokens).any()


def test_rows_that_come_and_go_are_as_alone(hybrid):
    found, _ = hybrid
    model, params = found.model, found.params
    texts = [found.tokens[0].tolist(), found.tokens[1, :5].tolist(), found.tokens[1, 4:].tolist()]
    engine = jspec.Engine(
        model, num_slots=2, capacity=48, drafter=jspec.TokenRecycling(64, TREE, k=3, per_row=True)
    )
    state, left = engine.init(params), [12, 6, 9]
    state = engine.insert(state, 0, engine.prefill(params, texts[0], limits=left[0]))
    state = engine.insert(state, 1, engine.prefill(params, texts[1], limits=left[1]))
    where, output = {0: 0, 1: 1}, {}
    while len(output) < 3:
        state, _ = engine.generate(params, state, rounds=1)
        for slot, number in list(where.items()):
            if bool(state.done[slot]):
                output[number] = state.out[slot, : left[number]]
                state = engine.free(state, slot)
                del where[slot]
                if number == 1:  # a third takes the place of the first that ends
                    state = engine.insert(
                        state, slot, engine.prefill(params, texts[2], limits=left[2])
                    )
                    where[slot] = 2
    for number, text in enumerate(texts):
        alone = jspec.decode(model, params, [text], max_new_tokens=left[number])
        np.testing.assert_array_equal(output[number], alone.tokens[0])


@pytest.mark.slow
def test_the_contract_is_kept(hybrid):
    found, _ = hybrid
    report = check_model(found.model, found.params)
    assert len(report.skipped) == 2 and all("target" in reason for reason in report.skipped)


def test_scanned_layers_give_the_same(hybrid, fixtures, causal, request):
    """Their states stand side by side in one array; a wrong one of them would show."""
    found, _ = hybrid
    name = request.node.callspec.params["hybrid"]
    loaded = jspec.models.load(fixtures / name, with_tokenizer=False, scan_layers=True)
    assert any(len(layers) > 1 for group in loaded.model.groups for layers in group)
    output = jax.jit(loaded.model.apply)(loaded.params, *causal(found.tokens), None)
    np.testing.assert_allclose(output.logits, found.logits, atol=1e-4, rtol=0)
    ask = dict(prompt=found.tokens, max_new_tokens=12, drafter=jspec.TokenRecycling(64, TREE, k=3))
    one = jspec.decode(found.model, found.params, **ask)
    many = jspec.decode(loaded.model, loaded.params, **ask)
    np.testing.assert_array_equal(many.tokens, one.tokens)


def test_products_give_the_tokens_of_steps(hybrid, monkeypatch):
    """What other devices than a CPU run."""
    found, _ = hybrid
    forward = jax.jit(lambda *given: found.model.apply(*given))
    tokens = jnp.asarray(found.tokens)
    text = jnp.broadcast_to(jnp.arange(16), (2, 16))
    seen = jnp.broadcast_to(jnp.tri(16, dtype=bool), (2, 16, 16))

    def at_once(given, *rest):
        return recurrence.by_chunks((*given[:3], jnp.log(given[3]), given[4]), *rest)

    monkeypatch.setattr(recurrence, "by_steps", at_once)
    jax.clear_caches()
    output = forward(found.params, tokens, text, seen, None)
    np.testing.assert_allclose(output.logits, found.logits, atol=1e-4, rtol=0)
    jax.clear_caches()


def test_the_memory_of_a_state_does_not_grow_with_the_capacity(hybrid):
    found, _ = hybrid
    short, long = (jax.eval_shape(lambda s=s: found.model.init_memory(2, s)) for s in (8, 64))
    assert isinstance(short, HybridMemory)
    assert jax.tree.map(jnp.shape, short.recurrent) == jax.tree.map(jnp.shape, long.recurrent)
    assert short.attention.capacity == 8 and long.attention.capacity == 64


def test_it_is_no_draft_model(hybrid):
    found, _ = hybrid
    with pytest.raises(jspec.InputError, match="until"):
        jspec.decode(
            found.model, found.params, found.tokens, max_new_tokens=4,
            drafter=jspec.SpeculativeDecoding(found.model, 2), drafter_params=found.params,
        )  # fmt: skip


def test_adapters_are_refused(fixtures, tmp_path):
    with pytest.raises(jspec.InputError, match="adapters on a Hybrid, whose recurrent states"):
        jspec.models.load(fixtures / "granite4", with_tokenizer=False, adapters={"mine": tmp_path})


def test_bad_sizes_are_refused():
    net = jspec.models.DeltaNet(2, 4, 8, 8)
    with pytest.raises(jspec.InputError, match="num_key_heads is 3, which does not divide"):
        jspec.models.DeltaNet(3, 4, 8, 8)
    sizes = dict(
        vocab_size=9, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=8, context=9,
    )  # fmt: skip
    layers = (jspec.models.Layer(None, mixer=net),)
    with pytest.raises(jspec.InputError, match="none of the layers is attention"):
        jspec.models.Hybrid(jspec.models.LlamaConfig(**sizes, layers=layers))
