"""The rollouts of examples/: drafts of other weights change no token."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import tiny

import jspec

ROLLOUTS = Path(__file__).resolve().parents[1] / "examples" / "rollouts.py"


@pytest.mark.slow
def test_stale_rollouts_cost_speed_and_change_nothing():
    roll_out = runpy.run_path(str(ROLLOUTS))["roll_out"]
    model, rng = tiny.model(), np.random.default_rng(0)
    prompts = [rng.integers(0, tiny.VOCAB, size).tolist() for size in (3, 5)]
    # Scaled so far, weights may amplify rounding to the tolerance; these stay far below it.
    old, new = (tiny.params(model, seed, scale=60.0) for seed in (4, 8))

    def run(params, key, last=None):
        return roll_out(model, params, prompts, key, last, answers=3, max_new_tokens=48)

    def plain(params, key):
        drafter = roll_out.__globals__["DRAFTER"]
        roll_out.__globals__["DRAFTER"] = jspec.Autoregressive()
        result = run(params, key)
        roll_out.__globals__["DRAFTER"] = drafter
        return result

    last = run(old, 0)
    for key, params in enumerate([old, new]):
        drafted, alone = run(params, key, last), plain(params, key)
        assert (drafted.tokens == alone.tokens).all()
        assert (drafted.lengths == alone.lengths).all()
        np.testing.assert_allclose(
            drafted.logprobs.token_logprobs, alone.logprobs.token_logprobs, atol=1e-4
        )
    again, stale, fresh = (
        run(params, key, last).stats.mean_acceptance_length.mean()
        for params, key in ((old, 0), (new, 0), (old, 1))
    )
    assert again > 10, "the same weights and noise write the same again"
    assert stale < again and fresh < again
    # The weights made the difference: with the old ones the new epoch would say something else.
    assert (plain(old, 1).tokens != plain(new, 1).tokens).any()
