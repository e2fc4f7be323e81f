"""`jspec.LLM`: texts or tokens in, the tokens of `jspec.decode` out, and their texts."""

import numpy as np
import pytest
import refusals

import jspec
from jspec.models import Loaded
from jspec.models.detokenise import Detokeniser
from jspec.testing import PrefixLM

PROMPTS = ["Once upon a time", "The"]
ASK = dict(max_new_tokens=12)


@pytest.fixture(scope="module")
def llm():
    return jspec.LLM("jspec-800k", "prompt_lookup", num_speculative_tokens=3)


def test_texts_are_those_of_the_tokens_of_decode(llm):
    tokenizer = llm.target.tokenizer
    answer = llm.decode(PROMPTS, **ASK)
    tokens = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    stopping = jspec.Stopping(eos=llm.target.eos)
    want = jspec.decode(llm.model, llm.params, tokens, stopping=stopping, **llm.drafting, **ASK)
    assert answer.result == want
    assert answer.texts == [
        Detokeniser(tokenizer, prompt).finish(row[:length].tolist())
        for prompt, row, length in zip(tokens, np.asarray(want.tokens), want.lengths, strict=True)
    ]
    # Tokens are taken as they are, padded or not, and without the end tokens of the checkpoint.
    padded, lengths = np.zeros((2, 9), int), [len(prompt) for prompt in tokens]
    for row, prompt in zip(padded, tokens, strict=True):
        row[: len(prompt)] = prompt
    again = llm.decode(padded, prompt_lengths=lengths, **ASK)
    assert again.texts == answer.texts
    assert repr(answer) == f"Completions({answer.texts!r})" and repr(llm).startswith(
        "LLM(Llama, Pro"
    )
    for prompt in (tokens[0], np.array(tokens[0])):
        assert llm.decode(prompt, **ASK).texts == answer.texts[:1]
    with pytest.raises(jspec.InputError, match="which is not UTF-8"):
        llm.decode("\udc80")
    first = int(want.tokens[0, 0])
    ended = jspec.Request(eos=[first]), jspec.Request(eos=())
    assert [int(llm.decode(tokens, one, **ASK).result.lengths[0]) for one in ended] == [1, 12]


def test_a_stream_joins_to_the_texts_and_both_end_before_a_stop_string(llm):
    whole = llm.decode(PROMPTS, **ASK).texts
    for stop in (None, whole[0][4:9]):
        asked = ASK | dict(stopping=jspec.Stopping(stop=stop))
        answer = llm.decode(PROMPTS, **asked)
        pieces = [chunk.texts for chunk in llm.stream(PROMPTS, **asked)]
        assert ["".join(row) for row in zip(*pieces, strict=True)] == answer.texts
        assert answer.texts[0] == (whole[0] if stop is None else whole[0][:4])


def test_the_token_that_ends_a_row_is_not_text(llm):
    """By an end token, by a stop token of the row, and by a stop string."""
    whole = llm.decode(PROMPTS, **ASK)
    third = np.asarray(whole.result.tokens)[:, 2]
    firsts = llm.decode(PROMPTS, max_new_tokens=2).texts
    for stopping in (
        jspec.Stopping(eos=third.tolist()),
        jspec.Stopping(eos=(), stop_token_ids=third[:, None]),
    ):
        asked = dict(max_new_tokens=3, stopping=stopping)
        answer = llm.decode(PROMPTS, **asked)
        assert answer.texts == firsts and np.asarray(answer.result.lengths).tolist() == [3, 3]
        pieces = [chunk.texts for chunk in llm.stream(PROMPTS, **asked)]
        assert ["".join(row) for row in zip(*pieces, strict=True)] == firsts


def test_a_model_of_ones_own_has_tokens_alone():
    model = PrefixLM()
    lookup = jspec.PromptLookup(num_speculative_tokens=2)
    llm = jspec.LLM(Loaded(model, model.init()), drafter=lookup)
    prompt = [[1, 2, 1, 2, 1]]
    answer = llm.decode(prompt, max_new_tokens=6)
    streamed = list(llm.stream(prompt, max_new_tokens=6))
    told = [token for chunk in streamed for token in chunk.tokens[0]]
    assert told == answer.result.tokens[0].tolist() and streamed[0].texts is None
    refusals.check([
        (lambda: answer.texts, "there is no tokenizer to make texts of"),
        (lambda: llm.decode("a"), "prompts is text and the target was loaded without a tokenizer"),
        (
            lambda: llm.decode(prompt, stopping=jspec.Stopping(stop=["a"])),
            "stop is text and the target was loaded without a tokenizer",
        ),
        (lambda: llm.decode(prompt, stopping=5), "stopping is 5; pass jspec.Stopping"),
        (lambda: llm.decode(prompt, [5]), r"request is \[5\]; pass a jspec.Request"),
    ])  # fmt: skip


def test_rows_of_an_engine_need_no_weights_and_no_end_tokens():
    model, prompt = PrefixLM(), [1, 2, 1, 2, 1]
    own = dict(drafter=jspec.PromptLookup(2))
    whole = jspec.LLM(Loaded(model, model.init()), **own).decode([prompt], max_new_tokens=9)
    third = int(whole.result.tokens[0, 2])
    llm = jspec.LLM(Loaded(model, model.init(), None, eos=(third,)), **own)
    engine = llm.engine(num_slots=1, capacity=16)
    assert sum(engine.memory().values()) > 0
    state = engine.init()
    for eos, length in ((None, 3), ((), 9)):
        arrival = engine.prefill(prompt, jspec.Request(max_tokens=9, eos=eos))
        state = engine.insert(state, 0, arrival)
        state, output = engine.generate(state, rounds=9)
        assert int(output.counts[0]) == length
        np.testing.assert_array_equal(output.tokens[0, :length], whole.result.tokens[0, :length])
        state = engine.free(state, 0)


def test_what_is_given_goes_before_what_the_method_finds():
    policy, costs = jspec.Adaptive((0, 2)), jspec.CostCurve.of({1: 1.0, 3: 1.0})
    model = PrefixLM()
    target = Loaded(model, model.init())
    asked = jspec.LLM(target, "prompt_lookup", num_speculative_tokens=3, policy=policy)
    assert (asked.drafter.num_speculative_tokens, asked.policy) == (3, policy)
    guess = jspec.costs.prior(target.params)
    np.testing.assert_array_equal(asked.policy_params.seconds, guess.seconds)
    for own in (dict(policy=policy), dict(widths=(0, 2))):
        told = jspec.LLM(target, "prompt_lookup", policy_params=costs, **own)
        assert (told.policy, told.policy_params) == (policy, costs)


def test_what_does_not_go_together_is_refused(llm):
    lookup = jspec.PromptLookup()
    drafts = jspec.schemes.RECURSIVE
    drawn = jspec.SpeculativeDecoding(llm.model, scheme=drafts)
    refusals.check([
        (lambda: jspec.LLM(llm.target, lookup), "method is PromptLookup.*; pass a name of"),
        (
            lambda: jspec.LLM(llm.target, "suffix", drafter=lookup),
            "drafter and method were both given; leave one out",
        ),
        (
            lambda: jspec.LLM(llm.target, drafter=lookup, widths=(0, 2)),
            "drafter and widths were both given",
        ),
        (
            lambda: jspec.LLM(llm.target, drafter=lookup, draft="jspec-800k"),
            "drafter and draft were both given",
        ),
        (lambda: jspec.LLM(llm.target, drafter=drawn, policy=jspec.Adaptive((0, 2))), "a verifier"),
        (lambda: jspec.LLM(llm.target, drafter=jspec.PromptLookup), "drafter is"),
    ])  # fmt: skip
    with pytest.raises(AttributeError, match=r"build is gone; use jspec.LLM\(model, method"):
        jspec.methods.build("suffix", llm.target)


def test_a_failed_row_is_raised_with_its_status_and_a_fix():
    model = PrefixLM(context=8)
    ask = dict(model=model, params=model.init(), max_new_tokens=6)
    jspec.decode(**ask, prompt=[[1, 2], [3, 4]]).raise_if_failed()
    full = jspec.decode(**ask, prompt=[[1, 2, 3, 0], [3, 4, 5, 1]], prompt_lengths=[2, 4])
    with pytest.raises(jspec.DecodeError, match=r"row 1 ended with CAPACITY after 5 .*; shorten"):
        full.raise_if_failed()
