"""Stop strings and stop tokens: the end of a row, and its remaining text; names of tokens."""

import jax
import numpy as np
import pytest
import refusals
import tables
from quick import only

import jspec
from jspec.processors.grammar import stops
from jspec.processors.grammar.spelling import TokenBytes
from jspec.processors.grammar.stops import stop_strings
from jspec.testing import PrefixLM
from jspec.types import Status

# Tokens that begin and end anywhere; the last three have no text, and two of them names.
TEXTS = [*"abcd", "ab", "bc", "cd", "bca", "dab", "abcd", "aa", "cc", "é", "\n", "\n\n"]
NAMES = {len(TEXTS) + 2: b"<e>", len(TEXTS) + 3: b"<i>"}
TOKENS = TokenBytes([*(text.encode() for text in TEXTS), b"\xc3", b"\xa9", None, None, None], NAMES)
SIZE, LIMIT, ROWS = len(TOKENS), 14, 4
EOS = SIZE - 1
MODEL = tables.Table(SIZE, context=64)
PROBS = tables.distributions(np.random.default_rng(3), 1, SIZE, 1)
WEIGHTS = tables.logits(PROBS)
DRAFTER = jspec.PromptLookup(num_speculative_tokens=3, whole=False)
CALL = dict(
    prompt=[[0], [1], [2], [3]], max_new_tokens=LIMIT, drafter=DRAFTER,
    stopping=jspec.Stopping(eos=EOS), key=0,
    sampling=jspec.Sampling(temperature=np.array([0.0, 1.0, 1.5, 1.0])),
)  # fmt: skip


def cut(tokens, strings, least=0):
    """vLLM's rule: (kept tokens, bytes of their text that are cut, stopped)."""
    strings = [string.encode() for string in strings]
    named = {n: name for n, name in NAMES.items() if any(name in s for s in strings)}
    text, shown = b"", []
    for count, token in enumerate(tokens, 1):
        before, name = len(text), named.get(token, b"")
        text += TOKENS[token] or name
        shown += [not name] * (len(text) - before)  # a name is no text
        found = [
            (place + len(string), -len(string), place)
            for string in strings
            for place in range(len(text))
            if text.startswith(string, place) and place + len(string) > before
        ]
        if found and count > least:
            return tokens[:count], sum(shown[min(found)[2] :]), True
    return tokens, 0, False


def free(**options):
    return jspec.decode(MODEL, WEIGHTS, **CALL | options)


def asking(stop, **ends):
    stopping = jspec.Stopping(eos=EOS, stop=stop, **ends)
    return CALL | dict(stopping=stopping, processors=jspec.processors.logprobs(2))


NONE, LATE = np.zeros(ROWS, int), np.array([0, 2, 4, 7])
CASES = {
    "one": (["ca"], NONE),
    "borders": (["bcda", "dd"], NONE),
    "nested": (["abc", "c", "bcab"], NONE),
    "overlap": (["aab", "ba"], NONE),
    "bytes": (["é", "\n\n\n"], NONE),
    "names": (["<i>", "<e>", "a<e>", "cc"], LATE),
    "late": (["ab", "bc", "a"], LATE),
}


# Automata of another size compile once more.
@pytest.mark.parametrize("name", only(CASES, "bytes", "names"))
def test_the_output_ends_with_the_first_stop_string_behind_min_tokens(name):
    strings, least = CASES[name]
    stopped = 0
    for key in range(3):
        whole, found = (
            jspec.decode(MODEL, WEIGHTS, **asking(stop, min_tokens=least) | dict(key=key))
            for stop in (_NEVER, stop_strings(strings, TOKENS))
        )
        for row in range(ROWS):
            count, plain = int(found.lengths[row]), int(whole.lengths[row])
            kept, beyond, stops = cut(whole.tokens[row, :plain].tolist(), strings, least[row])
            assert found.tokens[row, :count].tolist() == kept
            assert int(found.stop_bytes[row]) == beyond
            status = Status.STOP if stops else int(whole.status[row])
            assert int(found.status[row]) == status
            assert not found.tokens[row, count:].any()
            assert not found.logprobs.token_logprobs[row, count:].any()
            assert not found.logprobs.top_logprobs[row, count:].any()
            np.testing.assert_array_equal(
                found.logprobs.token_logprobs[row, :count],
                whole.logprobs.token_logprobs[row, :count],
            )
            stopped += stops
    assert stopped > 1


_NEVER = stop_strings("dcbabcdadcb", TOKENS)


def test_a_stream_holds_back_what_may_become_a_stop_string():
    """Its texts never have a byte of one, and hold back none that can no longer be of one."""
    strings = ["bcda", "aab", "cab"]
    made = stop_strings(strings, TOKENS)
    begun = [string[:size] for string in strings for size in range(1, len(string))]
    stopped = 0
    for key in range(6):
        call = asking(made) | dict(key=key)
        whole = jspec.decode(MODEL, WEIGHTS, **call)
        rows, texts = [[] for _ in range(ROWS)], [b""] * ROWS
        for chunk in jspec.stream(MODEL, WEIGHTS, **call):
            held = chunk.state.stop_bytes.tolist()
            for row, tokens in enumerate(chunk.tokens):
                rows[row] += tokens
                assert len(chunk.drafted[row]) == len(tokens)
                texts[row] += b"".join(TOKENS[token] or b"" for token in tokens)
                if chunk.state.status[row] == Status.RUNNING:
                    ends = [len(s) for s in begun if texts[row].endswith(s.encode())]
                    assert held[row] == max(ends, default=0)
        for row in range(ROWS):
            assert rows[row] == whole.tokens[row, : whole.lengths[row]].tolist()
            assert held[row] == cut(rows[row], strings)[1]
        stopped += int((whole.status == Status.STOP).sum())
    assert stopped > 4


def test_a_stop_comes_before_a_limit():
    """The token that completes it is the last that the limit allows."""
    long = jspec.decode(MODEL, WEIGHTS, **asking(_NEVER))
    row = next(row for row in range(ROWS) if max(long.tokens[row, :3].tolist()) < len(TEXTS))
    text = "".join(TEXTS[token] for token in long.tokens[row, :3].tolist())
    limits, stop = np.full(ROWS, LIMIT), [None] * ROWS
    limits[row], stop[row] = 3, stop_strings(text, TOKENS)
    asks = [
        jspec.Request(
            eos=EOS, temperature=t, seed=0, row_id=n, max_tokens=limits[n], stop=stop[n], logprobs=2
        )
        for n, t in enumerate(CALL["sampling"].temperature)
    ]  # fmt: skip
    found = jspec.decode(
        MODEL, WEIGHTS, CALL["prompt"], request=asks, max_new_tokens=LIMIT, drafter=DRAFTER
    )
    assert found.status[row] == Status.STOP and int(found.stop_bytes[row]) == len(text)
    others = [other for other in range(ROWS) if other != row]
    assert found.tokens[np.array(others)].tolist() == long.tokens[np.array(others)].tolist()


def test_stop_tokens_end_a_row():
    whole = jspec.decode(MODEL, WEIGHTS, **asking(_NEVER))
    third = [int(row[2]) for row in whole.tokens]
    ends = dict(max_tokens=[14, 14, 3, 14], stop_token_ids=np.array(third)[:, None])
    found = free(stopping=jspec.Stopping(eos=EOS, **ends))
    for row in range(ROWS):
        first = whole.tokens[row].tolist().index(third[row]) + 1
        assert found.status[row] == (Status.EOS if third[row] == EOS else Status.STOP)
        assert int(found.lengths[row]) == first
        assert found.tokens[row, :first].tolist() == whole.tokens[row, :first].tolist()


def test_invalid_values_are_refused():
    refusals.check([
        (lambda: stop_strings("", TOKENS), "a stop string is ''; pass text of 1"),
        (lambda: stop_strings([], TOKENS), "there are no stop strings"),
        (lambda: stop_strings(None, TOKENS), "there are no stop strings"),
        (lambda: stop_strings([3], TOKENS), "a stop string is 3"),
        (lambda: stop_strings("\ud800", TOKENS), "which is not UTF-8"),
        (lambda: stop_strings("a", "letters"), "tokenizer is 'letters'; pass a tokenizers.Tokeniz"),
        (lambda: stop_strings("a", ["a"]), "the vocabulary has 'a'; pass the bytes of each token"),
        (lambda: free(processors="a"), "processors is 'a'; pass what jspec.processors"),
        (lambda: free(stopping=jspec.Stopping(stop=["a"])), "stop is .*; pass jspec.stop_strings"),
        (lambda: free(stopping=3), "stopping is 3; pass jspec.Stopping"),
        (
            lambda: free(stopping=jspec.Stopping(stop_token_ids=SIZE)),
            f"stop_token_ids holds {SIZE}, outside the vocabulary",
        ),
    ])  # fmt: skip


def test_nothing_is_kept_where_nothing_is_asked_for():
    state = jax.eval_shape(lambda: jspec.prefill(MODEL, WEIGHTS, [[1]], max_new_tokens=3))
    assert state.processors == () and state.controls.stop_token_ids is None


def test_long_stop_strings_are_refused_before_their_automaton_is_built(monkeypatch):
    def built(*_, **__):
        raise AssertionError("tokens were read")

    fits = stop_strings(["ab" * 40, "cd"], TOKENS, max_states=400)
    assert stop_strings(["ab" * 40, "cd"], TOKENS, max_states=len(fits.automaton.table))
    monkeypatch.setattr(stops, "read_tokens", built)
    long = ["abcd" * 1000, "cdab" * 1000]
    with pytest.raises(jspec.InputError, match="more than 512 states; make them shorter, or raise"):
        stop_strings(long, TOKENS, max_states=512)


@pytest.mark.parametrize("drafter", [jspec.Autoregressive(), jspec.JumpForward(2)])
def test_a_row_that_ends_without_a_token_holds_nothing_back(drafter):
    """The grammar is through and the fewest tokens are not: no token is left."""
    model, tokens = PrefixLM(vocab_size=4), [None, b"a", b"b", b"c"]
    ask = jspec.Request(
        grammar=jspec.grammar.choices(["a"], tokens), eos=0, min_tokens=3,
        stop=stop_strings(["ab"], tokens), max_tokens=8,
    )  # fmt: skip
    found = jspec.decode(model, model.init(), [[1, 2]], request=ask, drafter=drafter)
    assert found.status[0] == Status.MASKED and found.tokens[0, :1].tolist() == [1]
    assert found.stop_bytes.tolist() == [0]
