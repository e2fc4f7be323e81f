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
    found = tiny.forward(model, params, tokens).logits
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


def test_every_family(fixtures):
    for folder in sorted(fixtures.iterdir()):
        compare(folder)


def test_a_longer_context_takes_the_other_divisors(fixtures):
    """LongRoPE: `transformers` takes them for a text beyond the original context, of 32 here."""
    assert jspec.models.load(fixtures / "phi3", with_tokenizer=False).model.context == 32 < LENGTH
    compare(fixtures / "phi3", context=64)
