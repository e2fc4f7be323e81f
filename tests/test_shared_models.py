"""Real checkpoints, real text: skipped with a reason where they are absent."""

import numpy as np
import pytest

import jspec
from jspec import models

pytestmark = pytest.mark.slow

LIMIT = 120
MODELS = ["stories260k", "babyllama-target"]


@pytest.fixture(scope="module")
def texts(shared):
    path = shared / "data" / "tinystories" / "stories.txt"
    stories = path.read_text(encoding="utf-8").split("<|endoftext|>")
    return [story.strip() for story in stories if len(story) > 200]


@pytest.fixture(scope="module", params=MODELS)
def target(request, shared):
    return models.load(shared / "models" / request.param)


def _prompts(loaded, texts, count):
    return np.array([loaded.tokenizer.encode(text).ids[:24] for text in texts[:count]])


def test_drafted_tokens_are_those_of_plain_decoding(target, texts):
    model, params, _ = target
    prompts = _prompts(target, texts, 4)
    recycling = jspec.TokenRecycling(model.vocab_size)
    merged = jspec.merge(
        jspec.TokenRecycling(model.vocab_size, jspec.tree.chain(4)),
        jspec.PromptLookup(whole=False),
    )
    sampled = dict(sampling=jspec.Sampling(0.8, top_p=0.9), key=1)
    for drafter, options in ((recycling, {}), (merged, sampled)):
        options |= dict(max_new_tokens=LIMIT)
        plain = jspec.decode(model, params, prompts, **options)
        together = jspec.decode(model, params, prompts, drafter=drafter, **options)
        np.testing.assert_array_equal(together.tokens, plain.tokens)
    # The last ones are sampled: a row alone has the noise of its id.
    alone = jspec.decode(model, params, prompts[[2]], row_ids=[2], drafter=drafter, **options)
    np.testing.assert_array_equal(alone.tokens[0], plain.tokens[2])


def test_token_recycling_takes_the_published_number_of_rounds(shared, texts):
    """24-token story prompts, 120 new tokens, cold: about 2.3 tokens per forward pass or more."""
    loaded = models.load(shared / "models" / "stories260k")
    rounds = []
    for prompt in _prompts(loaded, texts, 8):
        result = jspec.decode(
            loaded.model,
            loaded.params,
            prompt[None],
            drafter=jspec.TokenRecycling(loaded.model.vocab_size),
            max_new_tokens=LIMIT,
        )
        rounds.append(int(result.stats.num_rounds[0]))
        # Equal siblings, which an empty matrix has many of, are one node.
        assert 0 < result.stats.num_draft_tokens[0] <= 80 * rounds[-1]
    assert np.mean(rounds) <= 52, rounds
