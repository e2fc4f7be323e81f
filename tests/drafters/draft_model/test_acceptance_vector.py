"""Acceptance by rank: against sums over all draws, a closed form, and what `decode` accepts."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import quick
import tables

import jspec
from jspec.drafters.draft_model import acceptance_vector
from jspec.verify import schemes

SIZE, WIDTH = 5, 3
ROWS, LENGTH = 64, 40
SAMPLED = jspec.Sampling(temperature=1.0)
RULES = {
    "recursive": (schemes.RECURSIVE, oracle.recursive, oracle.draws_swor),
    "multi_round": (schemes.MULTI_ROUND, oracle.multi_round, oracle.draws_iid),
    "k_seq": (schemes.K_SEQ, oracle.k_seq, oracle.draws_iid),
}


def text(rows=ROWS, length=LENGTH):
    return jnp.zeros((rows, length), jnp.int32), jnp.full(rows, length)


def pair(seed=0, zeros=0.0):
    """Two distributions, the same after every token, so that all draws of a text are alike."""
    rng = np.random.default_rng(seed)
    return (tables.distributions(rng, 1, SIZE, 0, zeros)[0] for _ in range(2))


def measured(p, q, tokens, lengths, **options):
    distributions = [np.broadcast_to(probs, (1, SIZE, SIZE)) for probs in (p, q)]
    return np.asarray(
        over_text(acceptance_vector.measure, distributions, tokens, lengths, **options)
    )


def over_text(function, distributions, tokens, lengths, **options):
    """Returns what `measure` or `trials` gives for two tables of distributions."""
    model = tables.Table(SIZE)
    options = dict(width=WIDTH, sampling=SAMPLED, key=0) | options

    @jax.jit
    def run(target, draft):
        return function(model, target, model, draft, tokens, lengths, **options)

    return run(*(jnp.asarray(tables.logits(probs)) for probs in distributions))


def by_rank(rule, p, q, draws):
    """The first of equal siblings is the one that the walk goes to."""
    kept = np.zeros(WIDTH)
    for children, weight in draws:
        accept, _ = rule(p, q, children)
        for rank, token in enumerate(children):
            probability = accept[rank] * np.prod(1 - accept[:rank])
            kept[children.index(token)] += weight * probability
    return kept


@pytest.mark.parametrize("zeros", quick.only([0.0, 0.5], 0.5))
@pytest.mark.parametrize("name", quick.only(RULES, "recursive"))
def test_sums_over_all_draws(name, zeros):
    scheme, rule, draws = RULES[name]
    p, q = pair(1, zeros)
    found = measured(p, q, *text(), scheme=scheme)
    wanted = by_rank(rule, p, q, draws(q, WIDTH))
    # 2560 means of numbers in 0 .. 1, whose deviation is 0.5 at most.
    np.testing.assert_allclose(found, wanted, atol=4.5 * 0.5 / np.sqrt(ROWS * LENGTH))
    assert found.sum() <= 1 + 1e-6


def test_one_coupled_child_is_a_closed_form():
    """Two argmaxes under one noise meet at x with 1 / sum_y max(p_y / p_x, q_y / q_x)."""
    p, q = pair(2)
    found = measured(p, q, *text(), width=1)
    meet = (1 / np.maximum(p / p[:, None], q / q[:, None]).sum(-1)).sum()
    np.testing.assert_allclose(found, [meet], atol=4.5 * 0.5 / np.sqrt(ROWS * LENGTH))


@pytest.mark.parametrize(
    "scheme", quick.only([schemes.COUPLED, schemes.RECURSIVE, schemes.MULTI_ROUND], schemes.COUPLED)
)
def test_a_draft_that_is_the_target_is_kept_at_once(scheme):
    p, _ = pair(3)
    found = measured(p, p, *text(4, 8), scheme=scheme)
    np.testing.assert_allclose(found, [1, 0, 0], atol=1e-5)


def test_greedy_is_the_rank_of_the_likeliest_token():
    p, q = np.array([0.1, 0.2, 0.3, 0.4, 0.0]), np.array([0.3, 0.2, 0.1, 0.25, 0.15])
    for key in (None, 0):
        found = measured(p, q, *text(2, 4), sampling=None, key=key)
        np.testing.assert_array_equal(found, [0, 1, 0])


def test_a_draw_at_random_finds_the_greedy_token_as_often_as_it_draws_it():
    p, q = pair(4)
    drawn = measured(p, q, *text(), sampling=None, scheme=schemes.RECURSIVE, draft_sampling=SAMPLED)
    certain = np.eye(SIZE)[p.argmax()]
    wanted = by_rank(oracle.recursive, certain, q, oracle.draws_swor(q, WIDTH))
    np.testing.assert_allclose(drawn, wanted, atol=4.5 * 0.5 / np.sqrt(ROWS * LENGTH))


def test_padding_does_not_count():
    distributions = [
        tables.distributions(np.random.default_rng(seed), 1, SIZE, 1) for seed in range(2)
    ]
    tokens = np.random.default_rng(5).integers(0, SIZE, (2, 6))
    mean, trials = (
        over_text(function, distributions, tokens, jnp.array([6, 3]))
        for function in (acceptance_vector.measure, acceptance_vector.trials)
    )
    real = np.concatenate([trials.kept[0], trials.kept[1, :3]])
    np.testing.assert_allclose(mean, real.mean(0), rtol=1e-6)


def test_errors():
    with pytest.raises(ValueError, match=r"width is 6; pass an integer in 1 .. 5, the vocabulary"):
        measured(np.ones(SIZE), np.ones(SIZE), *text(1, 2), width=6)
    with pytest.raises(ValueError, match="decides about whole paths"):
        measured(np.ones(SIZE), np.ones(SIZE), *text(1, 2), scheme=schemes.BLOCK)
    with pytest.raises(ValueError, match="sampling needs a key"):
        measured(np.ones(SIZE), np.ones(SIZE), *text(1, 2), key=None)
