"""Templates are what rounds took, and rounds take what the drafter then drafts."""

from types import SimpleNamespace

import numpy as np
import tiny

import jspec
from benchmarks import spine_templates
from benchmarks.texts import pad
from benchmarks.whole_rounds import DEEPEST, Decoding
from jspec.drafters.contrib.spine_trees import COPY, TEMPLATES, check, name_node, read
from jspec.methods import LLM
from jspec.models import Loaded


def test_templates_have_the_paths_of_their_class_and_those_of_all():
    rounds = [(1, (COPY,) * 16 + (3, 0))] * 20 + [(0, (2,))] * 5 + [(4, ())] * 3
    templates = spine_templates.fit(rounds)
    assert check(templates) == 19
    first, second = (list(read(templates[kind])) for kind in (0, 1))
    assert first == [(), (2,)]
    assert second[:2] == [(), (COPY,)] and (COPY,) * 16 + (3, 0) in second
    # A class without rounds takes what all have; its own rounds outweigh that.
    seldom, often = (read(templates[kind])[(COPY,)] for kind in (4, 1))
    assert read(templates[5])[(COPY,)] == round(1000 * 20 / 28)
    assert seldom == round(1000 * 16 * 20 / 28 / 19)
    assert often == round(1000 * (20 + 16 * 20 / 28) / 36)


def test_names_are_those_that_templates_have():
    paths = read("a:99 b:99 b0:98 b01:24 0:9")
    assert [name_node(path) for path in paths][1:] == ["a", "b", "b0", "b01", "0"]


def test_rounds_say_what_spine_accepts():
    nodes, count = 7, 40
    drafter, model = jspec.Spine(tiny.VOCAB, nodes, passes=2), tiny.model(num_layers=1)
    llm = LLM(Loaded(model, tiny.params(model), None, (), None), drafter=drafter)
    prompt = tiny.PROMPTS[0].tolist()
    counted = Decoding(model, llm.params, drafter, None, count).count(pad([prompt]))
    bench = SimpleNamespace(room=64, new_tokens=count + DEEPEST)
    paths = spine_templates.rounds(bench, llm, [(prompt, counted.texts[0].tolist())])

    trees, emitted = [], []
    for text in TEMPLATES:
        paths_of_two = [path for path in read(text) if len(path) - path.count(COPY) <= 2]
        trees.append(paths_of_two[: nodes + 1])
    for kind, path in paths:
        emitted.append(max(size for size in range(len(path) + 1) if path[:size] in trees[kind]) + 1)
    whole = np.searchsorted(np.cumsum(emitted), count) + 1
    assert {0, 1} < {kind for kind, _ in paths} and len(set(emitted)) > 2
    assert counted.histogram[0].tolist() == np.bincount(emitted[:whole], minlength=41)[1:].tolist()
