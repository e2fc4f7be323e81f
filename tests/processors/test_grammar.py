"""Grammars in the loop by their definition: a token is allowed if some text goes on with it."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import refusals
import tables
import tiny

import jspec
from jspec.processors.grammar import automaton, masks
from jspec.processors.grammar import compile as grammars
from jspec.processors.grammar.compile import END, choices, json_schema, regex
from jspec.processors.grammar.thoughts import behind
from jspec.types import Status

# Tokens that begin and end anywhere; the last three have no text.
TEXTS = [*"abcd", "ab", "bc", "cd", "abc", "dab", "bcd", "aa", "cc", "abcd", "d d", " ", "dd"]
TOKENS = [text.encode() for text in TEXTS] + [None] * 7
SIZE, LIMIT, EOS = len(TOKENS), 12, 22
MODEL = tables.Table(SIZE, context=64)
WEIGHTS = tables.logits(tables.distributions(np.random.default_rng(7), 1, SIZE, 2))
LISTS = [["abcd", "abc", "ba", "ccda"], ["d", "dddddddd"], ["aab" * 4, "aab" * 3 + "cd"]]
GRAMMARS = [choices(texts, TOKENS) for texts in LISTS]
DRAFTER = jspec.merge(
    jspec.JumpForward(num_speculative_tokens=3),
    jspec.TokenRecycling(SIZE, jspec.tree.branching([2, 1])),
)
TEMPERATURES = np.array([0.0, 0.8, 1.5])
CALL = dict(
    prompt=tiny.PROMPTS, prompt_lengths=tiny.LENGTHS, max_new_tokens=LIMIT,
    stopping=jspec.Stopping(eos=EOS), key=2,
    sampling=jspec.Sampling(temperature=TEMPERATURES),
)  # fmt: skip


def ask(grammars):
    """The same call for rows with a grammar each, or none."""
    asks = [
        jspec.Request(eos=EOS, temperature=t, seed=2, row_id=row, grammar=grammars[row])
        for row, t in enumerate(TEMPERATURES.tolist())
    ]
    texts = dict(prompt=tiny.PROMPTS, prompt_lengths=tiny.LENGTHS)
    return dict(**texts, max_new_tokens=LIMIT, request=asks)


def on_device(made):
    return jax.tree.map(jnp.asarray, masks.Grammar.prepare([made], SIZE, np.array([[EOS]])))


def of_nodes(grammars, tree):
    return masks.of_nodes(grammars.automata, grammars.rows.states, tree, np.array([[EOS, -1]]))


def next_logits(text):
    return WEIGHTS[0][tuple([0, *text][-2:])]


def check(result, grammars, **other):
    for row, length in enumerate(tiny.LENGTHS):
        texts = grammars[row]

        def process(logits, prompt, output, texts=texts):
            if texts is None:
                return logits
            return oracle.grammar(logits, output, TOKENS, {text.encode() for text in texts}, [EOS])

        want, _ = oracle.plain(
            next_logits, process, tables.chooser(TEMPERATURES[row], 2, row, SIZE),
            tiny.PROMPTS[row, :length].tolist(), LIMIT, [EOS],
        )  # fmt: skip
        assert result.tokens[row, : result.lengths[row]].tolist() == want
        if result.status[row] == Status.EOS and texts is not None:
            text = b"".join(TOKENS[token] for token in want[:-1]).decode()
            assert text in texts


def test_tokens_are_those_of_plain_decoding_under_the_mask():
    """A grammar of its own for each row, and none in one of them: one program."""
    for turn in range(3):
        order = [(row + turn) % 3 for row in range(3)]
        texts = [None if place == 2 else LISTS[place] for place in order]
        given = [None if place == 2 else GRAMMARS[place] for place in order]
        result = jspec.decode(MODEL, WEIGHTS, **ask(given), drafter=DRAFTER)
        check(result, texts)
        assert int(result.stats.num_accepted_tokens.sum()) > 0


def test_a_node_has_the_state_of_its_own_path():
    """The negative control too: a node's mask is not its parent's."""
    grammars = on_device(GRAMMARS[0])
    tree = jspec.tree.chain(3).fill(np.array([[0, 0, 5, 3]]))  # root, a, bc, d
    states, allowed = of_nodes(grammars, tree)
    logits = np.zeros((1, 4, SIZE), np.float32)
    found = np.asarray(masks.mask_logits(grammars.automata, states, logits, np.array([[EOS, -1]])))
    assert allowed.all()
    known = {text.encode() for text in LISTS[0]}
    for node, output in enumerate([[], [0], [0, 5], [0, 5, 3]]):
        want = oracle.grammar(logits[0, node], output, TOKENS, known, [EOS])
        np.testing.assert_array_equal(found[0, node], want)
    assert (found[0, 0] != found[0, 1]).any() and (found[0, 1] != found[0, 2]).any()
    wrong = tree.replace(tokens=np.array([[0, 0, 6, 3]]))  # "acd" is nowhere
    _, allowed = of_nodes(grammars, wrong)
    assert allowed.tolist() == [[True, True, False, False]]


def test_a_program_does_not_grow_with_the_depth_of_its_trees():
    """Unrolled look-ups of look-ups compiled without end where trees were 16 levels deep."""

    def operations(depth, *processors):
        call = CALL | dict(drafter=jspec.JumpForward(depth), processors=processors)
        program = jax.make_jaxpr(lambda weights: jspec.decode(MODEL, weights, **call).tokens)
        return str(program(WEIGHTS)).count(" = ")

    members = GRAMMARS[0], jspec.stop_strings(["abc", "dd"], TOKENS)
    shallow, deep = (operations(depth, *members) - operations(depth) for depth in (4, 24))
    assert 0 < deep <= shallow + 20, "one step of path a level, and nothing else"


def test_the_longest_tokens_of_a_forced_text_are_drafted():
    made = choices(["abcd", "abca"], TOKENS)
    assert made.forced[0] == TEXTS.index("abc")
    after = made.automaton.table[0, made.automaton.classes[TEXTS.index("abc")]]
    assert made.forced[after] == -1
    end = made.automaton.table[after, made.automaton.classes[3]]
    assert made.forced[end] == END and made.accepting[end]


def test_classes_have_the_columns_of_their_tokens():
    """The table against a walk of every token from every state, byte by byte."""
    rng = np.random.default_rng(0)
    step = np.where(rng.uniform(size=(9, 256)) < 0.4, rng.integers(0, 9, (9, 256)), -1)
    tokens = [bytes(rng.integers(0, 4, rng.integers(1, 4)).tolist()) for _ in range(200)] + [None]
    made = automaton.read_tokens(step, tokens, "it", automaton.Bounds())
    number = {origin: state for state, origin in enumerate(made.origins.tolist())}
    for state, origin in enumerate(made.origins.tolist()):
        for token, text in enumerate(tokens):
            at = origin if text else -1
            for byte in text or b"":
                at = step[at, byte] if at >= 0 else -1
            want = number[int(at)] if at >= 0 else -1
            assert made.table[state, made.classes[token]] == want
    assert made.table.shape[1] < len(set(tokens))


def test_invalid_values_are_refused():
    refusals.check([
        (lambda: choices([], TOKENS), r"the choices are \[\]; pass a list of at least one"),
        (lambda: choices("ab", TOKENS), "the choices are 'ab'; pass a list"),
        (lambda: choices([""], TOKENS), "a choice is ''; pass text"),
        (lambda: choices(["\ud800"], TOKENS), "a choice is '.ud800', which is not UTF-8"),
        (lambda: choices(["xyz"], TOKENS), "can be written with no tokens of this vocabulary"),
        (lambda: choices(["abab" * 9], TOKENS, max_states=5), "has more than 5 states"),
        (lambda: choices(["ab"], TOKENS, max_megabytes=0), "4 classes of tokens, 0 MB, and at m"),
        (lambda: json_schema("{", TOKENS), "is not JSON"),
        (lambda: json_schema("[]", TOKENS), "pass an object"),
        (lambda: regex(3, TOKENS), "the regular expression is 3; pass text"),
        (
            lambda: jspec.decode(MODEL, WEIGHTS, [[1]], max_new_tokens=4, processors=GRAMMARS[0]),
            "row 0 has a grammar and no end token",
        ),
        (
            lambda: jspec.decode(MODEL, WEIGHTS, [[1]], max_new_tokens=4,
            stopping=jspec.Stopping(eos=22), processors="a|b"),
            r"processors is 'a\|b'; pass what jspec.processors and jspec",
        ),
    ])  # fmt: skip


needs_outlines = pytest.mark.skipif(
    not pytest.importorskip("importlib.util").find_spec("outlines_core"),
    reason="regular expressions need pip install '.[grammar]'",
)


@needs_outlines
@pytest.mark.parametrize("pattern", ["(a|bc){1,3}d?", "^a+(bd)?$", "d|[b-d]{2}|b", "(ab*c)*"])
def test_a_regular_expression_allows_what_matches_it(pattern):
    made = regex(pattern, TOKENS)
    words = {
        "".join(word)
        for size in range(8)
        for word in itertools.product("abcd", repeat=size)
        if re.fullmatch(pattern, "".join(word))
    }
    grammars = on_device(made)
    known = {word.encode() for word in words}
    logits = np.zeros((1, 1, SIZE), np.float32)
    for output in [[], [0], [5], [0, 5], [5, 0, 5], [0, 0, 0], [0, 3], [9], [7, 0], [1]]:
        if not any(word.startswith("".join(TEXTS[t] for t in output)) for word in words):
            continue
        states = grammars.rows.states
        for token in output:
            states = masks.step(grammars.automata, states, np.array([token]))
        found = masks.mask_logits(grammars.automata, states[:, None], logits, np.array([[EOS]]))
        want = oracle.grammar(logits[0, 0], output, TOKENS, known, [EOS])
        np.testing.assert_array_equal(found[0, 0], want)


@needs_outlines
def test_unreadable_or_exploding_grammars_are_refused():
    refusals.check([
        (lambda: regex("a(", TOKENS), "'a\\(' has a parenthesis without its other one"),
        (lambda: regex("a)|(b", TOKENS), "a parenthesis without its other one"),
        (lambda: json_schema("[" * 100_000, TOKENS), "is nested too deep; make it flatter"),
        (lambda: json_schema({"a": {1, 2}}, TOKENS), "the JSON schema 'dict' is not JSON"),
        (lambda: regex("[a-d]{900}", TOKENS, max_states=99), "and at most 99 are allowed"),
        (lambda: json_schema({"type": "nonsense"}, TOKENS), "cannot be compiled"),
        (
            lambda: regex("(a|b)*a(a|b){40}", TOKENS, max_seconds=1.0),
            "explodes: its automaton took more than",
        ),
    ])  # fmt: skip


def test_large_choices_are_refused_before_their_machine_is_built(monkeypatch):
    def built(*_):
        raise AssertionError("the machine was built")

    monkeypatch.setattr(grammars, "ByteMachine", built)
    with pytest.raises(jspec.InputError, match="has more than 64 states"):
        choices(["abcd" * 100, "dcba" * 100], TOKENS, max_states=64)


# a b yes no, white space, three marks (the second reads as text too), an end token.
MARKED = [b"a", b"b", b"yes", b"no", b"\n", None, b"</t>", None, None]
OPEN, CLOSE, MESSAGE, MARKED_EOS = 5, 6, 7, 8
YES_OR_NO = choices(["yes", "no", "a"], MARKED)
FORM = "(?:2|3|0)"
THINK = OPEN, (CLOSE,), False
LEADS = [
    (THINK, rf"(?:{OPEN}[^{CLOSE}]*{CLOSE}4?)?{FORM}"),
    ((OPEN, (CLOSE,), True), rf"[^{CLOSE}]*{CLOSE}4?{FORM}"),
    # As Harmony: a channel, of which "1" is the final one, and its message.
    (
        (OPEN, (OPEN, 1, MESSAGE), False),
        rf"(?:{OPEN}(?:[^{OPEN}1][^{OPEN}]*{OPEN}|{OPEN})*1(?:[^{MESSAGE}])*{MESSAGE}4?)?{FORM}",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("lead", "pattern"), LEADS)
def test_it_reads_what_an_expression_of_tokens_says(lead, pattern):
    made, rng = behind(YES_OR_NO, lead, MARKED), np.random.default_rng(0)
    table, classes = made.automaton.table, made.automaton.classes
    right = 0
    for _ in range(4000):
        text = rng.choice([0, 1, 2, 3, 4, OPEN, OPEN, CLOSE, MESSAGE], rng.integers(1, 7)).tolist()
        state = 0
        for token in text:
            state = table[state, classes[token]] if state >= 0 else -1
        wanted = bool(re.fullmatch(pattern, "".join(map(str, text))))
        assert (state >= 0 and bool(made.accepting[state])) == wanted, text
        right += wanted
    assert right > 5
    assert behind(YES_OR_NO, None, MARKED) is YES_OR_NO
