"""llama.cpp, by `llama-cpp-python`, on a float32 GGUF file of the very weights that jspec runs."""

import os
import tempfile
from pathlib import Path
from typing import Any

from llama_cpp import GGML_TYPE_F32, Llama  # pyright: ignore[reportMissingImports]

from jspec.app.batches import Group
from jspec.app.bench.contenders import Reply, Setting, prompts_of
from jspec.app.bench.peers import gguf_file


def plain(setting: Setting) -> "LlamaCpp":
    return LlamaCpp(setting)


class LlamaCpp:
    """llama.cpp with one prompt at a time, its cache in float32 too."""

    learns = False

    def __init__(self, setting: Setting):
        # The file is mapped, so it stays as long as this does.
        self._folder = tempfile.TemporaryDirectory(prefix="jspec-bench-")
        file = Path(self._folder.name) / "model.gguf"
        gguf_file.write(setting.target.model, setting.target.params, file)
        run = setting.run
        threads = len(os.sched_getaffinity(0))
        self._llama: Any = Llama(
            str(file),
            n_ctx=setting.room,
            type_k=GGML_TYPE_F32,
            type_v=GGML_TYPE_F32,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=-1 if setting.on_gpu else 0,
            seed=run.seed,
            verbose=False,
        )
        self._ends = setting.ends
        self._most = run.max_new_tokens
        self._drawn = {
            "temp": run.temperature, "top_k": run.top_k, "top_p": run.top_p, "min_p": run.min_p,
        }  # fmt: skip

    def warm_up(self, group: Group) -> None:
        self.answer(group)

    def prefill(self, group: Group) -> None:
        # Without it, what the last prompt has in common with this one is not read again.
        self._llama.reset()
        self._llama.eval(prompts_of(group)[0])

    def answer(self, group: Group) -> list[int]:
        self.prefill(group)
        tokens = [self._llama.sample(**self._drawn)]
        while len(tokens) < self._most and tokens[-1] not in self._ends:
            self._llama.eval(tokens[-1:])
            tokens.append(self._llama.sample(**self._drawn))
        return tokens

    def replies(self, group: Group, answer: list[int]) -> list[Reply]:
        ended = "stop" if answer[-1] in self._ends else "length"
        return [Reply(answer, ended, len(answer))]

    def remember(self, answer: Any) -> None:
        """It learns nothing."""
