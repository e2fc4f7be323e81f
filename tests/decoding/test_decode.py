import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import refusals
import tiny

import jspec
from jspec import sampling as samplings
from jspec import tree as trees
from jspec.testing import PrefixLM
from jspec.types import Sampling, Status

LIMIT = 24
CALL = dict(prompt=tiny.PROMPTS, prompt_lengths=tiny.LENGTHS, max_new_tokens=LIMIT)
"""Arguments of most tests, so that they share compiled programs."""
SMALL = jspec.TokenRecycling(tiny.VOCAB, jspec.tree.branching([2, 1]))
_PREFIX = PrefixLM(vocab_size=tiny.VOCAB, context=256)
CHEAP = _PREFIX, _PREFIX.init()
"""A model that compiles in half the time, for what every model is asked."""


def test_greedy_equals_a_loop_without_a_cache(target, next_logits):
    result = jspec.decode(*target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT)
    for row, length in enumerate(tiny.LENGTHS):
        want = oracle.greedy(next_logits, tiny.PROMPTS[row, :length].tolist(), LIMIT)
        assert result.tokens[row].tolist() == want


def test_a_sampled_token_is_the_argmax_of_its_distribution_and_its_noise(target, next_logits):
    """The coupled rule from its definition: argmax(log p + G[row, position])."""
    settings = Sampling(temperature=0.9, top_k=6, top_p=0.95, min_p=0.02)
    result = jspec.decode(
        *target, tiny.PROMPTS, tiny.LENGTHS, max_new_tokens=LIMIT, sampling=settings, key=3,
        row_ids=[5, 0, 11],
    )  # fmt: skip
    keys = samplings.row_keys(jax.random.key(3), jnp.array([5, 0, 11]))
    for row, length in enumerate(tiny.LENGTHS):
        text = tiny.PROMPTS[row, :length].tolist()
        for token in result.tokens[row].tolist():
            p = oracle.probabilities(next_logits(text), 0.9, 6, 0.95, 0.02)
            # The walk draws after the root at position len(text) - 1 with the noise of that place.
            noise = samplings.gumbel(keys[row : row + 1], jnp.array([len(text) - 1]), tiny.VOCAB)[0]
            with np.errstate(divide="ignore"):
                assert token == np.argmax(np.log(p) + np.asarray(noise))
            text.append(token)


def test_stream_and_step_give_the_tokens_of_decode(target):
    options = dict(drafter=SMALL, max_new_tokens=LIMIT)
    want = jspec.decode(*target, tiny.PROMPTS, tiny.LENGTHS, **options)
    rows = [[], [], []]
    drafted = np.zeros(3, int)
    for chunk in jspec.stream(*target, tiny.PROMPTS, tiny.LENGTHS, **options):
        for row, tokens in enumerate(chunk.tokens):
            rows[row] += tokens
            drafted[row] += sum(chunk.drafted[row])
            assert len(tokens) == len(chunk.drafted[row])
    assert rows == want.tokens.tolist()
    np.testing.assert_array_equal(drafted, want.stats.num_accepted_tokens)

    state = jspec.prefill(*target, tiny.PROMPTS, tiny.LENGTHS, **options)
    while not state.done.all():
        state = jspec.step(*target, state, drafter=options["drafter"])
    assert state.tokens[:, :LIMIT].tolist() == want.tokens.tolist()


def test_a_seed_is_a_seed_however_it_is_written(target):
    options = CALL | dict(sampling=Sampling(temperature=2.0))

    def tokens(key):
        return jspec.decode(*target, **options, key=key).tokens.tolist()

    want = tokens(jax.random.key(7))
    for key in (7, np.int64(7), jnp.uint32(7), jax.random.PRNGKey(7)):
        assert tokens(key) == want
    assert tokens(np.int64(2**32 + 5)) == tokens(2**32 + 5) != tokens(5)
    assert tokens(-1) == tokens(np.int32(-1)) != tokens(2**32 - 1) == tokens(np.uint32(2**32 - 1))
    assert jax.jit(lambda key: jspec.decode(*target, **options, key=key).tokens)(
        np.int32(-1)
    ).tolist() == tokens(-1)


@pytest.mark.slow
def test_generators_that_do_not_draw_per_key_are_not_drawn_from():
    """`rbg` gives every row of a `vmap` the noise of the first."""
    key = jax.random.key(0, impl="unsafe_rbg")
    options = dict(max_new_tokens=LIMIT, sampling=Sampling(), key=key)
    plain = jspec.decode(*CHEAP, tiny.PROMPTS, tiny.LENGTHS, **options)
    fewer = jspec.decode(
        *CHEAP, tiny.PROMPTS[1:], tiny.LENGTHS[1:], row_ids=[1, 2], drafter=SMALL, **options
    )
    assert fewer.tokens.tolist() == plain.tokens[1:].tolist()


class Outside(jspec.Drafter):
    """Drafts ids that no vocabulary of 23 has, and known ones below them."""

    def draft(self, params, state, frame):
        tokens = jnp.array([0, tiny.VOCAB, -1, 10**6, 5, tiny.VOCAB - 1], jnp.int32)
        tokens = jnp.broadcast_to(tokens, (len(frame.root), 6)).at[:, 0].set(frame.root)
        return trees.Template(((0,), (1,), (2,), (0, 0), (1, 0))).fill(tokens), None


class Strict(tiny.Wrapper):
    """A model that has no embedding for other ids, and says so by NaN."""

    def apply(self, params, tokens, *rest, **options):
        output = self.inner.apply(params, tokens, *rest, **options)
        bad = ((tokens < 0) | (tokens >= tiny.VOCAB)).any()
        return output.replace(logits=jnp.where(bad, jnp.nan, output.logits))


class Placed(tiny.Wrapper):
    """A model that says NaN beyond its context, as an embedding of positions does."""

    def apply(self, params, tokens, positions, *rest, **options):
        output = self.inner.apply(params, tokens, positions, *rest, **options)
        beyond = (positions >= self.inner.context)[..., None]
        return output.replace(logits=jnp.where(beyond, jnp.nan, output.logits))


def test_the_context_ends_a_row_with_capacity():
    """Not with NAN, where the model has no positions left, whatever is drafted beyond it."""
    model = Placed(PrefixLM(vocab_size=tiny.VOCAB, context=12))
    call = (model, model.inner.init(), tiny.PROMPTS, tiny.LENGTHS)
    plain = jspec.decode(*call, max_new_tokens=12)
    drafted = jspec.decode(*call, max_new_tokens=12, drafter=jspec.PromptLookup(whole=False))
    # Every position of the context is fed; the token after the last one is still drawn.
    for result in (plain, drafted):
        assert result.lengths.tolist() == [5, 11, 8]
        assert result.status.tolist() == [Status.CAPACITY] * 3
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)


class Holed(tiny.Wrapper):
    """A model with a NaN logit, of a vocabulary at which XLA's maximum on a CPU loses the NaN."""

    vocab_size = 4096

    def apply(self, params, tokens, *rest, **options):
        output = self.inner.apply(params, tokens % tiny.VOCAB, *rest, **options)
        wide = jnp.pad(output.logits, ((0, 0), (0, 0), (0, 4096 - tiny.VOCAB)))
        return output.replace(logits=wide.at[..., 100].set(jnp.nan))


def test_one_nan_among_many_logits_ends_the_row():
    for sampling in (None, Sampling(), Sampling(top_p=0.9)):
        ran = jspec.decode(
            Holed(CHEAP[0]), CHEAP[1], tiny.PROMPTS, max_new_tokens=4, sampling=sampling, key=0
        )
        assert ran.status.tolist() == [Status.NAN] * 3
        assert ran.lengths.tolist() == [0] * 3


@pytest.mark.parametrize("rule", [None, jspec.rules.deterministic_proposal])
def test_ids_outside_the_vocabulary_are_not_drafts(rule):
    """Not even where a rule that reads p[id] would be given the last token's."""
    ask = dict(max_new_tokens=LIMIT, sampling=Sampling(temperature=2.0), key=3)
    drafter = Outside() if rule is None else jspec.with_verifier(Outside(), rule)
    model = Strict(CHEAP[0])
    ran = jspec.decode(model, CHEAP[1], tiny.PROMPTS, tiny.LENGTHS, drafter=drafter, **ask)
    assert (ran.status == Status.LIMIT).all()
    assert ran.tokens.max() < tiny.VOCAB and ran.tokens.min() >= 0
    assert ran.stats.num_draft_tokens.sum() == 0  # nor what hangs from them
    if rule is None:
        plain = jspec.decode(*CHEAP, tiny.PROMPTS, tiny.LENGTHS, **ask)
        np.testing.assert_array_equal(ran.tokens, plain.tokens)


def test_a_state_that_was_given_away_and_an_iterator_in_a_program_are_refused():
    state = jspec.prefill(*CHEAP, [[1, 2, 3]], max_new_tokens=4)
    jspec.step(*CHEAP, state)
    with pytest.raises(jspec.InputError, match="given away to a call before, which donates it"):
        jspec.step(*CHEAP, state)
    with pytest.raises(jspec.InputError, match="stream was called inside a program"):
        jax.jit(lambda prompt: jspec.stream(*CHEAP, prompt, max_new_tokens=4))(np.ones((1, 3), int))


def test_a_drafter_that_is_equal_to_itself_alone_is_warned_of():
    class Alone(TwoArguments):
        init = staticmethod(lambda batch, capacity, earlier: None)

    with pytest.warns(UserWarning, match="drafter is a Alone, which is equal to itself alone"):
        jspec.round.request.check_drafter(Alone())


def test_a_state_is_stepped_by_the_drafter_it_was_made_for(target):
    state = jspec.prefill(*target, tiny.PROMPTS, drafter=jspec.PromptLookup())
    with pytest.raises(jspec.InputError, match="another drafter than this Autoregressive"):
        jspec.step(*target, state)
    with pytest.raises(jspec.InputError, match="trees of depth 10 and this drafter's have 4"):
        jspec.step(*target, state, drafter=jspec.PromptLookup(num_speculative_tokens=4))
    # Of the same depth: refused before it reads another drafter's memory.
    with pytest.raises(jspec.InputError, match="memory of another drafter than this Spine"):
        jspec.step(*target, state, drafter=jspec.Spine(tiny.VOCAB, 10, max_depth=10))


class LogitsAlone(tiny.Counted):
    """A model that gives no keys and values."""

    def __init__(self):
        super().__init__(tiny.model(), [])

    def apply(self, *args):
        return super().apply(*args).logits


class WithoutContext:
    """A model but for its context."""

    vocab_size, apply, init_memory, commit = 23, None, None, None


class OfVersion01(jspec.PromptLookup):
    """Its update takes the arguments of jspec 0.1."""

    def update(self, params, state, feedback):
        return state


class Unhashable(jspec.PromptLookup):
    """A drafter that cannot be a static argument."""

    __hash__ = None


def test_bad_input_is_one_sentence_before_anything_is_compiled(target):
    counted = tiny.Counted(target[0])
    ask = dict(model=counted, params=target[1], prompt=[[1, 2, 3]], max_new_tokens=4)
    refusals.check(REFUSED, lambda change: jspec.decode(**ask | change))


class Weighty:
    """The result of a loader, which contains the weights."""

    params = ()


class TwoArguments(jspec.Drafter):
    """A drafter of which one function takes too little."""

    init = staticmethod(lambda batch, capacity: None)
    draft = staticmethod(lambda params, state, frame: None)


REFUSED = [
    (dict(params=tiny.model()), "params holds a Llama, which is not an array; pass arrays in a"),
    (dict(params=Weighty()), "params holds a Weighty, .*; pass its .params"),
    (dict(drafter_params=jspec.PromptLookup()), "drafter_params holds a PromptLookup,"),
    (dict(drafter=object()), r"pass an instance such as .*, or derive yours from jspec.Drafter"),
    (dict(drafter=TwoArguments()), r"whose init does not take \(batch, capacity, earlier\)"),
    (dict(model=print), "model is <built-in .*FunctionModel of a function"),
    (dict(prompt=[1, 2, 3]), r"shape \(3,\).*\[B, T\]"),
    (dict(prompt=np.zeros((1, 0), int)), "at least one row and one token"),
    (dict(prompt=[[]]), r"prompt\[0\] is empty"),
    (dict(prompt="text"), "prompt is 'text'; .*`decode` of a `jspec.LLM` takes texts"),
    (dict(prompt=["text", [1]]), r"prompt\[0\] is 'text'; .*`jspec.LLM` takes texts"),
    (dict(prompt=np.zeros((1, 3))), "dtype float64"),
    (dict(prompt=[[1, 99, 2]]), r"prompt\[0, 1\] is token 99.*vocabulary of 23"),
    (dict(prompt_lengths=[0]), r"prompt_lengths\[0\] is 0, outside 1 .. 3"),
    (dict(prompt_lengths=[1, 2]), r"prompt_lengths has shape \(2,\)"),
    (dict(prompt=np.ones((1, 300), int)), "300, outside 1 .. 256: a row needs"),
    (dict(max_new_tokens=0), "max_new_tokens is 0; pass an integer of at least 1"),
    (dict(max_new_tokens=300), "300; pass an integer of at least 1 and at most 256"),
    (dict(prompt=[[1, 2], []]), r"prompt\[1\] is empty; give each row at least one token"),
    (dict(prompt=[[1, 2], [3]], prompt_lengths=[2, 2]), "rows of .2, 1. tokens .*leave it out"),
    (dict(prompt=[[1, 2], [3.5]]), r"prompt\[1\] is \[3.5\]; pass a list of token ids"),
    (dict(prompt=[[1, 2], 3]), r"prompt\[1\] is 3; pass a list of token ids"),
    (dict(prompt=["ab", "c"]), r"prompt\[0\] is 'ab'; pass numbers"),
    (dict(model=LogitsAlone()), "LogitsAlone.apply returned no jspec.Output; return one"),
    (dict(prompt_lengths=[2.0]), "prompt_lengths is .*pass integers"),
    (dict(row_ids=[2**32]), r"row_ids\[0\] is 4294967296, outside"),
    (dict(stopping=jspec.Stopping(eos="a")), "eos is 'a'"),
    (dict(stopping=jspec.Stopping(eos=2.5)), "eos is 2.5; pass token ids"),
    (dict(key="a"), "key is 'a'; pass one"),
    (dict(key=np.arange(3, dtype=np.uint32)), "key is .*seed of at most 64 bits"),
    (dict(sampling=0.8, key=0), "sampling is 0.8; pass jspec.Sampling"),
    (dict(sampling=Sampling(top_k=2.5), key=0), "top_k is 2.5 .*pass integers"),
    (dict(drafter=jspec.PromptLookup), "drafter is <class.*pass an instance"),
    (dict(drafter=jspec.Scripted(23, jspec.tree.chain(1))), "needs the text"),
    (dict(model=None), "model is None, which has no apply; pass a model"),
    (dict(model=tiny.Counted), "model is <class.*; pass a model"),
    (dict(model=WithoutContext()), "model is .*, which has no context; pass a model"),
    (dict(drafter=OfVersion01()), r"whose update does not take \(params, state, aux, feedback\)"),
    (dict(drafter=Unhashable()), "drafter is .*cannot be hashed .*; it is a static argument"),
    (dict(params=None), "params is None; pass the model's weights"),
    (dict(drafter_state="x"), "drafter_state holds 'x', a str"),
    (
        dict(
            drafter=jspec.Scripted(23, jspec.tree.chain(1)),
            drafter_params=jspec.Script(jnp.ones((1, 4), int), accepts=jnp.zeros(0, int)),
        ),
        r"accepts is of shape \(0,\); pass an array of \[R\] integers, at least one",
    ),
    (
        dict(drafter=jspec.PromptLookup(2), policy=jspec.Adaptive((0, 2)), policy_params={1: 0.02}),
        r"policy_params is {1: .*} and Adaptive takes .*; pass one from jspec.costs.measure",
    ),
    (dict(stopping=jspec.Stopping(max_tokens=[99])), r"max_tokens\[0\] is 99, outside 0 .. 4"),
    (dict(stopping=jspec.Stopping(eos=[23])), "eos holds .*vocabulary of 23"),
    (dict(sampling=Sampling()), "sampling needs a key"),
    (dict(sampling=Sampling(temperature=-1.0), key=0), r"temperature\[0\] is -1"),
    (dict(sampling=Sampling(temperature=np.nan), key=0), r"temperature\[0\] is nan"),
    (dict(sampling=Sampling(top_p=0.0), key=0), r"top_p\[0\] is 0"),
    (dict(sampling=Sampling(min_p=2.0), key=0), r"min_p\[0\] is 2"),
    (dict(sampling=Sampling(top_k=-1), key=0), r"top_k\[0\] is -1"),
    (dict(drafter=jspec.TokenRecycling(7, k=7, template=jspec.tree.chain(1))), "7 and the"),
    (
        dict(drafter=jspec.TokenRecycling(23), drafter_state=jnp.zeros((2, 23, 8), jnp.int32)),
        r"needs a matrix of \(1, 23, 8\) of int32 with 0 pairs",
    ),
]
