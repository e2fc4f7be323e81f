"""Ratios of counts with their standard errors, over texts, and their differences and ratios."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number that was measured on several texts, and what each text adds to its error.

    Sums, differences and ratios of estimates of the same texts are paired text by text: what makes
    a text hard for both falls out.

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
    def ahead(self) -> bool:
        """Whether it is above `even` by two standard errors."""
        return self.value - self.even > 2 * self.error

    @property
    def behind(self) -> bool:
        """Whether it is below `even` by two standard errors."""
        return self.value - self.even < -2 * self.error

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
        """The number with its error; "%" and ".2%": less 1, in percent."""
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


def _check_paired(one: Estimate, other: Estimate) -> None:
    if one.texts != other.texts:
        raise ValueError(f"estimates of {one.texts} and of {other.texts} texts cannot be compared")
