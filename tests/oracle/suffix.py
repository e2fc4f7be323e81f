"""Suffix drafting as jspec describes it: what followed the places that end like the text."""

import heapq


def suffix_places(own, past, min_match, max_match, max_depth, rollout=None, begin=0):
    """Every place that can be drafted from, as (match, continuation, nearness), the newest last.

    A place is an index in a text with something behind it; its match is how many tokens up to it
    equal the last of `own`. What follows in `own` goes on with itself when it reaches the end.

    Args:
      own: the row's prompt and output so far.
      past: texts of rows that ended, oldest first.
      rollout: what the row wrote the last time behind the prompt, which is own[:begin]; there the
        same position counts as a token more, and a place is the nearer the closer to it.
    """
    found, earlier = [], None
    if rollout is not None:
        prompt = own[max(begin - max_match, 0) : begin]
        earlier = [*prompt, *rollout]
        same = len(prompt) + len(own) - begin - 1
    for text in [*past, *([] if earlier is None else [earlier]), own]:
        for place in range(len(text) - 1):
            match = 0
            while (
                match < min(max_match, place + 1, len(own))
                and text[place - match] == own[-1 - match]
            ):
                match += 1
            nearness = 0.0
            if text is earlier:
                match = min(match + (place == same), max_match)
                nearness = 1 / (2 + abs(place - same))
            if match < min_match:
                continue
            follows = text[place + 1 :]
            if text is own:
                follows = follows * max_depth
            found.append((match, tuple(follows[:max_depth]), nearness))
    return found


def suffix_trie(places, count, right, factor, offset):
    """{path: value} of all that the best `count` places offer.

    Args:
      right: right[m] is how often a continuation after a match of m tokens is right, for m up to
        the longest match; more counts as that.
    """
    newest_first = places[::-1]
    best = sorted(newest_first, key=lambda place: (-place[0], -place[2]))[:count]
    trie = {}
    for match, follows, _ in best:
        equal = sum(other == match for other, *_ in best)
        share = right[match] / equal
        for longer in {other for other, *_ in best if other > match}:
            share *= 1 - right[longer]
        for depth in range(1, len(follows) + 1):
            if depth > offset + factor * match:
                break
            if depth > 1:
                share *= right[min(match + depth - 1, len(right) - 1)]
            trie[follows[:depth]] = trie.get(follows[:depth], 0.0) + share
    return trie


def suffix(
    own, past, right, nodes, max_depth, min_match, max_match, places, factor, offset, threshold=0.0,
    rollout=None, begin=0,
):  # fmt: skip
    """The draft after `own`: up to `nodes` pairs (path, value), grown best first."""
    found = suffix_places(own, past, min_match, max_match, max_depth, rollout, begin)
    trie = suffix_trie(found, places, right, factor, offset)
    offers = [(-value, path) for path, value in trie.items() if len(path) == 1]
    heapq.heapify(offers)
    tree = []
    while offers and len(tree) < nodes:
        value, path = heapq.heappop(offers)
        if -value <= threshold:
            break
        tree.append((path, -value))
        for child, value in trie.items():
            if child[:-1] == path:
                heapq.heappush(offers, (-value, child))
    return tree
