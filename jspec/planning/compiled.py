"""Programs compiled ahead of time, and what XLA says of them. None of them is run."""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec import decoding
from jspec.planning import launches, layout
from jspec.planning.launches import Launches, Rounds
from jspec.protocols import CausalLM, Drafter
from jspec.round import frame
from jspec.round.request import Prepared, chunk_of, prepare
from jspec.round.widths import sizes_of
from jspec.types import PyTree, State, Tree


@dataclass(frozen=True)
class Compiled:
    """What XLA says of a program, of one device."""

    function: str
    temporaries: int
    """Bytes that it holds besides its arguments, at most: of a TPU those of the vector memory,
    which is none of the device's, are among them."""
    flops: float
    """Of a chunk of the prompt, or of a round of each width; without what kernels of a CPU do."""
    code: int
    """Bytes of the program itself."""
    seconds: float
    """Of compiling."""
    layers: tuple[int, ...]
    """Numbers of layers that were compiled. With two of them the figures of all layers are on the
    line through theirs."""
    rounds: Rounds | None = None
    """What rounds launch on a GPU; None of other programs and devices."""

    @property
    def launches(self) -> Launches | None:
        """What a round launches that runs each of its widths once."""
        return None if self.rounds is None else self.rounds.each


def call_of(model: CausalLM, rows: int, capacity: int, max_new_tokens: int) -> Prepared:
    """The shapes of a greedy call of `jspec.decode` whose prompts fill the cache."""
    tokens = np.zeros((1, capacity - max_new_tokens), np.int32)
    one = prepare(model, tokens, None, max_new_tokens, eos=0, capacity=capacity)
    # Of one row, so that a plan of many needs no memory for their prompts.
    arrays = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), one.arrays
    )
    return one._replace(arrays=arrays, chunk=chunk_of(rows, capacity))


def state_of(
    model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree, call: Prepared,
    mesh: Any,
) -> State:  # fmt: skip
    """The shapes of the state before the first round, with their shardings.

    Raises:
        InputError: if the drafter does not fit the model, as `jspec.prefill` would.
    """
    cache, memory, arrays = _arguments(model, drafter, call, mesh)
    given, sizes = (params, arrays, cache, arrays.lengths), (call.size, call.capacity, call.chunk)
    begin = partial(decoding._prefill, model)
    state = jax.eval_shape(
        lambda given, drafter_params, memory: begin(
            *given, drafter, drafter_params, memory, *sizes
        ),
        *(given, drafter_params, memory),
    )
    return layout.state_of(state, cache, memory, mesh)


def prefill(
    model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree, call: Prepared,
    mesh: Any,
) -> Compiled:  # fmt: skip
    """Compiles the program that reads prompts, for the devices of a mesh."""
    lowered = lowered_prefill(model, params, drafter, drafter_params, call, mesh)
    return _compile("prefill", lowered, model, mesh)


def lowered_prefill(
    model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree, call: Prepared,
    mesh: Any,
) -> jax.stages.Lowered:  # fmt: skip
    """The program that reads prompts, before it is compiled."""
    cache, memory, arrays = _arguments(model, drafter, call, mesh)
    return decoding._prefill.lower(
        model,
        params,
        arrays,
        cache,
        arrays.lengths,
        drafter,
        drafter_params,
        memory,
        call.size,
        call.capacity,
        call.chunk,
    )


def rounds(
    model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree, state: State,
    mesh: Any,
) -> Compiled:  # fmt: skip
    """Compiles the loop of rounds, for the devices of a mesh."""
    lowered = lowered_rounds(model, params, drafter, drafter_params, state, mesh)
    found = _compile("rounds", lowered, model, mesh)
    if found.rounds is None:
        return found

    def drafted(params: PyTree, state: State) -> Tree:
        return drafter.draft(params, state.drafter_state, frame(state))[0]

    sizes = sizes_of(jax.eval_shape(drafted, drafter_params, state))
    return replace(found, rounds=found.rounds.of_widths([width for width, _ in sizes]))


def lowered_rounds(
    model: CausalLM, params: PyTree, drafter: Drafter, drafter_params: PyTree, state: State,
    mesh: Any,
) -> jax.stages.Lowered:  # fmt: skip
    """The loop of rounds, before it is compiled."""
    count = layout.whole(jax.ShapeDtypeStruct((), jnp.int32), mesh)
    return decoding.decode_rounds.lower(model, params, state, drafter, drafter_params, count)


def extended(few: Compiled, more: Compiled, layers: int) -> Compiled:
    """The figures of a model of so many layers, on the line through those of two others."""

    def line(low: float, high: float) -> float:
        slope = (high - low) / (more.layers[0] - few.layers[0])
        return max(high + slope * (layers - more.layers[0]), 0)

    def launched(low: Launches, high: Launches) -> Launches:
        pairs = zip(astuple(low), astuple(high), strict=True)
        return Launches(*(round(line(*pair)) for pair in pairs))

    of_rounds, first, last = None, few.rounds, more.rounds
    if first is not None and last is not None:
        of_rounds = Rounds(
            launched(first.each, last.each),
            tuple(map(launched, first.widths, last.widths)),
            None if first.rest is None or last.rest is None else launched(first.rest, last.rest),
        )
    return Compiled(
        function=few.function,
        temporaries=int(line(few.temporaries, more.temporaries)),
        flops=line(few.flops, more.flops),
        code=int(line(few.code, more.code)),
        seconds=few.seconds + more.seconds,
        layers=(few.layers[0], more.layers[0]),
        rounds=of_rounds,
    )


def _arguments(
    model: CausalLM, drafter: Drafter, call: Prepared, mesh: Any
) -> tuple[PyTree, PyTree, PyTree]:
    """The shapes of cache, drafter's memory, and of all that a call gives, on their devices."""
    rows = call.arrays.prompt.shape[0]

    def place(leaf: Any) -> Any:
        return layout.by_row(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), rows, mesh)

    cache = layout.model_memory(model, rows, call.capacity, mesh)
    memory = layout.memory_of(drafter, rows, call.capacity, mesh)
    return cache, memory, jax.tree.map(place, call.arrays)


def _compile(function: str, lowered: jax.stages.Lowered, model: Any, mesh: Any) -> Compiled:
    begin = time.perf_counter()
    platforms = {device.platform for device in mesh.devices.flat}
    of_rounds = None
    if platforms == {"gpu"}:
        program, of_rounds = for_gpu(lowered, is_loop=function == "rounds")
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
        rounds=of_rounds,
    )


def for_gpu(
    lowered: jax.stages.Lowered, is_loop: bool, options: Mapping[str, Any] | None = None
) -> tuple[jax.stages.Compiled, Rounds | None]:
    """A program for a GPU that is not here, and what its rounds launch.

    Args:
        lowered: for devices of `jspec.planning.gpu_chips`.
        is_loop: whether it is a loop of rounds.
        options: of the compiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Without the chip no tiles can be tried.
        asked: dict[str, Any] = {"xla_gpu_autotune_level": 0, **(options or {})}
        if is_loop:  # XLA writes of it in files alone
            asked |= {"xla_dump_to": folder, **launches.OPTIONS}
        program = lowered.compile(compiler_options=asked)
        return program, launches.of_rounds(Path(folder)) if is_loop else None
