"""Prompt lookup decoding (Saxena 2023): what followed an n-gram at its first occurrence."""

import numpy as np

from .greedy import truncate


def prompt_lookup(context, n_max=3, n_min=1, num=10, full=False):
    """The draft after `context` (prompt and output, the root last); it may be empty.

    The context's last n tokens are looked up in the context, the longest n first and for each n
    from the left; the draft is what follows the first hit. The n-gram does not match itself: a hit
    must be followed by something. It may overlap itself, as in "a a a".

    Args:
      n_max, n_min: longest and shortest n-gram tried.
      num: tokens to draft.
      full: whether a hit must be followed by `num` tokens, else it is passed over, as in the
        original; otherwise the draft is cut at the end of the context, as in its successors.
    """
    context = [int(token) for token in context]
    for n in range(min(n_max, len(context)), n_min - 1, -1):
        tail = context[len(context) - n :]
        for start in range(len(context) - n):
            follows = context[start + n : start + n + num]
            if context[start : start + n] == tail and (len(follows) == num or not full):
                return follows
    return []


def prompt_lookup_decode(next_logits, prompt, limit, eos=(), n_max=3, n_min=1, num=10, full=False):
    """A whole greedy decode: `(tokens, steps, histogram)`, as in `token_recycling`.

    Without a hit a step drafts nothing and emits one token, where the original drafts a fixed
    token id that is all but never right.
    """
    prompt = [int(token) for token in prompt]
    emitted = []
    histogram = [0] * (num + 2)
    ended = limit == 0
    while not ended:
        context = prompt + emitted
        confirmed = []
        for token in [*prompt_lookup(context, n_max, n_min, num, full), None]:
            truth = int(np.argmax(next_logits(context + confirmed)))
            confirmed.append(truth)  # the draft itself where they agree, else the bonus
            if token != truth:
                break
        kept, ended = truncate(confirmed, limit - len(emitted), eos)
        emitted = emitted + kept
        histogram[len(kept)] += 1
    return emitted, sum(histogram), histogram
