"""The objective of block heads, against loops over anchors and depths with the oracle's states."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from blocks import plain_arrays, variables
from oracle import block_drafter as oracle

from jspec._validate.errors import InputError
from jspec.models.heads.base import gathered
from jspec.models.heads.registry import with_taps
from jspec.training.block import TrainingBlocks, compare, draw_anchors
from jspec.training.distributions import Observed, likeliest, observe
from jspec.training.unroll import Batch, observed

HEAD = tiny.block(taps=(0, 1), confidence_width=19)
TARGET = with_taps(tiny.model(), HEAD)
PARAMS = tiny.params(tiny.model())
TOKENS = np.random.default_rng(0).integers(0, tiny.VOCAB, (2, 9))
LIVE = np.arange(9) < np.array([[9], [6]])
BATCH = Batch(jnp.asarray(TOKENS), jnp.asarray(LIVE), None, jnp.array([3, 4]))
BLOCKS = TrainingBlocks(
    TARGET, HEAD, anchors=4, decay=2.0, confidence_weight=0.7, num_target_tokens=tiny.VOCAB
)


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
    states = [observe(model, PARAMS, BATCH.tokens, 0).hidden for model in (TARGET, tiny.model())]
    states = np.concatenate(states, axis=-1, dtype=np.float64)
    loss, acceptance, overlap, token_loss = expected(held, states, at)
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


def test_a_decay_that_is_none_is_refused():
    with pytest.raises(InputError, match="decay is 0; use a finite one > 0"):
        TrainingBlocks(TARGET, HEAD, decay=0)


def test_distributions_that_are_cut_are_compared_where_the_head_scores():
    """Three of five tokens are scored; the distribution's second is not among them."""
    scores, places = jnp.log(jnp.array([0.5, 0.3, 0.2])), jnp.array([1, 3])
    crossed, distance = compare(jnp.array([0.8, 0.2]), scores, places)
    assert crossed == pytest.approx(-0.8 * np.log(0.3), rel=1e-5)
    assert distance == pytest.approx(0.8 - 0.3 + 0.2 + 1 - 0.3, rel=1e-5)


@pytest.mark.parametrize("tables", [True, False])
def test_hot_tokens_are_scored_by_their_rows_of_the_target_s_head(tables):
    shape = replace(HEAD.config, hot_tokens=5, markov_tables=tables)
    head = HEAD.clone(config=shape)
    ids = np.array([2, 3, 8, 11, 20])
    held = variables(head) | {"scored": {"ids": jnp.asarray(ids)}}
    rng = np.random.default_rng(1)
    rank = held["params"]["markov_to"].shape
    held["params"]["markov_to"] = jnp.asarray(rng.normal(size=rank), jnp.float32)
    states = jnp.asarray(rng.normal(size=(2, 3, 16)), jnp.float32)
    before = jnp.asarray(rng.integers(0, tiny.VOCAB, (2, 3)))
    scores = head.score(held, states)
    np.testing.assert_allclose(scores, states @ held["target"]["head"][ids].T, rtol=1e-4, atol=1e-4)
    # What training reads is what a tree is grown by, gathered for decoding or not.
    offered = jnp.broadcast_to(ids, (2, 3, 5))
    grown = scores + head.transition(held, before, offered)
    for given in (held, gathered(head, held)):
        read = head.inform(given, head.score(given, states), before)
        np.testing.assert_allclose(read, grown, rtol=1e-4, atol=1e-4)
    assert not np.allclose(grown, scores)
    assert head.scored(held).tolist() == ids.tolist()


def test_what_is_at_hand_is_read_and_not_computed():
    kept = Observed(jnp.ones((2, 9, 3), jnp.bfloat16), likeliest(jnp.zeros((2, 9, 4)), 9))
    seen = observed(None, {}, BATCH.replace(observed=kept), 4)
    assert seen.hidden.dtype == jnp.float32 and (seen.hidden == 1).all()
    assert seen.distributions.tokens.shape == (2, 9, 4)
