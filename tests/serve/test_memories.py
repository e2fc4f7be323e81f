"""Concurrent requests over every kind of memory."""

from collections import Counter

import pytest

from benchmarks.serving import memories


class Misread(memories.EngineDevice):
    """Reads another token where a prompt goes on."""

    def read(self, tokens, request, earlier, adapter=0):
        if earlier is not None:
            tokens = [tokens[0] % (memories.VOCAB - 1) + 1, *tokens[1:]]
        return super().read(tokens, request, earlier, adapter)


class Mistaken(memories.EngineDevice):
    """Takes a text with a token more than was written."""

    def take(self, row):
        return self.read([1], memories.Request(), super().take(row))


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
def test_a_text_that_goes_on_as_another_is_found(monkeypatch):
    target = memories.targets()["attention"]
    for device in (Misread, Mistaken):
        monkeypatch.setattr(memories, "EngineDevice", device)
        soak = memories.Soak(memories.device(target), 0, seed=1)
        soak.run(150)
        assert soak.counts(target)["wrong"] > 0, device
