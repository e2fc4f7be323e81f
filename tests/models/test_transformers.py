"""Every family and every pre-trained checkpoint at hand against `transformers` itself."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jspec.models
from jspec.models.huggingface import quantised, shards
from jspec.models.huggingface.config_json import Settings

torch = pytest.importorskip("torch", reason="needs the parity extra")
TOLERANCE = 1e-4
LENGTH = 48


def original(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def compare(folder, **changes):
    """Logits of random texts that fill as much of the context as is quick."""
    theirs = original(folder)
    model, params, _ = jspec.models.load(folder, dtype="float32", with_tokenizer=False)
    model = model.clone(config=replace(model.config, **changes))
    length = min(LENGTH, model.context)
    tokens = np.random.default_rng(2).integers(0, model.vocab_size, (2, length))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()
    found = tiny.forward(model, params, tokens).logits
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


def test_every_family(fixtures):
    for folder in sorted(fixtures.iterdir()):
        compare(folder)


def test_a_longer_context_takes_the_other_divisors(fixtures):
    """LongRoPE: `transformers` takes them for a text beyond the original context, of 32 here."""
    assert jspec.models.load(fixtures / "phi3", with_tokenizer=False).model.context == 32 < LENGTH
    compare(fixtures / "phi3", context=64)


def test_mxfp4_is_dequantised_as_there(tmp_path):
    from safetensors.numpy import save_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    draw = np.random.default_rng(0)
    packed = draw.integers(0, 256, (2, 6, 3, 16), np.uint8)
    scales = draw.integers(100, 140, (2, 6, 3), np.uint8)
    save_file({"up_blocks": packed, "up_scales": scales}, tmp_path / "model.safetensors")
    wanted = convert_moe_packed_tensors(torch.from_numpy(packed), torch.from_numpy(scales))
    fields = Settings({"quantization_config": {"quant_method": "mxfp4"}}, "config.json")
    found = quantised.reader(fields)(shards.open_folder(tmp_path))
    assert found.shape("up") == (2, 96, 6)
    np.testing.assert_array_equal(found.read("up"), wanted.float().numpy())


def test_pretrained(pretrained):
    compare(pretrained)


def test_pretrained_tokenizers_split_alike(pretrained):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(pretrained)
    ours = jspec.models.load(pretrained).tokenizer
    text = "Once upon a time, there was a little girl named Lily. She said: 'No!'"
    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.decode(ours.encode(text).ids) == text


def test_pretrained_greedy_is_that_of_transformers(pretrained):
    """20 tokens by whole forward passes; the engine's own tests take it from there."""
    model, params, tokenizer = jspec.models.load(pretrained, dtype="float32")
    prompt = tokenizer.encode("Once upon a time").ids
    expected = (
        original(pretrained)
        .generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0)[0]
        .tolist()
    )
    tokens = np.zeros((1, len(prompt) + 20), np.int32)
    tokens[0, : len(expected)] = expected
    chosen = tiny.forward(model, params, tokens).logits.argmax(-1)
    assert jnp.array_equal(chosen[0, len(prompt) - 1 : -1], tokens[0, len(prompt) :])
