"""Topologies that programs are compiled for ahead of time."""

import os
import re
from contextlib import AbstractContextManager
from importlib.util import find_spec
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jspec._validate.errors import InputError
from jspec._xla import backend
from jspec.costs import devices
from jspec.planning import gpu_chips
from jspec.planning.layout import AXES

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = 4
"""From this size on, the sides of a v5p slice are multiples of it."""
_GPUS = ("1", "2", "4", "8")
"""Of one host."""


class Topology(NamedTuple):
    """A slice of TPUs, or the GPUs of a host.

    Example:
        >>> Topology.of("v5e:2x4")
        Topology(name='v5e:2x4', generation='v5e', num_devices=8)
    """

    name: str
    generation: str
    num_devices: int

    @classmethod
    def of(cls, name: str) -> "Topology":
        """Returns the topology of a name such as "v5e:2x4", "v5p:2x2x2" or "h100:8".

        Raises:
            InputError: if Cloud TPU has no such slice, or no host so many GPUs.
        """
        generation, _, sides = name.lower().partition(":")
        if generation in gpu_chips.CHIPS:
            if sides not in _GPUS:
                raise InputError(
                    f"--topology is {name!r}, and a host has {', '.join(_GPUS)} GPUs; take "
                    f"{generation}:1 to {generation}:8"
                )
            return cls(f"{generation}:{sides}", generation, int(sides))
        kinds = {"v5e": _FLAT, "v6e": _FLAT, "v5p": None}
        if generation not in kinds:
            raise InputError(
                f"--topology is {name!r}, an unknown generation; give v5e, v6e or v5p "
                f"and a slice, such as v5e:2x4, or {', '.join(gpu_chips.CHIPS)} and a number, such "
                "as h100:8"
            )
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", sides) or not _exists(generation, sides):
            names = ", ".join(_FLAT)
            shapes = f"{names}" if generation != "v5p" else "2x2x1, 2x2x2, 2x2x4, 2x4x4, 4x4x4, .."
            raise InputError(
                f"--topology is {name!r}, and {generation} has no such slice; take one of {shapes}"
            )
        return cls(f"{generation}:{sides}", generation, prod(map(int, sides.split("x"))))

    @property
    def device(self) -> devices.Device:
        """The figures of its chips."""
        return devices.find(self.generation)

    def plan(self) -> AbstractContextManager[None]:
        """Returns a context in which methods have the sizes that fit these chips."""
        return backend.plan_for(self.device.platform)

    def mesh(self, data: int, model: int) -> Mesh:
        """Its chips as a mesh, from a description of them; none of them need be here.

        Raises:
            InputError: if the compiler for them is not there, or knows no such topology.
        """
        if self.generation in gpu_chips.CHIPS:
            return _mesh(gpu_chips.chips(self.generation, self.num_devices), data, model)
        if find_spec("libtpu") is None:
            raise InputError(
                "compiling for a TPU needs libtpu, which is not installed; pip install "
                "'jspec-jax[tpu]' into an environment of its own, and run this there"
            )
        from jax.experimental import topologies

        prepare_environment()
        # libtpu describes hosts of four chips and more; one chip is the first of these.
        name = self.name.replace(":1x1", ":2x2")
        try:
            chips = topologies.get_topology_desc(name, "tpu").devices
        except (RuntimeError, ValueError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"libtpu has no topology {self.name} ({reason:.200}); take another slice"
            ) from error
        return _mesh(chips[: self.num_devices], data, model)


def prepare_environment() -> None:
    """Tells libtpu that it only compiles; without effect once it was loaded."""
    for name, value in (
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
    ):
        os.environ.setdefault(name, value)


def mesh_here(data: int = 1, model: int = 1) -> Mesh:
    """Returns the devices of this machine as a mesh.

    Args:
        data: devices over which rows are split.
        model: devices over which weights are split.

    Raises:
        InputError: if there are fewer.
    """
    chips = jax.devices()
    if len(chips) < data * model:
        raise InputError(
            f"the mesh has {data * model} devices and this machine {len(chips)} of "
            f"{chips[0].device_kind}; take fewer, or name a --topology"
        )
    return _mesh(chips[: data * model], data, model)


def _mesh(chips: Any, data: int, model: int) -> Mesh:
    grid = np.array(chips).reshape(data, model)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _exists(generation: str, sides: str) -> bool:
    if generation != "v5p":
        return sides in _FLAT
    lengths: list[Any] = sorted(map(int, sides.split("x")))
    if len(lengths) != 3 or lengths[-1] > 24:
        return False
    small = lengths in ([1, 2, 2], [2, 2, 2], [2, 2, 4], [2, 4, 4])
    return small or all(length % _CUBES == 0 for length in lengths)
