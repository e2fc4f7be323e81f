"""`jspec generate` with what may be written, and where it ends."""

import json

import numpy as np
import pytest

import jspec
import jspec.models
from jspec.sessions.answer_form import AnswerForm


@pytest.fixture
def records(command, folder):
    def run(*arguments):
        ran = command(
            "generate", "--json", "--model", folder, "--max-new-tokens", 12,
            "--method", "prompt_lookup", *arguments,
        )  # fmt: skip
        assert ran.code == 0 and ran.err == "", ran.err
        return [json.loads(line) for line in ran.out.splitlines()]

    return run


@pytest.mark.slow
def test_all_of_it_reaches_decode(records, folder):
    loaded = jspec.models.load(folder)
    (record,) = records(
        "Once upon", "--repetition-penalty", 1.3, "--logit-bias", '{"5": 1.5}', "--min-tokens", 3,
        "--logprobs", 2, "--choice", "She said", "--choice", "She slept",
    )  # fmt: skip
    processors = [jspec.processors.repetition_penalty(1.3), jspec.processors.logit_bias({5: 1.5})]
    want = jspec.decode(
        loaded.model, loaded.params, [loaded.tokenizer.encode("Once upon").ids],
        stopping=jspec.Stopping(min_tokens=3, eos=loaded.eos),
        max_new_tokens=12, drafter=jspec.JumpForward(),
        processors=[
            *processors, jspec.grammar.choices(["She said", "She slept"], loaded.tokenizer),
            jspec.processors.logprobs(2),
        ],
    )  # fmt: skip
    assert record["tokens"] == want.tokens[0, : want.lengths[0]].tolist()
    assert record["text"] in ("She said", "She slept") and record["finish_reason"] == "stop"
    # What the form forces is drafted.
    assert record["metrics"]["num_rounds"] < len(record["tokens"])
    found = [one["logprob"] for one in record["logprobs"]]
    np.testing.assert_allclose(found, want.logprobs.token_logprobs[0, : len(found)], atol=1e-5)
    assert all(len(one["top_logprobs"]) == 2 for one in record["logprobs"])
    # Several answers draw anew.
    found = records("Once upon", "-n", 3, "--temperature", 1.2)
    assert len({tuple(record["tokens"]) for record in found}) == 3
    clock = {"seconds": 0, "first_token_seconds": 0}
    assert found[0] | clock == records("Once upon", "--temperature", 1.2)[0] | clock


def test_the_text_ends_before_a_stop_string(records):
    (whole,) = records("Once upon", "--ignore-eos")
    middle = len(whole["text"]) // 2
    stop = whole["text"][middle : middle + 3]
    place = whole["text"].index(stop)
    (cut,) = records("Once upon", "--ignore-eos", "--stop", stop)
    assert cut["text"] == whole["text"][:place] and cut["finish_reason"] == "stop"


def test_half_a_surrogate_pair_in_a_schema_is_not_a_letter():
    for text in ('{"enum": ["a\udcff"]}', '{"enum": ["a\\uD83d"]}'):
        schema = json.loads(AnswerForm(json_schema=text)._schema())
        assert schema == {"enum": ["a\N{REPLACEMENT CHARACTER}"]}
    whole = '{"enum":  ["\\ud83d\\ude00"]}'
    assert AnswerForm(json_schema=whole)._schema() == whole
