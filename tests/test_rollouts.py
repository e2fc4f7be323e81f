"""The rollouts of examples/: a drafter that learnt with other weights changes no token."""

import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny

import jspec

ROLLOUTS = Path(__file__).resolve().parents[1] / "examples" / "rollouts.py"


@pytest.mark.slow
def test_a_stale_drafter_costs_speed_and_changes_nothing():
    roll_out = runpy.run_path(str(ROLLOUTS))["roll_out"]
    model, rng = tiny.model(), np.random.default_rng(0)
    drafter = jspec.TokenRecycling(tiny.VOCAB, jspec.tree.branching([2, 1, 1]))
    prompts = [rng.integers(0, tiny.VOCAB, size).tolist() for size in (3, 5)]
    # Scaled so far, weights may amplify rounding to the tolerance; these stay far below it.
    old, new = (tiny.params(model, seed, scale=60.0) for seed in (4, 8))

    def run(params, drafter, epoch, state=None):
        return roll_out(model, params, drafter, prompts, epoch, state, answers=3, max_new_tokens=48)

    learnt = run(old, drafter, 0).drafter_state
    plain = jspec.Autoregressive()
    for epoch, (params, state) in enumerate([(old, learnt), (new, learnt)]):
        drafted, alone = run(params, drafter, epoch, state), run(params, plain, epoch)
        assert (drafted.tokens == alone.tokens).all()
        assert (drafted.lengths == alone.lengths).all()
        np.testing.assert_allclose(drafted.logprobs.emitted, alone.logprobs.emitted, atol=1e-4)
    fresh, stale = (
        run(params, drafter, 7, learnt).stats.mean_acceptance_length.mean() for params in (old, new)
    )
    assert stale < fresh, "what was learnt with other weights helps less"
    # The weights made the difference: with the old ones the new epoch would say something else.
    assert (run(old, plain, 1).tokens != run(new, plain, 1).tokens).any()
    assert jax.tree.leaves(learnt), "the drafter has a memory"
