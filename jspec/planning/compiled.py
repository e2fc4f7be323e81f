"""Programs compiled ahead of time, and what XLA says of them. None of them is run."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec import engine
from jspec.base import PyTree, State
from jspec.planning import launches, layout
from jspec.planning.launches import Launches
from jspec.protocols import CausalLM, Drafter
from jspec.request import Prepared, chunk_of, prepare


@dataclass(frozen=True)
class Compiled:
    """What XLA says of a program, of one device."""

    function: str
    temporaries: int
    """Bytes that it holds besides its arguments, at most: of a TPU those of the vector memory,
    which is none of the device's, are among them."""
    flops: float
    """Of a piece of the prompt, or of a round of each width; without what kernels of a CPU do."""
    code: int
    """Bytes of the program itself."""
    seconds: float
    """Of compiling."""
    layers: tuple[int, ...]
    """Numbers of layers that were compiled. With two of them the figures of all layers are on the
    line through theirs."""
    launches: Launches | None = None
    """Of a round on a GPU; None of other programs and devices."""


def call_of(model: CausalLM, rows: int, slots: int, max_new_tokens: int) -> Prepared:
    """The shapes of a greedy call of `jspec.decode` whose prompts fill the cache."""
    tokens = np.zeros((1, slots - max_new_tokens), np.int32)
    one = prepare(model, tokens, None, max_new_tokens, None, None, 0, None, None, slots=slots)
    # Of one row, so that a plan of many needs no memory for their prompts.
    arrays = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), one.arrays
    )
    return one._replace(arrays=arrays, chunk=chunk_of(rows, slots))


def state_of(
    model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree, call: Prepared,
    mesh: Any,
) -> State:  # fmt: skip
    """The shapes of the state before the first round, with their shardings.

    Raises:
        InputError: if the drafter does not fit the model, as `jspec.prefill` would.
    """
    cache, memory, arrays = _arguments(model, drafter, call, mesh)
    begin = partial(engine._prefill, model, drafter=drafter, size=call.size, chunk=call.chunk)
    state = jax.eval_shape(
        lambda *given: begin(
            given[0], given[1], given[2], drafter_params=given[3], drafter_state=given[4]
        ),
        *(params, arrays, cache, drafter_params, memory),
    )
    return layout.state_of(state, cache, memory, mesh)


def prefill(
    model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree, call: Prepared,
    mesh: Any,
) -> Compiled:  # fmt: skip
    """Compiles the program that reads prompts, for the devices of a mesh."""
    cache, memory, arrays = _arguments(model, drafter, call, mesh)
    lowered = engine._prefill.lower(
        model, params, arrays, cache, drafter, drafter_params, memory, call.size, call.chunk
    )
    return _compile("prefill", lowered, model, mesh)


def rounds(
    model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree, state: State,
    mesh: Any,
) -> Compiled:  # fmt: skip
    """Compiles the loop of rounds, for the devices of a mesh."""
    count = layout.whole(jax.ShapeDtypeStruct((), jnp.int32), mesh)
    lowered = engine.decode_rounds.lower(model, params, state, drafter, drafter_params, count)
    return _compile("rounds", lowered, model, mesh)


def extended(few: Compiled, more: Compiled, layers: int) -> Compiled:
    """The figures of a model of so many layers, on the line through those of two others."""

    def line(low: float, high: float) -> float:
        slope = (high - low) / (more.layers[0] - few.layers[0])
        return max(high + slope * (layers - more.layers[0]), 0)

    launched = None
    if few.launches is not None and more.launches is not None:
        pairs = zip(astuple(few.launches), astuple(more.launches), strict=True)
        launched = Launches(*(int(line(*pair)) for pair in pairs))
    return Compiled(
        function=few.function,
        temporaries=int(line(few.temporaries, more.temporaries)),
        flops=line(few.flops, more.flops),
        code=int(line(few.code, more.code)),
        seconds=few.seconds + more.seconds,
        layers=(few.layers[0], more.layers[0]),
        launches=launched,
    )


def _arguments(
    model: CausalLM, drafter: Drafter, call: Prepared, mesh: Any
) -> tuple[PyTree, PyTree, PyTree]:
    """The shapes of cache, drafter's memory, and of all that a call gives, on their devices."""
    rows = call.arrays.prompt.shape[0]

    def place(leaf: Any) -> Any:
        return layout.by_row(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), rows, mesh)

    cache = layout.cache_of(model, rows, call.slots, mesh)
    memory = layout.memory_of(drafter, rows, call.slots, mesh)
    return cache, memory, jax.tree.map(place, call.arrays)


def _compile(function: str, lowered: jax.stages.Lowered, model: Any, mesh: Any) -> Compiled:
    begin = time.perf_counter()
    platforms = {device.platform for device in mesh.devices.flat}
    launched = None
    if platforms == {"gpu"}:
        program, launched = _compile_for_gpu(lowered, is_loop=function == "rounds")
    else:
        program = lowered.compile()
    memory: Any = program.memory_analysis()
    costs: Any = program.cost_analysis()
    if isinstance(costs, Sequence):  # one for each partition, in older versions of JAX
        costs = costs[0]
    held = getattr(memory, "peak_memory_in_bytes", 0) - memory.argument_size_in_bytes
    # On TPU temp_size_in_bytes counts a buffer again where a loop passes it on; on a CPU the peak
    # leaves out what is needed besides.
    on_cpu = platforms == {"cpu"}
    return Compiled(
        function=function,
        temporaries=int(memory.temp_size_in_bytes if on_cpu or held <= 0 else held),
        flops=float((costs or {}).get("flops", 0.0)),
        code=int(memory.generated_code_size_in_bytes),
        seconds=time.perf_counter() - begin,
        layers=(getattr(model, "num_layers", 0),),
        launches=launched,
    )


def _compile_for_gpu(
    lowered: jax.stages.Lowered, is_loop: bool
) -> tuple[jax.stages.Compiled, Launches | None]:
    """The program, and what a round of it launches, of which XLA writes in files alone."""
    with tempfile.TemporaryDirectory() as folder:
        # Without the chip no tiles can be tried.
        options: dict[str, Any] = {"xla_gpu_autotune_level": 0}
        if is_loop:
            options |= {"xla_dump_to": folder, **launches.OPTIONS}
        program = lowered.compile(compiler_options=options)
        return program, launches.of_round(Path(folder)) if is_loop else None
