"""A model of Google's gemma library, decoded by trees: a Linen module and its params.

pip install gemma
"""

import dataclasses

import jax
import jax.numpy as jnp
from gemma import gm

import jspec
from jspec import models

# Gemma 3's own layers, small: windows of 8 tokens in five of six.
CONFIG = dataclasses.replace(
    gm.nn.Gemma3_270M.config, num_embed=64, embed_dim=32, hidden_dim=64, num_heads=4, head_dim=8,
    num_kv_heads=2, sliding_window_size=8,
    attention_types=gm.nn.Gemma3_270M.config.attention_types[:6],
)  # fmt: skip
GEMMA = gm.nn.Gemma3_270M(config=CONFIG, dtype=jnp.float32)


def call(params, tokens, positions, cache, mask):
    """Returns the library's own call."""
    found = GEMMA.apply(
        {"params": params}, tokens, positions=positions, cache=cache, attention_mask=mask
    )
    return found.logits, found.cache


def main():
    prompt = jnp.array([[2, 5, 6, 5, 6, 5, 6, 5]])
    params = GEMMA.init(jax.random.key(0), prompt)["params"]
    model = models.FunctionModel(
        models.LayerCaches(call), vocab_size=CONFIG.num_embed, num_layers=CONFIG.num_layers,
        num_kv_heads=CONFIG.num_kv_heads, head_dim=CONFIG.head_dim,
    )  # fmt: skip
    result = jspec.decode(
        model, params, prompt, drafter=jspec.Suffix(num_speculative_tokens=8), max_new_tokens=40
    )

    @jax.jit
    def next_token(tokens):
        """Runs the library alone, over the whole text."""
        return GEMMA.apply({"params": params}, tokens).logits.argmax(-1)

    text = jnp.ones((1, 48), jnp.int32).at[:, :8].set(prompt)
    for at in range(8, 48):
        text = text.at[:, at].set(next_token(text)[:, at - 1])
    assert result.tokens[0, :40].tolist() == text[0, 8:].tolist()
    rounds = int(result.stats.num_rounds[0])
    print(f"the 40 tokens of gemma's own greedy decoding, in {rounds} rounds")


if __name__ == "__main__":
    main()
