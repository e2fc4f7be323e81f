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
RECYCLING = dict(drafter=jspec.TokenRecycling(tiny.VOCAB))
LOOKUP = jspec.PromptLookup(num_speculative_tokens=4, min_match=1, whole=False)
BACK_OFFS = dict(
    drafter=jspec.merge(jspec.Spine(tiny.VOCAB, 6, k=3), LOOKUP, num_speculative_tokens=6),
    policy=jspec.Adaptive((0, 2, 6)),
    # Drafts cost three quarters of a round and save little: now and then the drafter backs off.
    policy_params=jspec.CostCurve.of({3: 1.0, 9: 1.1, 21: 1.3}, undrafted=0.25),
)


# The functions that have such a way are compared one by one in the quick tests of their modules.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "request_", "least"),
    [(RECYCLING, DRAWN, 4), (RECYCLING, {}, 1), (BACK_OFFS, {}, 9), (BACK_OFFS, DRAWN, 9)],
)
def test_a_generation_is_the_same(monkeypatch, method, request_, least):
    chosen = set()

    def way(*args, default=None, cuda=None, **others):
        del others
        chosen.add(getattr(cuda, "func", cuda) if cuda else default)
        taken: Any = cuda or default
        return taken(*args)

    def generated():
        jax.clear_caches()  # of programs that were traced the other way
        return jspec.decode(MODEL, PARAMS, **ASK, **method, **request_)

    with monkeypatch.context() as patch, backend.plan_for("gpu"):
        patch.setattr(jax.lax, "platform_dependent", way)
        found = generated()
    assert len(chosen) >= least
    wanted = generated()
    for part in ("tokens", "lengths", "status", "stats"):
        leaves = (jax.tree.leaves(getattr(one, part)) for one in (found, wanted))
        for one, other in zip(*leaves, strict=True):
            np.testing.assert_array_equal(one, other)
    if method is BACK_OFFS and not request_:  # or the loops that take turns were not compared
        assert 0 < found.stats.num_drafts.sum() < found.stats.acceptance_histogram.sum()
