"""Every family against `transformers` itself, in longer texts than the recorded ones."""

from dataclasses import replace

import numpy as np
import pytest
import tiny

import jspec
import jspec.models

torch = pytest.importorskip("torch", reason="needs the parity extra")
transformers = pytest.importorskip("transformers")
TOLERANCE = 1e-4
LENGTH = 48


def compare(folder, **changes):
    """Logits of random texts that fill as much of the context as is quick."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
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
