"""The result of a certification: what was found, what it means, and what could not be seen."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from jspec.costs.metrics import Metrics
from jspec.testing.certification.draws import DrawTest
from jspec.testing.certification.goodness import ALARM, POWER, GTest
from jspec.testing.certification.parity import Divergence, Parity
from jspec.testing.certification.rounding import Rounding

LOSSLESS, BROKEN, UNDECIDED = "lossless", "bug", "undecided"
_TOO_BLIND = 0.5
"""The share of places where a bug looks like a tie, above which equality says nothing."""


@dataclass(frozen=True)
class MatchedWidth:
    """Plain decoding by forward passes as wide as a round's, the others of their tokens absent."""

    width: int
    """Tokens of each forward."""
    num_equal_to_plain: int
    """Prompts whose text is that of plain decoding by forward passes of one token."""
    num_equal_to_drafted: int
    """Prompts whose text is the drafted one."""
    num_prompts: int
    time_ratio: float
    """Its time over that of plain decoding, prefill included, same prompts, one run each."""


@dataclass(frozen=True)
class Certificate:
    """What a certification found. `verdict` is its one word, `str` a report for people.

    Args:
        settings: of the certification, by name.
        greedy: drafted against plain texts without sampling.
        sampled: the same with sampling under one key; None if the verifier's rule draws by itself.
        draws: the distribution of drawn tokens; None if the rule is the coupled one.
        rounding: what rounding does to this model's logits.
        matched: plain decoding by wider forward passes; None if a round is no wider.
        metrics: of the greedy run.
        speed: tokens per second of the drafted greedy run over those of plain decoding.
        skipped: what was not tested, each with its reason.
        compiler: what XLA is known to compute wrongly in this process; None: nothing.
    """

    settings: dict[str, Any]
    greedy: Parity
    sampled: Parity | None
    draws: DrawTest | None
    rounding: Rounding
    matched: MatchedWidth | None
    metrics: Metrics
    speed: float
    skipped: tuple[str, ...]
    compiler: str | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is not `lossless`, in sentences; empty if it is."""
        found = [
            f"{len(parity.bugs)} of {parity.num_prompts} {kind} texts differ from plain decoding "
            "by more than rounding does"
            for kind, parity in (("greedy", self.greedy), ("sampled", self.sampled))
            if parity is not None and parity.bugs
        ]
        if self.draws is not None and not self.draws.passed:
            found.append(
                f"drawn tokens are not of the target's distribution (p = {self.draws.p_value:.1e})"
            )
        return tuple(found)

    @property
    def verdict(self) -> str:
        """`lossless` within what was tested, `bug`, or `undecided` where rounding hides too much.

        It is undecided if in more than half of all places the two best tokens are so near that
        rounding swaps them: that is no certificate, and most likely a mistake in the model.
        """
        if self.reasons:
            return BROKEN
        return UNDECIDED if self.rounding.blind > _TOO_BLIND else LOSSLESS

    @property
    def exit_code(self) -> int:
        """0 for `lossless`, else 1."""
        return 0 if self.verdict == LOSSLESS else 1

    def as_dict(self) -> dict[str, Any]:
        """All of it by name, as JSON has it; infinities are None there."""
        draws = None
        if self.draws is not None:
            draws = {
                "prompts": list(self.draws.prompts),
                "num_tokens": self.draws.num_tokens,
                "plain": _g_test(self.draws.test),
                "wide": _g_test(self.draws.wide),
                "p_value": self.draws.p_value,
                "alarm": ALARM,
                "power": POWER,
                "rounding": self.draws.rounding,
                "passed": self.draws.passed,
            }
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "settings": self.settings,
            "greedy": _parity(self.greedy),
            "sampled": None if self.sampled is None else _parity(self.sampled),
            "draws": draws,
            "rounding": asdict(self.rounding) | {"ulp": self.rounding.ulp},
            "matched_width": None if self.matched is None else asdict(self.matched),
            "speed": self.speed,
            "metrics": self.metrics.as_dict(),
            "skipped": list(self.skipped),
            "compiler": self.compiler,
        }

    def __str__(self) -> str:
        from jspec.testing.certification.report import lines

        return "\n".join(lines(self))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _g_test(test: GTest) -> dict[str, Any]:
    return {
        "statistic": _finite(test.statistic),
        "freedom": test.freedom,
        "num_draws": test.num_draws,
        "p_value": test.p_value,
        "detectable": test.detectable,
    }


def _parity(parity: Parity) -> dict[str, Any]:
    def divergence(one: Divergence) -> dict[str, Any]:
        return {
            name: _finite(value) if isinstance(value, float) else value
            for name, value in asdict(one).items()
        }

    return {
        "num_prompts": parity.num_prompts,
        "num_equal": parity.num_equal,
        "num_tokens": parity.num_tokens,
        "num_bugs": len(parity.bugs),
        "divergences": [divergence(one) for one in parity.divergences],
    }
