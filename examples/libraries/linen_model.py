"""A Flax Linen module, decoded by trees: its params are passed as they are."""

import jax
import jax.numpy as jnp
from flax import linen as nn

import jspec
from jspec import models


class Decoder(nn.Module):
    """A model with attention over the context and the new tokens, and an MLP."""

    vocab_size: int = 32
    heads: int = 2
    width: int = 16

    @nn.compact
    def __call__(self, tokens, positions, mask, keys, values):
        shape, made = (self.heads, self.width // self.heads), []
        x = nn.Embed(self.vocab_size, self.width)(tokens) + jnp.sin(positions[..., None] / 10.0)
        for past in zip(keys, values, strict=True):  # of each layer: [B, J, S, D]
            query, *own = (nn.DenseGeneral(shape)(x).swapaxes(1, 2) for _ in "qkv")
            key, value = (jnp.concatenate(both, 2) for both in zip(past, own, strict=True))
            scores = jnp.where(mask[:, None], query @ key.mT / shape[1] ** 0.5, -1e30)
            mixed = (nn.softmax(scores) @ value).swapaxes(1, 2).reshape(x.shape)
            x = x + nn.Dense(self.width)(mixed)
            x = x + nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(x)))
            made.append(own)
        return nn.Dense(self.vocab_size)(x), *zip(*made, strict=True)


DECODER = Decoder()


def forward(params, tokens, positions, mask, seen):
    return DECODER.apply(params, tokens, positions, mask, seen.keys, seen.values)


def main():
    nothing = (jnp.zeros((1, 2, 0, 8)),) * 2
    own = jnp.ones((1, 1), jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    params = DECODER.init(jax.random.key(0), *own, nothing, nothing)
    sizes = dict(vocab_size=32, num_layers=2, num_kv_heads=2, head_dim=8)
    model = models.FunctionModel(forward, **sizes)
    ask = dict(prompt=[[1, 2, 3, 1, 2, 3, 1, 2]], max_new_tokens=40)
    result = jspec.decode(model, params, drafter=jspec.Suffix(num_speculative_tokens=8), **ask)

    text, whole, causal = list(ask["prompt"][0]), jax.jit(DECODER.apply), jnp.tri(48, dtype=bool)
    for _ in range(40):  # by the module alone, over the whole text; nothing sees what fills it up
        given = jnp.array([text + [0] * (48 - len(text))]), jnp.arange(48)[None], causal[None]
        logits, *_ = whole(params, *given, nothing, nothing)
        text.append(int(logits[0, len(text) - 1].argmax()))
    assert result.tokens[0, :40].tolist() == text[8:]
    print(f"the module's own 40 tokens, in {int(result.stats.num_rounds[0])} rounds")


if __name__ == "__main__":
    main()
