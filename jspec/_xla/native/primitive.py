"""A function with a kernel on a CPU and XLA's operations elsewhere, as a primitive of JAX.

It is `jax.lax.platform_dependent` with three differences: derivatives are those of the operations,
the result varies over the axes of a `jax.shard_map` as theirs does, and a program that is exported
has the operations, so that it runs where there is no library.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array

_CHOICE = core.Primitive("jspec_native")
_CHOICE.multiple_results = True


def natively(kernel: Callable[..., Any], plainly: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what the kernel computes on a CPU, and `plainly` elsewhere."""
    leaves, structure = jax.tree.flatten(arguments)

    def of_leaves(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *leaves: function(*jax.tree.unflatten(structure, leaves))

    jaxpr, shapes = jax.make_jaxpr(of_leaves(plainly), return_shape=True)(*leaves)
    run = of_leaves(kernel)
    outputs = _CHOICE.bind(
        *leaves, kernel=lambda *leaves: jax.tree.leaves(run(*leaves)), jaxpr=jaxpr
    )
    return jax.tree.unflatten(jax.tree.structure(shapes), outputs)


def _run(jaxpr: core.ClosedJaxpr) -> Callable[..., list[Array]]:
    return core.jaxpr_as_fun(jaxpr)


@_CHOICE.def_impl
def _at_once(*leaves, kernel, jaxpr):
    on_cpu = all(device.platform == "cpu" for leaf in leaves for device in _devices(leaf))
    return (kernel if on_cpu else _run(jaxpr))(*leaves)


def _devices(leaf: Any) -> Any:
    return leaf.devices() if isinstance(leaf, jax.Array) else jax.devices()[:1]


@_CHOICE.def_abstract_eval
def _shape(*leaves, kernel, jaxpr):
    return jaxpr.out_avals


def _lower(context, *leaves, kernel, jaxpr):
    return mlir.lower_fun(_run(jaxpr))(context, *leaves)


def _lower_on_cpu(context, *leaves, kernel, jaxpr):
    if context.module_context.lowering_parameters.for_export:
        kernel = _run(jaxpr)
    return mlir.lower_fun(kernel)(context, *leaves)


mlir.register_lowering(_CHOICE, _lower)
mlir.register_lowering(_CHOICE, _lower_on_cpu, platform="cpu")


def _jvp(primals, tangents, *, kernel, jaxpr):
    moved = [n for n, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def of_moved(*some):
        leaves = list(primals)
        for n, leaf in zip(moved, some, strict=True):
            leaves[n] = leaf
        return _run(jaxpr)(*leaves)

    pairs = [primals[n] for n in moved], [tangents[n] for n in moved]
    outputs = _CHOICE.bind(*primals, kernel=kernel, jaxpr=jaxpr)
    return outputs, jax.jvp(of_moved, *pairs)[1]


ad.primitive_jvps[_CHOICE] = _jvp


def _batch(leaves, axes, *, kernel, jaxpr):
    both = (jax.vmap(function, in_axes=axes) for function in (kernel, _run(jaxpr)))
    outputs = natively(*both, *leaves)
    return outputs, [0] * len(outputs)


batching.primitive_batchers[_CHOICE] = _batch
