import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import rounds

import jspec
from jspec.drafters.retrieval.prompt_lookup import TextState


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


def test_options_that_exclude_each_other_are_refused():
    with pytest.raises(jspec.InputError, match=r"min_match is 3; pass an integer in 1 \.\. 2"):
        jspec.PromptLookup(max_match=2, min_match=3)
