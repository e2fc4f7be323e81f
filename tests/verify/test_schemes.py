"""Whole decodes with sampled drafts: the joint distribution of the output is the target's.

Thousands of rows of one call are as many samples of it. Models are tables of four tokens, so the
distribution is known exactly; three tokens per row take several rounds. A statistic is printed
relative to a bound that a right distribution passes once in a million runs; keys are fixed, so a
run can be repeated.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import tables
from quick import only

import jspec
from jspec import tree as trees
from jspec.decoding import decode_rounds
from jspec.drafters.growth.best_first import NodeValues
from jspec.protocols import Drafting
from jspec.verify import proposals, rules, schemes
from jspec.verify.tree_verifier import TreeVerifier

SIZE, ROWS, LIMIT = 4, 6000, 3
MODEL = tables.Table(SIZE)
_rng = np.random.default_rng(53)  # where they differ so much that what is wrong shows
TARGET = tables.logits(tables.distributions(_rng, 1, SIZE, 2))
DRAFT = tables.logits(tables.distributions(_rng, 1, SIZE, 2))
# The same context at two places, and behind the samples a row without a token before the root.
SHORT, LONG = [1, 2, 0, 0, 0], [3, 0, 2, 1, 2]
PROMPTS = np.array([SHORT, LONG] * (ROWS // 2) + [[2, 0, 0, 0, 0]])
LENGTHS = np.array([2, 5] * (ROWS // 2) + [1])

RECURSIVE = dict(scheme=schemes.RECURSIVE)
SHAPE, CHAINS = dict(num_speculative_tokens=5, max_depth=3, beam=3), dict(num_chains=3, max_depth=2)
SIX = trees.Template(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0)))
FILTERED = SHAPE | dict(
    num_speculative_tokens=6, threshold=0.1, order=trees.depth_first,
    sampling=jspec.Sampling(top_k=2),
)  # fmt: skip
TRAVERSAL = dict(scheme=schemes.TRAVERSAL)
PUBLISHED = {
    "speculative_decoding": jspec.SpeculativeDecoding(MODEL, 2, **RECURSIVE),
    "sd_block": jspec.SpeculativeDecoding(MODEL, 2, scheme=schemes.BLOCK),
    "spectr": jspec.SpecTr(MODEL, **CHAINS, scheme=schemes.K_SEQ),
    "specinfer": jspec.SpecInfer(MODEL, (3, 2), scheme=schemes.MULTI_ROUND),
    "sequoia": jspec.Sequoia(MODEL, SIX, **RECURSIVE),
    "rsd_c": jspec.RSDC(MODEL, (2, 2), **RECURSIVE),
    "rsd_c_traversal": jspec.RSDC(MODEL, (2, 2), **TRAVERSAL),
    "rsd_s": jspec.RSDS(MODEL, beam=3, max_depth=2, **RECURSIVE),
    "rsd_s_traversal": jspec.RSDS(MODEL, beam=3, max_depth=2, **TRAVERSAL),
    "dyspec": jspec.DySpec(MODEL, **SHAPE, sampling=jspec.Sampling(0.6), **RECURSIVE),
    "dyspec_traversal": jspec.DySpec(MODEL, **SHAPE, **TRAVERSAL),
    "dyspec_filtered": jspec.DySpec(MODEL, **FILTERED, **RECURSIVE),
}


# The masks of a parallel draft model are where the texts have that token, too.
PARALLEL = {
    "pard": jspec.PARD.published(MODEL, mask_token_id=3, template=trees.chain(2)),
    "pard_tree": jspec.PARD(MODEL, 3, trees.branching([2, 2]), **RECURSIVE),
    "pard_traversal": jspec.PARD(MODEL, 0, trees.branching([3, 1]), scheme=schemes.TRAVERSAL),
}


FILTERS = [dict(temperature=1.0), dict(temperature=0.7, top_p=0.8)]
"""Of every other row; the first prompt's and the second's rows have them equally often."""
FILTER = np.append(np.arange(ROWS) // 2 % 2, 0)


def emitted(drafter, seed=0, draft=DRAFT):
    """(result, statistics over their bounds). The last row is greedy, as if it were alone."""
    settings = {name: np.array([one.get(name, 1.0) for one in FILTERS]) for name in FILTERS[1]}
    settings = {name: of_filter[FILTER] for name, of_filter in settings.items()}
    settings["temperature"][-1] = 0
    result = ended(
        MODEL, TARGET, PROMPTS, LENGTHS, drafter=drafter, drafter_params=draft,
        max_new_tokens=LIMIT, sampling=jspec.Sampling(**settings), key=seed,
    )  # fmt: skip
    apart = [distance(result, number, **sampling) for number, sampling in enumerate(FILTERS)]
    print(*(f"{one:.2f}" for one in apart))
    return result, max(apart)


def distance(result, number, **sampling):
    """Of the rows of a filter from the target's distribution under these settings."""
    probs = np.apply_along_axis(oracle.probabilities, -1, TARGET[0], **sampling)
    wanted = tables.joint(tables.after(probs, (1, 2)), SIZE, LIMIT)
    rows = np.asarray(result.tokens)[:ROWS][FILTER[:ROWS] == number]
    return tables.distance(tables.counted(rows, SIZE), wanted)


def ended(model, params, *texts, drafter, drafter_params, max_new_tokens, **ask):
    """Returns what decode returns, with all of the drafter's memory."""
    state = jspec.prefill(
        model, params, *texts, drafter=drafter, drafter_params=drafter_params,
        max_new_tokens=max_new_tokens, **ask,
    )  # fmt: skip
    drafting = Drafting(drafter, drafter_params, jspec.FixedWidth())
    state = decode_rounds(model, params, state, drafting, jnp.int32(2**31 - 1))
    found = state.tokens[:, :max_new_tokens], state.lengths, state.status, state.stats
    return jspec.Result(*found, state.drafter_state)


def greedy(prompt):
    tokens = [0, *prompt]
    for _ in range(LIMIT):
        tokens.append(int(TARGET[0][tuple(tokens[-2:])].argmax()))
    return tokens[-LIMIT:]


def check_cache(cache, row, text):
    """Checks the draft model's memory of a row: these tokens, each at its place."""
    assert cache.lengths[row] == len(text)
    assert cache.values[0][row, 0, : len(text), 0].tolist() == text
    assert cache.keys[0][row, 0, : len(text), 0].tolist() == list(range(len(text)))


# The rules have enumerations, which are quick.
@pytest.mark.slow
@pytest.mark.parametrize("name", [*PUBLISHED, *PARALLEL])
def test_published_pairings_emit_the_targets_distribution(name):
    for seed in (1, 0):
        result, apart = emitted((PUBLISHED | PARALLEL)[name], seed)
        assert apart < 1
    # The negative control: these are no samples of the distribution without a filter.
    assert distance(result, 1, temperature=1.0) > 3
    assert result.stats.num_accepted_tokens.sum() > ROWS / 4
    tokens, lengths = np.asarray(result.tokens), np.asarray(result.lengths)
    assert tokens[-1].tolist() == greedy([2])
    state, total = result.drafter_state, LENGTHS + lengths
    if name in PUBLISHED:  # the memory holds the text but for its last two tokens
        np.testing.assert_array_equal(state.cache.lengths, total - 2)
    else:  # without masks, except the root and what is unread
        np.testing.assert_array_equal(state.lengths + state.counts, total - 1)
    for row in (0, 1, 2, 3, ROWS):
        text = [*PROMPTS[row, : LENGTHS[row]], *tokens[row, : lengths[row]]]
        if name in PUBLISHED:
            check_cache(state.cache, row, text[:-2])
            assert state.previous[row] == text[-2]
        else:
            known, unread = int(state.lengths[row]), int(state.counts[row])
            check_cache(state.cache, row, text[:known])
            assert state.unread[row].tolist()[2 - unread :] == text[known:-1]


@pytest.mark.parametrize(
    "name",
    only(
        ["speculative_decoding", "sd_block", "spectr", "specinfer", "rsd_s", "rsd_c"],
        "speculative_decoding",
    ),
)
def test_a_draft_that_is_the_target_is_kept(name):
    """Two levels and the token after them in one round, up to rounding of equal distributions."""
    result, apart = emitted(PUBLISHED[name], seed=2, draft=TARGET)
    assert apart < 1
    assert (np.asarray(result.stats.num_rounds) == 1).mean() > 0.999


@pytest.mark.parametrize(
    "name", only(["sd_block", "spectr", "speculative_decoding", "specinfer"], "spectr")
)
def test_a_greedy_target_is_greedy_whatever_was_drawn(name):
    drafter = dataclasses.replace(PUBLISHED[name], sampling=jspec.Sampling(1.0))
    result = jspec.decode(
        MODEL, TARGET, PROMPTS[:64], LENGTHS[:64], drafter=drafter, drafter_params=DRAFT,
        max_new_tokens=LIMIT, key=0,
    )  # fmt: skip
    wanted = [greedy(prompt[:length]) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    assert np.asarray(result.tokens).tolist() == wanted[:64]
    assert 0 < result.stats.num_accepted_tokens.sum() < result.stats.num_draft_tokens.sum()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [None, 2])
def test_united_with_another_drafter_it_reads_what_was_emitted(nodes):
    """The path may hold nodes that the draft model never scored, as many as its own or more."""
    drafter = jspec.merge(
        jspec.SpeculativeDecoding(MODEL, 2),
        jspec.PromptLookup(num_speculative_tokens=3),
        num_speculative_tokens=nodes,
    )
    result = ended(
        MODEL, TARGET, PROMPTS[[0, 1, -1]], LENGTHS[[0, 1, -1]], drafter=drafter,
        drafter_params=(DRAFT, None), max_new_tokens=40,
    )  # fmt: skip
    state = result.drafter_state.members[0]
    for row, at in enumerate((0, 1, -1)):
        text = [*PROMPTS[at, : LENGTHS[at]], *np.asarray(result.tokens[row])]
        check_cache(state.cache, row, text[:-2])
        assert state.previous[row] == text[-2]


# ---- negative controls ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pruned(jspec.DySpec):
    """Wrong: a child is kept for its own probability, known only once it is drawn."""

    def value_fn(self, memory):
        def own(drawn, value):
            value = value[..., None] * drawn.child_probs
            return NodeValues(value, value)

        return own


WRONG = {
    "another rule's draws": jspec.DySpec(
        MODEL,
        num_speculative_tokens=10,
        max_depth=2,
        beam=3,
        scheme=schemes.Scheme(proposals.without_replacement, TreeVerifier(rules.multi_round)),
    ),
    "pruned by what was drawn": Pruned(
        MODEL, num_speculative_tokens=3, max_depth=1, beam=3, threshold=0.2, **RECURSIVE
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", WRONG.values(), ids=WRONG)
def test_wrong_variants_are_detected(drafter):
    _, apart = emitted(drafter)
    assert apart > 5
