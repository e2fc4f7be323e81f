"""Concurrent requests over every kind of model memory, compared with plain decoding.

`tests/serve/test_memories.py` runs it.
"""

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jspec
from benchmarks.harness import console
from jspec.models import DeltaNet, Hybrid, LatentAttention, Layer, Llama, LlamaConfig, Mamba2, Rope
from jspec.models.lora import LoRAModel, RowAdapters
from jspec.request import Request, Room
from jspec.serve.device import EngineDevice
from jspec.serve.jobs import Delta, Job
from jspec.serve.scheduler import Scheduler
from jspec.types import PyTree, Status

VOCAB, CAPACITY, LONGEST, SLOTS = 23, 128, 16, 8
END = (0,)
LETTERS = [letter.encode() for letter in string.ascii_lowercase[:VOCAB]]
"""Text of each token: a letter."""
STOPS = [jspec.stop_strings(one, LETTERS) for one in (["c"], ["fg", "gf"], ["bb", "mno", "k"])]
FORMS = [
    jspec.grammar.regex("[a-h]{2,9}", LETTERS),
    jspec.grammar.choices(["dog", "fig", "cab"], LETTERS),
]
_BATCH = 64
_TOGETHER = 16
_SHARED = 40
"""Tokens with which many prompts begin."""


class Target(NamedTuple):
    """A model, its weights, and the number of its adapters."""

    model: Any
    params: PyTree
    adapters: int = 0


def targets() -> dict[str, Target]:
    """Returns small models of random weights, by their kind of memory."""
    alike = (Layer(Rope()),) * 2
    latent = LatentAttention(rank=6, query_rank=7, plain_dim=5, rotary_dim=4, value_dim=4)
    net = Layer(None, mixer=DeltaNet(num_key_heads=2, num_heads=4, key_dim=4, value_dim=4))
    space = Layer(None, mixer=Mamba2(num_heads=4, head_dim=8, num_groups=2, state_size=4))
    full = _target(Llama(_config(alike)))
    latents = _target(Llama(_config(alike, num_kv_heads=1, head_dim=9, latent=latent)))
    return {
        "attention": full,
        "sliding window": _target(Llama(_config((Layer(Rope(), window=6), Layer(Rope()))))),
        "gated delta net": _target(Hybrid(_config((net, Layer(Rope()))))),
        "Mamba 2": _target(Hybrid(_config((space, Layer(Rope()))))),
        "latents": latents,
        "adapters": _adapted(full),
    }


def _config(layers: tuple[Layer, ...], **more: Any) -> LlamaConfig:
    shape = dict(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4,
        num_kv_heads=2, head_dim=4, context=CAPACITY, layers=layers,
    )  # fmt: skip
    return LlamaConfig(**(shape | more))


def _target(model: Any) -> Target:
    tokens, mask = np.zeros((1, 1), np.int32), np.ones((1, 1, 1), bool)
    params = jax.jit(model.init)(jax.random.key(0), tokens, tokens, mask)
    # As they are initialised, distributions would be nearly uniform.
    return Target(model, jax.tree.map(lambda leaf: leaf * 12 if leaf.ndim > 1 else leaf, params))


def _adapted(base: Target) -> Target:
    """Returns the same with two adapters of its first layer's queries, keys and values."""
    rng, shape = np.random.default_rng(0), base.params["params"]["layers_0"]["qkv"]["weight"].shape
    down, up = (rng.normal(size=size).astype(np.float32) for size in ((4, shape[1]), (shape[0], 4)))
    adapters = RowAdapters(*map(jnp.asarray, (down, up, np.array([1, 1, 2, 2], np.int32))))
    params = {**base.params, "lora": {"layers_0": {"qkv": adapters}}, "ids": None}
    return Target(LoRAModel(base.model, ("one", "two")), params, 2)


def device(target: Target) -> EngineDevice:
    """Returns a server's rows of it, which draft by Token Recycling."""
    capacity = jspec.grammar.Capacity(64, 16)
    room = Room(
        min_tokens=True, penalties=True, num_biases=4, num_end_tokens=2, grammar=capacity,
        stop=capacity,
    )  # fmt: skip
    engine = jspec.Engine(target.model, SLOTS, CAPACITY, jspec.TokenRecycling(VOCAB), room)
    return EngineDevice(engine, target.params, None, END, rounds=4)


class Soak:
    """A scheduler whose clients ask, go away, go on with a chat, and ask for too much.

    Args:
        device: does the work.
        adapters: the number of adapters that requests may name.
        seed: of all that is random.
    """

    def __init__(self, device: EngineDevice, adapters: int, seed: int):
        self._rng, self._adapters = np.random.default_rng(seed), adapters
        self._shared = self._text(_SHARED)
        self._scheduler = Scheduler(
            device, self._deliver, max_waiting=_TOGETHER, prefill_tokens=16, capacity=64
        )
        self._chats: list[list[int]] = []
        self.asked: list[Job] = []
        self.ended: dict[Job, Delta] = {}
        self.texts: dict[Job, list[int]] = {}

    def run(self, count: int) -> None:
        """Asks so many requests, and waits for their answers."""
        busy = True
        while busy or len(self.asked) < count:
            while len(self.asked) < count and self._rng.random() < 0.8 and self._scheduler.has_room:
                self.asked.append(self._ask())
                self._scheduler.submit(self.asked[-1:])
            busy = self._scheduler.turn()
            if self._rng.random() < 0.1:
                self._scheduler.cancel(self.asked[self._rng.integers(-4, 0)])

    def counts(self, target: Target) -> Counter[str]:
        """Returns the requests' outcomes, and how many answers differ from `jspec.decode` alone."""
        counts, whole = Counter(lost=0, wrong=0), []
        for job in self.asked:
            end, refused = self.ended.get(job), len(job.prompt) > CAPACITY
            if end is None:
                counts["left" if job.cancelled else "lost"] += 1
            elif end.error is not None or refused:
                counts["refused" if end.refused and refused else "lost"] += 1
            else:
                counts["answered"] += 1
                counts[f"by {Status(end.status).name.lower()}"] += 1
                counts["reused"] += job.reused > 0
                whole.append(job)
        for begin in range(0, len(whole), _BATCH):
            part = whole[begin : begin + _BATCH]
            for job, wanted in zip(part, plain(target, part), strict=True):
                found = self.texts[job], self.ended[job].status, self.ended[job].stop_bytes
                if found != wanted:
                    counts["wrong"] += 1
                    console.print(f"{found} and not {wanted}: {job.prompt}, {job.request}")
        return counts

    def _deliver(self, deltas: list[tuple[Job, Delta]]) -> None:
        for job, delta in deltas:
            self.texts.setdefault(job, []).extend(delta.tokens)
            if delta.is_last:
                self.ended[job] = delta
                if job.goes_on and delta.error is None:
                    more = self._text(self._size(1, 12))
                    self._chats.append([*job.prompt, *self.texts[job], *more])

    def _ask(self) -> Job:
        rng = self._rng
        if self._chats and rng.random() < 0.5:
            prompt = self._chats.pop(rng.integers(len(self._chats)))
        else:
            prompt = self._text(self._size(1, 50))
            if rng.random() < 0.4:
                prompt = [*self._shared, *prompt]
        if rng.random() < 0.02:
            prompt = self._text(CAPACITY + 1)
        sampled, controlled = rng.random() < 0.6, rng.random() < 0.3
        adapter = self._size(0, self._adapters)
        request = Request(
            max_tokens=self._size(1, LONGEST), seed=0, row_id=len(self.asked),
            eos=() if rng.random() < 0.2 else END,
        )  # fmt: skip
        if sampled:
            request = replace(
                request, temperature=float(rng.choice([0.7, 1.0])), top_k=int(rng.choice([0, 5])),
                top_p=float(rng.choice([0.9, 1.0])), min_p=float(rng.choice([0.0, 0.05])),
            )  # fmt: skip
        if controlled:
            request = replace(
                request, repetition_penalty=1.25, frequency_penalty=0.5,
                logit_bias={self._size(1, VOCAB - 1): 2.0}, min_tokens=self._size(0, 4),
                stop_token_ids=[self._size(1, VOCAB - 1)],
            )  # fmt: skip
        if rng.random() < 0.3:
            request = replace(request, stop=STOPS[rng.integers(len(STOPS))])
        elif rng.random() < 0.2:
            request = replace(
                request, grammar=FORMS[rng.integers(len(FORMS))], min_tokens=0, eos=END
            )
        goes_on = len(prompt) < CAPACITY - 2 * LONGEST and bool(rng.random() < 0.6)
        return Job(
            prompt, request, lambda delta: None, goes_on=goes_on, salt=adapter, adapter=adapter
        )

    def _text(self, size: int) -> list[int]:
        return self._rng.integers(1, VOCAB, size).tolist()

    def _size(self, least: int, most: int) -> int:
        return int(self._rng.integers(least, most + 1))


def plain(target: Target, jobs: Sequence[Job]) -> list[tuple[list[int], int, int]]:
    """Decodes some requests without drafts: the tokens of each, why it ended, and `stop_bytes`.

    All batches are one program, in which rows that write nothing have every form and stop string.
    """
    idle = [
        Request(
            max_tokens=0, eos=END, repetition_penalty=1.1, frequency_penalty=0.1,
            logit_bias={0: 1.0}, min_tokens=1, stop_token_ids=[1], temperature=1.0, seed=0,
            grammar=form, stop=stop,
        )
        for form, stop in zip_longest(FORMS, STOPS)
    ]  # fmt: skip
    missing = _BATCH - len(jobs)
    rows = [job.request for job in jobs] + [idle[0]] * missing + idle
    prompt = np.ones((len(rows), CAPACITY), np.int32)
    for row, job in enumerate(jobs):
        prompt[row, : len(job.prompt)] = job.prompt
    model, params = target.model, target.params
    if target.adapters:
        adapters = [job.adapter for job in jobs]
        params = model.choose(params, np.array(adapters + [0] * (len(rows) - len(jobs))))
    lengths = np.array([len(job.prompt) for job in jobs] + [1] * (len(rows) - len(jobs)))
    result = jspec.decode(model, params, prompt, lengths, request=rows, max_new_tokens=LONGEST)
    tokens, count, status = map(np.asarray, (result.tokens, result.lengths, result.status))
    cut = np.asarray(result.stop_bytes)
    return [
        (tokens[row, : count[row]].tolist(), int(status[row]), int(cut[row]))
        for row in range(len(jobs))
    ]
