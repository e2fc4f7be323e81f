"""The cost of a round by its width: measured once, kept on disk, or estimated."""

from jspec.costs import metrics as metrics
from jspec.costs.measuring import measure
from jspec.costs.prior import prior
from jspec.costs.store import CostSetting, load, save, setting
from jspec.policies.cost_curve import CostCurve

__all__ = ["CostCurve", "CostSetting", "load", "measure", "prior", "save", "setting"]
