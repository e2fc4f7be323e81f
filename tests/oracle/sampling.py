"""The one sampling transform: temperature, then top-k, then top-p, then min-p, on one row."""

import numpy as np


def probabilities(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The distribution [V] that a token is drawn from, given one row of logits [V].

    Each filter is a threshold on the logits, so that tokens of equal value stay or go together:

    - temperature 0 is greedy: all mass on the first of the largest logits, filters ignored.
    - top-k keeps the k largest, and whatever ties with the k-th; 0 switches it off.
    - top-p keeps the fewest of the most probable tokens whose mass, in the distribution after
    top-k, reaches
      p (Holtzman et al. 2020, section 3.1), and whatever ties with the last of them; 1 switches it
      off, and at least one token always stays.
    - min-p keeps the tokens at least min_p times as probable as the most probable one. Both
      sides scale alike, so it does not matter that top-k and top-p come before; 0 switches it off.
    """
    values = np.asarray(logits, dtype=np.float64)
    if temperature == 0:
        return np.eye(len(values))[int(np.argmax(values))]

    weights = np.exp((values - values.max()) / temperature)
    kept = np.ones(len(values), dtype=bool)

    if 0 < top_k < len(values):
        kept = values >= np.sort(values)[::-1][top_k - 1]

    if top_p < 1:
        mass = np.where(kept, weights, 0) / weights[kept].sum()
        total = 0.0
        for token in np.argsort(-values, kind="stable"):
            total = total + mass[token]
            last = values[token]
            if total >= top_p:
                break
        kept = kept & (values >= last)

    kept = kept & (weights >= min_p)  # the most probable token weighs exactly 1
    return np.where(kept, weights, 0) / weights[kept].sum()
