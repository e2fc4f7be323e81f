"""Speculative decoding in 150 lines of JAX: draft a tree, score it once, walk it, commit.

A language model writes one token per forward pass, and most of a pass is reading the weights. So a
pass over nine tokens costs little more than one over a single token. Speculative decoding uses
that: a cheap drafter guesses the next tokens, the model checks all guesses in one pass, and the
guesses that it would have written itself are kept. The text is the same; the passes are fewer.

This is the whole algorithm for one sequence, on plain JAX; jspec only gives the weights and the
tokenizer of a small model. A test checks that `jspec.decode` writes the same tokens.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jspec import models

LAYERS, HEADS, HEAD_DIM, VOCAB = 2, 2, 64, 4096  # the bundled model jspec-800k, a small Llama


def tree(depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two branches below the last token: each node's parent, and the attention mask.

        0 ── 1 ── 2 ── 3 ── 4        node 0, the root, is the last token of the text;
        └─── 5 ── 6 ── 7 ── 8        every other node is a guess for the token after its parent

    The shape is static, so XLA compiles one program; the tokens are new in every round. A tree of
    depth 0 is the root alone: plain decoding, by the same code.
    """
    parents = np.array([-1, *range(depth), *[0, *range(depth + 1, 2 * depth)][:depth]])
    # The ancestor mask: a node sees itself and what its parent sees, and no other branch.
    mask = np.eye(len(parents), dtype=bool)
    for node in range(1, len(parents)):
        mask[node] |= mask[parents[node]]
    return parents, mask


def draft(text: jax.Array, length: jax.Array, depth: int) -> jax.Array:
    """Guesses by looking up where the last tokens occurred before, and what followed them.

    A smaller model or a trained head could be here. A wrong guess costs time and changes no token.
    """
    places = jnp.arange(len(text))
    last, before = text[length - 1], text[length - 2]
    # 2 where the last two tokens match, 1 where only the last one does. Ties go to the latest.
    match = (text == last) * (1 + (jnp.roll(text, 1) == before))
    rank = jnp.where(places < length - 1, match * len(text) + places, -1)
    one = rank.argmax()
    # The second branch begins with another token than the first, or is -1s, which never match.
    other = jnp.where(jnp.roll(text, -1) == text[one + 1], -1, rank)
    follow = 1 + jnp.arange(depth)
    second = jnp.where(other.max() < 0, -1, text[other.argmax() + follow])
    return jnp.concatenate([last[None], text[one + follow], second])


def norm(x: jax.Array, weights: Any) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights["scale"]


def rotate(x: jax.Array, positions: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2  # rotary positions: lane i turns with lane i + half
    angles = positions[:, None, None] / 10000.0 ** (jnp.arange(half) / half)
    left, right, cos, sin = x[..., :half], x[..., half:], jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def forward(weights: Any, tokens, positions, mask, cache, committed) -> tuple[jax.Array, jax.Array]:
    """Returns one forward pass over N tokens: their logits [N, V], and their keys and values.

    Token i attends to the committed tokens in the cache, and to new token j where mask[i, j]. The
    cache [layers, 2, slots, head_dim] is only read: a rejected node never gets into it.
    """
    is_live = jnp.arange(cache.shape[2]) < committed
    seen = jnp.concatenate([jnp.broadcast_to(is_live, (len(tokens), len(is_live))), mask], 1)
    x, new = weights["embed"][tokens], []
    for layer in range(LAYERS):
        w = weights[f"layers_{layer}"]
        qkv = norm(x, w["attention_norm"]) @ w["qkv"]["weight"].T
        q, k, v = jnp.split(qkv.reshape(len(tokens), HEADS + 2, HEAD_DIM), [HEADS, HEADS + 1], 1)
        q, k, v = rotate(q, positions), rotate(k, positions)[:, 0], v[:, 0]
        keys, values = jnp.concatenate([cache[layer], jnp.stack([k, v])], 1)
        scores = jnp.einsum("nhd,md->nhm", q, keys) / HEAD_DIM**0.5
        attention = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf), -1)
        read = jnp.einsum("nhm,md->nhd", attention, values).reshape(len(tokens), -1)
        x = x + read @ w["output"]["weight"].T
        gate, up = jnp.split(norm(x, w["mlp_norm"]) @ w["gate_up"]["weight"].T, 2, -1)
        x = x + (jax.nn.silu(gate) * up) @ w["down"]["weight"].T
        new.append(jnp.stack([k, v]))
    return norm(x, weights["norm"]) @ weights["embed"].T, jnp.stack(new)


def noise(key: jax.Array, position: jax.Array, row: int = 0) -> jax.Array:
    """Returns the Gumbel noise of a position: a function of key, row and position alone.

    argmax(logits / T + noise) is a draw from softmax(logits / T), and no guess can change it.
    """
    own = jax.random.fold_in(jax.random.fold_in(key, row), position)
    return jax.random.gumbel(own, (VOCAB,), mode="high")


class State(NamedTuple):
    text: jax.Array  # the prompt and the tokens written after it
    length: jax.Array | int  # tokens of the text; all but the last one are in the cache
    cache: jax.Array
    rounds: jax.Array | int  # forward passes of the model


@partial(jax.jit, static_argnames=("max_new_tokens", "depth"))
def generate(weights, prompt, key, temperature=0.0, *, max_new_tokens=64, depth=4) -> State:
    """Writes `max_new_tokens` tokens behind the prompt [T], T >= 2; temperature 0 is greedy."""
    parents, mask = tree(depth)
    end = len(prompt) + max_new_tokens
    capacity = end + depth + 1  # the last round may write past the end

    def one_round(state: State) -> State:
        tokens = draft(state.text, state.length, depth)
        committed = state.length - 1  # the root's keys and values are not in the cache yet
        positions = committed + mask.sum(1) - 1
        logits, new = forward(weights, tokens, positions, mask, state.cache, committed)
        # The target's own token after each node; at temperature 0 there is no noise in it.
        gumbels = jax.vmap(partial(noise, key))(positions)
        choice = (logits + temperature * gumbels).argmax(-1)
        # The walk: a node is accepted if it and all nodes above it hold the target's choice at
        # their parents. Siblings differ, so these are one path from the root downwards.
        accepted = ((tokens == choice[parents]) | (parents < 0) | ~mask).all(1)
        (path,) = jnp.nonzero(accepted, size=depth + 1)
        # The choices along the path are the accepted tokens and one more, which costs nothing. The
        # rest of `path` is padding behind the new length; the next round writes over it.
        text = jax.lax.dynamic_update_slice(state.text, choice[path], (state.length,))
        cache = jax.lax.dynamic_update_slice(state.cache, new[:, :, path], (0, 0, committed, 0))
        return State(text, state.length + accepted.sum(), cache, state.rounds + 1)

    text = jnp.zeros(capacity, jnp.int32).at[: len(prompt)].set(prompt)
    cache = jnp.zeros((LAYERS, 2, capacity, HEAD_DIM))
    places = jnp.arange(len(prompt) - 1)  # the prompt is read, but for its last token, the root
    _, read = forward(weights, prompt[:-1], places, places[:, None] >= places, cache, 0)
    start = State(text, len(prompt), cache.at[:, :, : len(places)].set(read), 0)
    return jax.lax.while_loop(lambda state: state.length < end, one_round, start)


if __name__ == "__main__":
    target = models.load("jspec-800k")
    prompt = jnp.array(target.tokenizer.encode("One day Tom and Tim went to the park. Tom").ids)
    for depth in (0, 4):
        out = generate(target.params["params"], prompt, jax.random.key(0), 0.5, depth=depth)
        print(target.tokenizer.decode(out.text[: len(prompt) + 64].tolist()))
        print(f"depth {depth}: 64 tokens in {out.rounds} forward passes\n")
