"""One-pass block drafters: DFlash (z-lab), DSpark (DeepSeek 2026), JetSpec; their trees.

A head is a dictionary of plain arrays, torch's [out, in]:

    fc [H, m H], state_norm [H], norm [H]
    layers: each with attention_norm, mlp_norm [H]; q [h d, H], k, v [g d, H], o [H, h d];
        q_norm, k_norm [d] or None; gate, up [I, H], down [H, I]
    mask [H]                          the token in the slots after the anchor
    first [V, r], second [V, r]       the Markov head; absent without one
    confidence [H + r], offset        the confidence head; absent without one

and numbers: heads, kv_heads, theta, eps, block (slots, the anchor's included), skipped (1: slot j
is of the token at s + j, so that the anchor's says nothing; 0: slot j is of s + j + 1), causal.
"""

import heapq

import numpy as np


def rms(x, weight, eps):
    x = np.asarray(x, np.float64)
    return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def turned(x, position, theta):
    """Rotary embedding of one head's vector [d]: lane i pairs with lane i + d/2."""
    half = len(x) // 2
    angles = position * theta ** -(np.arange(half) / half)
    left, right, cos, sin = x[:half], x[half:], np.cos(angles), np.sin(angles)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin])


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def states(head, taps, anchor):
    """The block's states [D, H] of the tokens after an anchor: what DFlash's layers give.

    Args:
      head: as above.
      taps: [s, m H], the target's states at positions 0 .. s - 1, side by side; the anchor's own is
        not among them.
      anchor: [H], the target's embedding of the token at position s.
    """
    context = [rms(head["fc"] @ row, head["state_norm"], head["eps"]) for row in taps]
    x = np.array([anchor] + [head["mask"]] * (head["block"] - 1), np.float64)
    for layer in head["layers"]:
        x = x + attention(head, layer, context, x)
        y = rms(x, layer["mlp_norm"], head["eps"])
        x = x + (silu(y @ layer["gate"].T) * (y @ layer["up"].T)) @ layer["down"].T
    return rms(x, head["norm"], head["eps"])[head["skipped"] :]


def attention(head, layer, context, x):
    """Block rows attend to all of the context and to one another: k and v of both, q of them."""
    start, eps, theta = len(context), head["eps"], head["theta"]
    rows = [rms(row, layer["attention_norm"], eps) for row in x]
    size = len(layer["q"]) // head["heads"]
    shared = head["heads"] // head["kv_heads"]

    def part(name, row, at, which):
        vector = (layer[name] @ row)[which * size : (which + 1) * size]
        if name == "v":
            return vector
        if layer.get(f"{name}_norm") is not None:
            vector = rms(vector, layer[f"{name}_norm"], eps)
        return turned(vector, at, theta)

    mixed = np.zeros((len(x), head["heads"] * size))
    for which in range(head["heads"]):
        seen = [(row, at) for at, row in enumerate([*context, *rows])]
        keys = [part("k", row, at, which // shared) for row, at in seen]
        values = np.array([part("v", row, at, which // shared) for row, at in seen])
        for slot, row in enumerate(rows):
            query = part("q", row, start + slot, which)
            scores = np.array([query @ key for key in keys]) / np.sqrt(size)
            if head["causal"]:
                scores[start + slot + 1 :] = -np.inf
            mixed[slot, which * size : (which + 1) * size] = softmax(scores) @ values
    return mixed @ layer["o"].T


def scores(head, block, unembed):
    """scores(depth, before) -> [V]: of the token at depth + 1, after `before` at depth.

    DSpark, section 3: U_k + W1[x_(k-1)] W2^T. Without a Markov head, whatever comes before.
    """
    base = np.asarray(block) @ np.asarray(unembed, np.float64).T

    def after(depth, before):
        if head.get("first") is None:
            return base[depth]
        return base[depth] + head["second"] @ head["first"][before]

    return after


def confidence(head, block):
    """confidence(depth, before) -> probability that token depth + 1 is kept (DSpark, 3)."""

    def kept(depth, before):
        read = np.concatenate([block[depth], head["first"][before]])
        return 1 / (1 + np.exp(-(head["confidence"] @ read + head["offset"])))

    return kept


def log_shares(after, depth, before, noise, weights, confident=None):
    """log probabilities [V] that each token is the target's, from log q and the noise.

    weights = (a, b, _, _): a (log q(x | before) + T G(x)) + b T G(x), among all tokens. With a = 1
    and b = 0 it is the noise-ranked draft, with b = -a the published one.
    """
    del confident
    logits = after(depth, before)
    shifted = logits - logits.max()
    log_q = shifted - np.log(np.exp(shifted).sum())
    mixed = weights[0] * (log_q + noise[depth]) + weights[1] * noise[depth]
    top = mixed.max()
    return mixed - top - np.log(np.exp(mixed - top).sum())


def tree(shares, root, depth, beam, budget):
    """The `budget` paths of the largest products of probabilities, taken one by one from a heap.

    DDTree's and JetSpec's best-first order, with children that depend on their parent (PCTree).

    Args:
      shares: shares(depth, before) -> [V], log probabilities of what follows `before` at that
      depth.
      root: the anchor's token.
      depth: most tokens of a path.
      beam: most children of a node.
      budget: nodes, without the root.
    """
    taken, heap, made = [], [(0.0, 0, ())], 0
    while heap and len(taken) <= budget:
        cost, _, path = heapq.heappop(heap)
        taken.append((path, -cost))
        if len(path) == depth:
            continue
        probabilities = shares(len(path), path[-1] if path else root)
        for token in np.argsort(-probabilities, kind="stable")[:beam]:
            made += 1
            heapq.heappush(heap, (cost - probabilities[token], made, (*path, int(token))))
    return taken[1:]
