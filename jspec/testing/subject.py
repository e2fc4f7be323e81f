"""The batch that drafters are checked on: ragged rows, greedy and sampled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jspec import decoding
from jspec._validate.errors import InputError
from jspec.drafters.autoregressive import Autoregressive
from jspec.protocols import CausalLM, Drafter
from jspec.testing.watch import NEVER, Poisoned, WatchedModel
from jspec.types import PyTree, Result, Sampling, Stopping

_LENGTHS = (12, 1, 5, 9, 14, 3)
_SETTINGS = (
    # (temperature, top_k, top_p): greedy rows between sampled ones, so that one program has both.
    (0.0, 0, 1.0),
    (0.8, 0, 0.9),
    (0.0, 0, 1.0),
    (1.0, 5, 1.0),
    (0.0, 0, 1.0),
    (0.8, 0, 1.0),
)
_KEY = 7


@dataclass(frozen=True)
class Subject:
    """A target and a batch of prompts, and the ways to decode them."""

    model: WatchedModel
    params: PyTree
    prompt: np.ndarray
    lengths: np.ndarray
    max_new_tokens: int

    @property
    def batch(self) -> int:
        return len(self.lengths)

    def request(self, **changes: Any) -> dict[str, Any]:
        """Returns the arguments of `decode`, arrays of one shape: one program for all requests."""
        order = changes.pop("order", np.arange(self.batch))
        spoiled = changes.pop("spoiled", np.full(self.batch, NEVER))[order]
        settings = [_SETTINGS[row % len(_SETTINGS)] for row in order]
        temperature, top_k, top_p = (jnp.asarray(kind) for kind in zip(*settings, strict=True))
        arguments = dict(
            model=self.model,
            params=Poisoned(self.params, jnp.asarray(spoiled, jnp.int32)),
            prompt=self.prompt[order],
            prompt_lengths=self.lengths[order],
            sampling=Sampling(temperature=temperature, top_k=top_k, top_p=top_p),
            key=_KEY,
            row_ids=np.asarray(order),
            stopping=Stopping(
                max_tokens=np.full(len(order), self.max_new_tokens),
                eos=np.full((len(order), 1), -1),
            ),
            max_new_tokens=self.max_new_tokens,
        )
        return arguments | changes

    def run(self, drafter: Drafter, params: PyTree, **changes: Any) -> Result:
        state = changes.pop("drafter_state", None)
        return decoding.decode(
            **self.request(**changes), drafter=drafter, drafter_params=params, drafter_state=state
        )

    def plain(self, **changes: Any) -> Result:
        return self.run(Autoregressive(), None, **changes)


def pad_prompts(
    prompts: Sequence[Sequence[int]] | None, model: CausalLM
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the (prompt, lengths) of texts, padded on the right. InputError for less than two."""
    if prompts is None:
        rng = np.random.default_rng(0)
        # Each repeats itself, so that what looks drafts up in the text finds some.
        prompts = [
            np.resize(rng.integers(model.vocab_size, size=4), size).tolist() for size in _LENGTHS
        ]
    if len(prompts) < 2 or not all(len(prompt) for prompt in prompts):
        raise InputError(
            f"there are {len(prompts)} prompts; pass two or more, none of them empty, so that rows "
            "have neighbours"
        )
    lengths = np.array([len(prompt) for prompt in prompts])
    padded = np.zeros((len(prompts), lengths.max()), np.int64)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = prompt
    return padded, lengths
