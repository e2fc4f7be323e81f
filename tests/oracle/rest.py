"""REST (He et al. 2023): continuations of a suffix in a corpus, by looking everywhere."""


def longest_match(corpus, text, longest=16, shortest=2):
    """`(places, n)`: where the text's last n tokens occur in the corpus, for the largest n.

    `places` is in the order of what begins there: token by token, what ends first going first. It
    is empty, and n is 0, if not even the last `shortest` tokens occur.
    """
    corpus, text = [int(token) for token in corpus], [int(token) for token in text]
    for n in range(min(longest, len(text)), shortest - 1, -1):
        tail = text[len(text) - n :]
        places = [i for i in range(len(corpus) - n + 1) if corpus[i : i + n] == tail]
        if places:
            return sorted(places, key=lambda place: corpus[place:]), n
    return [], 0


def rest(corpus, text, longest=16, shortest=2, nodes=64, continuation=10, matches=256):
    """The tree after `text` (prompt and output so far, its last token the root), maybe empty.

    Args:
      longest, shortest: suffix lengths tried, the longest first.
      nodes: most nodes.
      continuation: tokens read after a match; fewer where the corpus ends.
      matches: most matches read; of more, evenly spaced ones.

    Returns:
      `[(path, count, value), ..]`: each node as the tokens that lead to it, how many of the matches
      read go on like this, and the estimate that the target does, in the order of count, then of
      depth, then of the tokens.
    """
    corpus = [int(token) for token in corpus]
    places, n = longest_match(corpus, text, longest, shortest)
    if len(places) > matches:
        places = [places[i * len(places) // matches] for i in range(matches)]
    counts = {}
    for place in places:
        follow = corpus[place + n : place + n + continuation]
        for size in range(len(follow) + 1):
            path = tuple(follow[:size])
            counts[path] = counts.get(path, 0) + 1
    # The empty path counts the matches that anything follows.
    counts[()] = sum(count for path, count in counts.items() if len(path) == 1)
    ordered = sorted((path for path in counts if path), key=lambda p: (-counts[p], len(p), p))
    return [(path, counts[path], value(path, counts)) for path in ordered[:nodes]]


def value(path, counts):
    """Along the path, each token's share of what followed, something unseen counted as two more."""
    product = 1.0
    for size in range(1, len(path) + 1):
        product *= counts[path[:size]] / (counts[path[: size - 1]] + 2)
    return product
