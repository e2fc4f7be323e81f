"""A test that counts fit a distribution."""

import numpy as np
from jaxtyping import Float, Num


def distance(
    counts: Num[np.ndarray, "..."], probs: Float[np.ndarray, "..."], alarms: float = 4.75
) -> float:
    """Chi-squared over its bound, which it passes once in a million runs where the distribution is
    right.

    Cells where fewer than 5 are expected count as one. The bound is Wilson and Hilferty's (1931).

    Args:
        counts: how often each cell was seen.
        probs: its probability.
        alarms: deviations of a normal variable; 4.75 is one in a million.

    Returns:
        Above 1: the counts are not of this distribution. Infinity if an impossible cell was seen.

    Example:
        >>> import numpy as np
        >>> distance(np.array([480, 520]), np.array([0.5, 0.5])) < 1
        True
    """
    if counts[probs == 0].any():
        return float("inf")
    expected = counts.sum() * probs
    rare = expected < 5
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    if not freedom:
        return 0.0
    shrink = 2 / (9 * freedom)
    bound = freedom * (1 - shrink + alarms * np.sqrt(shrink)) ** 3
    return float(((seen - wanted) ** 2 / wanted).sum() / bound)
