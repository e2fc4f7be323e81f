"""A draft model that is some of its target's layers."""

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from jspec.models import pruning

TOKENS = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 6))


def test_a_draft_of_kept_layers_is_its_target_without_the_others():
    """Behind attention and MLP that give zeros, a layer's states are those before it."""
    target = tiny.model(num_layers=3, tied=True)
    params = tiny.params(target)
    draft, kept = pruning.pruned(target, params, (0, 2))
    silent = jax.tree.map(lambda leaf: leaf, params)
    for name in ("output", "down"):
        silent["params"]["layers_1"][name] = jax.tree.map(
            jnp.zeros_like, params["params"]["layers_1"][name]
        )
    wanted = tiny.forward(target, silent, TOKENS).logits
    found = tiny.forward(draft, kept, TOKENS).logits
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    whole = tiny.forward(target, params, TOKENS).logits
    assert np.abs(np.asarray(found - whole)).max() > 1e-3
