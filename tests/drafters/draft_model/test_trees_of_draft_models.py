"""Trees of the draft models equal, token for token, the oracles' trees.

The draft model is a table whose logits carry, behind the distribution of the next token, what is
drawn
there: so each node's draws are given from outside, as they are to the oracles. One call grows the
trees of hundreds of rows, each with a model of its own.
"""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import quick
import rounds
import tables

import jspec
from jspec.drafters.draft_model.draft_model import Drafted
from jspec.drafters.growth.best_first import NodeValues
from jspec.drafters.growth.pool import DrawnChildren
from jspec.tree import Template
from jspec.types import Output, PromptChunk
from jspec.verify import rules
from jspec.verify.proposals import ChildDraws
from jspec.verify.schemes import Scheme
from jspec.verify.tree_verifier import TreeVerifier

CONTEXT = (1, 1, 0)


def written(size):
    """Draws tokens read from the logits; -1 where none is left."""

    def draw(logits, sampling, frame, level, count):
        probs = jax.nn.softmax(logits[..., :size])
        order = logits[..., size : size + count].astype(jnp.int32)
        tokens = jnp.maximum(order, 0)
        there = order >= 0
        return ChildDraws(
            tokens=tokens, scores=jnp.where(there, -jnp.arange(count, dtype=jnp.float32), -jnp.inf),
            child_probs=jnp.where(there, jnp.take_along_axis(probs, tokens, axis=-1), 0),
            probs=probs, q=probs,
        )  # fmt: skip

    return Scheme(draw, TreeVerifier(rules.recursive))


def perturbed(size):
    """A draw that reads the Gumbel noise from the logits."""

    def draw(logits, sampling, frame, level, count):
        probs = jax.nn.softmax(logits[..., :size])
        scores, tokens = jax.lax.top_k(jnp.log(probs) + logits[..., size:], count)
        probabilities = jnp.take_along_axis(probs, tokens, axis=-1)
        return ChildDraws(tokens, scores, probabilities, probs, probs)

    return Scheme(draw, TreeVerifier(rules.recursive))


def grown(drafter, distributions, extra):
    """The trees of a call in which each row has its own distributions and draws."""
    batch = len(extra)
    shape = (batch, *distributions.shape[1:-1])
    table = np.concatenate(
        [np.broadcast_to(tables.logits(distributions), (*shape, distributions.shape[-1])), extra],
        axis=-1,
    ).astype(np.float32)
    prompt = np.tile(np.array(CONTEXT, np.int32), (batch, 1))
    lengths = np.full(batch, len(CONTEXT), np.int32)
    return jax.device_get(_grown(drafter, table, prompt, lengths))


@partial(jax.jit, static_argnums=0)
def _grown(drafter, table, prompt, lengths):
    batch = len(prompt)
    size = drafter.model.vocab_size
    seen = Output(jnp.zeros((*prompt.shape, size)), None)
    state = drafter.init(batch, 64, None)
    state = drafter.prefill(table, state, PromptChunk.whole(prompt, lengths, seen))
    return drafter.draft(table, state, rounds.greedy(prompt[:, -1], lengths - 1))[0]


def orders_of(rng, distributions):
    """[B, V, .., V, V]: draws without replacement, -1 where the support ends."""
    with np.errstate(divide="ignore"):
        values = np.log(distributions) + rng.gumbel(size=distributions.shape)
    return np.where(np.isfinite(np.sort(values)[..., ::-1]), np.argsort(-values), -1)


def at(array, row=0):
    return tables.after(array[row], CONTEXT)


def drawn_at(draws, row):
    return lambda prefix: draws[row][(*CONTEXT, *prefix)[-2:]].tolist()


def order_at(orders, row):
    return lambda prefix: [token for token in drawn_at(orders, row)(prefix) if token >= 0]


def equal(tree, row, wanted):
    assert oracle.children_of(tables.tree_of(tree, row)) == oracle.children_of(wanted)


# ---- one by one or level by level ----------------------------------------------------------------

ROWS, WIDE = 150, 8


@pytest.fixture(scope="module")
def models():
    """Distributions and orders of many rows, half of them with tokens that are impossible."""
    rng = np.random.default_rng(0)
    found = np.concatenate(
        [tables.distributions(rng, ROWS // 2, WIDE, 2, zeros) for zeros in (0, 0.4)], axis=0
    )
    found = found**2  # more certain, so that trees are deep
    found = found / found.sum(-1, keepdims=True)
    return found, orders_of(rng, found)


def best_first(method, **options):
    return method(tables.Table(WIDE), beam=WIDE, scheme=WRITTEN, **options)


WRITTEN = written(WIDE)


@pytest.mark.parametrize("budget", quick.only([4, 7, 12], 7))
def test_dyspec_by_levels_equals_the_heap(models, budget):
    """Algorithm 1. No level asks for more than 8 nodes or children, none is below the 12th."""
    distributions, orders = models
    tree = grown(
        best_first(jspec.DySpec, num_speculative_tokens=budget, max_depth=budget),
        distributions,
        orders,
    )
    depths = set()
    for row in range(ROWS):
        wanted = oracle.dyspec_greedy(at(distributions, row), order_at(orders, row), budget)
        equal(tree, row, wanted)
        depths.add(1 + max(map(len, oracle.children_of(wanted))))
    assert len(depths) > 2
    assert np.asarray(tree.valid).all()


def test_a_threshold_is_the_layer_by_layer_tree(models):
    """Algorithm 2; the budget is never reached."""
    distributions, orders = models
    tree = grown(
        best_first(jspec.DySpec, num_speculative_tokens=40, max_depth=20, threshold=0.15),
        distributions,
        orders,
    )
    for row in range(ROWS):
        wanted = oracle.dyspec_threshold(at(distributions, row), order_at(orders, row), 0.15, 10**6)
        equal(tree, row, wanted)


def test_a_finished_row_is_not_changed_by_levels_of_others(models):
    """Growth ends when no row hopes for more, so a row sees more levels in company than alone."""
    distributions, orders = models
    drafter = best_first(jspec.DySpec, num_speculative_tokens=7, max_depth=7)
    together, rows = grown(drafter, distributions, orders), range(40, 46)
    for row in rows:
        alone = grown(drafter, distributions[[row]], orders[[row]])
        for name in ("tokens", "parents", "valid"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[row])
        inner = np.unique(alone.parents[0][1:])  # the only distributions that are read
        mine, theirs = alone.q[0][alone.q_row[0]], together.q[row][together.q_row[row]]
        np.testing.assert_allclose(mine[inner], theirs[inner], rtol=1e-5)
    depths = [max(map(len, oracle.children_of(tables.tree_of(together, row)))) for row in rows]
    assert len(set(depths)) > 1


# ---- sizes that are known, and beams -------------------------------------------------------------


def test_constant_branching_is_the_oracles(models):
    distributions, orders = models
    tree = grown(jspec.RSDC(tables.Table(WIDE), (3, 2, 1), scheme=WRITTEN), distributions, orders)
    for row in range(ROWS):
        equal(tree, row, oracle.rsd_c(order_at(orders, row), (3, 2, 1)))


def test_a_template_is_filled_rank_by_rank(models):
    """Sequoia: the child of rank r is the r-th draw, whatever shape the others have."""
    distributions, orders = models
    paths = ((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0), (0, 1, 1), (2, 0, 0))
    drafter = jspec.Sequoia(tables.Table(WIDE), Template(paths), scheme=WRITTEN)
    tree = grown(drafter, distributions, orders)
    for row in range(ROWS):
        draws, children = order_at(orders, row), {}
        prefixes = {(): ()}
        for path in paths:
            above = prefixes.get(path[:-1])
            if above is None or path[-1] >= len(draws(above)):
                continue
            prefixes[path] = (*above, draws(above)[path[-1]])
            children.setdefault(above, []).append(prefixes[path][-1])
        assert oracle.children_of(tables.tree_of(tree, row)) == children


def test_specinfer_is_the_oracles(models):
    distributions, _ = models
    draws = np.random.default_rng(1).integers(WIDE, size=(ROWS, WIDE, WIDE, 4))
    tree = grown(
        jspec.SpecInfer(tables.Table(WIDE), (4, 3, 2), scheme=WRITTEN), distributions, draws
    )
    for row in range(ROWS):
        equal(tree, row, oracle.specinfer(drawn_at(draws, row), (4, 3, 2)))


def sequences_of(sequences):
    """A draw of whole sequences [B, K, length], which nothing but these decides."""

    def draw(logits, sampling, frame, level, count):
        column = jnp.take(jnp.asarray(sequences), level, axis=2)
        tokens = column[:, None] if count == sequences.shape[1] else column[:, :, None]
        probs = jax.nn.softmax(logits)
        some = jnp.zeros(tokens.shape)
        return ChildDraws(tokens, some, some, probs, probs)

    return Scheme(draw, TreeVerifier(rules.k_seq))


def spectr(sequences, distributions):
    rows, chains, length = sequences.shape
    *_, size = distributions.shape
    drafter = jspec.SpecTr(
        tables.Table(size), num_chains=chains, max_depth=length, scheme=sequences_of(sequences)
    )
    return grown(drafter, distributions, np.zeros((rows, size, size, 0)))


def test_spectr_is_the_oracles():
    rng, size = np.random.default_rng(2), 3
    sequences = rng.integers(size, size=(ROWS, 4, 3))
    tree = spectr(sequences, tables.distributions(rng, 1, size + 1, 2))
    for row in range(ROWS):
        equal(tree, row, oracle.spectr(sequences[row].tolist()))


@pytest.mark.parametrize("width", quick.only([1, 4], 4))
def test_stochastic_beam_search_is_the_oracles(models, width):
    distributions, _ = models
    noise = np.random.default_rng(3).gumbel(size=distributions.shape).astype(np.float32)
    drafter = jspec.RSDS(tables.Table(WIDE), beam=width, max_depth=3, scheme=perturbed(WIDE))
    tree = grown(drafter, distributions, noise)
    for row in range(ROWS):
        equal(tree, row, oracle.rsd_s(at(distributions, row), at(noise, row), width, 3))


# ---- all draws summed out ------------------------------------------------------------------------


def every_draw(draws, num, size, depth):
    """(orders [B, V, .., V, N], weights [B]): all that may be drawn at nodes above `depth`."""
    prefixes = [s for level in range(depth) for s in itertools.product(range(size), repeat=level)]
    places = [((*CONTEXT, *prefix)[-depth:]) for prefix in prefixes]
    assert len(set(places)) == len(places)  # or the draws at two nodes would be the same
    every = list(itertools.product(*map(draws, prefixes)))
    orders = np.zeros((len(every), *[size] * depth, num))
    for row, drawn in enumerate(every):
        for place, (order, _) in zip(places, drawn, strict=True):
            orders[(row, *place)] = [*order, *[-1] * (num - len(order))]
    return orders, np.array([np.prod([weight for _, weight in drawn]) for drawn in every])


def pair(size, depth, zeros=(0.0, 0.0)):
    """p, q and the table of q, with shares of impossible tokens."""
    rng = np.random.default_rng(1)
    found = [tables.distributions(rng, 1, size, depth, some) for some in zeros]
    return *(tables.after(array[0], CONTEXT) for array in found), found[1]


def off(trees, rule, p, q, depth):
    """Largest error of the joint distribution of `depth` tokens, over trees by probability."""
    assert sum(weight for _, weight in trees) == pytest.approx(1, abs=1e-12)
    probs = sum(
        weight * oracle.walk_distribution(tree, rule, p, q, depth) for tree, weight in trees
    )
    return np.abs(probs - tables.joint(p, len(p(())), depth)).max()


def weighed(tree, weights):
    """Equal trees of the rows once, each with its probability."""
    probabilities = {}
    for row, weight in enumerate(weights):
        key = tuple(map(tuple, tables.tree_of(tree, row)))
        probabilities[key] = probabilities.get(key, 0) + weight
    assert len(probabilities) > 1
    return list(probabilities.items())


def error(drafter, depth, zeros=(0.0, 0.0), rule=oracle.recursive):
    """The error of a drafter's trees, over all its draws: without replacement, or independent."""
    size = drafter.model.vocab_size
    p, q, distributions = pair(size, depth, zeros)
    draw, num = (oracle.draws_iid, 2) if rule is oracle.multi_round else (oracle.draws_swor, size)
    orders, weights = every_draw(lambda prefix: draw(q(prefix), num), num, size, depth)
    return off(weighed(grown(drafter, distributions, orders), weights), rule, p, q, depth)


THREE, TWO = tables.Table(3), tables.Table(2)
SWOR = dict(scheme=written(3))
PAIR = dict(scheme=written(2))
ENUMERATED = {
    "dyspec_3": (jspec.DySpec(THREE, 3, max_depth=2, beam=3, **SWOR), 2),
    "dyspec_5": (jspec.DySpec(THREE, 5, max_depth=2, beam=3, **SWOR), 2),
    "dyspec_narrow": (jspec.DySpec(THREE, 4, max_depth=2, beam=2, **SWOR), 2),
    "dyspec_threshold": (jspec.DySpec(THREE, 8, max_depth=2, beam=3, threshold=0.2, **SWOR), 2),
    "dyspec_deep": (jspec.DySpec(TWO, 5, max_depth=3, beam=2, **PAIR), 3),
    "rsd_c": (jspec.RSDC(THREE, (2, 2), **SWOR), 2),
    "rsd_c_deep": (jspec.RSDC(TWO, (1, 2, 1), **PAIR), 3),
    "specinfer": (jspec.SpecInfer(THREE, (2, 2), **SWOR), 2),
}
GAPS = {"full": (0, 0), "p": (0.4, 0), "q": (0, 0.4)}
"""The shares of impossible tokens of the target and of the draft model."""
SUPPORTS = quick.only(
    itertools.product(ENUMERATED, GAPS),
    *(("dyspec_narrow", "q"), ("dyspec_threshold", "p"), ("dyspec_deep", "full"), ("rsd_c", "q")),
    ("specinfer", "p"),
)


@pytest.mark.parametrize("case", SUPPORTS, ids="-".join)
def test_trees_are_lossless_under_their_rule(case):
    name, gaps = case
    rule = oracle.multi_round if name == "specinfer" else oracle.recursive
    assert error(*ENUMERATED[name], GAPS[gaps], rule) < 1e-12


@pytest.mark.parametrize("gaps", quick.only(GAPS, "q"))
def test_trees_of_sequences_and_of_beams_are_lossless(gaps):
    """K-SEQ sees the sequences that still match: its K shrinks from level to level."""
    p, q, distributions = pair(3, 2, GAPS[gaps])
    every = list(itertools.product(range(3), repeat=2))
    single = [q(())[one] * q((one,))[two] for one, two in every]
    for num, rule in ((2, oracle.k_seq), (3, oracle.k_seq), (2, oracle.multi_round)):
        sequences = np.array(list(itertools.product(every, repeat=num)))
        weights = np.array([np.prod(each) for each in itertools.product(single, repeat=num)])
        tree = spectr(sequences[weights > 0], distributions)
        assert off(weighed(tree, weights[weights > 0]), rule, p, q, 2) < 1e-12
    for width in (1, 2, 3, 4):
        assert off(oracle.every_beam(q, width, 2), oracle.recursive, p, q, 2) < 1e-12


def test_siblings_of_a_beam_in_the_order_of_their_ids_are_caught():
    p, q, _ = pair(3, 2)
    trees = [(oracle.children_of(tree), weight) for tree, weight in oracle.every_beam(q, 2, 2)]
    trees = [(oracle.tree_of(lambda s, of=of: sorted(of.get(s, ()))), w) for of, w in trees]
    assert off(trees, oracle.recursive, p, q, 2) > 0.01


@dataclasses.dataclass(frozen=True)
class Greedy(jspec.DySpec):
    """Wrong: a child has the value of its own probability, which is known only once it is drawn."""

    def value_fn(self, memory):
        def own(drawn, value):
            value = value[..., None] * drawn.child_probs
            return NodeValues(value, value)

        return own


def test_a_worth_that_looks_at_the_drawn_token_is_caught():
    drafter = Greedy(THREE, num_speculative_tokens=3, max_depth=2, beam=3, **SWOR)
    assert error(drafter, 2) > 0.01


# ---- what is learnt next to another drafter ------------------------------------------------------


def beside_another(drafter):
    """Returns the lesson of a round with root children 0 and 1, where a neighbour's 2 was taken."""
    drawn = DrawnChildren(tokens=jnp.array([[[0, 1]]]), notes=(jnp.array([[[0.6, 0.3]]]),))
    memory, aux = drafter.init_memory(1, None), Drafted(None, jnp.array([[1, 0, 0]]), drawn)
    tree = jspec.Tree(
        tokens=jnp.array([[2, 0, 1]]), parents=jnp.array([[-1, 0, 0]]),
        valid=jnp.ones((1, 3), bool), depth=1, width=2,
    )  # fmt: skip
    output = jspec.Output(jnp.zeros((1, 3, 3)), None)
    verdict = jspec.Verdict(
        path=jnp.array([[0, -1]]), path_lengths=jnp.array([2]), bonus=jnp.array([1]),
        failed=jnp.zeros(1, bool),
    )  # fmt: skip
    feedback = jspec.Feedback(
        tree=tree, output=output, verdict=verdict, emitted=jnp.array([[2, 1]]),
        counts=jnp.array([2]), positions=jnp.array([4]), done=jnp.zeros(1, bool),
        merged=jspec.Scored(tree, output, verdict),
    )  # fmt: skip
    return memory, drafter.learn(memory, aux, feedback)


def test_a_neighbours_token_that_was_not_drawn_here_teaches_no_temperature():
    before, after = beside_another(
        jspec.CoupledTree(THREE, num_speculative_tokens=2, max_depth=1, beam=2)
    )
    np.testing.assert_array_equal(after.log, before.log)
