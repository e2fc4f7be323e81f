"""What a round costs, by its width: measured once, kept on disk, or guessed."""

from jspec.cost_curve import CostCurve
from jspec.costs.measuring import measure
from jspec.costs.prior import prior
from jspec.costs.store import Setting, load, save, setting

__all__ = ["CostCurve", "Setting", "load", "measure", "prior", "save", "setting"]
