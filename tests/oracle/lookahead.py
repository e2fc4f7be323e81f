"""Lookahead decoding (Fu et al. 2024, arXiv 2402.02057), with the authors' window and pool.

Where the authors fill the window over N - 2 rounds, here it is full from the start, as in jspec;
everything after follows their code.
"""

import numpy as np

from .greedy import truncate


def lookahead_insert(pool, gram, guesses):
    """Adds an n-gram to `pool` {first token: tails, oldest first}, at most `guesses` a token."""
    first, tail = gram[0], tuple(gram[1:])
    tails = pool.setdefault(first, [])
    if tail in tails:
        tails.remove(tail)
    elif len(tails) == guesses:
        tails.pop(0)
    tails.append(tail)


def lookahead(
    next_logits, prompt, limit, window, ngram, guesses, eos=(), pool=None, pool_from_prompt=False
):
    """A whole greedy decode: `(tokens, histogram, pool)`, the histogram as in `token_recycling`.

    Args:
      window: [N - 1][W] tokens to begin with; entry [0][0] is in the root's place.
      ngram, guesses: N and G.
      pool: of an earlier call. Not modified.
    """
    prompt = [int(token) for token in prompt]
    window = [[int(token) for token in level] for level in window]
    width = len(window[0])
    pool = {first: list(tails) for first, tails in (pool or {}).items()}
    if pool_from_prompt:
        for start in range(len(prompt) - ngram + 1):
            lookahead_insert(pool, prompt[start : start + ngram], guesses)
    emitted = []
    histogram = [0] * (max(width - 1 + ngram - 2, ngram - 1) + 2)
    rounds, ended = 0, limit == 0
    while not ended:
        context = prompt + emitted
        # What the forward pass holds: each column's path, and the n-grams that begin with the root.
        columns = []
        for column in range(width):
            spine = [window[0][other] for other in range(1, column + 1)]
            branch = [window[level][column] for level in range(1, ngram - 1)]
            columns.append((spine, branch))
        held = [tuple(spine + branch) for spine, branch in columns]
        held += pool.get(context[-1], [])
        prefixes = {path[:size] for path in held for size in range(1, len(path) + 1)}

        walked = []
        while True:
            walked.append(int(np.argmax(next_logits(context + walked))))
            if tuple(walked) not in prefixes:
                break
        kept, ended = truncate(walked, limit - len(emitted), eos)
        emitted = emitted + kept
        histogram[len(kept)] += 1
        if ended:
            break

        newest = [
            int(np.argmax(next_logits(context + spine + branch))) for spine, branch in columns
        ]
        if rounds >= ngram - 2:
            for (spine, branch), last in zip(columns, newest, strict=True):
                first = spine[-1] if spine else context[-1]
                lookahead_insert(pool, [first, *branch, last], guesses)
        window = [*window[1:], newest]
        rounds += 1
    return emitted, histogram, pool
