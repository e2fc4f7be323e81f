"""Block drafters: the oracle's states and trees, the deciding noise, learnt probabilities."""

from dataclasses import asdict, dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import refusals
import rounds
import tiny
from blocks import plain_arrays, variables
from oracle import block_drafter as oracle

import jspec
from jspec import sampling as samplings
from jspec.drafters.contrib import block_probabilities
from jspec.drafters.contrib.block_probabilities import BlockDistributions, ProbabilityWeights
from jspec.models.heads.block import BlockConfig, BlockHead
from jspec.types import Frame, PromptChunk

V, E, BLOCK = tiny.VOCAB, 16, 4
TAPS = (0, 1)
TARGET = tiny.model().clone(taps=TAPS)
SHAPE = asdict(tiny.draft().config) | dict(num_layers=2, qk_norm=True, taps=TAPS, block_size=BLOCK)
DSPARK = BlockHead(BlockConfig(**SHAPE, markov_rank=3, confidence_width=E + 3))
HEADS = {
    "dspark": DSPARK,
    "dflash": BlockHead(BlockConfig(**SHAPE, first_slot=1, mask_token=7)),
    "jetspec": BlockHead(BlockConfig(**SHAPE, first_slot=1, causal=True, mask_token=7)),
}
ROWS = range(len(tiny.PROMPTS))


@pytest.fixture(scope="module")
def params():
    return tiny.params(tiny.model())


@pytest.fixture(scope="module", params=quick.only(HEADS, "dspark"))
def drafted(request, params):
    """A head, what its drafter reads of the prompts, its states there, and the oracle's."""
    head = HEADS[request.param]
    held = variables(head)
    known, table = plain_arrays(head, held)
    prompts, lengths = jnp.asarray(tiny.PROMPTS), jnp.asarray(tiny.LENGTHS)
    rows, size = prompts.shape

    @jax.jit
    def run():
        output = tiny.forward(TARGET, params, prompts)
        drafter = jspec.BlockDrafter(head, num_speculative_tokens=3)
        state = drafter.prefill(
            held, drafter.init(rows, 32, None), PromptChunk.whole(prompts, lengths, output)
        )
        root = jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1)[:, 0]
        states = head.draft(held, root, lengths - 1, state.cache)
        before = jnp.arange(size) < lengths[:, None, None] - 1
        unrolled = head.apply(held, output.hidden, root[:, None], lengths[:, None] - 1, before)
        return output.hidden, state, root, states, unrolled[:, 0]

    hidden, state, root, states, unrolled = run()
    expected = [
        oracle.states(known, np.asarray(hidden[row, : lengths[row] - 1]), table["embed"][root[row]])
        for row in ROWS
    ]
    return head, held, state, root, states, unrolled, expected, (known, table)


def test_drafting_and_training_compute_the_published_states(drafted):
    """From the cache, and from a whole text: what the head is trained on is what it drafts."""
    _, _, _, _, states, unrolled, expected, _ = drafted
    np.testing.assert_allclose(states, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(unrolled, expected, rtol=1e-4, atol=1e-4)
    # A control: a block that forgets its anchor is another.
    assert np.abs(np.asarray(states) - np.roll(expected, 1, axis=0)).max() > 0.1


def test_scores_after_a_token_and_confidence_are_the_published_ones(drafted):
    head, held, _, _, states, _, expected, (known, table) = drafted
    tokens = jnp.broadcast_to(jnp.array([4, 1, 22, 9])[: head.num_slots], states.shape[:2])
    scores = head.score(held, states)
    informed = head.inform(held, scores, tokens)
    following = jnp.broadcast_to(jnp.array([0, 7, 22]), (*tokens.shape, 3))
    added = head.transition(held, tokens, following)
    np.testing.assert_allclose(
        jnp.take_along_axis(scores, following, axis=-1) + added,
        jnp.take_along_axis(informed, following, axis=-1), rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    odds = head.confidence(held, states, tokens)
    for row in ROWS:
        after = oracle.scores(known, expected[row], table["head"])
        want = [after(depth, int(token)) for depth, token in enumerate(tokens[row])]
        np.testing.assert_allclose(informed[row], want, rtol=1e-4, atol=2e-4)
        if head.config.confidence_width:
            kept = oracle.confidence(known, expected[row])
            want = [kept(depth, int(token)) for depth, token in enumerate(tokens[row])]
            np.testing.assert_allclose(jax.nn.sigmoid(odds[row]), want, rtol=1e-4, atol=1e-5)
        else:
            assert not odds.any() and not added.any()


KEYS = samplings.row_keys(jax.random.key(5), jnp.arange(3))


TEMPERATURES = [0.0, 0.7, 1.0]
"""Of the rows."""


def test_trees_are_the_best_paths_by_head_and_noise(drafted):
    head, held, state, root, _, _, expected, (known, table) = drafted
    weights = (1.5, -0.5, 0.0, 0.0)
    values = jnp.broadcast_to(jnp.array(weights), state.weights.values.shape)
    row = jnp.ones(3)
    sampling = jspec.Sampling(jnp.array(TEMPERATURES), jnp.zeros(3, int), row, 0 * row)
    frame = Frame(root, jnp.asarray(tiny.LENGTHS) - 1, KEYS, sampling, jnp.zeros(3, bool))
    # All tokens are candidates, so that the oracle need not know of any cut.
    drafter = jspec.BlockDrafter(head, num_speculative_tokens=9, beam=4, num_candidates=V)
    state = replace(state, weights=replace(state.weights, values=values))
    tree, _ = jax.jit(drafter.draft)(held, state, frame)
    for row in ROWS:
        position = int(tiny.LENGTHS[row]) - 1
        noise = [
            TEMPERATURES[row]
            * np.asarray(samplings.gumbel(KEYS[row : row + 1], jnp.array([at]), V)[0])
            for at in range(position, position + head.num_slots)
        ]
        after = oracle.scores(known, expected[row], table["head"])
        shares = partial(oracle.log_shares, after, noise=noise, weights=weights)
        wanted = oracle.tree(shares, int(root[row]), head.num_slots, 4, 9)
        found = rounds.drafted(tree, row)
        assert len(found) == 9
        assert found.keys() == {path for path, _ in wanted}
        for path, log_value in wanted:
            assert found[path] == pytest.approx(np.exp(log_value), rel=2e-3)


@dataclass(frozen=True)
class BigramHead:
    """Its distributions are those of a table."""

    vocab_size: int = V
    context: int | None = None
    features: int = 1
    num_slots: int = 5
    num_scored: int = V

    def transition(self, params, tokens, following):
        return jnp.take_along_axis(params[tokens], following, axis=-1)

    def confidence(self, params, hidden, tokens):
        return jnp.zeros(tokens.shape)


def distributions_of(rng, rounds, depth=2, size=12):
    """The fields of random distributions of a head without a Markov map, round after round."""
    log_q = np.log(rng.dirichlet(np.ones(size + 1), size=(rounds, 1, depth)))
    return dict(
        hidden=jnp.zeros((rounds, 1, depth, 1)),
        tokens=jnp.broadcast_to(jnp.arange(size), (rounds, 1, depth, size)),
        there=jnp.ones((rounds, 1, depth, size), bool),
        log_q=jnp.asarray(log_q[..., :-1], jnp.float32),
        noise=jnp.asarray(rng.gumbel(size=(rounds, 1, depth, size)), jnp.float32),
        log_rest=jnp.asarray(log_q[..., -1], jnp.float32),
    )


def test_weights_follow_what_is_emitted_depth_by_depth():
    """Tokens drawn by weights of our own are learnt to come from about these."""
    rng, rounds = np.random.default_rng(1), 1500
    distributions = distributions_of(rng, rounds)
    true = np.array([[3.0, -1.0, 0.5, 0.0], [1.0, -0.8, -0.5, 0.0]])
    known = {name: np.asarray(array) for name, array in distributions.items()}
    sharp, noisy = true[:, 0, None], true[:, 1, None]
    scores = sharp * (known["log_q"] + known["noise"]) + noisy * known["noise"]
    none = known["log_rest"] * true[:, 0] + true[:, 2]
    scores = np.concatenate([scores, none[..., None]], axis=-1)
    emitted = jnp.asarray((scores + rng.gumbel(size=scores.shape)).argmax(-1), jnp.int32)
    head, empty = BigramHead(), jnp.zeros((V, V))

    @jax.jit
    def follow(weights):
        def step(weights, one):
            distributions, emitted = one
            before, counts = jnp.zeros_like(emitted), jnp.array([2])
            known = BlockDistributions(**distributions)
            weights = block_probabilities.learn(
                head, empty, known, weights, before, emitted, counts
            )
            return weights, weights.values[0]

        return jax.lax.scan(step, weights, (distributions, emitted))[1]

    learnt = follow(ProbabilityWeights.init(1, 2))
    np.testing.assert_allclose(learnt[-1, :, :3], true[:, :3], atol=0.6)
    assert (learnt[-1, :, 1] < -0.5).all()
    # The sharpness of the distributions moves long before the weight of the noise.
    assert learnt[60, 0, 0] > 1.3 and (abs(learnt[60, :, 1]) < 0.1).all(), learnt[60]


def test_nans_and_tokens_not_emitted_teach_nothing():
    fields = distributions_of(np.random.default_rng(2), 1)
    distributions = BlockDistributions(**{name: array[0] for name, array in fields.items()})
    weights, head, empty = ProbabilityWeights.init(1, 2), BigramHead(), jnp.zeros((V, V))
    tokens = jnp.array([[3, 4, 5]])
    learn = jax.jit(partial(block_probabilities.learn, head, empty))
    one = learn(distributions, weights, tokens, tokens, jnp.array([1])).values
    assert (one[:, 0] != weights.values[:, 0]).any()
    np.testing.assert_array_equal(one[:, 1], weights.values[:, 1])
    spoilt = replace(distributions, log_q=distributions.log_q.at[:, 0].set(jnp.nan))
    two = learn(spoilt, weights, tokens, tokens, jnp.array([2])).values
    np.testing.assert_array_equal(two[:, 0], weights.values[:, 0])
    assert (two[:, 1] != weights.values[:, 1]).any()


@pytest.mark.slow
def test_a_reduced_vocabulary_is_drafted_from_and_no_other():
    ids = np.array([1, 4, 6, 9, 20])
    head = DSPARK.clone(config=replace(DSPARK.config, draft_tokens=5))
    held = variables(head) | {"scored": {"ids": jnp.asarray(ids)}}
    del held["target"]["head"]
    states = jnp.asarray(np.random.default_rng(0).normal(size=(1, 2, E)), jnp.float32)
    scores = jax.jit(head.score)(held, states)
    assert scores.shape == (1, 2, 5) and head.scored(held).tolist() == ids.tolist()
    before = jnp.array([[3, 4]])
    np.testing.assert_allclose(
        head.inform(held, scores, before) - scores,
        head.transition(held, before, jnp.broadcast_to(ids, (1, 2, 5))), rtol=1e-4, atol=1e-5,
    )  # fmt: skip
    # The noise is that of the whole vocabulary, at the tokens that are scored.
    sampling, keys = jspec.Sampling(*(jnp.array([one]) for one in (0.8, 0, 1.0, 0.0))), KEYS[:1]
    frame = Frame(jnp.array([2]), jnp.array([3]), keys, sampling, jnp.zeros(1, bool))
    distributions = jax.jit(block_probabilities.block_distributions, static_argnums=(0, 5))(
        head, held, states, jnp.ones((1, 2)), frame, 5
    )
    assert distributions.there.all()
    for depth in range(2):
        noise = 0.8 * samplings.gumbel(keys, jnp.array([3 + depth]), V)[0]
        wanted = np.asarray(jax.nn.log_softmax(scores[0, depth]) + noise[ids])
        order = np.argsort(-wanted)
        assert distributions.tokens[0, depth].tolist() == ids[order].tolist()
        np.testing.assert_allclose(
            distributions.noise[0, depth], noise[ids][order], rtol=1e-4, atol=1e-5
        )


def test_misfits_are_refused():
    make, drafter = jspec.BlockDrafter, jspec.BlockDrafter(DSPARK, 3)
    short = jspec.BlockDrafter(DSPARK, 3, max_depth=2).init(2, 32, None)
    refusals.check([
        (lambda: make(DSPARK, max_depth=5), r"^max_depth is 5; pass .* 1 \.\. 4, the tokens that"),
        (lambda: make(DSPARK, beam=24), r"^beam is 24; pass .* 1 \.\. 23, the candidates of a"),
        (lambda: make(DSPARK, num_speculative_tokens=53), "^num_speculative_tokens is 53; pass an"),
        (lambda: BlockConfig(**SHAPE | dict(first_slot=4)),
         "^first_slot is 4 and the block has 4 slots"),
        (lambda: BlockConfig(**SHAPE | dict(confidence_width=5)),
         "^confidence_width is 5; a confidence head reads 16 numbers"),
        (lambda: drafter.init(2, 32, (1, 2)), "a tuple and a block drafter keeps a BlockState"),
        (lambda: drafter.init(2, 32, short), "is of trees 2 deep and this drafter's are 4"),
        (lambda: drafter.init(2, 4, None), "trees are 4 deep and the call's cache holds 4"),
    ])  # fmt: skip
