"""The objective of block heads, against loops over anchors and depths with the oracle's states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from blocks import plain_arrays, variables
from oracle import block_drafter as oracle

from jspec.errors import InputError
from jspec.models.heads.registry import with_taps
from jspec.training.block import Blocks, WithLast, draw_anchors
from jspec.training.unroll import Batch, states_of

HEAD = tiny.block(taps=(0, 1), confidence_width=19)
TARGET = WithLast(tiny.model(), with_taps(tiny.model(), HEAD))
PARAMS = tiny.params(tiny.model())
TOKENS = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 9))
LIVE = np.arange(9) < np.array([[9], [6]])
BATCH = Batch(jnp.asarray(TOKENS), jnp.asarray(LIVE), None, jnp.array([3, 4]))
BLOCKS = Blocks(TARGET, HEAD, anchors=4, decay=2.0, confidence_weight=0.7)


@pytest.fixture(scope="module")
def held():
    return variables(HEAD)


@pytest.fixture(scope="module")
def frozen(held):
    return {"target": PARAMS, "borrowed": {"target": held["target"]}}


def softmax(x):
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def expected(held, states, at):
    """(loss, acceptance, overlap, token loss), one anchor and one depth after another."""
    known, table = plain_arrays(HEAD, held)
    total = weight = 0.0
    right, together, crossed = ([[] for _ in range(HEAD.num_slots)] for _ in range(3))
    for row in range(2):
        for anchor in at[row]:
            taps, last = states[row, :anchor, :32], states[row, :, 32:]
            block = oracle.states(known, taps, table["embed"][TOKENS[row, anchor]])
            after, kept = (
                oracle.scores(known, block, table["head"]),
                oracle.confidence(known, block),
            )
            held_so_far = True
            for depth in range(HEAD.num_slots):
                place = anchor + depth
                if place + 1 >= LIVE[row].sum():
                    break
                p = softmax(table["head"] @ last[place])
                q = softmax(after(depth, TOKENS[row, place]))
                entropy, distance = -(p * np.log(q)).sum(), np.abs(p - q).sum()
                sure, overlap = kept(depth, TOKENS[row, place]), 1 - distance / 2
                certainty = -overlap * np.log(sure) - (1 - overlap) * np.log(1 - sure)
                fading = np.exp(-depth / 2.0)
                total += fading * (0.1 * entropy + 0.9 * distance + 0.7 * certainty)
                weight += fading
                hit = p.argmax() == q.argmax()
                if held_so_far:
                    right[depth].append(hit)
                held_so_far = held_so_far and hit
                together[depth].append(overlap)
                crossed[depth].append(entropy)
    return total / weight, *(
        [np.mean(x) if x else 0 for x in y] for y in (right, together, crossed)
    )


def test_loss_and_metrics_are_those_of_the_papers(held, frozen):
    at, there = draw_anchors(BATCH, 4)
    assert there.all()
    states = states_of(TARGET, PARAMS, BATCH.tokens)
    loss, acceptance, overlap, token_loss = expected(held, np.asarray(states, np.float64), at)
    given = jax.jit(BLOCKS.loss)(held["params"], frozen, BATCH)
    np.testing.assert_allclose(given[0], loss, rtol=1e-4)
    for name, want in (
        ("acceptance", acceptance),
        ("overlap", overlap),
        ("token_loss", token_loss),
    ):
        np.testing.assert_allclose(given[1][name], want, rtol=1e-4, atol=1e-5)


def test_anchors_are_text_that_text_follows_each_once_and_drawn_anew():
    for count in (3, 8):
        at, there = draw_anchors(BATCH, count)
        assert there.sum(1).tolist() == [min(count, 8), min(count, 5)]
        for row in range(2):
            found = np.asarray(at[row])[np.asarray(there[row])].tolist()
            assert found == sorted(set(found)) and max(found) + 1 < LIVE[row].sum()
    draws = [draw_anchors(BATCH.replace(draws=jnp.array([i, i])), 3)[0] for i in range(6)]
    assert len({np.asarray(at).tobytes() for at in draws}) > 3


def test_both_states_of_the_target_are_those_of_two_forwards():
    states = states_of(TARGET, PARAMS, BATCH.tokens)
    assert states.shape[-1] == TARGET.features == 48
    for model, part in ((TARGET.tapped, states[..., :32]), (TARGET.model, states[..., 32:])):
        np.testing.assert_array_equal(part, states_of(model, PARAMS, BATCH.tokens))


def test_a_decay_that_is_none_is_refused():
    with pytest.raises(InputError, match="decay is 0; use a finite one > 0"):
        Blocks(TARGET, HEAD, decay=0)
