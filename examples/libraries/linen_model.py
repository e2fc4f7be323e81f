"""A Flax Linen module, decoded by trees: its params are passed as they are."""

import jax
import jax.numpy as jnp
from flax import linen as nn

import jspec
from jspec import models


class Layer(nn.Module):
    """Attention over what is seen, and the tokens themselves, then an MLP."""

    heads: int
    width: int

    @nn.compact
    def __call__(self, x, mask, keys, values):
        size = self.width // self.heads
        query, key, value = (
            nn.DenseGeneral((self.heads, size), name=name)(x).swapaxes(1, 2) for name in "qkv"
        )
        keys, values = (jnp.concatenate(both, axis=2) for both in ((keys, key), (values, value)))
        scores = query @ keys.swapaxes(2, 3) / size**0.5
        weights = nn.softmax(jnp.where(mask[:, None], scores, -1e30), axis=-1)
        mixed = (weights @ values).swapaxes(1, 2).reshape(x.shape)
        x = x + nn.Dense(self.width)(mixed)
        return x + nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(x))), key, value


class Decoder(nn.Module):
    vocab_size: int = 32
    layers: int = 2
    heads: int = 2
    width: int = 16

    @nn.compact
    def __call__(self, tokens, positions, mask, keys, values):
        x = nn.Embed(self.vocab_size, self.width)(tokens) + jnp.sin(positions[..., None] / 10.0)
        made = []
        for past in zip(keys, values, strict=True):
            x, *own = Layer(self.heads, self.width)(x, mask, *past)
            made.append(own)
        keys, values = zip(*made, strict=True)
        return nn.Dense(self.vocab_size)(x), keys, values


DECODER = Decoder()


def forward(params, tokens, positions, mask, seen):
    return DECODER.apply(params, tokens, positions, mask, seen.keys, seen.values)


def main():
    size = DECODER.width // DECODER.heads
    nothing = (jnp.zeros((1, DECODER.heads, 0, size)),) * DECODER.layers
    own = jnp.ones((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    params = DECODER.init(jax.random.key(0), *own, nothing, nothing)
    sizes = dict(vocab_size=32, num_layers=2, num_kv_heads=2, head_dim=size)
    model = models.FunctionModel(forward, **sizes)
    ask = dict(prompt=[[1, 2, 3, 1, 2, 3, 1, 2]], max_new_tokens=40)
    result = jspec.decode(model, params, drafter=jspec.Suffix(num_speculative_tokens=8), **ask)

    text, size = list(ask["prompt"][0]), 48
    whole, causal = jax.jit(DECODER.apply), jnp.tril(jnp.ones((1, size, size), bool))
    for _ in range(40):  # by the module alone, over the whole text; nothing sees what fills it up
        given = jnp.array([text + [0] * (size - len(text))]), jnp.arange(size)[None]
        logits, *_ = whole(params, *given, causal, nothing, nothing)
        text.append(int(logits[0, len(text) - 1].argmax()))
    assert result.tokens[0, :40].tolist() == text[8:]
    print(f"the module's own 40 tokens, in {int(result.stats.num_rounds[0])} rounds")


if __name__ == "__main__":
    main()
