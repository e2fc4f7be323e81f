"""The run that another engine takes part in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from jspec.models import Loaded
from jspec.sessions.batches import Group
from jspec.sessions.run_settings import RunSettings


@dataclass(frozen=True)
class PeerRun:
    """The weights that a peer loads, and how it runs."""

    path: Path
    """The target in Hugging Face layout."""
    draft_path: Path | None
    target: Loaded
    run: RunSettings
    room: int
    """Most tokens of a prompt and its continuation."""

    @property
    def ends(self) -> tuple[int, ...]:
        """The end tokens; none where they are ignored."""
        return () if self.run.request.eos == () else tuple(self.target.eos)

    @property
    def on_gpu(self) -> bool:
        """True if jspec runs on a GPU; peers then have to as well, and else not."""
        return jax.default_backend() == "gpu"


def prompts_of(group: Group) -> Sequence[list[int]]:
    """Returns the token ids of the group's prompts, without those that only fill it up."""
    return [
        group.prompt[place, : group.lengths[place]].tolist() for place in range(len(group.rows))
    ]
