"""PARD (An et al. 2025, section 3): K tokens by mask tokens behind the text, from scratch.

A language model is a dictionary of plain float64 arrays, torch's [out, in]:

    embed [V, H], head [V, H], norm [H]
    layers: each with attention_norm, mlp_norm [H]; q [h d, H], k, v [g d, H], o [H, h d];
        gate, up [I, H], down [H, I]

and numbers: heads, kv_heads, theta, eps.
"""

import numpy as np

from oracle.block_drafter import attention, rms, silu


def logits(lm, tokens):
    """[N, V], the scores of the token after each of N, by a decoder with causal attention."""
    x = np.array([lm["embed"][token] for token in tokens])
    for layer in lm["layers"]:
        x = x + attention(lm | {"causal": True}, layer, [], x)
        y = rms(x, layer["mlp_norm"], lm["eps"])
        x = x + (silu(y @ layer["gate"].T) * (y @ layer["up"].T)) @ layer["down"].T
    return rms(x, lm["norm"], lm["eps"]) @ lm["head"].T


def predictions(lm, text, mask, num):
    """[K, V], scores of the K tokens after a text: K forward passes, the i-th with i masks.

    Attention is causal, so one forward pass with K - 1 masks would give the same rows.
    """
    return np.array([logits(lm, [*text, *[mask] * masks])[-1] for masks in range(num)])


def decode(target, draft, prompt, mask, num, limit):
    """The loop of section 3 in greedy decoding.

    Args:
      target, draft: language models as above.
      prompt: token ids.
      mask: the mask token's id.
      num: K.
      limit: tokens to write.
    Returns:
      (the tokens, the number of tokens that each round wrote).
    """
    text, rounds = list(prompt), []
    while (room := limit - len(text) + len(prompt)) > 0:
        drafted = [int(token) for token in predictions(draft, text, mask, num).argmax(-1)]
        chosen = logits(target, text + drafted)[len(text) - 1 :].argmax(-1)
        kept = 0
        while kept < num and drafted[kept] == chosen[kept]:
            kept += 1
        wrote = [*drafted[:kept], int(chosen[kept])][:room]
        text += wrote
        rounds.append(len(wrote))
    return text[len(prompt) :], rounds
