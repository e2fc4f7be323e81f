"""The decoding of SkyRL tx's models, compared with tx's own loop: `pip install 'skyrl[jax]'`."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jspec

pytest.importorskip("skyrl", reason="skyrl is not installed; pip install 'skyrl[jax]'")

from skyrl.tinker.types import SamplingParams
from skyrl.tx.models.configs import ModelConfig
from skyrl.tx.models.llama3 import Llama3ForCausalLM
from skyrl.tx.models.qwen3 import Qwen3ForCausalLM
from transformers import LlamaConfig, Qwen3Config

from jspec.integrations import skyrl
from jspec.integrations.skyrl import JspecDecoder

PROMPTS = [[5, 3, 9, 5, 3, 9, 5, 3], [4, 4, 7], [8, 1, 6, 1, 6]]
NEW = 16


def build(kind, config, seed=0):
    """A model whose weights and adapters are random, each in its own way."""
    shape = config(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
    )  # fmt: skip
    settings = ModelConfig(shape, max_lora_adapters=3, max_lora_rank=4, shard_attention_heads=False)
    auto = (jax.sharding.AxisType.Auto,) * 3
    with jax.set_mesh(jax.make_mesh((1, 1, 1), ("fsdp", "ep", "tp"), axis_types=auto)):
        made = kind(settings, dtype=jnp.float32, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = jax.tree_util.keystr(path)
        if "lora_scaling" in name:
            return jnp.ones_like(leaf)
        if "connector" in name or leaf.ndim < 2 or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.asarray(rng.normal(0, 0.5, leaf.shape), leaf.dtype)

    nnx.update(made, jax.tree.map_with_path(draw, nnx.state(made)))
    return made


@pytest.fixture(scope="module")
def model():
    return build(Qwen3ForCausalLM, Qwen3Config)


def generate(model, decoder=None, prompts=PROMPTS, adapters=(0, 1, 2), scored=False, **changes):
    """The answers of a model: by its own loop, or by a decoder."""
    size = max(map(len, prompts))
    tokens, mask = (np.zeros((len(prompts), size), np.int32) for _ in range(2))
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)], mask[row, : len(prompt)] = prompt, 1
    asked = [
        SamplingParams(**(dict(temperature=0.0, max_tokens=NEW, seed=row) | changes))
        for row in range(len(prompts))
    ]
    kind = type(model)
    with pytest.MonkeyPatch.context() as patch:
        if decoder is not None:
            patch.setattr(kind, "_prefill_and_decode", decoder, raising=False)
        return model.generate(
            jnp.asarray(tokens), jnp.asarray(mask), sampling_params=asked,
            adapter_indices=None if adapters is None else jnp.asarray(adapters),
            prompt_logprobs=scored,
        )  # fmt: skip


def same(found, wanted):
    assert found.generated_ids == wanted.generated_ids
    assert found.stop_reasons == wanted.stop_reasons
    for part in ("logprobs", "prompt_logprobs"):
        rows = getattr(found, part) or [], getattr(wanted, part) or []
        for ours, theirs in zip(*rows, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("method", ["token_recycling", "auto"])
def test_greedy_answers_are_those_of_tx_before_and_after_new_weights(model, method, monkeypatch):
    results, decode = [], skyrl.decode

    def counted(*args, **kwargs):
        results.append(decode(*args, **kwargs))
        return results[-1]

    monkeypatch.setattr(skyrl, "decode", counted)
    ours = JspecDecoder(method, num_speculative_tokens=7)
    first = generate(model, ours, scored=True)
    same(first, generate(model, scored=True))
    # Drafts are accepted, of a tree with siblings.
    assert results[0].stats.num_rounds.min() < NEW - 2
    trained = build(Qwen3ForCausalLM, Qwen3Config, seed=1)
    with jspec.no_recompile():
        moved = generate(trained, ours, scored=True)
    same(moved, generate(trained, scored=True))
    assert moved.generated_ids != first.generated_ids


def test_rows_have_their_own_adapters_or_none(model):
    ours = JspecDecoder("prompt_lookup")
    answers = [generate(model, ours, adapters=rows) for rows in ((2, 1, 0), None)]
    for found, rows in zip(answers, ((2, 1, 0), None), strict=True):
        same(found, generate(model, adapters=rows))
    assert answers[0].generated_ids[0] != answers[1].generated_ids[0]


def test_llama_ends_at_stop_tokens_and_reads_batches_that_are_filled_up():
    model, ours = build(Llama3ForCausalLM, LlamaConfig), JspecDecoder("prompt_lookup")
    third = [row[2] for row in generate(model).generated_ids]
    found, wanted = (
        generate(model, decoder, [*PROMPTS[:2], []], max_tokens=9, stop_tokens=third[:2])
        for decoder in (ours, None)
    )
    for part in ("generated_ids", "stop_reasons"):
        assert getattr(found, part)[:2] == getattr(wanted, part)[:2]
    assert found.stop_reasons[:2] == ["stop", "stop"] and len(found.generated_ids[0]) <= 3


def test_sampled_answers_follow_seeds_and_filters(model):
    ours, prompts = JspecDecoder("prompt_lookup"), [PROMPTS[0]] * 64
    warm = dict(prompts=prompts, adapters=None, temperature=5.0, max_tokens=1)
    first = generate(model, prompts=prompts[:1], adapters=None, max_tokens=1).generated_ids[0][0]
    whole, few, one, again = (
        [row[0] for row in generate(model, ours, **warm | more).generated_ids]
        for more in ({}, {"top_k": 3}, {"top_k": 1}, {})
    )
    assert whole == again and len(set(whole)) > 8
    assert first in few and len(set(few)) == 3 and set(one) == {first}
    thin = generate(model, ours, **warm | {"top_p": 1e-6})
    assert {row[0] for row in thin.generated_ids} == {first}
    theirs = generate(model, **warm | {"top_k": 3})
    assert set(few) == {row[0] for row in theirs.generated_ids}


def test_without_a_mask_for_each_query_other_tokens_come(model, monkeypatch):
    """The control: all nodes of a tree see each other, as by tx's own attention."""
    attend = skyrl._attend

    def see_all(q, k, v, mask, is_causal, head_dim):
        return attend(
            q, k, v, jnp.broadcast_to(mask.any(1, keepdims=True), mask.shape), 0, head_dim
        )

    monkeypatch.setattr(skyrl, "_attend", see_all)
    found = generate(model, JspecDecoder("token_recycling", num_speculative_tokens=5))
    assert found.generated_ids != generate(model).generated_ids


def test_other_memories_are_refused():
    class Recurrent(nnx.Module):
        config = SimpleNamespace()

        def get_decode_layers(self):
            return None

    with pytest.raises(jspec.InputError, match=r"Recurrent has another memory .*; use a model of"):
        JspecDecoder()(Recurrent(), *[None] * 12)
