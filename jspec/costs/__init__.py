"""The cost of a round by its width: measured once, kept on disk, or estimated."""

from jspec._xla import devices as devices
from jspec.costs import metrics as metrics
from jspec.costs.measuring import measure, measure_in_turn, set_backoff
from jspec.costs.store import fingerprint, load, save
from jspec.policies.cost_curve import CostCurve
from jspec.policies.prior import prior

__all__ = [
    "CostCurve",
    "fingerprint",
    "load",
    "measure",
    "measure_in_turn",
    "prior",
    "save",
    "set_backoff",
]


def __getattr__(name: str) -> object:
    if name in ("setting", "CostSetting"):
        raise AttributeError(f"jspec.costs.{name} is gone; use jspec.costs.fingerprint")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
