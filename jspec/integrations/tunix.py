"""The rollout engine of google-tunix, in place of its own sampler: `pip install google-tunix`.

ClusterConfig(rollout_engine=JspecRollout, ..)
"""

from importlib.util import find_spec
from itertools import count
from typing import Any
from zlib import crc32

import jax
import numpy as np
from flax import nnx

from jspec import methods, models, processors
from jspec._validate.errors import InputError
from jspec.decoding import decode
from jspec.drafters.retrieval.suffix import Rollouts
from jspec.protocols import Drafter
from jspec.types import Sampling, Stats, Status, Stopping

if find_spec("tunix") is None:
    raise InputError(
        "jspec.integrations.tunix needs tunix, which is not installed; pip install google-tunix"
    )

from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.generate.utils import next_power_of_2
from tunix.rl import common
from tunix.rl.rollout.base_rollout import BaseRollout, RolloutConfig, RolloutOutput

_MOST_ANSWERS = 16_384
"""Answers that are kept as drafts, the latest ones."""


class JspecRollout(BaseRollout):
    """A policy of tunix, decoded by jspec.

    Greedy answers are those of tunix's `VanillaRollout`. Sampled ones have its distribution and
    noise of their own, which depends on the seed, the prompt, its number among equal prompts of the
    call, and the position, so not on the rest of the batch. Log-probabilities are those of
    `get_per_token_logps` over the temperature. All answers are the policy's as it is in the call,
    since tunix trains this very module where actor and rollout share a mesh. Other temperatures,
    filters, seeds and weights compile nothing. `stats` are a `jspec.Stats` of the last call.

    Args:
        rollout_actor: the policy, one of `tunix.models` without sliding windows and with
            `use_flash_attention=False`.
        tokenizer: any that tunix takes.
        mesh: of the policy's weights, which say themselves where they lie.
        rollout_config: of tunix; each call of `generate` has its own.
        method: one of `jspec.methods.names()`.
        drafter: in place of a method, a drafter that takes `jspec.Rollouts` as params, such as
            `jspec.Suffix()`: the last answers to the same prompts are drafts.
        options: of the method, as in `jspec.LLM`.

    Raises:
        InputError: if the policy's attention cannot score a tree, or as `jspec.LLM`.
    """

    def __init__(
        self,
        rollout_actor: nnx.Module,
        tokenizer: Any,
        mesh: Any = None,
        rollout_config: Any = None,
        *,
        method: str = methods.DEFAULT,
        drafter: Drafter | None = None,
        **options: Any,
    ):
        del mesh, rollout_config
        config: Any = rollout_actor.config
        _check_attention(config)
        self._module, self._tokenizer = rollout_actor, TokenizerAdapter(tokenizer)
        target = models.Loaded(
            *models.from_nnx(
                rollout_actor,
                models.LayerCaches(_call),
                vocab_size=config.vocab_size if hasattr(config, "vocab_size") else config.num_embed,
                num_layers=config.num_layers,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                dtype=jax.tree.leaves(nnx.state(rollout_actor, nnx.Param))[0].dtype,
            )
        )
        llm = methods.LLM(target, method, drafter=drafter, **options)
        # Without the first policy's weights, which would stay in memory.
        self._model, self._drafting = llm.model, llm.drafting
        self._reuses = drafter is not None
        self._answers: dict[tuple[str, int], np.ndarray] = {}
        self.stats: Stats | None = None

    def generate(
        self, prompts: list[str], rollout_config: RolloutConfig, **kwargs: Any
    ) -> RolloutOutput:
        """Returns answers without their end tokens, and the log-probability of each token."""
        del kwargs
        config, rows = rollout_config, [self._encode(prompt) for prompt in prompts]
        size, longest = config.max_prompt_length, max(map(len, rows))
        if longest > size:
            size = next_power_of_2(longest)  # as tunix pads
        tokens, left_padded = (
            np.full((len(rows), size), self.pad_id(), np.int32) for _ in range(2)
        )
        lengths = np.zeros(len(rows), np.int32)
        for row, ids in enumerate(rows):
            left_padded[row, size - len(ids) :] = ids
            # A pad token within is none to tunix's trainer and sampler.
            text = [token for token in ids if token != self.pad_id()] or ids
            tokens[row, : len(text)], lengths[row] = text, len(text)
        equals = {prompt: count() for prompt in prompts}
        names = [(prompt, next(equals[prompt])) for prompt in prompts]
        drafting = self._drafting
        if self._reuses:
            drafting = drafting | {
                "drafter_params": self._rollouts(names, config.max_tokens_to_generate)
            }
        result = decode(
            self._model,
            nnx.to_pure_dict(nnx.state(self._module)),
            tokens,
            lengths,
            **drafting,
            max_new_tokens=config.max_tokens_to_generate,
            stopping=Stopping(eos=config.eos_tokens or [self.eos_id()]),
            # Greedy at 0.
            sampling=Sampling(config.temperature, max(config.top_k or 0, 0), config.top_p or 1.0),
            key=0 if config.seed is None else config.seed,
            row_ids=[crc32(repr(name).encode()) >> 1 for name in names],
            processors=processors.logprobs(0, "temp_scaled_logprobs"),
        )
        self.stats = result.stats
        wrote, scores, output_lengths, status = jax.device_get(
            (result.tokens, result.logprobs.token_logprobs, result.lengths, result.status)
        )
        if self._reuses:
            self._remember(names, wrote, output_lengths)
        counts = output_lengths - (status == Status.EOS)
        answers = [row[:size] for row, size in zip(wrote, counts, strict=True)]
        return RolloutOutput(
            text=[self._tokenizer.decode(answer.tolist()) for answer in answers],
            logits=[],
            tokens=answers,
            left_padded_prompt_tokens=left_padded,
            logprobs=[row[:size] for row, size in zip(scores, counts, strict=True)]
            if config.return_logprobs
            else None,
        )

    def get_per_token_logps(self, prompt_tokens: Any, completion_tokens: Any) -> jax.Array:
        """Returns the policy's log-probabilities of whole answers, at temperature 1."""
        return common.compute_per_token_logps(
            *nnx.split(self._module),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            pad_id=self.pad_id(),
            eos_id=self.eos_id(),
        )

    def update_params(self, params: Any, filter_types: Any = None) -> None:
        """Replaces all weights, or some, in the dtype and on the devices that they have."""
        del filter_types
        by_path = dict(jax.tree.leaves_with_path(nnx.state(self._module)))

        def replacing(path: Any, leaf: jax.Array) -> jax.Array:
            old = by_path[path]
            new = leaf.astype(old.dtype)
            return new if new.sharding == old.sharding else jax.device_put(new, old.sharding)

        nnx.update(self._module, jax.tree.map_with_path(replacing, params))

    def pad_id(self) -> int:
        return self._tokenizer.pad_id()

    def eos_id(self) -> int:
        return self._tokenizer.eos_id()

    def model(self) -> nnx.Module:
        return self._module

    def _encode(self, prompt: str) -> list[int]:
        first = [self._tokenizer.bos_id()] if self._tokenizer.bos_id() else []
        return list(self._tokenizer.dedup_bos_ids([*first, *self._tokenizer.encode(prompt)]))

    def _rollouts(self, names: list[tuple[str, int]], size: int) -> Rollouts:
        """Returns the last answer of each row, cut to `size` tokens; empty where there is none."""
        tokens, lengths = np.zeros((len(names), size), np.int32), np.zeros(len(names), np.int32)
        for row, name in enumerate(names):
            answer = self._answers.get(name, tokens[row, :0])[:size]
            tokens[row, : len(answer)], lengths[row] = answer, len(answer)
        return Rollouts(tokens, lengths)

    def _remember(
        self, names: list[tuple[str, int]], tokens: np.ndarray, lengths: np.ndarray
    ) -> None:
        for name, row, length in zip(names, tokens, lengths, strict=True):
            self._answers.pop(name, None)
            self._answers[name] = row[:length].copy()
        while len(self._answers) > _MOST_ANSWERS:
            self._answers.pop(next(iter(self._answers)))


def _call(module: Any, tokens: Any, positions: Any, cache: Any, mask: Any) -> Any:
    """Returns the policy's own call."""
    return module(tokens, positions, cache, mask)


def _check_attention(config: Any) -> None:
    """Raises InputError if attention goes by places in tunix's cache, or sees no mask."""
    window = getattr(config, "sliding_window_size", None)
    if window is not None:
        raise InputError(
            f"the policy has sliding windows of {window} tokens, which tunix counts in places of "
            "its own cache; use a policy without them, or tunix's own rollout engine"
        )
    if getattr(config, "use_flash_attention", False):
        raise InputError(
            "the policy has use_flash_attention=True, and that attention takes no mask of a tree; "
            "pass use_flash_attention=False to its config"
        )
