import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import quick
import refusals
import rounds
import tiny

import jspec
from jspec.drafters.retrieval.prompt_lookup import TextState

ROWS, SIZE = 40, 24


def memory(drafter, texts, past):
    """The state that holds these texts, and the round that drafts after them."""
    text = TextState(*rounds.padded(texts, SIZE, filler=9))
    held = [token for output in past for token in (-1, *output)]
    held = [-1] * (drafter.capacity - len(held)) + held
    state = drafter.init(len(texts), SIZE - 1, None)
    state = state.replace(text=text, past=jnp.array(held, jnp.int32))
    return state, rounds.greedy([text[-1] for text in texts], text.lengths - 1)


def checked(drafter, got, text, past, rollout=None, begin=0):
    """Compares a drafted tree with the oracle's, and returns it."""
    names = ("max_depth", "min_match", "max_match", "factor", "offset", "threshold")
    want = oracle.suffix(
        text, past, drafter.hit_rate, drafter.num_speculative_tokens, places=drafter.num_matches,
        rollout=rollout, begin=begin, **{name: getattr(drafter, name) for name in names},
    )  # fmt: skip
    # Between nodes of equal value the choice is free; the values are not.
    np.testing.assert_allclose(list(got.values()), [w for _, w in want], rtol=1e-5)
    trie = oracle.suffix_trie(
        oracle.suffix_places(
            text, past, drafter.min_match, drafter.max_match, drafter.max_depth, rollout, begin
        ),
        drafter.num_matches, drafter.hit_rate, drafter.factor, drafter.offset,
    )  # fmt: skip
    for path, value in got.items():
        assert value == pytest.approx(trie[path], rel=1e-5)
    return got


TREES = [
    dict(num_speculative_tokens=9, max_depth=4, num_matches=64),
    dict(num_speculative_tokens=6, max_depth=5, num_matches=5, max_match=3),
    dict(num_speculative_tokens=30, max_depth=6, factor=1.0, offset=0.0, threshold=0.1),
    dict(num_speculative_tokens=5, max_depth=3, min_match=2, max_match=4, num_matches=3),
    dict(num_speculative_tokens=8, max_depth=3, capacity=0),
]


@pytest.mark.parametrize("options", quick.only(TREES, *TREES[1:4]), ids=str)
def test_trees_are_the_oracles_for_random_texts(options):
    drafter = jspec.Suffix(**{"capacity": 60, **options})
    rng = np.random.default_rng(len(str(options)))
    texts = [rng.integers(0, 3, rng.integers(1, SIZE)).tolist() for _ in range(ROWS)]
    past = [rng.integers(0, 3, size).tolist() for size in (14, 1, 20)] if drafter.capacity else []
    state, frame = memory(drafter, texts, past)
    tree, _ = jax.jit(drafter.draft)(None, state, frame)
    sizes = [
        len(checked(drafter, rounds.drafted(tree, row), text, past))
        for row, text in enumerate(texts)
    ]
    assert max(sizes) > 1


def rollouts(texts, width):
    """The params, with tokens that mean nothing beyond each length."""
    return jspec.Rollouts(*rounds.padded(texts, width, filler=1))


OF_ROLLOUTS = [
    dict(num_speculative_tokens=12, max_depth=4, num_matches=64),
    dict(num_speculative_tokens=6, max_depth=5, num_matches=4, max_match=3),
    dict(num_speculative_tokens=5, max_depth=3, min_match=2, num_matches=3, capacity=0),
]


@pytest.mark.parametrize("options", quick.only(OF_ROLLOUTS, OF_ROLLOUTS[1]), ids=str)
def test_places_of_rollouts_are_the_oracles(options):
    """Some rollouts are shorter than what the row wrote, some hold nothing."""
    drafter = jspec.Suffix(**{"capacity": 30, **options})
    rng = np.random.default_rng(len(str(options)))
    texts = [rng.integers(0, 3, rng.integers(2, SIZE)).tolist() for _ in range(ROWS)]
    begins = [int(rng.integers(1, len(text) + 1)) for text in texts]
    old = []
    for text, begin in zip(texts, begins, strict=True):
        # What the row wrote, with tokens replaced, inserted or left out.
        near = [
            token
            for written in text[begin:]
            for token in ([written], [written, 1], [], [2])[rng.choice(4, p=[0.7, 0.1, 0.1, 0.1])]
        ]
        longer = [*near, *rng.integers(0, 3, 4).tolist()]
        old.append((longer, [], near[:3])[rng.choice(3, p=[0.7, 0.1, 0.2])][:14])
    past = [rng.integers(0, 3, size).tolist() for size in (14, 9)] if drafter.capacity else []
    state, frame = memory(drafter, texts, past)
    state = state.replace(prompt_lengths=jnp.array(begins, jnp.int32))
    tree, _ = jax.jit(drafter.draft)(rollouts(old, 14), state, frame)
    without, _ = jax.jit(drafter.draft)(None, state, frame)
    differ = 0
    for row, text in enumerate(texts):
        got = checked(drafter, rounds.drafted(tree, row), text, past, old[row], begins[row])
        differ += got != rounds.drafted(without, row)
    assert differ > ROWS / 3, "the rollouts made the difference"


def test_rollouts_of_the_host_and_of_the_device_are_one_program():
    """The first call has none and makes zeros, later ones have what a call returned."""
    model, nothing = jspec.testing.PrefixLM(), np.zeros((2, 8), np.int32)
    # What a call returns is committed to a mesh of the weights.
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "data")
    params = jax.device_put(model.init(), jax.sharding.NamedSharding(mesh, jax.P()))

    def again(last):
        return jspec.decode(
            model, params, np.array([[1, 2, 3], [4, 5, 6]]), max_new_tokens=8,
            drafter=jspec.Suffix(4, max_depth=4, max_match=2, capacity=0), drafter_params=last,
        )  # fmt: skip

    first = again(jspec.Rollouts(nothing, nothing[:, 0]))
    with jspec.no_recompile():
        second = again(jspec.Rollouts(first.tokens, first.lengths))
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert (second.stats.num_rounds < first.stats.num_rounds).all()


@pytest.mark.parametrize("capacity", quick.only([200, 48, 7], 48))
def test_outputs_are_remembered_in_the_order_in_which_rows_end(capacity):
    model = jspec.testing.PrefixLM(vocab_size=tiny.VOCAB)
    target = model, model.init()
    drafter = jspec.Suffix(num_speculative_tokens=4, max_depth=3, capacity=capacity, max_match=3)
    held, state = [-1] * capacity, None
    for limits in ([9, 20, 4], [0, 6, 6]):
        result = jspec.decode(
            *target, tiny.PROMPTS, tiny.LENGTHS, drafter=drafter, drafter_state=state,
            max_new_tokens=20, stopping=jspec.Stopping(max_tokens=limits),
        )  # fmt: skip
        state = result.drafter_state
        steps = np.asarray(result.stats.num_rounds)
        for row in sorted(range(3), key=lambda row: (steps[row], row)):
            prompt = tiny.PROMPTS[row, : tiny.LENGTHS[row]].tolist()
            output = result.tokens[row, : result.lengths[row]].tolist()
            held += [-1, *prompt[-3:], *output] if output else []
        assert state.past.tolist() == held[-capacity:]


def test_misfits_are_refused():
    model, two = jspec.testing.PrefixLM(), jspec.Rollouts(jnp.ones((2, 3), int), jnp.ones(2, int))
    state = jspec.Suffix(capacity=8).init(1, 4, None)

    def decode(params):
        ask = dict(drafter=jspec.Suffix(), drafter_params=params, max_new_tokens=2)
        jspec.decode(model, model.init(), [[1, 2]], **ask)

    refusals.check([
        (lambda: decode({}), r"a dict, and a Suffix takes None or jspec.Rollouts\(tokens \[1, T"),
        (lambda: decode(two), r"tokens .* shape \(2, 3\)"),
        (lambda: jspec.Suffix(capacity=16).init(1, 4, state),
         r"past outputs of shape \(8,\).*\(16,\) and int32"),
        (lambda: jspec.Suffix(capacity=16).init(1, 4, {"past": 1}), "drafter_state is a dict"),
        (lambda: jspec.Suffix(min_match=5, max_match=4), r"min_match is 5; pass .* in 1 \.\. 4"),
        (lambda: jspec.Suffix(factor=0.5, offset=0.0), "drafts nothing after a match of 1"),
    ])  # fmt: skip
