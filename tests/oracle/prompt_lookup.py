"""Prompt lookup decoding (Saxena 2023): what followed an n-gram at its first occurrence."""


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
