"""Routers of experts against loops over tokens, in float64."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import jspec
import jspec.models
from jspec.models import ExpertGroups, Experts, checkpoint, experts

SCORES = np.random.default_rng(0).normal(size=(2, 40, 8))
CORRECTION = np.random.default_rng(1).normal(size=8) / 4


def by_hand(how: Experts, scores: np.ndarray, correction: np.ndarray | None) -> np.ndarray:
    """The factor of each expert's output; 0: the token does not go through that expert.

    DeepSeek-V2 (arXiv 2405.04434), section 2.2; DeepSeek-V3 (arXiv 2412.19437), section 2.1.2.
    """
    found = np.zeros(scores.shape)
    for place in np.ndindex(scores.shape[:-1]):
        own = scores[place]
        shares = 1 / (1 + np.exp(-own)) if how.sigmoid else np.exp(own) / np.exp(own).sum()
        ranked = shares if correction is None else shares + correction
        allowed = range(len(own))
        if how.groups is not None:
            size = len(own) // how.groups.num_groups
            groups = [range(at, at + size) for at in range(0, len(own), size)]
            strength = {
                group: sum(sorted(ranked[list(group)])[-how.groups.num_ranking :])
                for group in groups
            }
            best = sorted(groups, key=lambda group: -strength[group])
            allowed = [one for group in best[: how.groups.num_chosen_groups] for one in group]
        chosen = sorted(allowed, key=lambda one: -ranked[one])[: how.num_chosen]
        whole = shares[chosen].sum() if how.normalised else 1.0
        found[place][chosen] = how.scale * shares[chosen] / whole
    return found


def by_router(how: Experts, scores: np.ndarray, correction: np.ndarray | None) -> np.ndarray:
    given = None if correction is None else jnp.asarray(correction, jnp.float32)
    shares, chosen = experts.routed(how, jnp.asarray(scores, jnp.float32), given)
    found = np.zeros(scores.shape)
    np.put_along_axis(found, np.asarray(chosen), np.asarray(shares, np.float64), axis=-1)
    return found


SOFTMAX = Experts(8, 3, 4, normalised=False, groups=ExpertGroups(4, 2), scale=16.0)
SIGMOID = Experts(8, 3, 4, sigmoid=True, groups=ExpertGroups(4, 2, 2), scale=2.5)


@pytest.mark.parametrize(
    ("how", "correction"),
    [
        (Experts(8, 3, 4), None),
        (SOFTMAX, None),
        (SIGMOID, None),
        (SIGMOID, CORRECTION),
        (Experts(8, 3, 4, sigmoid=True), CORRECTION),
    ],
)
def test_tokens_are_routed_as_by_hand(how, correction):
    wanted = by_hand(how, SCORES, correction)
    np.testing.assert_allclose(by_router(how, SCORES, correction), wanted, rtol=1e-5)


def test_each_part_of_the_rule_shows():
    """Without groups, without the correction, by the best one of a group: other experts."""
    wanted = by_hand(SIGMOID, SCORES, CORRECTION)
    others = [
        by_router(SIGMOID, SCORES, None),
        by_router(Experts(8, 3, 4, sigmoid=True, scale=2.5), SCORES, CORRECTION),
        by_router(
            Experts(8, 3, 4, sigmoid=True, groups=ExpertGroups(4, 2, 1), scale=2.5),
            SCORES,
            CORRECTION,
        ),
    ]
    for other in others:
        assert ((other > 0) != (wanted > 0)).any()
    # The correction decides on the choice alone.
    same = (by_router(SIGMOID, SCORES, CORRECTION + 1) > 0) == (wanted > 0)
    assert same.all()


def test_groups_that_do_not_fit_are_refused():
    for groups, chosen, message in (
        (ExpertGroups(3, 1), 2, "num_groups is 3, which does not divide the 8 experts"),
        (ExpertGroups(4, 5), 2, "num_chosen_groups is 5; pass an integer in 1 .. 4"),
        (ExpertGroups(4, 2, 3), 2, "num_ranking is 3; pass an integer in 1 .. 2"),
        (ExpertGroups(4, 1), 3, "num_chosen is 3; pass an integer in 1 .. 2"),
    ):
        with pytest.raises(jspec.InputError, match=message):
            Experts(8, chosen, 4, groups=groups)


def test_the_bias_of_the_choice_stays_float32(fixtures):
    """Rounded to bfloat16, whose steps are 2^-8 of it, it would order other experts first."""
    folder = fixtures / "deepseek_v3"
    for how in (dict(), dict(param_dtype="int8")):
        dtype = dict(param_dtype="bfloat16") | how
        loaded = jspec.models.load(folder, "bfloat16", **dtype, with_tokenizer=False)
        held = loaded.params["params"]["layers_1"]["experts"]
        assert held["correction"].dtype == jnp.float32
        assert held["router"]["weight"].dtype == jnp.bfloat16
        created = checkpoint.shapes(loaded.model)["params"]["layers_1"]["experts"]
        assert created["correction"].dtype == jnp.float32
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    np.testing.assert_array_equal(held["correction"], load_file(folder / "model.safetensors")[name])
