"""An Equinox module, decoded by trees: its arrays are the params, the rest is static.

pip install equinox
"""

import equinox as eqx
import jax
import jax.numpy as jnp

import jspec
from jspec import models


class Decoder(eqx.Module):
    """Attention of one head over what is seen, and the tokens themselves."""

    embed: eqx.nn.Embedding
    qkv: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, vocab_size, width, key):
        keys = jax.random.split(key, 3)
        self.embed = eqx.nn.Embedding(vocab_size, width, key=keys[0])
        self.qkv = eqx.nn.Linear(width, 3 * width, key=keys[1])
        self.head = eqx.nn.Linear(width, vocab_size, key=keys[2])

    def __call__(self, tokens, positions, mask, keys, values):
        x = jax.vmap(self.embed)(tokens) + jnp.sin(positions[:, None] / 10.0)
        query, key, value = jnp.split(jax.vmap(self.qkv)(x), 3, axis=-1)
        keys, values = jnp.concatenate([keys, key]), jnp.concatenate([values, value])
        weights = jax.nn.softmax(jnp.where(mask, query @ keys.T, -1e30), axis=-1)
        return jax.vmap(self.head)(x + weights @ values), key, value


ARRAYS, STATIC = eqx.partition(Decoder(32, 16, jax.random.key(0)), eqx.is_array)


def forward(params, tokens, positions, mask, seen):
    module = eqx.combine(params, STATIC)
    past = seen.keys[0][:, 0], seen.values[0][:, 0]  # of layer 0, head 0: [B, S, D]
    logits, key, value = jax.vmap(module)(tokens, positions, mask, *past)
    return logits, (key[:, None],), (value[:, None],)


def main():
    model = models.FunctionModel(forward, vocab_size=32, num_layers=1, num_kv_heads=1, head_dim=16)
    ask = dict(prompt=[[1, 2, 3, 1, 2, 3, 1, 2]], max_new_tokens=40)
    result = jspec.decode(model, ARRAYS, drafter=jspec.Suffix(num_speculative_tokens=8), **ask)

    text, whole = list(ask["prompt"][0]), eqx.filter_jit(eqx.combine(ARRAYS, STATIC))
    given = jnp.arange(48), jnp.tri(48, dtype=bool), *(jnp.zeros((0, 16)),) * 2
    for _ in range(40):  # by the module alone, over the whole text; nothing sees what fills it up
        logits, *_ = whole(jnp.array(text + [0] * (48 - len(text))), *given)
        text.append(int(logits[len(text) - 1].argmax()))
    assert result.tokens[0, :40].tolist() == text[8:]
    print(f"the module's own 40 tokens, in {int(result.stats.num_rounds[0])} rounds")


if __name__ == "__main__":
    main()
