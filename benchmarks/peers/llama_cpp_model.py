"""llama.cpp, by `llama-cpp-python`, on a GGUF file of the very weights that jspec runs."""

import os
import tempfile
from pathlib import Path
from typing import Any

from llama_cpp import GGML_TYPE_F32, Llama  # pyright: ignore[reportMissingImports]
from llama_cpp.llama_speculative import (  # pyright: ignore[reportMissingImports]
    LlamaPromptLookupDecoding,
)

from benchmarks.peers import gguf_file
from benchmarks.peers.contenders import PeerRun, prompts_of
from jspec.cli.bench.contenders import Reply
from jspec.sessions.batches import Group

_LOOKED_UP = {"cpu": 2, "gpu": 10}
"""Tokens that its prompt lookup proposes, as its documentation recommends."""


def plain(setting: PeerRun) -> "LlamaCpp":
    return LlamaCpp(setting)


def prompt_lookup(setting: PeerRun) -> "LlamaCpp":
    return LlamaCpp(setting, _Counting(_LOOKED_UP["gpu" if setting.on_gpu else "cpu"]))


class _Counting(LlamaPromptLookupDecoding):
    """Its prompt lookup, which is asked once for each forward."""

    def __init__(self, tokens: int):
        super().__init__(num_pred_tokens=tokens)
        self.asked = 0

    def __call__(self, input_ids: Any, /, **options: Any) -> Any:
        self.asked += 1
        return super().__call__(input_ids, **options)


class LlamaCpp:
    """llama.cpp with one prompt at a time, its cache in float32 too.

    Args:
        setting: the weights and the run.
        drafter: its own speculation; None: none.
    """

    learns = False

    def __init__(self, setting: PeerRun, drafter: _Counting | None = None):
        # The file is mapped, so it stays as long as this does.
        self._folder = tempfile.TemporaryDirectory(prefix="jspec-bench-")
        file = Path(self._folder.name) / "model.gguf"
        gguf_file.write(setting.target.model, setting.target.params, file)
        run = setting.run
        threads = len(os.sched_getaffinity(0))
        self._drafter = drafter
        self._llama: Any = Llama(
            str(file),
            # What it drafts at the end needs room too.
            n_ctx=setting.room + (drafter.num_pred_tokens if drafter else 0),
            type_k=GGML_TYPE_F32,
            type_v=GGML_TYPE_F32,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=-1 if setting.on_gpu else 0,
            seed=run.request.seed,
            draft_model=drafter,
            # It keeps the scores of all tokens then, and makes room for them only when asked.
            logits_all=drafter is not None,
            verbose=False,
        )
        self._ends = setting.ends
        self._most = run.max_new_tokens
        request = run.request
        self._drawn = {
            "temp": request.temperature, "top_k": request.top_k, "top_p": request.top_p,
            "min_p": request.min_p,
        }  # fmt: skip

    def warm_up(self, group: Group) -> None:
        self.answer(group)

    def prefill(self, group: Group) -> None:
        # Without it, what the last prompt has in common with this one is not read again.
        self._llama.reset()
        self._llama.eval(prompts_of(group)[0])

    def answer(self, group: Group) -> tuple[list[int], int]:
        self._llama.reset()
        if self._drafter:
            self._drafter.asked = 0
        tokens: list[int] = []
        written = self._llama.generate(prompts_of(group)[0], **self._drawn)
        while len(tokens) < self._most and tokens[-1:] not in [[end] for end in self._ends]:
            tokens.append(next(written))
        written.close()
        return tokens, 1 + self._drafter.asked if self._drafter else len(tokens)

    def replies(self, group: Group, answer: tuple[list[int], int]) -> list[Reply]:
        tokens, forwards = answer
        ended = "stop" if tokens[-1] in self._ends else "length"
        return [Reply(tokens, ended, forwards)]

    def remember(self, answer: Any) -> None:
        """Does nothing: it learns nothing."""
