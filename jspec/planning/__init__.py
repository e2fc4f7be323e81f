"""Compiles the programs of a generation before there are weights or devices."""

from jspec.planning.programs import Compiled, Programs
from jspec.planning.topology import Topology, mesh_here

__all__ = ["Compiled", "Programs", "Topology", "mesh_here"]
