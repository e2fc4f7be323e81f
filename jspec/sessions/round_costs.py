"""Costs of rounds on this machine: measured at the first run of a kind, then read from disk."""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from jspec._validate.cache_folders import folder
from jspec._validate.errors import InputError
from jspec.sessions import terminal
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session
from jspec.types import Sampling, Stopping

if TYPE_CHECKING:
    from jspec.costs import CostCurve
    from jspec.sessions.batches import Group
    from jspec.types import PyTree


class RoundCosts:
    """The cost curves of a session's runs, for policies that go by what rounds cost."""

    def __init__(
        self,
        session: Session,
        settings: RunSettings,
        alone: AbstractContextManager[Any] = nullcontext(),
    ):
        """Measures curves within `alone`, a context in which nothing else runs."""
        self._session = session
        self._settings = settings
        self._alone = alone
        self._curves: dict[Any, CostCurve] = {}

    def known(
        self, drafting: dict[str, Any], group: "Group", capacity: int | None = None
    ) -> "PyTree":
        """Returns the policy's params, with the group's curve if they are costs."""
        from jspec.costs import CostCurve
        from jspec.round.request import bucket

        if not isinstance(drafting["policy_params"], CostCurve):
            return drafting["policy_params"]
        batch = len(group.lengths)
        # Once for each doubling of the cache.
        capacity = capacity or bucket(group.prompt.shape[1] + self._settings.max_new_tokens)
        if (batch, capacity) not in self._curves:
            self._curves[batch, capacity] = self._find(drafting, group, capacity)
        return self._curves[batch, capacity]

    def _find(self, drafting: dict[str, Any], group: "Group", capacity: int) -> "CostCurve":
        from jspec import costs

        settings, target = self._settings, self._session.target
        model, batch = target.model, len(group.lengths)
        request = settings.request
        sampled = request.temperature > 0
        drafter, policy = drafting["drafter"], drafting["policy"]
        name = costs.fingerprint(
            model, target.params, drafter, policy, batch_size=batch, sampled=sampled
        )

        filters = request.temperature, request.top_k, request.top_p, request.min_p
        sampling = Sampling(*filters) if sampled else None

        def measured() -> "CostCurve":
            ends = target.eos if request.eos is None else ()
            never = np.full((batch, len(ends)), -1, np.int32)
            limit = settings.max_new_tokens if model.context is None else model.context
            return costs.measure(
                model, target.params, drafter, drafting["drafter_params"], policy=policy,
                batch_size=batch, prompt_tokens=group.prompt.shape[1],
                max_new_tokens=min(settings.max_new_tokens, limit), sampling=sampling,
                stopping=Stopping(eos=never if ends else None), key=request.seed,
                capacity=capacity if model.context is None else min(capacity, model.context),
            )  # fmt: skip

        return kept(f"{name}-{capacity}", measured, self._alone)


def kept(
    name: str,
    measured: Callable[[], "CostCurve"],
    alone: AbstractContextManager[Any] = nullcontext(),
) -> "CostCurve":
    """Returns a curve from disk, or measures and keeps it."""
    from jspec import costs

    place = folder(os.environ, "costs")
    file = None if place is None else place / f"{name}.json"
    if file is not None and file.exists():
        try:
            return costs.load(file)
        except (InputError, OSError) as error:  # damaged: the next curve replaces it
            terminal.note(f"jspec: {error}")
    with alone:
        if sys.stderr.isatty():
            terminal.note("Measuring how long rounds take here; the next run knows.")
        curve = measured()
    if file is not None:
        try:
            costs.save(curve, file)
        except OSError as error:
            terminal.note(f"jspec: what rounds cost is measured, and not kept: {error}")
    return curve
