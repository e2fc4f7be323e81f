"""Refusals of all retrieval drafters, and prompt lookup."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import refusals
import rounds

import jspec
from jspec.drafters.contrib import ngrams
from jspec.drafters.retrieval.adjacency_matrix import write_lines
from jspec.drafters.retrieval.prompt_lookup import TextState
from jspec.drafters.retrieval.token_recycling import fit_tree

V, SLOTS = 6, 12
DRAFTERS = {
    "token_recycling": jspec.TokenRecycling(V, jspec.tree.branching([2]), k=2),
    "token_recycling_per_row": jspec.TokenRecycling(
        V, jspec.tree.branching([2]), k=2, update_on_prefill=True, per_row=True
    ),
    "spine": jspec.Spine(V, 3, max_depth=2, k=2),
    "prompt_lookup": jspec.PromptLookup(num_speculative_tokens=2, whole=False),
    "suffix": jspec.Suffix(num_speculative_tokens=3, max_depth=2, capacity=8),
    "lookahead": jspec.Lookahead(V, window=2, ngram=3, guesses=2, pool_from_prompt=True),
    "rest": jspec.REST(max_match=3, num_speculative_tokens=3, max_depth=2, num_matches=4),
}


def test_arguments_of_another_type_are_refused_when_they_are_given():
    """Those that are no fields, of which test_abilities.py has all, or that exclude each other."""
    refusals.check([
        (lambda: fit_tree(2.5), "num_speculative_tokens is 2.5; pass an integer"),
        (lambda: jspec.PromptLookup(max_match=2, min_match=3), r"min_match is 3; pass .* 1 \.\. 2"),
        (lambda: jspec.TokenRecycling(6, template=[(0,)], k=2),
         r"template is \[\(0,\)\]; pass a jspec.Template"),
        (lambda: jspec.datastore.build([1], "6"), "vocab_size is '6'; pass an integer"),
        (lambda: jspec.datastore.build([], 6), "the corpus has 0 tokens"),
        (lambda: jspec.datastore.build(None, 6), "dtype object; pass a list of token ids"),
    ])  # fmt: skip


FRAME = rounds.greedy([0, 0], 2)


def params(name):
    """Returns a drafter's inputs besides its state."""
    if name == "rest":
        return jspec.datastore.build([0, 1, 2, 0, 1], V)
    if name == "spine":
        distributions = np.array([[[1], [2], [0]]]), np.array([[[0.9], [0.8], [0.7]]])
        return ngrams.table(ngrams.build(np.array([[0, 1, 2]]), distributions, V, k=1))
    return None


FOREIGN = {name: drafter.init(2, SLOTS, None) for name, drafter in DRAFTERS.items()} | {
    "a tuple": (),
    "text": "x",
    "a number": 3,
}


@pytest.mark.parametrize("name", sorted(DRAFTERS))
def test_states_of_other_drafters_are_refused(name):
    """Both where a call begins with one and in the middle, where another drafter takes over."""
    drafter = DRAFTERS[name]
    store = params(name)
    for other, state in FOREIGN.items():
        if other == name:
            continue
        with pytest.raises(jspec.InputError, match=r"drafter_state .*; pass the state"):
            drafter.init(2, SLOTS, state)
        with pytest.raises(jspec.InputError, match=r"drafter_state .*; pass the state"):
            jax.eval_shape(lambda state=state: drafter.draft(store, state, FRAME))


@pytest.mark.parametrize(
    ("drafter", "other"),
    [
        (jspec.TokenRecycling(V, jspec.tree.chain(1), k=2), jspec.TokenRecycling(V, k=3,
            template=jspec.tree.chain(1))),
        (jspec.TokenRecycling(V, jspec.tree.chain(1), k=2), jspec.TokenRecycling(V, k=2,
            template=jspec.tree.chain(1), per_row=True)),
        (jspec.Spine(V, k=2), jspec.Spine(V, k=3)),
        (jspec.Lookahead(V), jspec.Lookahead(V, guesses=3)),
        (jspec.Suffix(capacity=8), jspec.Suffix(capacity=9)),
        (jspec.REST(max_match=4), jspec.REST(max_match=5)),
    ],
)  # fmt: skip
def test_states_of_other_sizes_are_refused_in_the_middle_too(drafter, other):
    with pytest.raises(jspec.InputError, match=r"drafter_state .*; pass the state"):
        jax.eval_shape(lambda: drafter.draft(None, other.init(2, SLOTS, None), FRAME))


def test_a_matrix_for_each_of_many_rows_needs_no_index_of_64_bits():
    """2^14 rows of V = 2^17: traced alone, since it would take 8 GiB."""
    drafter = jspec.TokenRecycling(2**17, jspec.tree.chain(1), k=1, per_row=True)
    batch = 2**14

    def call(state, tokens, lines):
        live = jnp.ones(tokens.shape, bool)
        drafted = drafter.draft(None, state, rounds.greedy([0] * batch, 2))
        return drafted, write_lines(state.lines, tokens, live, lines)

    state = jax.eval_shape(lambda: drafter.init(batch, 8, None))
    tokens = jax.ShapeDtypeStruct((batch, 3), jnp.int32)
    _, written = jax.eval_shape(call, state, tokens, jax.ShapeDtypeStruct((batch, 3, 1), jnp.int32))
    assert written.shape == state.lines.shape == (batch, 2**17, 1)


def test_the_first_number_of_a_retrieval_drafter_is_what_it_drafts():
    for drafter in (jspec.PromptLookup, jspec.REST, jspec.Suffix, jspec.JumpForward):
        assert drafter(4).num_speculative_tokens == 4
        with pytest.raises(TypeError, match="positional argument"):
            drafter(4, 2)
    with pytest.raises(TypeError, match="positional argument"):
        jspec.Lookahead(9, 7)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("most", "least", "num"), [(3, 1, 4), (2, 2, 1), (4, 1, 10)])
def test_the_draft_is_the_oracles_for_random_texts(whole, most, least, num):
    drafter = jspec.PromptLookup(num, max_match=most, min_match=least, whole=whole)
    rng = np.random.default_rng(most * 10 + num)
    texts = [rng.integers(0, 3, rng.integers(1, 24)).tolist() for _ in range(60)]
    state = TextState(*rounds.padded(texts, 24, filler=9))
    frame = rounds.greedy([text[-1] for text in texts], state.lengths - 1)
    tree, _ = jax.jit(drafter.draft)(None, state, frame)
    for row, text in enumerate(texts):
        want = oracle.prompt_lookup(text, n_max=most, n_min=least, num=num, full=whole)
        valid = np.asarray(tree.valid[row, 1:])
        assert tree.tokens[row, 1:][valid].tolist() == want, text


def test_the_latest_place_can_be_asked_for():
    text = [1, 2, 7, 1, 2, 8, 1, 2]
    state = TextState(jnp.array([text]), jnp.array([8]))
    for latest, want in ((False, 7), (True, 8)):
        drafter = jspec.PromptLookup(num_speculative_tokens=2, latest=latest)
        assert jax.jit(drafter.draft)(None, state, rounds.greedy([2], 7))[0].tokens[0, 1] == want
