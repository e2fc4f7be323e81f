"""The cost of a round by its width: measured, or estimated from the device."""

from jspec._xla import devices as devices
from jspec.costs import metrics as metrics
from jspec.costs.measuring import measure
from jspec.policies.cost_curve import CostCurve
from jspec.policies.prior import prior

__all__ = ["CostCurve", "measure", "prior"]


def __getattr__(name: str) -> object:
    if name in ("load", "save", "setting", "CostSetting"):
        raise AttributeError(
            f"jspec.costs.{name} is gone; keep the numbers that jspec.CostCurve.of takes"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
