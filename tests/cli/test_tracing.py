"""Traces: tokens and figures of `decode`, the target's probabilities, each node's source."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import tiny

import jspec
from jspec._validate.errors import InputError
from jspec.testing import PrefixLM, origins

MODEL = PrefixLM()
PROMPT = np.array([[1, 2, 3, 1, 2, 3, 1, 2]])
HOT = jspec.Sampling(temperature=0.7)
SPINE = jspec.Spine(MODEL.vocab_size, 8, k=4)
LOOKUP, SUFFIX = jspec.PromptLookup(num_speculative_tokens=3), jspec.Suffix()
DRAFTERS = {
    "plain": jspec.Autoregressive(),
    "fixed": LOOKUP,
    "merge": jspec.merge(LOOKUP, SUFFIX),
    "budget": jspec.merge(LOOKUP, SPINE, num_speculative_tokens=5),
    "adaptive": jspec.merge(LOOKUP, SPINE, num_speculative_tokens=7),
}
POLICIES = {
    "adaptive": dict(
        policy=jspec.Adaptive((0, 2, 7)), policy_params=jspec.CostCurve.of({1: 1.0, 3: 1.2, 8: 1.9})
    )
}


def ask(drafter, sampling=None, **changes) -> dict[str, Any]:
    call = dict(
        model=MODEL, params=MODEL.init(), prompt=PROMPT, drafter=drafter, max_new_tokens=20,
        sampling=sampling, key=3,
    )  # fmt: skip
    return call | changes


@cache
def traced(name, sampling=None):
    return jspec.trace(**ask(DRAFTERS[name], sampling, **POLICIES.get(name, {})))


@pytest.mark.parametrize(
    ("name", "sampling"),
    [("budget", None), *(pytest.param(name, HOT, marks=pytest.mark.slow) for name in DRAFTERS)],
    ids=lambda value: value if isinstance(value, str) else str(bool(value)),
)
def test_a_trace_is_what_decode_did_and_why(name, sampling):
    call = ask(DRAFTERS[name], sampling, **POLICIES.get(name, {}))
    result, trace = jspec.decode(**call), traced(name, sampling)
    assert trace.tokens.tolist() == result.tokens[0, : result.lengths[0]].tolist()
    assert trace.status == int(result.status[0])
    assert trace.prompt.tolist() == PROMPT[0].tolist() and trace.rule == "coupled"
    stats = result.stats
    verified = sum(one.num_verified - 1 for one in trace.rounds)
    assert (len(trace.rounds), verified) == (stats.num_rounds[0], stats.num_draft_tokens[0])
    accepted = [len(one.emitted) - 1 for one in trace.rounds]
    assert np.bincount(accepted, minlength=stats.acceptance_histogram.shape[1]).tolist() == (
        stats.acceptance_histogram[0].tolist()
    )
    # A round is a tree whose path was emitted.
    root, outside = PROMPT[0, -1], 0
    for one in trace.rounds:
        assert one.tokens[0] == root and one.parents[0] == -1
        assert all(0 <= above < node for node, above in enumerate(one.parents[1:], 1))
        assert all(above < one.num_verified for above in one.parents[: one.num_verified])
        assert one.path[0] == 0 and one.parents[one.path[1:]].tolist() == one.path[:-1].tolist()
        said = [*one.tokens[one.path[1:]].tolist(), one.bonus]
        assert one.emitted.tolist() == said[: len(one.emitted)]
        assert not one.origins[0].any() and one.origins[1:].any(-1).all()
        assert np.isfinite(one.probs).sum() == one.num_verified == len(one.candidates)
        assert np.isnan(one.probs[one.num_verified :]).all()
        assert len(set(map(tuple, paths(one)))) == len(one.tokens)
        root = one.emitted[-1]
        assert (one.candidate_noise is None) == (sampling is None)
        if sampling is not None:  # the noise decides every token
            with np.errstate(divide="ignore"):
                sums = np.log(one.candidate_probs) + one.candidate_noise
            for node, token in zip(one.path, said, strict=True):
                chosen = one.candidates[node, sums[node].argmax()]
                assert chosen == one.candidates[node, -1] == token
        if (
            name == "budget" and len(one.tokens) > one.num_verified
        ):  # the best of what is offered; prompt lookup estimates nothing
            inside, out = np.split(one.estimates[1:], [one.num_verified - 1])
            offered = one.origins[one.num_verified :, trace.origins.index("Spine")]
            assert np.isfinite(inside).all() and np.isfinite(out[offered]).all()
            assert inside.min() >= out[offered].max(initial=0) - 1e-6
            outside += len(out)
        if name == "adaptive":
            choice, tokens = one.choice, one.choice.expected_tokens
            assert choice.widths == (0, 2, 7)
            assert choice.index == (tokens / choice.seconds).argmax()
            assert one.num_verified - 1 <= choice.widths[choice.index]
            assert tokens[0] == 1 and (np.diff(tokens) >= 0).all()
    assert (outside > 0) == (name == "budget"), "its budget is smaller than what is offered"
    if name == "adaptive":
        indices = [one.choice.index for one in trace.rounds]
        assert np.bincount(indices, minlength=3).tolist() == stats.width_histogram[0].tolist()


def paths(one) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for token, above in zip(one.tokens[1:], one.parents[1:], strict=True):
        found.append([*found[above], int(token)])
    return found


@pytest.mark.slow
def test_the_probabilities_are_the_targets_own():
    model, params = tiny.model(), tiny.params(tiny.model())
    prompt = tiny.PROMPTS[:1]
    drafter = jspec.Spine(tiny.VOCAB)
    call = ask(drafter, model=model, params=params, prompt=prompt, max_new_tokens=6)
    for sampling, heat in ((None, 1.0), (HOT, HOT.temperature)):
        said = prompt[0].tolist()
        for one in jspec.trace(**call | {"sampling": sampling}).rounds:
            for node in range(one.num_verified):
                path, above = [], node
                while above > 0:
                    path.insert(0, int(one.tokens[above]))
                    above = one.parents[above]
                logits = tiny.plain_logits(model, params, said + path)[-2:] / heat
                before, after = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
                if node:
                    assert one.probs[node] == pytest.approx(before[path[-1]], rel=1e-4)
                assert one.candidate_probs[node] == pytest.approx(
                    after[one.candidates[node]], rel=1e-4
                )
                assert one.candidate_probs[node, 0] == pytest.approx(after.max(), rel=1e-4)
                if node == one.path[-1]:
                    assert one.bonus_prob == pytest.approx(after[one.bonus], rel=1e-4)
            said += one.emitted.tolist()


@pytest.mark.slow
def test_every_node_has_its_origins_through_merges_and_wrappers():
    nested = jspec.merge(jspec.merge(LOOKUP, SUFFIX), SPINE, num_speculative_tokens=6)
    plain = jspec.trace(**ask(nested))
    assert plain.origins == ("PromptLookup", "Suffix", "Spine")
    # A member alone, which sees the same text, offers the same tokens.
    alone = jspec.trace(**ask(LOOKUP))
    first = alone.rounds[0]
    offered = {tuple(path) for path in paths(first)}
    mine = plain.rounds[0].origins[:, 0]
    assert {tuple(path) for path, own in zip(paths(plain.rounds[0]), mine, strict=True) if own} == (
        offered - {()}
    )
    wrapped = jspec.trace(**ask(jspec.with_verifier(nested, jspec.rules.coupled)))
    assert wrapped.origins == plain.origins
    assert [one.origins.tolist() for one in wrapped.rounds] == [
        one.origins.tolist() for one in plain.rounds
    ]


def test_a_trace_is_json():
    trace = traced("budget")
    plain = json.loads(json.dumps(trace.to_dict(), allow_nan=False))
    assert plain["status"] == "limit" and plain["origins"] == list(trace.origins)
    assert [token for one in plain["rounds"] for token in one["emitted"]] == trace.tokens.tolist()
    one, its = trace.rounds[1], plain["rounds"][1]
    assert its["probs"][: one.num_verified] == pytest.approx(
        one.probs[: one.num_verified], rel=1e-3
    )
    assert its["probs"][one.num_verified :] == [None] * (len(one.tokens) - one.num_verified)
    assert its["origins"] == [int(row @ [1, 2]) for row in one.origins]


def test_one_prompt_at_a_time():
    with pytest.raises(InputError, match="prompt has 2 rows and a trace is of one"):
        jspec.trace(**ask(LOOKUP, prompt=np.ones((2, 3), int)))
    for prompt in ([[1, 2], [3]], [1, 2], [[]], "text"):
        with pytest.raises(InputError, match="prompt"):
            jspec.trace(**ask(LOOKUP, prompt=prompt))
    with pytest.raises(InputError, match="sampling needs a key"):
        jspec.trace(**ask(LOOKUP, HOT, key=None))
    padded = jspec.trace(
        **ask(DRAFTERS["budget"], prompt=np.pad(PROMPT, ((0, 0), (0, 3))), prompt_lengths=8)
    )
    assert padded.prompt.tolist() == PROMPT[0].tolist()
    assert padded.tokens.tolist() == traced("budget").tokens.tolist()


def test_names_are_told_apart():
    twins = jspec.merge(jspec.Suffix(num_speculative_tokens=2), jspec.merge(LOOKUP, SUFFIX))
    assert origins.names(twins) == ("Suffix", "PromptLookup", "Suffix 2")
