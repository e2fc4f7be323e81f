"""Templates are what rounds took, and rounds take what the drafter then drafts."""

from benchmarks import spine_templates
from jspec.drafters.contrib.spine_trees import COPY, check, name_node, read


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
