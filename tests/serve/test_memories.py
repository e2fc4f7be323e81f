"""Concurrent requests over every kind of memory; see `benchmarks.serving.memories`."""

from collections import Counter

import pytest

from benchmarks.serving import memories


class Confused(memories.EngineDevice):
    """Goes on from a text that is not the row's."""

    def take(self, row):
        return super().take((row + 1) % self.num_slots)


@pytest.mark.slow
def test_every_answer_is_that_of_decode_alone_whatever_a_model_keeps():
    total = Counter()
    for name, target in memories.targets().items():
        soak = memories.Soak(memories.device(target), target.adapters, seed=1)
        soak.run(60)
        counts = soak.counts(target)
        assert counts["lost"] == counts["wrong"] == 0, (name, counts)
        total.update(counts)
    assert min(total[kind] for kind in ("reused", "by stop", "refused", "left")) > 0, total


@pytest.mark.slow
def test_a_chat_that_goes_on_from_another_text_is_found(monkeypatch):
    monkeypatch.setattr(memories, "EngineDevice", Confused)
    target = memories.targets()["attention"]
    soak = memories.Soak(memories.device(target), 0, seed=1)
    soak.run(100)
    assert soak.counts(target)["wrong"] > 0
