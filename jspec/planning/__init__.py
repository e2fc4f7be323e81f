"""What a generation will hold and take on every device, before there are weights or devices."""

from jspec.planning.ahead_of_time import compile_plan
from jspec.planning.plan import Plan, plan

__all__ = ["Plan", "compile_plan", "plan"]
