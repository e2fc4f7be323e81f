"""`transformers.generate` with PyTorch: plain, with its prompt lookup, with an assistant."""

from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import torch  # pyright: ignore[reportMissingImports]
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.peers.contenders import PeerRun, prompts_of
from jspec.cli.bench.contenders import Reply
from jspec.sessions.batches import Group

_LOOKED_UP = 10
"""Tokens that prompt lookup proposes, as its author recommends."""


def plain(setting: PeerRun) -> "Generate":
    return Generate(setting)


def prompt_lookup(setting: PeerRun) -> "Generate":
    return Generate(setting, prompt_lookup_num_tokens=_LOOKED_UP)


def assisted(setting: PeerRun) -> "Generate":
    assert setting.draft_path is not None, "a peer that needs one is left out without"
    return Generate(setting, assistant=_loaded(setting, setting.draft_path))


class Generate:
    """A model of `transformers`, and how its `generate` is called.

    Args:
        setting: the weights and the run.
        assistant: a smaller model that drafts for it.
        options: of the generation's configuration.
    """

    learns = False

    def __init__(self, setting: PeerRun, assistant: Any = None, **options: Any):
        self._model = _loaded(setting, setting.path)
        self._assistant = assistant
        self._ends = setting.ends
        self._forwards = 0
        self._model.register_forward_hook(self._count)
        run, request = setting.run, setting.run.request
        drawn = {
            "temperature": request.temperature, "top_k": request.top_k, "top_p": request.top_p,
            "min_p": request.min_p,
        }  # fmt: skip
        self._config = GenerationConfig(
            max_new_tokens=run.max_new_tokens,
            do_sample=run.request.temperature > 0,
            eos_token_id=list(setting.ends) or None,
            pad_token_id=0,
            **(drawn if run.request.temperature > 0 else {}),
            **options,
        )
        self._seed = run.request.seed

    def warm_up(self, group: Group) -> None:
        self.answer(group)

    def prefill(self, group: Group) -> None:
        tokens, mask = self._padded(group)
        with torch.inference_mode():
            output = self._model(
                input_ids=tokens, attention_mask=mask, use_cache=True, logits_to_keep=1
            )
        output.logits.cpu()  # a GPU's work is done when its result is here

    def answer(self, group: Group) -> Any:
        tokens, mask = self._padded(group)
        torch.manual_seed(self._seed)
        self._forwards = 0
        with torch.inference_mode():
            whole = self._model.generate(
                tokens,
                attention_mask=mask,
                generation_config=self._config,
                assistant_model=self._assistant,
            )
        return whole[:, tokens.shape[1] :].cpu().numpy(), self._forwards

    def replies(self, group: Group, answer: Any) -> list[Reply]:
        written, forwards = answer
        found = []
        for row in written.tolist():
            ends = [place for place, token in enumerate(row) if token in self._ends]
            tokens = row[: ends[0] + 1] if ends else row
            # In a batch all rows share the forward passes, and need as many as they have tokens.
            rounds = forwards if len(written) == 1 else len(tokens)
            found.append(Reply(tokens, "stop" if ends else "length", rounds))
        return found

    def remember(self, answer: Any) -> None:
        """Does nothing: it learns nothing."""

    def _padded(self, group: Group) -> tuple[Any, Any]:
        """Returns the prompts and their mask, padded on the left as `generate` wants them."""
        prompts = prompts_of(group)
        width = max(map(len, prompts))
        tokens = torch.zeros((len(prompts), width), dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for place, prompt in enumerate(prompts):
            tokens[place, width - len(prompt) :] = torch.tensor(prompt)
            mask[place, width - len(prompt) :] = 1
        return tokens.to(self._model.device), mask.to(self._model.device)

    def _count(self, *_: Any) -> None:
        self._forwards += 1


def _loaded(setting: PeerRun, path: Path) -> Any:
    model: Any = setting.target.model
    dtype = getattr(torch, jnp.dtype(model.dtype).name)
    return _load(path, dtype, "cuda" if setting.on_gpu else "cpu")


@cache
def _load(path: Path, dtype: Any, device: str) -> Any:
    """Returns the model of a folder or GGUF file, shared by the contenders that have the same."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    place = {} if path.is_dir() else {"gguf_file": path.name}
    folder = path if path.is_dir() else path.parent
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **place)
    loaded = loaded.to(device).eval()
    # What the checkpoint says of sampling is not what was asked for.
    loaded.generation_config = GenerationConfig()
    return loaded
