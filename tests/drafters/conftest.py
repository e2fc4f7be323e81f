"""What tests of several drafters share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny


@pytest.fixture(scope="module")
def target():
    model = tiny.model()
    return model, tiny.params(model)


@pytest.fixture(scope="module")
def next_logits(target):
    """The target's logits after a text of at most 64 tokens, by whole forwards without a cache."""
    known = {}

    @jax.jit
    def forward(tokens):
        size = tokens.shape[1]
        causal = jnp.tril(jnp.ones((1, size, size), bool))
        return target[0].apply(target[1], tokens, jnp.arange(size)[None], causal, None).logits[0]

    def score(tokens):
        if (key := tuple(tokens)) not in known:
            padded = np.zeros((1, 64), np.int32)
            padded[0, : len(key)] = key
            # One forward gives every prefix; later lookups are nearly free.
            logits = np.asarray(forward(padded), np.float64)
            for size in range(1, len(key) + 1):
                known.setdefault(key[:size], logits[size - 1])
        return known[key]

    return score
