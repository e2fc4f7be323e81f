"""GPU variants of computations, run here: whole generations with the same tokens.

Steps of a loop, and conditions, are for the host of a GPU to launch and to wait for. So some things
are computed there without them. Each variant is paired with the CPU's in a
`jax.lax.platform_dependent`, or goes by `jspec._xla.backend`.
"""

from typing import Any

import jax
import numpy as np
import pytest
import tiny

import jspec
from jspec._xla import backend
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=tiny.VOCAB)
PARAMS = MODEL.init()
ASK: dict[str, Any] = dict(prompt=tiny.PROMPTS, prompt_lengths=tiny.LENGTHS, max_new_tokens=40)
DRAWN: dict[str, Any] = dict(sampling=jspec.Sampling(0.8, top_k=9, top_p=0.9), key=3)
# Drafts that cost three quarters of a round and save little: now and then the drafter backs off.
DEAR = jspec.CostCurve.of({3: 1.0, 9: 1.1, 21: 1.3}, undrafted=0.25)
MERGED = jspec.merge(
    jspec.Spine(tiny.VOCAB, 6, k=3),
    jspec.PromptLookup(num_speculative_tokens=4, min_match=1, whole=False),
    num_speculative_tokens=6,
)
METHODS = {
    "token_recycling": dict(drafter=jspec.TokenRecycling(tiny.VOCAB)),
    "widths and back-offs": dict(
        drafter=MERGED, policy=jspec.Adaptive((0, 2, 6)), policy_params=DEAR
    ),
}


def generated(name, **request):
    return jspec.decode(MODEL, PARAMS, **METHODS[name], **(ASK | request))


# The functions that have such a way are compared one by one in the quick tests of their modules.
pytestmark = pytest.mark.slow
CASES = [
    ("token_recycling", True),
    ("token_recycling", False),
    ("widths and back-offs", False),
    ("widths and back-offs", True),
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def by_gpu_ways(request):
    """A case, its result by the ways of a GPU, and how many places have such a way."""
    chosen, (name, drawn) = set(), request.param

    def way(*args, default=None, cuda=None, **others):
        del others
        chosen.add(getattr(cuda, "func", cuda) if cuda else default)
        taken: Any = cuda or default
        return taken(*args)

    with pytest.MonkeyPatch.context() as patch, backend.planned("gpu"):
        jax.clear_caches()  # of programs that were traced the other way
        patch.setattr(jax.lax, "platform_dependent", way)
        found = generated(name, **(DRAWN if drawn else {}))
    jax.clear_caches()
    return request.param, found, len(chosen)


def test_a_generation_is_the_same(by_gpu_ways):
    (name, drawn), found, places = by_gpu_ways
    # Draws have ways of their own.
    least = (4 if drawn else 1) if name == "token_recycling" else 9
    assert places >= least, places
    wanted = generated(name, **(DRAWN if drawn else {}))
    for part in ("tokens", "lengths", "status", "stats"):
        leaves = (jax.tree.leaves(getattr(one, part)) for one in (found, wanted))
        for one, other in zip(*leaves, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("by_gpu_ways", [("widths and back-offs", False)], indirect=True, ids=str)
def test_there_are_back_offs_and_drafts(by_gpu_ways):
    """Or else the loops that take turns would not have been compared."""
    stats = by_gpu_ways[1].stats
    rounds, drafted = stats.acceptance_histogram.sum(), stats.num_drafts.sum()
    assert 0 < drafted < rounds
