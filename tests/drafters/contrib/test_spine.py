"""Spine against its oracle: rounds of rows whose matches differ, with and without a table."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import rounds
from oracle import ngrams as tables
from oracle import spine as oracle

import jspec
from jspec import sampling as samplings
from jspec.drafters.contrib import ngrams
from jspec.drafters.contrib.spine_trees import MATCHES, TEMPLATES
from jspec.types import Feedback, Frame, Output, PromptChunk, Scored, Tree, Verdict

ROWS, CAPACITY, ROUNDS = 16, 110, 5
PLAIN = jspec.Spine(23)
BESIDE = jspec.Spine(60, num_speculative_tokens=48, k=5, passes=2, max_depth=9)
"""Beside a table."""
WARM = np.array([0.8, 0.0] * (ROWS // 2), np.float32)


def words(rng, vocab, size):
    """Some tokens are frequent, and the last one of the vocabulary is never there."""
    return (rng.geometric(4 / vocab, size) % (vocab - 1)).tolist()


def repeating(rng, vocab):
    """Texts that end in so many tokens that they had before, one token, and short repetitions."""
    texts = [[vocab - 1], [1, 2] * 6, [3] * 25]
    for match in (0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 20):
        text = words(rng, vocab, 30)
        place = int(rng.integers(31 - match))
        texts.append([*text, vocab - 1, *text[place : place + match]][: 31 + match])
    for most in (16, 15):  # a match of one more, and a newer one of so many tokens
        text = rng.permutation(vocab - 3)[: most + 1].tolist()
        texts.append([*text, vocab - 2, *text[1:], vocab - 3, *text])
    assert len(texts) == ROWS
    return texts


@cache
def table_of(vocab):
    """A table, as the drafter has it and as the oracle does."""
    rng = np.random.default_rng(1)
    rows = np.array([words(rng, vocab, 40) for _ in range(4)])
    tokens = np.argsort(rng.uniform(size=(4, 40, vocab)), axis=-1)[..., :6]
    probs = -np.sort(-rng.dirichlet(np.ones(6), (4, 40)), axis=-1)
    distributions = [
        [list(zip(t.tolist(), p.tolist(), strict=True)) for t, p in zip(*row, strict=True)]
        for row in zip(tokens, probs, strict=True)
    ]
    table = ngrams.table(ngrams.build(rows, (tokens, probs), vocab, 4))
    return table, tables.tabulated(rows.tolist(), distributions, 4)


def feedback(tree, path, lengths, bonus, logits, done=False, merged=None, skip=False):
    """What became of a round."""
    ends = np.arange(path.shape[1]) == lengths[:, None] - 1
    # At each place of the path the token of the next one.
    after = np.take_along_axis(np.asarray((merged or tree).tokens), np.roll(path, -1, 1), 1)
    verdict = Verdict(*map(jnp.asarray, (path, lengths, bonus)), jnp.zeros(ROWS, bool))
    own = logits[:, : tree.tokens.shape[1]]
    scored = merged and Scored(merged, Output(logits, None), verdict)
    return Feedback(
        tree=tree, output=Output(own, None), verdict=verdict,
        emitted=jnp.asarray(np.where(ends, bonus[:, None], after)),
        counts=jnp.asarray(np.where(done, 0, lengths)), positions=jnp.zeros(ROWS, int),
        done=jnp.broadcast_to(done, ROWS), merged=scored, others=merged is not None,
        skip_expensive_updates=jnp.asarray(skip),
    )  # fmt: skip


def walk(rng, tree, row):
    """A path from the root down a row's tree, most of the time to a leaf."""
    path = [0]
    parents, valid = np.asarray(tree.parents[row]), np.asarray(tree.valid[row])
    while len(below := np.flatnonzero(valid & (parents == path[-1]))) and rng.random() < 0.85:
        path.append(int(rng.choice(below)))
    return path


@dataclass
class Told:
    """Rows as the drafter has them and as the oracle does."""

    drafter: Any
    params: Any
    table: dict
    state: Any
    texts: list
    lines: list

    def frame(self, warm=None):
        given = rounds.Rows(ROWS)
        asked = (None, None) if warm is None else (given.keys, given.settings(warm))
        roots = [text[-1] for text in self.texts]
        places = jnp.array([len(text) - 1 for text in self.texts])
        return Frame(jnp.array(roots), places, *asked, jnp.zeros(ROWS, bool))

    def wanted(self, row, noise=None, **wrong):
        """The oracle's tree of a row."""
        text = self.texts[row]
        template = TEMPLATES[oracle.class_of(text, MATCHES)]
        drafter = self.drafter
        shape = drafter.num_speculative_tokens, drafter.passes, drafter.max_depth
        return oracle.draft(text, self.lines[row], self.table, template, shape, noise, **wrong)

    def compare(self):
        """Compares the lines of all rows."""
        held = np.asarray(self.state.lines)
        tokens, means = np.split(held, 2, axis=-1)
        means = means.view(np.float32).astype(np.float64)
        for row, lines in enumerate(self.lines):
            for token in range(self.drafter.vocab_size):
                there = means[row, token] > 0
                got = zip(tokens[row, token, there], means[row, token, there], strict=True)
                want = dict(lines.get(token, []))
                assert dict(got) == pytest.approx(want, rel=1e-5), (row, token)

    def learn(self, update, given, done=(False,) * ROWS):
        """Updates both."""
        scored = given.scored
        self.state = update(self.params, self.state, None, given)
        tree, verdict, logits = scored.tree, scored.verdict, np.asarray(scored.output.logits)
        for row in np.flatnonzero(~np.array(done)):
            path = verdict.path[row, : int(verdict.path_lengths[row])].tolist()
            self.texts[row] += given.emitted[row, : int(given.counts[row])].tolist()
            if not given.skip_expensive_updates:
                self.lines[row] = oracle.learnt(
                    self.lines[row], tree.tokens[row].tolist(), tree.valid[row].tolist(),
                    logits[row], path, self.drafter.k,
                )  # fmt: skip


def told(drafter, seed=0):
    rng = np.random.default_rng(seed)
    texts = repeating(rng, drafter.vocab_size)
    params, table = table_of(drafter.vocab_size) if drafter == BESIDE else (None, {})
    earlier = jax.tree.map(lambda leaf: leaf + 1, drafter.init(ROWS, CAPACITY, None))  # forgotten
    prompt, lengths = rounds.padded(texts, 60)
    logits = jnp.zeros((*prompt.shape, drafter.vocab_size))
    empty = drafter.init(ROWS, CAPACITY, earlier)
    chunk = PromptChunk.whole(prompt, lengths, Output(logits, None))
    state = drafter.prefill(params, empty, chunk)
    return Told(drafter, params, table, state, texts, [{} for _ in texts]), rng


def compared(got, row, want):
    """Compares a drafted tree with the oracle's."""
    names = (got.tokens, got.parents, got.valid, got.value)
    tokens, parents, valid, value = (np.asarray(x[row]) for x in names)
    assert valid.tolist() == [node is not None for node in want]
    found = zip(tokens[valid].tolist(), parents[valid].tolist(), value[valid], strict=True)
    for node, other in zip(found, filter(None, want), strict=True):
        assert node[:2] == other[:2] and node[2] == pytest.approx(other[2])


def play(drafter, warm=None):
    """Rounds of random verdicts, of which each is compared.

    Returns:
      the classes that were met, and how many trees each negative control gets wrong.
    """
    draft, update = jax.jit(drafter.draft), jax.jit(drafter.update)
    both, rng = told(drafter)
    classes, wrong = set(), dict.fromkeys(("newest", "leave_out", "noise"), 0)
    for _ in range(ROUNDS):
        frame = both.frame(warm)
        tree, _ = draft(both.params, both.state, frame)
        noise = [None] * ROWS if warm is None else drawn(frame, drafter, warm)
        for row in range(ROWS):
            want = both.wanted(row, noise[row])
            compared(tree, row, want)
            classes.add(oracle.class_of(both.texts[row], MATCHES))
            wrong["noise"] += both.wanted(row) != want
            for name in ("newest", "leave_out"):
                wrong[name] += both.wanted(row, noise[row], **{name: False}) != want
        # In some rows not all nodes were verified.
        verified = np.arange(tree.tokens.shape[1]) < rng.integers(4, 60, (ROWS, 1))
        tree = tree.replace(valid=tree.valid & verified)
        both.learn(update, feedback(tree, *verdict(rng, tree, tree), drawn_logits(rng, tree, both)))
        both.compare()
    return classes, wrong


def drawn(frame, drafter, warm):
    """[row, depth, V] temperature times noise."""
    depths = jnp.arange(drafter.max_depth)
    places = (frame.positions[:, None] + depths).ravel()
    keys = jnp.repeat(frame.keys, len(depths))
    noise = samplings.gumbel(keys, places, drafter.vocab_size).reshape(ROWS, len(depths), -1)
    return np.asarray(noise, np.float64) * warm[:, None, None]


def drawn_logits(rng, tree, both):
    """In which drafted children are likelier than other tokens."""
    logits = rng.normal(size=(*tree.tokens.shape, both.drafter.vocab_size))
    row, node = np.nonzero(np.asarray(tree.valid) & (np.asarray(tree.parents) >= 0))
    logits[row, np.asarray(tree.parents)[row, node], np.asarray(tree.tokens)[row, node]] += 2
    return jnp.asarray(2 * logits, jnp.float32)


def verdict(rng, tree, own):
    """(path, lengths, bonus) of walks down a tree, at most as long as the drafter's own."""
    walks = [walk(rng, tree, row)[: own.depth + 1] for row in range(ROWS)]
    path = np.zeros((ROWS, own.depth + 1), np.int32)
    for line, nodes in zip(path, walks, strict=True):
        line[: len(nodes)] = nodes
    return path, np.array([len(nodes) for nodes in walks]), rng.integers(0, 22, ROWS)


@pytest.mark.parametrize("drafter", [PLAIN, BESIDE], ids=["plain", "table"])
def test_trees_and_lines_are_the_oracles(drafter):
    """And are not those of the oldest match, nor of candidates that are drafted twice."""
    classes, wrong = play(drafter)
    assert classes == set(range(6))
    assert wrong["newest"] >= 5 and wrong["leave_out"] >= 5


def test_drawn_tokens_are_ranked_with_the_noise_that_decides():
    classes, wrong = play(BESIDE, WARM)
    assert classes == set(range(6)) and wrong["noise"] >= 20


def test_of_nodes_with_one_token_one_teaches():
    """Nodes of other drafters teach too; rows that are done learn nothing, and a skip none."""
    both, rng = told(PLAIN, 1)
    draft, update = jax.jit(PLAIN.draft), jax.jit(PLAIN.update)
    accepted, done = 0, np.arange(ROWS) % 5 == 4
    for step in range(4):
        tree, _ = draft(both.params, both.state, both.frame())
        tokens = rng.integers(0, 6, (ROWS, 30)).astype(np.int32)
        tokens[:, 0] = [text[-1] for text in both.texts]
        parents = np.array([-1, *(rng.integers(max(0, n - 4), n) for n in range(1, 30))])
        valid = rng.random((ROWS, 30)) < 0.9
        valid[:, 0] = True
        for node in range(1, 30):
            valid[:, node] &= valid[:, parents[node]]
        parts = (tokens, np.tile(parents, (ROWS, 1)), valid)
        merged = Tree(*map(jnp.asarray, parts), depth=tree.depth, width=4)
        ways = verdict(rng, merged, tree)
        for row, (path, length) in enumerate(zip(*ways[:2], strict=True)):
            last = {tokens[row, node]: node for node in np.flatnonzero(valid[row])}
            accepted += any(last[tokens[row, node]] != node for node in path[:length])
        logits = drawn_logits(rng, merged, both)
        told_all = feedback(tree, *ways, logits, done, merged, skip=step == 2)
        before = both.state.lines
        both.learn(update, told_all, done)
        both.compare()
        assert (before == both.state.lines).all() == (step == 2)
    assert accepted > 20
    tree, _ = draft(both.params, both.state, both.frame())
    for row in np.flatnonzero(~done):
        compared(tree, row, both.wanted(row))  # the text went on where nothing was learnt


def test_what_does_not_fit_is_refused_in_one_sentence():
    model = jspec.testing.PrefixLM()

    def run(given):
        drafter, params = given
        asked = dict(drafter=jspec.Spine(23, **drafter), drafter_params=params)
        jspec.decode(model, model.init(), [[1, 2]], max_new_tokens=2, **asked)

    six = dict(num_speculative_tokens=1)
    cases = [
        ((dict(templates=TEMPLATES[:5]), None), r"templates is \(.*; give a tuple of 6 texts"),
        ((dict(templates=None), None), "templates is None; give a tuple of 6 texts"),
        ((dict(templates=("0:1",) * 6), None), r"in 1 \.\. 1, the nodes of the largest template"),
        ((dict(templates=("b01",) * 6, **six), None), "the node 'b01'; give a letter"),
        ((dict(templates=("ab:3",) * 6, **six), None), "the node 'ab:3'; give a letter"),
        ((dict(templates=("a:9 b0:3 b:5",) * 6), None), "'b0:3' and not the one above it, or lat"),
        ((dict(num_speculative_tokens=64), None), r"is 64; pass an integer in 1 \.\. 63"),
        ((dict(k=24), None), r"k is 24; pass an integer in 1 \.\. 23, the vocabulary"),
        ((dict(), ()), "drafter_params of Spine is a tuple; pass None, or a table"),
        ((dict(), table_of(60)[0]), "has a vocabulary of 60 and the model one of 23; make one"),
    ]
    refusals.check(cases, run)
