"""The figures of speculative decoding, in the words of vLLM's metrics.

`of` sums a run's `Stats` over its rows, `by_row` keeps them apart. Both read the statistics from
the device once; what they return are plain numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import jax
import numpy as np

from jspec._validate.errors import InputError
from jspec.types import Stats

__all__ = ["Metrics", "by_row", "of"]


@dataclass(frozen=True)
class Metrics:
    """The counts of some rounds, and the figures that follow from them.

    The names are those of vLLM's `SpecDecodingStats`. A *draft* is a round in which at least one
    drafted node was verified; a round that verified none is a step of plain decoding. Of a tree,
    only the path counts that was accepted: i drafted tokens are accepted where the path has i nodes
    below the root. A round that an end token or a limit cuts counts the tokens that were emitted,
    and takes the last of them for the target's own, so that a row counts at most one too few.

    Metrics add up, over rows and over calls.

    Args:
        acceptance_histogram: the rounds in which i drafted tokens were accepted, i = 0 .. depth.
        num_drafts: rounds that verified at least one drafted node.
        num_draft_tokens: drafted nodes that were verified, in all rounds.
        width_histogram: rounds by their width, the number of nodes that the drafter was granted;
            0 is plain decoding. Empty where the run did not count it.

    Example:
        >>> from jspec.costs.metrics import Metrics
        >>> run = Metrics(acceptance_histogram=(3, 1, 2), num_drafts=5, num_draft_tokens=20)
        >>> run.num_rounds, run.num_accepted_tokens, run.num_accepted_tokens_per_pos
        (6, 5, (3, 2))
        >>> run.mean_acceptance_length, round(run.tokens_per_round, 2), run.acceptance_rate
        (2.0, 1.83, 0.25)
        >>> (run + run).num_draft_tokens
        40
    """

    acceptance_histogram: tuple[int, ...] = ()
    num_drafts: int = 0
    num_draft_tokens: int = 0
    width_histogram: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_rounds(self) -> int:
        """Forward passes of the target after the prefill, those without a draft among them."""
        return sum(self.acceptance_histogram)

    @property
    def num_accepted_tokens(self) -> int:
        """Drafted tokens that were accepted and emitted; no round's last token is among them."""
        return sum(count * index for index, count in enumerate(self.acceptance_histogram))

    @property
    def num_accepted_tokens_per_pos(self) -> tuple[int, ...]:
        """Drafts with at least i + 1 accepted tokens, for each position i = 0 .. depth - 1."""
        behind = np.cumsum(self.acceptance_histogram[::-1], dtype=int)[::-1]
        return tuple(behind[1:].tolist())

    @property
    def acceptance_rate_per_pos(self) -> tuple[float, ...]:
        """The share of drafts with at least i + 1 accepted tokens; empty without a draft.

        It falls with i: a token is accepted only if those before it were.
        """
        if not self.num_drafts:
            return ()
        return tuple(count / self.num_drafts for count in self.num_accepted_tokens_per_pos)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted tokens over verified ones; None where none was verified.

        A tree verifies siblings of which one at most can be accepted: its rate is low by design.
        """
        if not self.num_draft_tokens:
            return None
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens of a draft, the bonus token included: 1 + accepted tokens over drafts.

        As in vLLM, rounds without a draft do not count; 1 where there was no draft at all.
        """
        return 1 + self.num_accepted_tokens / max(self.num_drafts, 1)

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens over all rounds, per forward pass; 0 without a round.

        It equals the mean acceptance length where every round drafts, and is less elsewhere.
        """
        return (self.num_rounds + self.num_accepted_tokens) / max(self.num_rounds, 1)

    def __add__(self, other: "Metrics") -> "Metrics":
        pairs = zip_longest(self.acceptance_histogram, other.acceptance_histogram, fillvalue=0)
        widths = sorted({*self.width_histogram, *other.width_histogram})
        return Metrics(
            acceptance_histogram=tuple(ours + theirs for ours, theirs in pairs),
            num_drafts=self.num_drafts + other.num_drafts,
            num_draft_tokens=self.num_draft_tokens + other.num_draft_tokens,
            width_histogram={
                width: self.width_histogram.get(width, 0) + other.width_histogram.get(width, 0)
                for width in widths
            },
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns every figure by its name, as JSON has it.

        Returns:
            Numbers, lists of numbers, and `width_histogram` with its widths as strings.

        Example:
            >>> from jspec.costs.metrics import Metrics
            >>> Metrics((2, 1), num_drafts=3, num_draft_tokens=6).as_dict()["num_rounds"]
            3
        """
        return {
            "num_rounds": self.num_rounds,
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_accepted_tokens_per_pos": list(self.num_accepted_tokens_per_pos),
            "acceptance_rate": self.acceptance_rate,
            "acceptance_rate_per_pos": list(self.acceptance_rate_per_pos),
            "mean_acceptance_length": self.mean_acceptance_length,
            "tokens_per_round": self.tokens_per_round,
            "acceptance_histogram": list(self.acceptance_histogram),
            "width_histogram": {
                str(width): count for width, count in sorted(self.width_histogram.items())
            },
        }

    def log_line(self, seconds: float | None = None) -> str:
        """Returns the line that vLLM logs, which scripts that read its logs can read.

        Two things differ: positions behind the last accepted one are left out, and the histogram of
        widths follows where there was more than one.

        Args:
            seconds: time of the rounds; None leaves both throughputs out.

        Example:
            >>> from jspec.costs.metrics import Metrics
            >>> print(Metrics((3, 1, 2), 6, 20).log_line(seconds=2.0))
            SpecDecoding metrics: Mean acceptance length: 1.83, Accepted throughput: 2.50 tokens/s,
            Drafted throughput: 10.00 tokens/s, Accepted: 5 tokens, Drafted: 20 tokens,
            Per-position acceptance rate: 0.500, 0.333, Avg Draft acceptance rate: 25.0%
        """
        if self.acceptance_rate is None:
            return f"SpecDecoding metrics: no draft in {self.num_rounds} rounds"
        parts = [f"Mean acceptance length: {self.mean_acceptance_length:.2f}"]
        if seconds is not None:
            per_second = 1 / seconds if seconds > 0 else 0.0
            parts += [
                f"Accepted throughput: {self.num_accepted_tokens * per_second:.2f} tokens/s",
                f"Drafted throughput: {self.num_draft_tokens * per_second:.2f} tokens/s",
            ]
        rates = [rate for rate in self.acceptance_rate_per_pos if rate] or [0.0]
        parts += [
            f"Accepted: {self.num_accepted_tokens} tokens",
            f"Drafted: {self.num_draft_tokens} tokens",
            f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in rates)}",
            f"Avg Draft acceptance rate: {100 * self.acceptance_rate:.1f}%",
        ]
        if len(self.width_histogram) > 1:
            widths = ", ".join(
                f"{count} of {width}" for width, count in sorted(self.width_histogram.items())
            )
            parts.append(f"Rounds by width: {widths}")
        return f"SpecDecoding metrics: {', '.join(parts)}"


def of(stats: Stats) -> Metrics:
    """Returns the metrics of a run, all its rows together.

    Args:
        stats: `result.stats` of `jspec.decode`, or `state.stats` between two rounds.

    Returns:
        Their sum over rows; a row that never ran adds nothing.

    Raises:
        InputError: if these are not statistics.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> ask = dict(prompt=[[1, 2, 1, 2, 1]], max_new_tokens=12)
        >>> drafter = jspec.PromptLookup(num_speculative_tokens=2)
        >>> result = jspec.decode(model, model.init(), drafter=drafter, **ask)
        >>> run = jspec.metrics.of(result.stats)
        >>> run.num_rounds + run.num_accepted_tokens
        12
    """
    return sum(by_row(stats), Metrics())


def by_row(stats: Stats) -> list[Metrics]:
    """Returns the metrics of each row of a run.

    Args:
        stats: `result.stats` of `jspec.decode`, or `state.stats` between two rounds.

    Returns:
        One of each row, all zeros for a row that never ran.

    Raises:
        InputError: if these are not statistics.

    Example:
        >>> import jspec
        >>> model = jspec.testing.PrefixLM()
        >>> stopping = jspec.Stopping(max_tokens=[0, 5])
        >>> ask = dict(prompt=[[1, 2], [3, 4]], stopping=stopping, max_new_tokens=8)
        >>> result = jspec.decode(model, model.init(), **ask)
        >>> [row.num_rounds for row in jspec.metrics.by_row(result.stats)]
        [0, 5]
    """
    if not isinstance(stats, Stats):
        raise InputError(f"stats is {stats!r:.80}; pass the stats of a result, result.stats")
    host_stats = jax.device_get(stats)
    return [of_row(host_stats, row) for row in range(len(host_stats.num_draft_tokens))]


def of_row(stats: Stats, row: int) -> Metrics:
    """Returns the metrics of one row, of statistics that are on the host."""
    return Metrics(
        acceptance_histogram=tuple(stats.acceptance_histogram[row].tolist()),
        num_drafts=int(stats.num_drafts[row]),
        num_draft_tokens=int(stats.num_draft_tokens[row]),
        width_histogram=dict(zip(stats.widths, stats.width_histogram[row].tolist(), strict=True)),
    )
