"""What a plan is for: models, devices, rows and room."""

from dataclasses import dataclass
from typing import Any

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.costs.devices import Device
from jspec.models import sharding
from jspec.planning import layout
from jspec.protocols import CausalLM, Drafter
from jspec.types import PyTree


@dataclass(frozen=True)
class Setting:
    """What a plan is for.

    Args:
        model: the target.
        params: shapes of its weights.
        drafter: proposes the trees.
        drafter_params: shapes of its weights, or what else it has.
        device: of which the mesh is made.
        rows: that decode together.
        capacity: most tokens of a row, prompt and output.
        max_new_tokens: of a call of `jspec.decode`, among these.
        data: devices over which rows are split.
        model_parallel: devices over which weights are split.

    Raises:
        InputError: if a number is out of range, or the rows do not divide.
    """

    model: CausalLM
    params: PyTree
    drafter: Drafter
    drafter_params: PyTree
    device: Device
    rows: int = 1
    capacity: int = 2048
    max_new_tokens: int = 128
    data: int = 1
    model_parallel: int = 1

    def __post_init__(self):
        check_integer("rows", self.rows, 1, None)
        context = self.model.context
        check_integer("capacity", self.capacity, 2, context, "what the model's context holds")
        check_integer(
            "max_new_tokens", self.max_new_tokens, 1, self.capacity - 1, "what a row holds"
        )
        mesh = layout.mesh_of(self.data, self.model_parallel)
        # As loading onto this mesh would lay it out.
        object.__setattr__(self, "model", sharding.laid_out(self.model, mesh))
        if self.rows % self.data:
            raise InputError(
                f"{self.rows} rows do not divide over data={self.data} devices; give a multiple "
                f"of {self.data} rows, such as {-(-self.rows // self.data) * self.data}"
            )

    @property
    def mesh(self) -> Any:
        """The devices as a mesh that need not exist."""
        return layout.mesh_of(self.data, self.model_parallel)

    @property
    def num_devices(self) -> int:
        return self.data * self.model_parallel

    def placed(self, mesh: Any = None) -> tuple[PyTree, PyTree]:
        """The shapes of the weights of target and drafter, with their shardings.

        Args:
            mesh: of devices at hand; None: that of the plan.
        """
        there = self.mesh if mesh is None else mesh
        drafter_params = layout.spread_drafter(self.drafter_params, there)
        return layout.spread(self.params, there), drafter_params
