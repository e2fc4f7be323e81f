"""Programs on a mesh of explicit axes, which are automatic inside of them.

Explicit axes, the default of `jax.make_mesh`, put shardings into types. Each gather, and each
product whose result could lie in two ways, then has to say how it lies, the models' own among them.
So the programs of the engine take such axes for automatic ones, and what comes out has its
shardings in its types again, as `mesh_axes.specs` has them.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jspec._xla import mesh_axes
from jspec.types import State

Program = TypeVar("Program", bound=Callable[..., Any])


def automatic(program: Program) -> Program:
    """Returns the program, which takes explicit axes of its arguments' mesh for automatic ones."""

    @wraps(program)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        mesh = _explicit_mesh([leaves[place] for place in arrays])
        if mesh is None:
            return program(*args, **kwargs)
        inside = mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
        with jax.sharding.use_abstract_mesh(inside):
            for place in arrays:
                spec = PartitionSpec(*[None] * leaves[place].ndim)
                leaves[place] = jax.sharding.reshard(leaves[place], NamedSharding(inside, spec))
            args, kwargs = jax.tree.unflatten(tree, leaves)
            result = program(*args, **kwargs)
        return _restore_types(result, mesh)

    return call  # type: ignore[return-value]


def _explicit_mesh(arrays: list[jax.Array]) -> AbstractMesh | None:
    """Returns the mesh of some array, if it has explicit axes."""
    for array in arrays:
        mesh = jax.typeof(array).sharding.mesh
        if mesh.explicit_axes:
            return mesh
    return None


def _restore_types(result: PyTree, mesh: AbstractMesh) -> PyTree:
    """Returns the arrays of a result, with their shardings in their types."""
    parts = jax.tree.leaves(result, is_leaf=lambda part: isinstance(part, State))
    batch = next(len(part.root) for part in parts if isinstance(part, State))
    axes = {name: mesh.shape[name] for name in mesh.explicit_axes}

    leaves, tree = jax.tree.flatten(result)
    typed = [
        jax.sharding.reshard(leaf, NamedSharding(mesh, spec))
        for leaf, spec in zip(leaves, mesh_axes.specs(result, axes, batch), strict=True)
    ]
    return jax.tree.unflatten(tree, typed)
