"""PARD's K predictions equal those of K forward passes with explicit masks."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import refusals
import rounds
import tiny
from blocks import plain_layers
from oracle import pard as oracle

import jspec
from jspec.types import Feedback, Frame, Output, PromptChunk, Tree, Verdict

V, MASK, K = tiny.VOCAB, 22, 3
MODEL = tiny.draft()
PARAMS = tiny.params(MODEL)
DRAFTER = jspec.PARD(MODEL, MASK, jspec.tree.chain(K))
CAPACITY = 96


def plain(model, params):
    """A tiny model as the oracle reads it."""
    config, own = model.config, jax.tree.map(lambda x: np.asarray(x, np.float64), params["params"])
    return dict(
        embed=own["embed"], head=own["head"], norm=own["norm"]["scale"],
        layers=plain_layers(config, own),
        heads=config.num_heads, kv_heads=config.num_kv_heads, theta=config.rope_theta,
        eps=config.norm_eps,
    )  # fmt: skip


LM = plain(MODEL, PARAMS)
predict = jax.jit(lambda state, frame: DRAFTER.predict(PARAMS, state, frame))
prefill = jax.jit(lambda state, chunk: DRAFTER.prefill(PARAMS, state, chunk))
update = jax.jit(lambda state, aux, feedback: DRAFTER.update(PARAMS, state, aux, feedback))


class Rows:
    """The texts of some rows, and the drafter's state."""

    def __init__(self, texts):
        self.texts, self.last = [[] for _ in texts], None
        self.state = DRAFTER.init(len(texts), CAPACITY, None)
        self.read(texts)

    @property
    def roots(self):
        return np.array([len(text) - 1 for text in self.texts])

    def read(self, texts, width=8):
        """Some more of each text is read as a prompt is; the last token before comes again."""
        begin = np.array([max(len(text) - 1, 0) for text in self.texts])
        self.texts = [[*text, *new] for text, new in zip(self.texts, texts, strict=True)]
        again = [text[at:] for text, at in zip(self.texts, begin, strict=True)]
        chunk = PromptChunk(
            rounds.padded(again, width + 1)[0], jnp.asarray(self.roots - begin), jnp.asarray(begin),
            Output(jnp.zeros((len(texts), width, V)), None),
        )  # fmt: skip
        self.state, self.last = prefill(self.state, chunk), None

    def predicted(self):
        frame = rounds.greedy([text[-1] for text in self.texts], self.roots)
        logits, self.last = predict(self.state, frame)
        return np.asarray(logits)

    def emit(self, new, width, drafted=True):
        """A round wrote some tokens of each row, on paths of `width` nodes."""
        rows = len(new)
        emitted, counts = rounds.padded(new, width)
        root = jnp.asarray([[text[-1]] for text in self.texts])
        there, path = jnp.ones_like(root, bool), jnp.zeros((rows, width), jnp.int32)
        # Of the draft the drafter reads the root alone: what was emitted says the rest.
        tree = Tree(root, -jnp.ones_like(root), there, depth=0, width=1)
        feedback = Feedback(
            tree, Output(jnp.zeros((rows, 1, V)), None),
            Verdict(path, counts, path[:, 0], counts < 0),
            emitted, counts, jnp.asarray(self.roots), counts == 0,
        )  # fmt: skip
        self.state = update(self.state, self.last if drafted else None, feedback)
        self.texts = [[*text, *tokens] for text, tokens in zip(self.texts, new, strict=True)]

    def cut(self, lengths):
        """Rows lose the end of their text, and go on with what is read next."""
        self.texts = [text[:length] for text, length in zip(self.texts, lengths, strict=True)]

    def wanted(self):
        return np.stack([oracle.predictions(LM, text, MASK, K) for text in self.texts])

    def check(self):
        np.testing.assert_allclose(self.predicted(), self.wanted(), rtol=1e-4, atol=2e-4)


def drawn(rng, sizes):
    return [rng.integers(0, V, size).tolist() for size in sizes]


def test_k_predictions_equal_k_forward_passes_with_explicit_masks():
    """Rounds of all lengths, back-offs, longer paths of others, ended rows, texts that were cut."""
    rng = np.random.default_rng(0)
    rows = Rows(drawn(rng, (5, 1, 8)))
    rows.check()
    rows.emit(drawn(rng, (3, 4, 2)), K + 1)
    rows.check()
    rows.emit(drawn(rng, (0, 4, 1)), K + 1)  # the first has ended, and has unread tokens
    rows.check()
    rows.emit(drawn(rng, (0, 1, 7)), 7)  # another drafter's paths are longer
    rows.check()
    rows.emit(drawn(rng, (0, 2, 1)), 2)  # a narrower round
    rows.check()
    rows.emit(drawn(rng, (0, 1, 1)), 1, drafted=False)
    rows.emit(drawn(rng, (0, 5, 3)), 6, drafted=False)
    rows.check()
    rows.read(drawn(rng, (3, 0, 6)))
    rows.check()
    rows.emit(drawn(rng, (4, 4, 4)), K + 1)
    rows.cut(rows.roots + 1 - np.array([0, 2, 6]))  # within what is unread, and before it
    rows.read(drawn(rng, (1, 2, 0)))
    rows.check()
    rows.emit(drawn(rng, (2, 3, 4)), K + 1, drafted=False)
    rows.check()


def test_masks_that_stay_in_the_memory_are_another_prediction():
    """A control: what the check above would see."""
    rng = np.random.default_rng(1)
    rows = Rows(drawn(rng, (5, 3)))
    rows.check()
    rows.emit(drawn(rng, (3, 2)), K + 1)
    stale = [oracle.predictions(LM, [*text[:-2], MASK, *text[-2:]], MASK, K) for text in rows.texts]
    found = rows.predicted()
    assert np.abs(found - np.stack(stale)).max((1, 2)).min() > 0.1
    rows.state = replace(rows.state, counts=jnp.zeros_like(rows.state.counts))
    assert np.abs(rows.predicted() - rows.wanted()).max() > 0.1, "unread tokens left out"
    # One mask more or less is another prediction as well.
    assert np.abs(rows.wanted()[:, 1:] - rows.wanted()[:, :-1]).max() > 0.1


def test_rounds_of_greedy_decoding_are_the_papers():
    """The draft is the target itself, so that the first token of each round is right."""
    prompts, sizes = np.random.default_rng(5).integers(0, V, (2, 5)), (1, 5)
    given = dict(drafter=DRAFTER, drafter_params=PARAMS, max_new_tokens=24)
    found = jspec.decode(MODEL, PARAMS, prompts, sizes, **given)
    for row, size in enumerate(sizes):
        tokens, rounds = oracle.decode(LM, LM, prompts[row, :size].tolist(), MASK, K, 24)
        assert found.tokens[row].tolist() == tokens
        histogram = np.bincount(np.array(rounds[:-1]) - 1, minlength=K + 1)
        assert int(found.stats.num_rounds[row]) == len(rounds)
        last = np.asarray(found.stats.acceptance_histogram[row]) - histogram
        assert last.sum() == 1 and (last >= 0).all()


def test_a_tree_has_the_top_tokens_of_each_level_below_every_node():
    template = jspec.tree.branching([3, 2])
    drafter = replace(DRAFTER, template=template)
    prompts, lengths = jnp.asarray(tiny.PROMPTS), jnp.asarray(tiny.LENGTHS)
    rows = len(prompts)

    @jax.jit
    def draft():
        chunk = PromptChunk.whole(prompts, lengths, Output(jnp.zeros((*prompts.shape, V)), None))
        state = drafter.prefill(PARAMS, drafter.init(rows, CAPACITY, None), chunk)
        root = jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1)[:, 0]
        frame = Frame(root, lengths - 1, None, None, jnp.zeros(rows, bool))
        return drafter.draft(PARAMS, state, frame)[0]

    tree = draft()
    for row in range(rows):
        text = tiny.PROMPTS[row, : tiny.LENGTHS[row]].tolist()
        best = (-oracle.predictions(LM, text, MASK, 2)).argsort(-1)
        wanted = [best[level][rank] for level, rank in zip(*_places(template), strict=True)]
        assert tree.tokens[row, 1:].tolist() == wanted


def _places(template):
    depth = [len(path) - 1 for path in template.paths]
    return depth, [path[-1] for path in template.paths]


def test_misfits_are_refused():
    padded = jspec.PaddedVocabulary(MODEL, 20)  # a mask that the target has not is the draft's own
    assert jspec.PARD(padded, MASK).mask_token_id == MASK
    refusals.check([
        (lambda: jspec.PARD(MODEL, V), rf"mask_token_id is {V}; pass an integer in 0 \.\. {V - 1}"),
        (lambda: jspec.PARD(MODEL, -1), "mask_token_id is -1; pass an integer in 0"),
        (lambda: jspec.PARD(None, 1), "draft model is None; pass a jspec.CausalLM"),
        (lambda: jspec.PARD(MODEL, 1, jspec.tree.chain(0)), "no node below the root"),
        (lambda: jspec.PARD(jspec.PaddedVocabulary(MODEL, 30), 23), "mask_token_id is 23"),
    ])  # fmt: skip
