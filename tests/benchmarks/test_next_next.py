"""LogitSpec's lanes are those of the paper's n-gram pools; its rounds are the target's tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from benchmarks.recycling.next_next import AHEAD, MATCH, LogitSpec, LogitSpecState
from jspec.drafters.retrieval.prompt_lookup import TextState
from jspec.testing import PrefixLM
from jspec.types import Frame

VOCAB = 6


def pools(text):
    """What followed each n-gram: the longest continuation, of equally long ones the last."""
    found = {}
    for start in range(len(text)):
        for size in range(1, MATCH + 1):
            behind = text[start + size : start + size + AHEAD]
            gram = tuple(text[start : start + size])
            if len(behind) and len(behind) >= len(found.get(gram, ())):
                found[gram] = behind
    return found


def retrieved(text, found):
    """What followed the longest known n-gram at the end of a text."""
    for size in range(min(MATCH, len(text)), 0, -1):
        if tuple(text[-size:]) in found:
            return found[tuple(text[-size:])]
    return []


def expected(text, guesses):
    """The lanes as lists of tokens."""
    found = pools(text)
    lanes = [retrieved(text, found)]
    for rank, guess in enumerate(guesses):
        size = 4 if rank <= 8 else 3 if rank <= 32 else 1
        lane = [guess, *retrieved([*text, guess], found)][:size]
        lanes.append([] if guess == text[-1] else lane)
    return lanes


@pytest.mark.parametrize("seed", range(12))
def test_lanes_are_those_of_the_pools(seed):
    random = np.random.default_rng(seed)
    text = random.integers(0, VOCAB, random.integers(1, 60)).tolist()
    guesses = random.integers(0, VOCAB, 40).tolist()  # with equal ones: ranks beyond the vocabulary
    padded = np.zeros(70, np.int32)
    padded[: len(text)] = text
    tokens, there = LogitSpec(VOCAB).lanes(
        jnp.asarray(padded), jnp.int32(len(text)), jnp.asarray(guesses, jnp.int32)
    )
    lanes = [
        row[mask].tolist() for row, mask in zip(np.array(tokens), np.array(there), strict=True)
    ]
    assert lanes == expected(text, guesses)
    assert any(len(lane) == 4 for lane in lanes) or len(text) < 8


@pytest.mark.slow
def test_the_tree_holds_all_lanes_and_the_first_ones_where_there_is_little_room():
    text, guesses = [1, 2, 3, 1, 2, 4, 0, 1], [1, 2, 4, 3, 0, 5]
    padded = np.zeros((1, 20), np.int32)
    padded[0, :8] = text
    state = LogitSpecState(
        TextState(jnp.asarray(padded), jnp.array([8])), jnp.asarray([guesses], jnp.int32)
    )
    frame = Frame(jnp.array([1]), jnp.array([7]), None, None, jnp.array([False]))
    lanes = expected(text, guesses)
    prefixes = [tuple(lane[:size]) for lane in lanes for size in range(1, len(lane) + 1)]
    for nodes in (63, 5):
        tree, _ = LogitSpec(VOCAB, nodes).draft(None, state, frame)
        tokens, parents, paths = np.array(tree.tokens[0]), np.array(tree.parents[0]), [()]
        for node in range(1, len(tokens)):
            paths.append((*paths[parents[node]], int(tokens[node])))
        found = [
            path
            for path, valid in zip(paths, np.array(tree.valid[0]), strict=True)
            if valid and path
        ]
        assert set(found) <= set(prefixes)
        assert len(found) == min(nodes, len(set(prefixes)))
    assert set(found) == set(prefixes[:5])


def test_tokens_are_those_of_plain_decoding():
    model = PrefixLM(16)
    prompt = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]]
    ask = dict(max_new_tokens=24)
    plain = jspec.decode(model, model.init(), prompt, **ask)
    drafted = jspec.decode(model, model.init(), prompt, drafter=LogitSpec(16, 12), **ask)
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    assert drafted.stats.num_rounds[0] < 24
