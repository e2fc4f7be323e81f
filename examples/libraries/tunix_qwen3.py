"""A model of google-tunix, decoded by trees: weights stay where tunix has them.

pip install google-tunix
"""

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.qwen3 import model as qwen3

import jspec
from jspec import models

CONFIG = qwen3.ModelConfig(
    num_layers=2, vocab_size=64, embed_dim=32, hidden_dim=64, num_heads=4, head_dim=8,
    num_kv_heads=2, rope_theta=10_000, norm_eps=1e-6, use_tied_embedding=True,
)  # fmt: skip


def call(module, tokens, positions, cache, mask):
    """Qwen3's own call."""
    return module(tokens, positions, cache, mask)


def main():
    module = qwen3.Qwen3(CONFIG, rngs=nnx.Rngs(0))
    model, params = models.from_nnx(
        module, models.LayerCaches(call), vocab_size=CONFIG.vocab_size,
        num_layers=CONFIG.num_layers, num_kv_heads=CONFIG.num_kv_heads, head_dim=CONFIG.head_dim,
    )  # fmt: skip
    prompt = [[1, 2, 3, 1, 2, 3, 1, 2]]
    result = jspec.decode(
        model, params, prompt, drafter=jspec.Suffix(num_speculative_tokens=8), max_new_tokens=40
    )

    @jax.jit
    def next_token(tokens):
        """Runs tunix alone, over the whole text."""
        count = tokens.shape[1]
        causal = jnp.tril(jnp.ones((1, count, count), bool))
        return module(tokens, jnp.arange(count)[None], None, causal)[0].argmax(-1)

    text = jnp.zeros((1, 48), jnp.int32).at[:, :8].set(jnp.array(prompt))
    for at in range(8, 48):
        text = text.at[:, at].set(next_token(text)[:, at - 1])
    assert result.tokens[0, :40].tolist() == text[0, 8:].tolist()
    rounds = int(result.stats.num_rounds[0])
    print(f"the 40 tokens of tunix's own greedy decoding, in {rounds} rounds")


if __name__ == "__main__":
    main()
