"""Token Recycling's table: rounds are replayed as decoded, question by question and by task."""

from dataclasses import replace

import pytest

import jspec
from benchmarks.recycling import counts, settings
from benchmarks.recycling.bench import Bench
from jspec._validate.errors import InputError
from jspec.cli.bench.chat import Bare
from jspec.cli.bench.questions import Question
from jspec.models import load

ASKED = [
    Question("1", "qa", ("Once upon a time, there was a little girl who had a red ball.",), ""),
    Question("2", "writing", ("One day a small dog ran to the park.", "Then he saw"), ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "name", "head", "temperature"),
    [
        ("prompt lookup", "jspec-800k", None, 0.0),
        ("suffix", "jspec-800k", None, 0.5),
        ("TR, accepted alone", "jspec-800k", None, 0.0),
        ("EAGLE", "jspec-7m", "jspec-7m/eagle", 0.5),
    ],
)
def test_replayed_rounds_are_those_of_decoding(label, name, head, temperature):
    target, found = load(name), []
    bench = Bench(target, Bare(target.tokenizer), 32, 24, temperature)
    heads = settings.trained(head, target) if head else {}
    line = counts.methods(["table", "update"], None, heads)[label]
    assert line.replayed
    for replayed in (True, False):
        trial = counts.Trial(bench, {label: replace(line, replayed=replayed)})
        found.append([row for question in ASKED for row in trial.ask(question, [label])])
    assert found[0] == found[1]
    rows = [row for _, row in found[0]]
    assert [len(row["tokens"]) for row in rows] == [1, 2]
    assert all(sum(row["rounds"]) < sum(row["tokens"]) for row in rows), "something was accepted"


def test_heads_have_their_published_trees():
    target = load("jspec-7m")
    made = {
        label: row.make(target).drafter
        for name in ("eagle", "lyanna", "medusa")
        for label, row in settings.trained(f"jspec-7m/{name}", target).items()
    }
    assert made["EAGLE"] == jspec.EAGLE(made["EAGLE"].head)
    assert made["EAGLE, chain"].template == jspec.tree.chain(5)
    assert made["EAGLE-2"] == jspec.EAGLE2(made["EAGLE"].head)
    assert made["Lyanna"] == jspec.Lyanna.published(made["Lyanna"].head)
    assert made["Medusa"].template.depth == 3, "as many as there are heads"


def test_questions_go_from_task_to_task():
    lists = {"qa": ["a", "b", "c"], "rag": ["d"], "mt_bench": ["e", "f"]}
    assert list(counts.in_turn(lists)) == ["a", "d", "e", "b", "f", "c"]
    grouped = counts.ordered(ASKED[::-1], "grouped")
    assert [question.name for question in grouped] == ["2", "1"]
    assert sorted(counts.ordered(ASKED, "shuffled"), key=lambda one: one.name) == ASKED
    with pytest.raises(InputError, match="--order random is not there"):
        counts.ordered(ASKED, "random")


def test_prompts_are_padded_to_few_lengths():
    for size, padded in ((5, 128), (129, 512), (1024, 1024), (1025, 2048)):
        prompts = counts.padded([7] * size)
        assert prompts.tokens.shape == (1, padded)
        assert prompts.lengths.tolist() == [size]
