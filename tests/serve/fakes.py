"""A device without a device, and a model without weights: what the server is tested with."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as kinds

from jspec.costs.metrics import Metrics
from jspec.models import Loaded
from jspec.models.chat_template import ChatTemplate
from jspec.request import Request
from jspec.serve.jobs import Delta, TokenLogprobs
from jspec.types import Status

END = 256
CONTEXT = 128
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}{{ c.function.arguments | tojson }})"
    "{% endfor %}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TAGGED = f"{{# <tool_call> #}}{TEMPLATE}"
"""The template of a model that writes calls as Hermes does."""


def loaded(template: str = TEMPLATE) -> Loaded:
    """A model of bytes: token b is byte b, and 256 ends a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    order = [_letter(byte) for byte in range(256)]
    assert sorted(order) == letters
    tokenizer = Tokenizer(kinds.BPE(vocab={letter: b for b, letter in enumerate(order)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    model: Any = SimpleNamespace(vocab_size=257, context=CONTEXT)
    chat = ChatTemplate(template, tokenizer)
    return Loaded(model, None, tokenizer, eos=(END,), bos=None, chat=chat)


def _letter(byte: int) -> str:
    """GPT-2's letter for a byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in plain:
        return chr(byte)
    others = [b for b in range(256) if b not in plain]
    return chr(256 + others.index(byte))


def answer(prompt: Sequence[int], request: Request) -> list[int]:
    """The whole answer of the fake: letters that follow from prompt, seed and row alone. An odd
    sum of the prompt ends it after 10 tokens.
    """
    rng = np.random.default_rng(
        [sum(prompt), len(prompt), (request.seed or 0) % 2**32, request.row_id]
    )
    written = [*rng.integers(97, 123, request.max_tokens - 1).tolist(), 46]
    if sum(prompt) % 2 and request.max_tokens > 10:
        return [*written[:9], END]
    return written


class FakeDevice:
    """Rows that write `answer`, some tokens per step. A list stands for a state of one row."""

    def __init__(self, num_slots: int = 2, pace: int = 3):
        self.num_slots = num_slots
        self.pace = pace
        self.rows: list[Any] = [None] * num_slots
        self.calls: list[tuple] = []
        self.go = threading.Event()
        """Cleared, steps wait."""
        self.go.set()
        self.stepping = threading.Event()
        """Set by the first step."""

    def read(self, tokens, request, earlier, adapter=0):
        self.calls.append(("read", len(tokens), 0 if earlier is None else len(earlier.text)))
        if 666 in tokens:
            raise RuntimeError("the prompt cannot be read")
        before = []
        if earlier is not None:
            assert not earlier.gone, "a state was used after it was donated"
            before, earlier.gone = earlier.text, True
        return SimpleNamespace(
            text=[*before, *tokens], request=request, adapter=adapter, done=0, gone=False
        )

    def insert(self, row, arrival):
        self.calls.append(("insert", row))
        assert not arrival.gone and arrival.request is not None
        arrival.gone = True
        self.rows[row] = SimpleNamespace(text=arrival.text, request=arrival.request, done=0)

    def free(self, row):
        self.calls.append(("free", row))
        self.rows[row] = None

    def take(self, row):
        self.calls.append(("take", row))
        held = self.rows[row]
        whole = [*held.text, *answer(held.text, held.request)[: held.done]]
        return SimpleNamespace(text=whole, request=None, done=0, gone=False)

    def copy(self, arrival):
        self.calls.append(("copy", len(arrival.text)))
        assert not arrival.gone
        return SimpleNamespace(text=[*arrival.text], request=None, done=0, gone=False)

    def step(self, waiting):
        self.calls.append(("step", waiting))
        self.stepping.set()
        assert self.go.wait(20)
        found = []
        for held in self.rows:
            if held is None:
                found.append(([], Status.RUNNING))
                continue
            whole = answer(held.text, held.request)
            new = whole[held.done : held.done + self.pace]
            held.done += len(new)
            over = held.done == len(whole)
            ended = Status.EOS if whole[-1] == END else Status.LIMIT
            found.append((new, ended if over else Status.RUNNING))
            if any(token == 88 for token in held.text):  # an X in the prompt
                raise RuntimeError("the device failed")
        return found

    def deltas(self, output, rows):
        return [self._prefill_tokens(*output[row]) for row in rows]

    def reset(self):
        self.calls.append(("reset",))
        self.rows = [None] * self.num_slots

    @staticmethod
    def _prefill_tokens(tokens, status):
        count = len(tokens)
        logprobs = TokenLogprobs(
            np.full(count, -0.5, np.float32),
            np.tile(np.array([65, 66], np.int32), (count, 1)),
            np.tile(np.array([-0.25, -np.inf], np.float32), (count, 1)),
        )
        rounds = Metrics((1, 1), 2, 3, {2: 2}) if status != Status.RUNNING else None
        return Delta(tokens, status, 0, logprobs, rounds)
