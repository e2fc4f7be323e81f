"""Plain greedy decoding: what every lossless method must reproduce at temperature 0."""

import numpy as np


def truncate(emitted, room, eos):
    """The tokens of one step that count, and whether the row ends with them.

    At most `room` tokens are left before the limit; an end token is the last one emitted.
    """
    kept = []
    for token in emitted[:room]:
        kept.append(int(token))
        if token in eos:
            return kept, True
    return kept, len(kept) == room


def greedy(next_logits, prompt, limit, eos=()):
    """The tokens that follow `prompt`: argmax one at a time (Token Recycling, section 2.1).

    Args:
      next_logits: called with a list of tokens, gives the logits [V] of the token that follows.
      prompt: list of tokens, not empty.
      limit: how many tokens may be emitted.
      eos: collection of end tokens; the first one met is emitted, and is the last.
    """
    emitted = []
    ended = limit == 0
    while not ended:
        token = np.argmax(next_logits([*prompt, *emitted]))
        kept, ended = truncate([token], limit - len(emitted), eos)
        emitted = emitted + kept
    return emitted
