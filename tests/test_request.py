"""A request's fields have the effect of the arguments of the same names, row by row."""

import jax
import numpy as np
import refusals

import jspec
from jspec import processors
from jspec.processors import grammar
from jspec.testing.prefix_lm import PrefixLM

MODEL = PrefixLM()
PARAMS = MODEL.init()
PROMPTS = [[1, 2, 3], [4, 5], [6]]
LETTERS = [bytes([97 + token]) for token in range(22)] + [None]


def decode(request, **more):
    return jspec.decode(MODEL, PARAMS, PROMPTS, request=request, max_new_tokens=8, **more)


def test_one_for_all_rows_is_the_call_with_arguments():
    ask = jspec.Request(
        max_tokens=6, min_tokens=2, eos=22, stop_token_ids=0, temperature=0.9, top_k=9, top_p=0.95,
        min_p=0.01, seed=5, repetition_penalty=2.0, frequency_penalty=0.3, presence_penalty=0.1,
        logit_bias={3: 4.0}, processors=[processors.banned_tokens([7])], logprobs=2,
    )  # fmt: skip
    wanted = jspec.decode(
        MODEL, PARAMS, PROMPTS, max_new_tokens=8, key=5,
        stopping=jspec.Stopping(max_tokens=6, min_tokens=2, eos=22, stop_token_ids=0),
        sampling=jspec.Sampling(0.9, 9, 0.95, 0.01),
        processors=[
            # In vLLM's order.
            processors.logit_bias({3: 4.0}), processors.repetition_penalty(2.0),
            processors.frequency_penalty(0.3), processors.presence_penalty(0.1),
            processors.banned_tokens([7]), processors.logprobs(2),
        ],
    )  # fmt: skip
    found = decode(ask)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_array_equal(found.status, wanted.status)
    np.testing.assert_array_equal(found.logprobs.top_tokens, wanted.logprobs.top_tokens)
    other = decode(jspec.Request(max_tokens=6, temperature=0.9, seed=6))
    assert (other.tokens != wanted.tokens).any()


def test_vllms_way_to_leave_a_filter_out():
    assert jspec.Request(top_k=-1) == jspec.Request(top_k=0)


def test_each_row_has_its_own():
    """Also the limit of the output where a row names none, and a seed."""
    asks = [
        jspec.Request(max_tokens=3),
        jspec.Request(temperature=1.0, seed=2, row_id=4, logprobs=0),
        jspec.Request(grammar=grammar.choices(["ab"], LETTERS), eos=22, temperature=1.0, seed=1),
    ]
    found = decode(asks)
    assert found.lengths.tolist() == [3, 8, 3]
    assert found.tokens[2, :2].tolist() == [0, 1]
    alone = jspec.decode(
        MODEL, PARAMS, PROMPTS[1:2], max_new_tokens=8, sampling=jspec.Sampling(), key=2, row_ids=[4]
    )
    np.testing.assert_array_equal(found.tokens[1], alone.tokens[0])
    assert (found.logprobs.token_logprobs[1] != 0).all()
    # A row that names no limit has the same alone and beside a longer one.
    none, longer = jspec.Request(), jspec.Request(max_tokens=130)
    open_ended = PrefixLM(context=None)
    ends = jspec.decode(open_ended, open_ended.init(), PROMPTS[:2], request=[none, longer])
    assert ends.lengths.tolist() == [128, 130] and ends.tokens.shape == (2, 130)


def test_the_id_of_one_for_all_rows_is_the_first_rows():
    ask = jspec.Request(temperature=1.0, seed=2, row_id=4, eos=np.array([22]))
    wanted = jspec.decode(
        MODEL, PARAMS, PROMPTS, max_new_tokens=8, sampling=jspec.Sampling(), key=2,
        row_ids=[4, 5, 6], stopping=jspec.Stopping(eos=[22]),
    )  # fmt: skip
    np.testing.assert_array_equal(decode(ask).tokens, wanted.tokens)
    assert (decode(jspec.Request(temperature=1.0, seed=2)).tokens != wanted.tokens).any()


def test_end_tokens_of_both_kinds_may_be_traced():
    def stops(tokens):
        stopping = jspec.Stopping(stop_token_ids=tokens)
        return jspec.decode(
            MODEL, PARAMS, np.array([[1, 2, 3]]), max_new_tokens=8, stopping=stopping
        )

    token = int(stops([22]).tokens[0, 2])
    assert jax.jit(stops)(np.array([token])).status.tolist() == [int(jspec.Status.STOP)]


def test_bad_fields_are_one_sentence():
    wide = jspec.testing.PrefixLM(vocab_size=100)
    few = grammar.choices(["a"], [b"a", b"b", None])
    refusals.check([
        (lambda: jspec.Request(top_k=None), "top_k is None; pass an integer"),
        (lambda: jspec.Request(stop_token_ids=None), "stop_token_ids is None; pass token ids"),
        (lambda: jspec.Request(seed="x"), "seed is 'x'; pass an integer or a random key"),
        (lambda: jspec.Request(logprobs_mode="x"), "logprobs_mode is 'x'; pass one of raw_log"),
        (lambda: jspec.Request(logit_bias={-1: 1.0}), "logit_bias: a token is -1; pass an int"),
        (lambda: jspec.Request(logit_bias={1: "a"}), "logit_bias of token 1 is 'a'; pass a num"),
        (lambda: jspec.Room(stop=5), r"stop is 5; pass jspec.grammar.Capacity\(states, classes\)"),
        (lambda: jspec.Room(logprobs=-1), "logprobs is -1; pass an integer"),
        (
            lambda: decode(jspec.Request(processors=[processors.logprobs(1)])),
            "these are the fields logprobs and grammar",
        ),
        (
            lambda: jspec.decode(
                wide, wide.init(), PROMPTS, request=jspec.Request(grammar=few, eos=2),
                max_new_tokens=4,
            ),
            "were made of 3 tokens and the model has 100; make them of the model's own tokenizer",
        ),
        (lambda: decode(jspec.Request(grammar=few)), "eos=.. of jspec.Request or Stopping"),
        *(
            (lambda p=p: jspec.decode(MODEL, PARAMS, p, request=jspec.Request()), "prompt")
            for p in ([], None, 5)
        ),
        (lambda: jspec.finish(MODEL, PARAMS, 5), "state is 5; pass what jspec.prefill or"),
        (lambda: jspec.Request(temperature=-1), "temperature is -1; pass a number x with 0 <= x"),
        (lambda: jspec.Request(temperature=0.5), "temperature is 0.5 and seed is None; pass a se"),
        (lambda: jspec.Request(top_p=float("nan")), "top_p is nan; pass a number"),
        (lambda: jspec.Request(top_k=1.5), "top_k is 1.5; pass an integer"),
        (lambda: jspec.Request(eos="a"), "eos: a token is 'a'; pass an integer"),
        (lambda: jspec.Request(stop_token_ids=1.5), "stop_token_ids is 1.5; pass token ids"),
        (lambda: jspec.Request(logit_bias=[3]), r"logit_bias is \[3\]; pass a mapping"),
        (lambda: decode(3), "request is 3; pass a jspec.Request, or a list"),
        (lambda: decode([jspec.Request()]), "request has 1 entries and the prompt 3 rows"),
        (lambda: decode([]), "request has 0 entries and the prompt 3 rows"),
        (lambda: decode(jspec.Request(max_tokens=9)), "max_tokens"),
        (lambda: jspec.Request(stop=np.array([1, 2])), "stop is array.*, an array"),
        (lambda: jspec.Request(processors=np.array([])), "processors is array.*, an array"),
        (lambda: decode(jspec.Request(stop="a")), "stop is 'a'; pass jspec.stop_strings"),
        (lambda: decode(jspec.Request(grammar="a")), "grammar is 'a'; pass what jspec.grammar"),
        (lambda: decode(jspec.Request(processors=[5])), r"processors is \[5\]; pass a list of"),
        (lambda: decode(jspec.Request(), key=3), "request came with key, which it has fields for"),
        (
            lambda: decode(
                [jspec.Request(logprobs=1, logprobs_mode=mode) for mode in ("raw_logprobs",) * 2]
                + [jspec.Request(logprobs=1, logprobs_mode="processed_logprobs")]
            ),
            "logprobs_mode is processed_logprobs and raw_logprobs; pass one for all",
        ),
    ])  # fmt: skip
