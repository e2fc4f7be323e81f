"""The result of a certification."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from jspec.testing.certification.draws import DrawTest
from jspec.testing.certification.goodness import ALARM
from jspec.testing.certification.parity import Parity
from jspec.testing.certification.rounding import Rounding

LOSSLESS, BROKEN, UNDECIDED = "lossless", "bug", "undecided"
_TOO_BLIND = 0.5
"""The share of places where a bug looks like a tie, above which equality says nothing."""
_SHOWN = 10
"""Bugs that are listed."""


@dataclass(frozen=True)
class Certificate:
    """The result of a certification. `verdict` is its one word, `str` a few lines.

    Args:
        settings: of the certification, by name.
        greedy: drafted against plain texts without sampling.
        sampled: the same with sampling under one key; None if the verifier's rule draws by itself.
        draws: the distribution of drawn tokens; None if the rule is the coupled one.
        rounding: what rounding does to this model's logits.
        compiler: what XLA is known to compute wrongly in this process; None: nothing.
    """

    settings: dict[str, Any]
    greedy: Parity
    sampled: Parity | None
    draws: DrawTest | None
    rounding: Rounding
    compiler: str | None = None

    @property
    def verdict(self) -> str:
        """`lossless` within what was tested, `bug`, or `undecided` where rounding hides too much.

        It is undecided if in more than half of all places the two best tokens are so near that
        rounding swaps them: most likely the model is at fault.
        """
        bugs = self.greedy.bugs or (self.sampled is not None and self.sampled.bugs)
        if bugs or (self.draws is not None and not self.draws.passed):
            return BROKEN
        return UNDECIDED if self.rounding.blind > _TOO_BLIND else LOSSLESS

    @property
    def exit_code(self) -> int:
        """0 for `lossless`, else 1."""
        return 0 if self.verdict == LOSSLESS else 1

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it by name, as JSON has it; infinities become None."""
        draws = None
        if self.draws is not None:
            test = self.draws.test
            draws = {
                "prompts": list(self.draws.prompts),
                "num_tokens": self.draws.num_tokens,
                "num_draws": test.num_draws,
                "p_value": test.p_value,
                "alarm": ALARM,
                "passed": self.draws.passed,
            }
        return {
            "verdict": self.verdict,
            "settings": self.settings,
            "greedy": _parity(self.greedy),
            "sampled": None if self.sampled is None else _parity(self.sampled),
            "draws": draws,
            "rounding": asdict(self.rounding),
            "compiler": self.compiler,
        }

    def __str__(self) -> str:
        rounding, why = self.rounding, ""
        bits = (
            f"Bitwise: {rounding.equal_bits:.1%} of {rounding.num_places} places by forward passes "
            f"of {rounding.width} tokens, {rounding.dtype}, {rounding.precision or 'default'} "
            "precision."
        )
        lines = [bits, *_lines("Greedy", self.greedy)]
        if self.sampled is not None:
            lines += _lines("Sampled", self.sampled)
        if self.draws is not None:
            outcome, test = "kept" if self.draws.passed else "BROKEN", self.draws.test
            lines.append(f"Law: {outcome}, p = {test.p_value:.2g} by {test.num_draws} draws.")
        if self.compiler is not None:
            lines.append(f"Warning: {self.compiler}.")
        if self.verdict == UNDECIDED:
            why = (
                f", rounding swaps the two best tokens in {rounding.blind:.0%} of all places; take "
                "a wider dtype or matmul precision, or run jspec.testing.check_model on the model"
            )
        return "\n".join([*lines, f"Verdict: {self.verdict}{why}."])


def _lines(kind: str, parity: Parity) -> list[str]:
    ties = len(parity.divergences) - len(parity.bugs)
    near = "" if parity.nearest is None else f" (up to {parity.nearest:.2g} of rounding)"
    head = (
        f"{kind}: {parity.num_equal} of {parity.num_prompts} texts equal, ties {ties}{near}, "
        f"bugs {len(parity.bugs)}."
    )
    return [head] + [
        f"  bug: prompt {bug.prompt + 1}, place {bug.position + 1}: {_name(bug.drafted)} instead "
        f"of {_name(bug.plain)}, {bug.bounds:.2g} times rounding"
        for bug in parity.bugs[:_SHOWN]
    ]


def _name(token: int | None) -> str:
    return "the end" if token is None else f"token {token}"


def _parity(parity: Parity) -> dict[str, Any]:
    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {
        "num_prompts": parity.num_prompts,
        "num_equal": parity.num_equal,
        "num_tokens": parity.num_tokens,
        "num_bugs": len(parity.bugs),
        "divergences": [
            {name: finite(value) for name, value in asdict(divergence).items()}
            for divergence in parity.divergences
        ],
    }
