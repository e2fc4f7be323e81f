"""Data parallelism: every device reads a share of each batch and holds a copy of the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec._validate.errors import InputError
from jspec.types import PyTree


@dataclass(frozen=True)
class Devices:
    """Devices in a row. XLA sums the gradients over them, as the loss is a mean over the batch."""

    mesh: Mesh

    @classmethod
    def of(cls, devices: Sequence[Any] | None = None) -> "Devices":
        """Returns the given devices, or all there are."""
        return cls(Mesh(np.array(jax.devices() if devices is None else devices), ("rows",)))

    def copy(self, tree: PyTree) -> PyTree:
        """Returns the same arrays, whole on every device."""
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec()))

    def share(self, batch: PyTree) -> PyTree:
        """Returns a batch, its rows dealt out evenly."""
        return jax.device_put(batch, NamedSharding(self.mesh, PartitionSpec("rows")))

    def check(self, batch_size: int) -> None:
        """Raises InputError unless the rows of a batch can be dealt out evenly."""
        if batch_size % self.mesh.size:
            raise InputError(
                f"a batch of {batch_size} rows does not divide over {self.mesh.size} devices; use "
                f"a multiple of {self.mesh.size}"
            )
