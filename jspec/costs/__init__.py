"""What a round costs, by its width."""

from jspec.costs.curve import CostCurve

__all__ = ["CostCurve"]
