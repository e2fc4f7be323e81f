"""Prompts in groups through `jspec.decode`, by several drafters in turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from jspec import decoding
from jspec import sampling as samplings
from jspec._validate import seeds
from jspec.protocols import CausalLM
from jspec.testing.certification.forwards import pad
from jspec.types import PyTree, Sampling, Stopping

_KEPT = "drafter_state", "policy_state"
"""Memories that a call passes on to the next one."""


@dataclass
class CertifiedRun:
    """One drafter's output for all prompts."""

    tokens: list[list[int]] = field(default_factory=list)
    status: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class CertifiedSubject:
    """The target, the prompts and the settings of all runs."""

    model: CausalLM
    params: PyTree
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    batch_size: int
    stopping: Stopping
    key: Any
    said: Callable[[str], None]

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text."""
        kinds = self.stopping.eos, self.stopping.stop_token_ids
        return frozenset(
            int(token) for tokens in kinds if tokens is not None for token in np.ravel(tokens)
        )

    def keys(self, ids: Int[Array, " B"]) -> jax.Array:
        """Returns the random keys of rows."""
        key = seeds.to_key(self.key)
        assert key is not None, "a key was asked for"
        return samplings.row_keys(key, ids)

    def request(self, rows: Sequence[int], sampling: Sampling | None) -> dict[str, Any]:
        """Returns a call's arguments for some prompts, padded with copies of the first."""
        size = min(self.batch_size, len(self.prompts))
        filled = [*rows, *[rows[0]] * (size - len(rows))]
        prompt, lengths = pad([self.prompts[row] for row in filled])
        limits = np.where(np.arange(size) < len(rows), self.max_new_tokens, 0)
        return dict(
            model=self.model,
            params=self.params,
            prompt=prompt,
            prompt_lengths=lengths,
            max_new_tokens=self.max_new_tokens,
            stopping=replace(self.stopping, max_tokens=limits),
            sampling=sampling,
            key=self.key,
            row_ids=np.array(filled, np.int32),
        )

    def run(
        self, what: str, drafters: Mapping[str, dict[str, Any]], sampling: Sampling | None
    ) -> dict[str, CertifiedRun]:
        """Decodes all prompts by every drafter, group by group, each with its memory kept hot."""
        runs = {name: CertifiedRun() for name in drafters}
        states: dict[str, dict[str, PyTree]] = {name: {} for name in drafters}
        for start in range(0, len(self.prompts), self.batch_size):
            self.said(f"{what}: {start} of {len(self.prompts)} prompts")
            rows = range(start, min(start + self.batch_size, len(self.prompts)))
            request = self.request(rows, sampling)
            for name, drafting in drafters.items():
                result = decoding.decode(**request, **drafting, **states[name])
                run = runs[name]
                states[name] = {each: getattr(result, each) for each in _KEPT}
                result = jax.device_get(replace(result, drafter_state=None, policy_state=None))
                for place in range(len(rows)):
                    run.tokens.append(result.tokens[place, : result.lengths[place]].tolist())
                    run.status.append(int(result.status[place]))
        return runs
