"""Medusa's trees are those of the oracle, round by round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from oracle import medusa as oracle

import jspec
from jspec.drafters.draft_head.medusa import PUBLISHED, Medusa, fit_tree, published
from jspec.models.heads.medusa import fresh
from jspec.types import Frame

LIMIT = 30
LENGTHS = np.array([8, 1, 5])
"""Of prompts: behind one token nothing is drafted at first."""
HEADS = tiny.medusa(num_heads=4, num_layers=2)
HOT = tiny.medusa(num_heads=4, num_layers=2, hot_tokens=11)
SMALL = jspec.Template(((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 0, 0)))


@pytest.fixture(scope="module")
def forward(target):
    """Returns (logits, states) of a whole sequence, by one forward pass without a cache."""

    def score(tokens):
        output = tiny.forward(*target, [np.pad(tokens, (0, 48 - len(tokens)))])
        last = len(tokens) - 1
        return np.float64(output.logits[0, last]), np.float64(output.hidden[0, last])

    return score


def by_hand(variables):
    params = jax.tree.map(np.float64, variables["params"])
    names = [[f"block_{i}_{layer}" for layer in range(2)] for i in range(4)]
    blocks = [[(params[n]["weight"], params[n]["bias"]) for n in chain] for chain in names]
    if "scored" not in variables:
        matrices = [params[f"head_{i}"]["weight"] for i in range(4)]
        return lambda state: oracle.scores(state, blocks, matrices)
    table = np.float64(variables["target"]["head"])
    cold = np.isin(np.arange(tiny.VOCAB), tiny.HOT_IDS, invert=True)
    return lambda state: np.where(cold, -np.inf, oracle.scores(state, blocks, [table] * 4))


@pytest.mark.parametrize(("module", "template"), [
    pytest.param(HEADS, PUBLISHED, id="published", marks=pytest.mark.slow),
    pytest.param(HOT, SMALL, id="hot"),
])  # fmt: skip
def test_a_greedy_decode_is_the_oracles_round_by_round(target, forward, module, template):
    variables = tiny.medusa_variables(module)
    heads = by_hand(variables)
    drafter = Medusa(module, template)
    result = jspec.decode(
        *target, tiny.PROMPTS, LENGTHS, drafter=drafter, drafter_params=variables,
        max_new_tokens=LIMIT,
    )  # fmt: skip
    accepted = 0
    for row, length in enumerate(LENGTHS):
        tokens, rounds = oracle.decode(
            lambda context: forward(context)[0], lambda context: forward(context)[1], heads,
            tiny.PROMPTS[row, :length].tolist(), LIMIT, template.paths,
        )  # fmt: skip
        assert result.tokens[row].tolist() == tokens
        histogram = np.bincount(rounds, minlength=template.depth + 2)[1:]
        assert result.stats.acceptance_histogram[row].tolist() == histogram.tolist()
        nodes = len(template.paths) * (len(rounds) - (length == 1))
        assert result.stats.num_draft_tokens[row] == nodes
        accepted += LIMIT - len(rounds)
    assert accepted > 0, "heads that are never right test nothing"


def test_a_tree_holds_the_heads_tokens_and_their_joint_probability(target, forward):
    variables = tiny.medusa_variables(HEADS)
    drafter = Medusa(HEADS)
    state = jspec.prefill(
        *target, tiny.PROMPTS, tiny.LENGTHS, drafter=drafter, drafter_params=variables,
        max_new_tokens=LIMIT,
    )  # fmt: skip
    frame = jspec.round.frame(state)
    tree, _ = jax.jit(drafter.draft)(variables, state.drafter_state, frame)
    for row, length in enumerate(tiny.LENGTHS):
        _, hidden = forward(tiny.PROMPTS[row, : length - 1].tolist())
        want = oracle.tree(by_hand(variables)(hidden))
        assert set(want) == set(PUBLISHED.paths)
        for node, ranks in enumerate(PUBLISHED.paths, 1):
            tokens, value = want[ranks]
            assert tree.tokens[row, node] == tokens[-1]
            np.testing.assert_allclose(tree.value[row, node], value, rtol=1e-3)
    assert tree.valid.all()
    assert (tree.value[:, 0] == 1).all()
    above = np.take_along_axis(np.asarray(tree.value), np.maximum(tree.parents, 0), axis=1)
    assert (above >= tree.value).all()


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "ids"), [(HEADS, range(tiny.VOCAB)), (HOT, tiny.HOT_IDS)])
def test_tokens_are_ranked_by_their_own_noise_and_no_others_drafted(target, heads, ids):
    """Zero states score all tokens alike, so that the noise alone decides."""
    variables, ids = (
        {**tiny.medusa_variables(heads), "params": fresh(heads, target[1])},
        np.array(ids),
    )
    keys = jax.random.split(jax.random.key(3), 3)
    positions = jnp.array([4, 5, 6])
    ones = jnp.ones(3)
    sampling = jspec.Sampling(1.5 * ones, jnp.zeros(3, jnp.int32), ones, 0 * ones)
    frame = Frame(jnp.zeros(3, jnp.int32), positions, keys, sampling, jnp.zeros(3, bool))
    tree, _ = jax.jit(Medusa(heads, SMALL).draft)(variables, jnp.zeros((3, 16)), frame)
    noise = jspec.sampling.gumbel(keys, positions, tiny.VOCAB)
    np.testing.assert_array_equal(tree.tokens[:, 1], ids[noise[:, ids].argmax(-1)])
    assert np.isin(tree.tokens[:, 1:], ids).all()


def test_fitted_trees_take_the_best_nodes():
    accuracies = [[0.6, 0.2, 0.1], [0.5, 0.3], [0.9]]
    value = {
        path: float(np.prod([accuracies[head][rank] for head, rank in enumerate(path)]))
        for path in jspec.tree.branching([3, 2, 1]).paths
    }
    for nodes in (1, 4, 9, len(value)):
        chosen = fit_tree(accuracies, nodes).paths
        best = sorted(value.values(), reverse=True)[:nodes]
        np.testing.assert_allclose(sorted((value[path] for path in chosen), reverse=True), best)


def test_smaller_published_trees_are_its_first_nodes():
    assert set(PUBLISHED.paths) == set(oracle.TEMPLATE)
    assert set(published(11).paths) == set(oracle.TEMPLATE[:11])
    shallow = [path for path in oracle.TEMPLATE if len(path) <= 2]
    assert set(published(30, depth=2).paths) == set(shallow[:30])
    with pytest.raises(ValueError, match=r"nodes is 64; pass an integer in 1 \.\. 63"):
        published(64)


def test_options_that_do_not_fit_are_refused(target):
    with pytest.raises(ValueError, match=r"has 5 levels and there are 4 Medusa heads"):
        Medusa(HEADS, jspec.tree.chain(5))
    with pytest.raises(ValueError, match=r"12 children"):
        Medusa(HOT, jspec.Template(tuple((rank,) for rank in range(12))))
    with pytest.raises(ValueError, match=r"nodes is 16 and a tree .* has 1 \.\. 15"):
        fit_tree([[0.5] * 3, [0.5], [0.5] * 3], 16)
    with pytest.raises(ValueError, match=r"pass probabilities"):
        fit_tree([[0.5], [1.5]], 2)
    call = dict(prompt=tiny.PROMPTS, prompt_lengths=tiny.LENGTHS, max_new_tokens=4)
    with pytest.raises(ValueError, match="drafter_params is None"):
        jspec.decode(*target, **call, drafter=Medusa(HEADS))
    with pytest.raises(ValueError, match="reads states 16 wide and the target's are 32"):
        jspec.decode(
            target[0].clone(taps=(0, 1)), target[1], **call, drafter=Medusa(HEADS),
            drafter_params=tiny.medusa_variables(HEADS),
        )  # fmt: skip


def test_fresh_heads_score_as_the_target_does(target):
    output = tiny.forward(*target, tiny.PROMPTS[:1])
    scores = jax.jit(HEADS.apply)({"params": fresh(HEADS, target[1])}, output.hidden)
    for head in range(4):
        np.testing.assert_allclose(scores[:, :, head], output.logits, rtol=1e-4, atol=1e-4)
