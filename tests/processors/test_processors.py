"""Processors in trees against their definitions, position by position, in float64."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import refusals
import tables
import tiny

import jspec
from jspec import processors
from jspec.processors import history as histories
from jspec.processors import logits
from jspec.types import Status

SIZE, LIMIT, ROWS = 23, 16, 3
MODEL = tables.Table(SIZE, context=64)
WEIGHTS = tables.logits(tables.distributions(np.random.default_rng(5), 1, SIZE, 2))
MEMBERS = (
    jspec.TokenRecycling(SIZE, jspec.tree.branching([2, 1])),
    jspec.PromptLookup(num_speculative_tokens=3, whole=False),
)
TREE = jspec.merge(*MEMBERS)
NEUTRAL = dict(
    repetition=1.0, frequency=0.0, presence=0.0, bias={}, least=0, banned=[], sequences=[]
)
SETTINGS = {
    "neutral": {},
    "penalties": dict(
        repetition=np.array([1.3, 1.0, 0.8]),
        frequency=np.array([0.7, 0.4, -0.5]),
        presence=np.array([0.0, 1.1, -0.3]),
    ),
    "bias": dict(bias=[{3: 2.0, 7: -4.5}, {}, {1: 1.5}], banned=[[9], [2, 4, 6], []]),
    "sequences": dict(sequences=[[5], [3, 9], [1, 6, 1]], least=[9, 0, 4]),
}
EOS = [0, 12]


def made(settings, rows=ROWS):
    asked = NEUTRAL | settings
    listed = asked["banned"] if asked["banned"] else [[]] * rows
    return [
        processors.repetition_penalty(asked["repetition"]),
        processors.frequency_penalty(asked["frequency"]),
        processors.presence_penalty(asked["presence"]),
        processors.logit_bias(asked["bias"]),
        logits.min_tokens(asked["least"]),
        processors.banned_tokens(listed),
        processors.banned_sequences(asked["sequences"]),
    ]


def of_row(settings, row):
    """The oracle's function with the same settings."""
    asked = NEUTRAL | settings

    def own(value):
        many = isinstance(value, list | np.ndarray)
        return value[row] if many and len(value) else value

    parts = [
        partial(oracle.repetition_penalty, penalty=own(asked["repetition"])),
        partial(oracle.frequency_penalty, penalty=own(asked["frequency"])),
        partial(oracle.presence_penalty, penalty=own(asked["presence"])),
        partial(oracle.logit_bias, bias=own(asked["bias"])),
        partial(oracle.min_tokens, count=own(asked["least"]), ends=EOS),
        partial(oracle.banned_tokens, tokens=own(asked["banned"])),
        partial(oracle.banned_sequences, sequences=asked["sequences"]),
    ]

    def process(logits, prompt, output):
        for part in parts:
            logits = part(logits, prompt, output)
        return logits

    return process


def next_logits(text):
    return WEIGHTS[0][tuple([0, *text][-2:])]


# Paths on which tokens repeat themselves and the text.
PARENTS = [-1, 0, 0, 1, 1, 3, 5]
TOKENS = [[3, 9, 1, 9, 5, 9, 3], [4, 4, 2, 4, 6, 4, 4], [1, 6, 1, 1, 1, 6, 1]]


@pytest.fixture(scope="module")
def nodes():
    """(history, logits, and for each node its past) of a tree behind prompts and outputs."""
    outputs = [[7, 3, 3], [4], [6, 1]]
    prompts = [tiny.PROMPTS[row, :length].tolist() for row, length in enumerate(tiny.LENGTHS)]
    lengths = jnp.asarray(tiny.LENGTHS + [len(output) for output in outputs])
    emitted = jnp.array([output + [0] * (3 - len(output)) for output in outputs])
    counts = jnp.array([len(output) for output in outputs])
    tree = jspec.Tree(
        tokens=jnp.array(TOKENS), parents=jnp.array([PARENTS] * ROWS),
        valid=jnp.ones((ROWS, 7), bool), depth=4, width=2,
    )  # fmt: skip

    @jax.jit
    def past():
        text = histories.begin(jnp.asarray(tiny.PROMPTS), jnp.asarray(tiny.LENGTHS), 8, SIZE)
        text = histories.extend(text, jnp.asarray(tiny.LENGTHS), emitted, counts)
        return histories.of_nodes(text, lengths, jnp.array([[*EOS, -1]] * ROWS), tree)

    history = past()
    logits = np.random.default_rng(1).normal(size=(ROWS, 7, SIZE)).astype(np.float32)
    pasts = {}
    for row in range(ROWS):
        assert TOKENS[row][0] == outputs[row][-1], "the root is the last token"
        pasts[row, 0] = outputs[row]
        for node, parent in enumerate(PARENTS[1:], 1):
            pasts[row, node] = [*pasts[row, parent], TOKENS[row][node]]
    return history, logits, prompts, pasts


def differences(history, logits, prompts, pasts, settings):
    """Nodes whose logits differ from the definition."""
    found = jnp.asarray(logits)
    for processor in made(settings):
        one = processor.init(ROWS, SIZE, None)
        found = jax.jit(one.functions[0].function)(found, history, one.rows.values[0])
    wrong = []
    for (row, node), past in pasts.items():
        want = of_row(settings, row)(logits[row, node], prompts[row], past)
        if not np.allclose(found[row, node], want, atol=1e-5):
            wrong.append((row, node))
    return wrong


@pytest.mark.parametrize("name", SETTINGS)
def test_every_node_sees_the_tokens_of_its_own_path(nodes, name):
    assert not differences(*nodes, SETTINGS[name])


@pytest.mark.parametrize("name", ["penalties", "sequences"])
def test_without_the_drafted_ancestors_they_would_be_wrong(nodes, name):
    """The negative control: the test above can fail, and it does at nodes below the root alone."""
    history, *rest = nodes
    blind = history.replace(drafted=jnp.full_like(history.drafted, -1))
    wrong = differences(blind, *rest, SETTINGS[name])
    assert wrong and all(node for _, node in wrong)


def test_the_whole_table_of_counts_is_that_of_the_text(nodes):
    history, _, prompts, pasts = nodes
    sizes = 15, 2
    table, *last = jax.jit(lambda it: (it.counts(SIZE), *map(it.last, sizes)))(history)
    for (row, node), past in pasts.items():
        want = np.bincount([*prompts[row], *past], minlength=SIZE)
        assert table[row, node].tolist() == want.tolist()
        whole = [-1] * 20 + [*prompts[row], *past]
        for size, found in zip(sizes, last, strict=True):
            assert found[row, node].tolist() == whole[-size:]


@pytest.mark.parametrize(
    ("make", "neutral", "other"),
    [
        (processors.repetition_penalty, 1.0, 0.9),
        (processors.frequency_penalty, 0.0, -0.5),
        (processors.presence_penalty, 0.0, 0.5),
        (processors.logit_bias, {}, {3: -1.0}),
        (logits.min_tokens, 0, 2),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_neutral_values_are_known_to_change_nothing(make, neutral, other):
    given = [neutral, other] if make is processors.logit_bias else np.array([neutral, other])
    made = make(given).init(2, SIZE, None)
    assert made.active_rows().tolist() == [False, True]


# A fourth row may emit nothing at all: it ends, and harms no other.
CALL = dict(
    prompt=[*tiny.PROMPTS.tolist(), tiny.PROMPTS[0].tolist()], prompt_lengths=[*tiny.LENGTHS, 8],
    max_new_tokens=LIMIT, stopping=jspec.Stopping(eos=EOS), key=4,
)  # fmt: skip
TEMPERATURES = np.array([0.0, 0.9, 1.4, 1.0])


def check(settings, **drafter):
    """Holds `decode` to plain decoding by the oracle; returns the number of accepted drafts."""
    padded = {
        name: np.append(value, 1.0) if isinstance(value, np.ndarray) else value
        for name, value in (NEUTRAL | settings).items()
    }
    if isinstance(padded["bias"], list):
        padded["bias"] = [*padded["bias"], {}]
    if isinstance(padded["least"], list):
        padded["least"] = [*padded["least"], 0]
    padded["banned"] = [*(padded["banned"] or [[]] * ROWS), [*range(SIZE)]]
    call = CALL | dict(sampling=jspec.Sampling(temperature=TEMPERATURES)) | drafter
    result = jspec.decode(MODEL, WEIGHTS, **call, processors=made(padded, ROWS + 1))
    assert result.status[3] == Status.MASKED and result.lengths[3] == 0
    for row, length in enumerate(tiny.LENGTHS):
        want, _ = oracle.plain(
            next_logits, of_row(settings, row), tables.chooser(TEMPERATURES[row], 4, row, SIZE),
            tiny.PROMPTS[row, :length].tolist(), LIMIT, EOS,
        )  # fmt: skip
        assert result.tokens[row, : result.lengths[row]].tolist() == want
    return int(result.stats.num_accepted_tokens.sum())


@pytest.mark.parametrize("name", SETTINGS)
def test_decode_gives_the_tokens_of_plain_decoding(name):
    assert check(SETTINGS[name], drafter=TREE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RECURSIVE", "BLOCK"])
def test_rejection_sampling_has_the_processed_distribution(name):
    """The joint distribution of three tokens of 20,000 rows, by the rule of the drafter's own."""
    size, rows, prompt = 4, 20_000, [1, 2]
    rng = np.random.default_rng(2)
    target, draft = (tables.distributions(rng, 1, size, 1) for _ in range(2))
    result = jspec.decode(
        tables.Table(size), tables.logits(target), np.array([prompt] * rows), max_new_tokens=3,
        drafter=jspec.SpeculativeDecoding(
            tables.Table(size), 2, scheme=getattr(jspec.schemes, name)
        ),
        drafter_params=tables.logits(0.5 * target + 0.5 * draft),
        sampling=jspec.Sampling(temperature=0.8), key=0,
        processors=[processors.frequency_penalty(1.5), processors.repetition_penalty(1.4)],
    )  # fmt: skip
    assert float(result.stats.num_accepted_tokens.mean()) > 0.2

    def probs(output):
        logits = np.log(target[0][[*prompt, *output][-1]])
        logits = oracle.frequency_penalty(logits, prompt, output, 1.5)
        logits = oracle.repetition_penalty(logits, prompt, output, 1.4)
        return oracle.probabilities(logits, 0.8)

    counts = tables.counted(result.tokens, size)
    assert tables.distance(counts, tables.joint(lambda out: probs(list(out)), size, 3)) < 1
    blind = tables.joint(
        lambda out: oracle.probabilities(np.log(target[0][[*prompt, *out][-1]]), 0.8), size, 3
    )
    assert tables.distance(counts, blind) > 1, "the test sees whether there is a penalty"


def repeat_last(logits, history, strength):
    """Likes the token before, by `strength` of the row."""
    same = jnp.arange(logits.shape[-1]) == history.last(1)
    return jnp.where(same, logits + strength[:, None, None], logits)


def test_invalid_values_are_refused():
    cases = [
        ([lambda logits: logits], "pass what jspec.processors and jspec"),
        ([processors.own(lambda logits, *_: logits[:1])], "a processor returns logits"),
        ([processors.own(repeat_last, np.zeros(2))], "pass a number, or an array with 4 rows"),
        ([processors.repetition_penalty(0.0)], r"repetition_penalty\[0\] is 0.0, outside"),
        ([processors.frequency_penalty(np.nan)], r"frequency_penalty\[0\] is nan, outside"),
        ([processors.logit_bias({23: 1.0})], "logit_bias: a token is 23; pass an integer in 0"),
        ([processors.logit_bias({3: np.inf})], "logit_bias of token 3 is inf"),
        ([processors.logit_bias([{}])], "logit_bias has 1 entries and the prompts 4 rows"),
        ([processors.logit_bias(5)], "logit_bias is 5; pass a mapping"),
        ([processors.banned_tokens([-1])], "banned_tokens: a token is -1"),
        ([processors.banned_tokens([[1], 2, [], []])], "a row of banned_tokens is 2; pass a list"),
        ([processors.banned_sequences([[]])], r"banned_sequences\[0\] is empty"),
        ([logits.min_tokens(-1)], r"min_tokens\[0\] is -1, outside"),
    ]
    call = dict(CALL, model=MODEL, params=WEIGHTS, sampling=jspec.Sampling())
    refusals.check(cases, lambda listed: jspec.prefill(**call, processors=listed))


def test_a_processor_needs_no_values():
    banned = jspec.decode(
        MODEL, WEIGHTS, [[1, 2]], max_new_tokens=3,
        processors=processors.own(lambda logits, history, values: logits.at[..., 1:].add(-1e4)),
    )  # fmt: skip
    assert banned.tokens.tolist() == [[0, 0, 0]]


def test_a_list_of_another_type_is_refused_at_once():
    refusals.check([
        (lambda: processors.banned_tokens(5), "banned_tokens is 5; pass a list of token ids"),
        (lambda: processors.banned_tokens([1], capacity=None), "capacity is None; pass an integer"),
        (lambda: processors.logit_bias({}, capacity="x"), "capacity is 'x'; pass an integer"),
        (lambda: processors.banned_sequences(5), "banned_sequences is 5; pass lists of token ids"),
        (lambda: processors.banned_sequences([5]), r"banned_sequences\[0\] is 5; pass a list"),
    ])  # fmt: skip


def test_an_iterator_bans_in_every_call():
    listed = [processors.banned_tokens(iter(range(1, 22)))]
    for _ in range(2):
        result = jspec.decode(MODEL, WEIGHTS, [[1, 2]], max_new_tokens=3, processors=listed)
        assert set(result.tokens[0].tolist()) <= {0, 22}


def test_processors_pickle_as_the_same_programs():
    made = jspec.processors
    every = [
        made.repetition_penalty(1.2), made.frequency_penalty(0.5), made.presence_penalty([0.5]),
        made.logit_bias({3: 1.0}, capacity=5), logits.min_tokens(2), made.banned_tokens([3]),
        made.banned_sequences([[1, 2]]), made.logprobs(2), made.own(_unchanged, 1.0),
        jspec.stop_strings(["b"], [b"a", b"b", b"c", b"d"]),
        jspec.grammar.choices(["ab", "a"], [b"a", b"b", b"c", b"d"]),
    ]  # fmt: skip
    for one in every:
        again = pickle.loads(pickle.dumps(one))
        members = [each.init(1, 4, np.array([[3]])) for each in (one, again)]
        assert members[0] == members[1], one
        assert pickle.loads(pickle.dumps(members[0])) == members[0], one


def _unchanged(logits, history, values):
    return logits
