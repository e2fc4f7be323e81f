"""Ratios of counts with their standard errors, over texts, and their differences and ratios."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number that was measured on several texts, and what each text adds to its error.

    Sums, differences and ratios are paired text by text: what makes a text hard falls out.

    Args:
        value: the number.
        influence: [texts] by how much each text moves it, times the number of texts (the linear
            part of the delta method); their mean is 0.
        even: the value at which nothing is ahead: 1 of a ratio of two estimates, else 0.
    """

    value: float
    influence: Float[np.ndarray, " texts"]
    even: float = 0.0

    @property
    def texts(self) -> int:
        return len(self.influence)

    @property
    def error(self) -> float:
        """The standard error; infinite of one text."""
        if self.texts < 2:
            return float("inf")
        return float(np.std(self.influence, ddof=1) / np.sqrt(self.texts))

    @property
    def low(self) -> float:
        """The lower end of the interval of 95%."""
        return self.value - critical(self.texts) * self.error

    @property
    def high(self) -> float:
        """The upper end of the interval of 95%."""
        return self.value + critical(self.texts) * self.error

    @property
    def ahead(self) -> bool:
        """True if the interval is above `even`."""
        return self.low > self.even

    @property
    def behind(self) -> bool:
        """True if the interval is below `even`."""
        return self.high < self.even

    def __sub__(self, other: "Estimate | float") -> "Estimate":
        if isinstance(other, Estimate):
            _check_paired(self, other)
            return Estimate(self.value - other.value, self.influence - other.influence)
        return Estimate(self.value - other, self.influence)

    def __truediv__(self, other: "Estimate | float") -> "Estimate":
        if isinstance(other, Estimate):
            _check_paired(self, other)
            ratio = self.value / other.value
            return Estimate(ratio, (self.influence - ratio * other.influence) / other.value, 1.0)
        return Estimate(self.value / other, self.influence / other)

    def __format__(self, spec: str) -> str:
        """Formats the number with its error; "%" and ".2%": less 1, in percent."""
        share = spec.endswith("%")
        value, error = (
            (100 * (self.value - 1), 100 * self.error) if share else (self.value, self.error)
        )
        digits = (spec.removesuffix("%").lstrip("+") or ".0") + "f" if share else spec or ".2f"
        sign, digits = "+" if share or spec.startswith("+") else "", digits.lstrip("+")
        shown = f" ± {error:{digits}}" if np.isfinite(error) else ""
        return f"{value:{sign}{digits}}{shown}{'%' if share else ''}"

    def __str__(self) -> str:
        return format(self)


def ratio(tokens: Sequence[float], rounds: Sequence[float]) -> Estimate:
    """Tokens per round: all tokens over all rounds, with the error of a ratio over texts.

    Args:
        tokens: [texts].
        rounds: [texts].

    Example:
        >>> str(ratio([4, 6], [2, 2]))
        '2.50 ± 0.50'
    """
    above, below = np.asarray(tokens, float), np.asarray(rounds, float)
    value = above.sum() / below.sum()
    return Estimate(float(value), (above - value * below) / below.mean())


def critical(units: int) -> float:
    """Returns the standard errors in half an interval of 95%: 2, Student's t of few units.

    Example:
        >>> round(critical(3), 2), critical(15)
        (4.3, 2.0)
    """
    return 2.0 if units >= 15 else float(stdtrit(max(units - 1, 1), 0.975))


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """Averages estimates of the same texts."""
    first, *others = estimates
    if not others:
        return first
    for one in others:
        _check_paired(first, one)
    influence = np.mean([one.influence for one in estimates], axis=0)
    value = float(np.mean([one.value for one in estimates]))
    return Estimate(value, influence, first.even)


@dataclass(frozen=True)
class Interval:
    """A number with its own interval.

    Args:
        value: the number.
        low: lower end of its interval of 95%; the number itself if it was measured once.
        high: upper end.
        even: where nothing is ahead.
    """

    value: float
    low: float
    high: float
    even: float = 0.0

    def __format__(self, spec: str) -> str:
        return format(self.value, spec.rstrip("%") or ".2f")


def rank_correlation(ys: Sequence[float]) -> Interval:
    """Estimates Spearman's correlation of numbers with their places, from -1 to 1.

    Example:
        >>> format(rank_correlation([1, 2, 3, 5, 4]), "")
        '0.90'
    """
    ranks = np.argsort(np.argsort(ys))
    value = float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])
    # Fisher's; its variance for ranks by Bonett and Wright 2000.
    width = 1.96 * np.sqrt((1 + value**2 / 2) / (len(ranks) - 3))
    middle = np.arctanh(np.clip(value, -1 + 1e-9, 1 - 1e-9))
    return Interval(value, float(np.tanh(middle - width)), float(np.tanh(middle + width)))


def _check_paired(one: Estimate, other: Estimate) -> None:
    if one.texts != other.texts:
        raise ValueError(f"estimates of {one.texts} and of {other.texts} texts cannot be compared")
