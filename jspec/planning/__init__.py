"""What a generation will hold and take on every device, before there are weights or devices."""

from jspec.planning.plan import Plan, compile_plan, plan

__all__ = ["Plan", "compile_plan", "plan"]
