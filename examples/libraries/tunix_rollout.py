"""A rollout worker for google-tunix, in place of its own sampler.

pip install google-tunix

    ClusterConfig(rollout_engine=JspecRollout, ..)   # a `BaseRollout`, with its seven methods

Tokens are drawn by the policy itself: greedy ones are those of tunix's `VanillaRollout`, sampled
ones have its distribution and jspec's noise, which depends on seed, row and position alone. The
last answers to the same prompts are drafts: with one seed for all epochs most are drawn again.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.rl import common
from tunix.rl.rollout.base_rollout import BaseRollout, RolloutConfig, RolloutOutput

import jspec
from jspec import models

_MOST_CALLS = 4096
"""Calls whose answers are kept as drafts, the latest ones: an epoch of so many batches."""


def call(module, tokens, positions, cache, mask):
    """Returns the policy's own call."""
    return module(tokens, positions, cache, mask)


class JspecRollout(BaseRollout):
    """A policy of tunix, decoded by jspec.

    Every answer is the policy's as it is now: where actor and rollout share a mesh, tunix trains
    this very module and never calls `update_params`.

    Args:
        rollout_actor: the policy, one of `tunix.models` whose config has its sizes by the names of
            Llama's.
        tokenizer: any that tunix takes.
        mesh: of the policy's weights, which say themselves where they lie.
        rollout_config: of tunix; each call of `generate` has its own.
        drafter: proposes tokens; it has to take `jspec.Rollouts` as params.
    """

    def __init__(
        self,
        rollout_actor: nnx.Module,
        tokenizer: Any,
        mesh: Any = None,
        rollout_config: Any = None,
        drafter: Any = None,
    ):
        del mesh, rollout_config
        config: Any = rollout_actor.config
        self._module, self._tokenizer = rollout_actor, TokenizerAdapter(tokenizer)
        self._drafter = jspec.Suffix() if drafter is None else drafter
        self._model, _ = models.from_nnx(
            rollout_actor,
            models.LayerCaches(call),
            vocab_size=config.vocab_size,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=jax.tree.leaves(nnx.state(rollout_actor, nnx.Param))[0].dtype,
        )
        self._last: dict[tuple[Any, ...], jspec.Rollouts] = {}

    def generate(
        self, prompts: list[str], rollout_config: RolloutConfig, **kwargs: Any
    ) -> RolloutOutput:
        """Answers, without their end tokens, with the log-probability of each token."""
        del kwargs
        asked, rows = rollout_config, [self._encoded(prompt) for prompt in prompts]
        size = max(asked.max_prompt_length, *map(len, rows))
        tokens, left = (np.full((len(rows), size), self.pad_id(), np.int32) for _ in range(2))
        for row, ids in enumerate(rows):
            tokens[row, : len(ids)] = left[row, size - len(ids) :] = ids
        new, call = asked.max_tokens_to_generate, (*prompts, asked.max_tokens_to_generate)
        # On the device, as answers are: the second call runs the first one's program.
        nothing = jnp.zeros((len(rows), new), jnp.int32)
        none = jspec.Rollouts(nothing, nothing[:, 0])
        result = jspec.decode(
            self._model,
            nnx.to_pure_dict(nnx.state(self._module)),
            tokens,
            np.array([len(ids) for ids in rows]),
            drafter=self._drafter,
            drafter_params=self._last.get(call, none),
            max_new_tokens=new,
            stopping=jspec.Stopping(eos=asked.eos_tokens or [self.eos_id()]),
            # Greedy at 0.
            sampling=jspec.Sampling(
                asked.temperature, max(asked.top_k or 0, 0), asked.top_p or 1.0
            ),
            key=0 if asked.seed is None else asked.seed,
            processors=jspec.processors.logprobs(0, "temp_scaled_logprobs"),
        )
        self._last.pop(call, None)
        self._last[call] = jspec.Rollouts(result.tokens, result.lengths)
        if len(self._last) > _MOST_CALLS:
            self._last.pop(next(iter(self._last)))
        out, known = np.asarray(result.tokens), np.asarray(result.logprobs.token_logprobs)
        ended = np.asarray(result.status) == jspec.Status.EOS
        counts = np.asarray(result.lengths) - ended
        answers = [row[:count] for row, count in zip(out, counts, strict=True)]
        return RolloutOutput(
            text=[self._tokenizer.decode(answer.tolist()) for answer in answers],
            logits=[],
            tokens=answers,
            left_padded_prompt_tokens=left,
            logprobs=[row[:count] for row, count in zip(known, counts, strict=True)]
            if asked.return_logprobs
            else None,
        )

    def get_per_token_logps(self, prompt_tokens: Any, completion_tokens: Any) -> jax.Array:
        """Returns the policy's log-probabilities of whole answers."""
        return common.compute_per_token_logps(
            *nnx.split(self._module),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            pad_id=self.pad_id(),
            eos_id=self.eos_id(),
        )

    def update_params(self, params: Any, filter_types: Any = None) -> None:
        """Replaces all weights, or some; the next call runs the compiled program."""
        del filter_types
        dtype = jax.tree.leaves(nnx.state(self._module, nnx.Param))[0].dtype
        nnx.update(self._module, jax.tree.map(lambda leaf: leaf.astype(dtype), params))

    def pad_id(self) -> int:
        return self._tokenizer.pad_id()

    def eos_id(self) -> int:
        return self._tokenizer.eos_id()

    def model(self) -> nnx.Module:
        return self._module

    def _encoded(self, prompt: str) -> list[int]:
        first = [self._tokenizer.bos_id()] if self._tokenizer.bos_id() else []
        return list(self._tokenizer.dedup_bos_ids([*first, *self._tokenizer.encode(prompt)]))
