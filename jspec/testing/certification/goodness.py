"""The G-test of counts against a known distribution."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num
from scipy import special

ALARM = 1e-4
"""The p-value below which counts are taken to come from another distribution."""
_LEAST = 5.0
"""The least expected count of a bin; cells of less share one."""


@dataclass(frozen=True)
class GTest:
    """G = 2 sum seen log(seen / expected), and what follows from it. G-tests add up."""

    statistic: float
    freedom: int
    num_draws: int

    @property
    def p_value(self) -> float:
        """The chance of so large a G if the distribution is right."""
        if not self.freedom:
            return 0.0 if np.isinf(self.statistic) else 1.0
        return float(special.chdtrc(self.freedom, self.statistic))

    def __add__(self, other: "GTest") -> "GTest":
        return GTest(
            self.statistic + other.statistic,
            self.freedom + other.freedom,
            self.num_draws + other.num_draws,
        )


def g_test(counts: Num[np.ndarray, " C"], probs: Float[np.ndarray, " C"]) -> GTest:
    """Returns the G-test of cell counts; cells with fewer than 5 expected are joined."""
    num_draws = int(counts.sum())
    if counts[probs == 0].any():
        return GTest(float("inf"), 0, num_draws)
    expected = num_draws * probs
    rare = expected < _LEAST
    seen = np.append(counts[~rare], counts[rare].sum()).astype(float)
    mean = np.append(expected[~rare], expected[rare].sum())
    seen, mean = seen[mean > 0], mean[mean > 0]
    if len(mean) > 1 and mean[-1] < _LEAST and rare.any():
        # What is rare even together goes to the smallest of the others.
        smallest = int(mean[:-1].argmin())
        seen[smallest], mean[smallest] = seen[smallest] + seen[-1], mean[smallest] + mean[-1]
        seen, mean = seen[:-1], mean[:-1]
    logs = np.log(np.where(seen > 0, seen, 1.0) / mean)
    return GTest(float(max(0.0, 2 * (seen * logs).sum())), len(mean) - 1, num_draws)


def distance(counts: Num[np.ndarray, "..."], probs: Float[np.ndarray, "..."]) -> float:
    """Returns G over its bound, exceeded once in a million runs if the distribution is right."""
    test = g_test(counts.reshape(-1), probs.reshape(-1))
    if not test.freedom:
        return test.statistic
    return test.statistic / float(special.chdtri(test.freedom, 1e-6))
