"""Every program of the bench, compiled for a GPU that need not be here, and what is predicted.

python -m benchmarks.accelerator --compile-only h100:1 --scale 8B

Needs JAX's plugin for CUDA (the extra `cuda-aot`), and no GPU. Nothing is run.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.accelerator import (
    attention,
    bits,
    first,
    forced,
    forwards,
    kernels,
    loops,
    ordered,
    overhead,
    parity,
)
from benchmarks.accelerator.cells import Cells
from benchmarks.accelerator.methods import PROMPT_TOKENS
from benchmarks.accelerator.rounds import TOKENS_PER_ROUND
from benchmarks.accelerator.shapes import UNROLLED, Scale, random_state, random_weights
from benchmarks.ledger import Ledger
from jspec import methods, models
from jspec._validate.errors import InputError
from jspec._xla import backend
from jspec.costs import devices
from jspec.costs.devices import Device
from jspec.decoding import decode_rounds
from jspec.models import Loaded
from jspec.models.attention import Cached
from jspec.models.block_attention import choice
from jspec.planning import compiled, layout, work
from jspec.planning.launches import Rounds
from jspec.planning.setting import Setting
from jspec.planning.topology import Topology
from jspec.round.request import bucket
from jspec.types import PyTree

PREDICTED = Path(__file__).with_name("predicted.jsonl")
"""What was compiled for an H100: the report shows it beside what is measured on one."""
PREFILL = "prefill"

Lower = Callable[[Any], jax.stages.Lowered]
"""A program, lowered for the devices of a mesh."""


class Program(NamedTuple):
    """A program of a section, by the key of its row."""

    section: str
    key: Mapping[str, Any]
    lower: Lower
    options: Mapping[str, Any] | None = None
    is_loop: bool = False
    """Whether it is a loop of rounds, whose launches are counted."""
    predict: Callable[[Rounds, Device], Mapping[str, float]] | None = None
    """Seconds of each kind of its rounds, from what they launch."""


def write(
    topology: Topology, scale: Scale, rows: Path, seconds: float, names: Sequence[str] = ()
) -> list[str]:
    """Compiles all programs, and writes a row of each as it comes.

    Args:
        topology: of one GPU.
        scale: the shapes.
        rows: the file; what it holds is not compiled again.
        seconds: after which nothing is begun.
        names: of sections; none: all of them.

    Returns:
        What there was no time for.

    Raises:
        InputError: if the topology is no GPU's, or JAX's plugin for CUDA is not installed.
    """
    if topology.device.platform != "gpu" or topology.num_devices != 1:
        raise InputError(
            f"--compile-only is {topology.name}; give one GPU, such as h100:1, a100:1 or b200:1"
        )
    mesh, device = topology.mesh(1, 1), topology.device
    # A device that is not there reads no programs back.
    jax.config.update("jax_enable_compilation_cache", False)
    about = {
        "bench": "accelerator, compiled",
        "kind": device.kind,
        "jax": jax.__version__,
        "scale": scale.name,
    }
    left = []
    with backend.planned("gpu"), jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        ledger, ends = Ledger(rows), time.monotonic() + seconds
        for program in programs(scale):
            if names and program.section not in names:
                continue
            cells = Cells(ledger, about | {"section": program.section}, ends)
            cells.run(partial(_row, program, mesh, device), **program.key)
            left += cells.left
    return left


def _row(program: Program, mesh: Any, device: Device) -> dict:
    lowered = program.lower(mesh)
    begin = time.monotonic()
    made, launched = compiled.for_gpu(lowered, program.is_loop, program.options)
    memory: Any = made.memory_analysis()
    row = {
        "compile_seconds": round(time.monotonic() - begin, 2),
        "kernels": kernels.total(made.as_text() or ""),
        "temporaries": int(memory.temp_size_in_bytes),
        "launched": None if launched is None else asdict(launched),
    }
    if launched is not None and program.predict is not None:
        row["kinds"] = dict(program.predict(launched, device))
    return row


def programs(scale: Scale) -> Iterator[Program]:
    """All programs of a scale, in the order in which the bench comes to them."""
    model = scale.model
    target = Loaded(model, jax.eval_shape(partial(random_weights, model)), None, (), None)
    yield Program("device", {"what": "bandwidth"}, _of(lambda x: x + 1, _floats(1 << 20)))
    for name, batch, graph in first.plan(scale, on_cuda=True):
        options = first.ONE_GRAPH if graph else None
        yield _first(name, batch, graph, target, scale, options)
    yield from _forwards(target, scale)
    for batch in scale.round_batches:
        drafter = forced.drafter(scale.config.vocab_size, scale.nodes)
        script = _shapes(partial(forced.script, batch, TOKENS_PER_ROUND[0]))
        rounds = _rounds(target, methods.Built(model, drafter, script), batch, scale)
        yield Program("rounds", {"method": "forced", "batch": batch}, rounds, is_loop=True)
    yield from _real(scale)
    yield from _hollow(scale)
    yield from _control(scale)
    yield from _attention(scale)
    yield from _products(scale)


# The sections.


def _first(
    name: str, batch: int, graph: bool, target: Loaded, scale: Scale, options: Any
) -> Program:
    method = first.built(name, target)

    def predict(launched: Rounds, device: Device) -> dict[str, float]:
        state = _state(target, method, batch, scale)
        kinds = first.widths(method.drafter, state)
        drafts = [kind for kind in kinds if kind != first.REST]
        counts = dict(zip(drafts, launched.widths, strict=True)) | {first.REST: launched.rest}
        found = {}
        for kind, width in kinds.items():
            given = target.model, target.params, batch, 1 + width, scale.capacity, layout.mesh_of()
            count = counts[kind]
            assert count is not None, "who backs off has a count of it"
            found[kind] = work.score(*given).seconds(device) + count.seconds
        return found

    key = {"method": name, "batch": batch, "one_graph": graph}
    rounds = _rounds(target, method, batch, scale)
    return Program(first.SECTION, key, rounds, options, is_loop=True, predict=predict)


def _forwards(target: Loaded, scale: Scale) -> Iterator[Program]:
    """Whole forwards, and a layer of those that run layer by layer."""
    model: Any = target.model
    for way, batch, width in forwards.plan(scale):
        sizes = model, batch, width, scale.past, scale.capacity
        given = _shapes(partial(forwards.inputs, *sizes))
        key = {"way": way, "batch": batch, "width": width}
        if way == UNROLLED:
            lower = _of(model.apply, target.params, *given)
        else:
            # Scanned or one by one, what compiles is a layer's.
            states = jax.ShapeDtypeStruct((batch, width, scale.config.hidden_size), model.dtype)
            held = given.cache.keys[0], given.cache.values[0], given.cache.lengths
            layer = target.params["params"]["layers_0"], states, given.positions, given.mask
            lower = _of(partial(forwards.block, model), *layer, *held)
        yield Program("forwards", key, lower)


def _real(scale: Scale) -> Iterator[Program]:
    """Prefill and rounds of the methods on a real model, alone and as a batch of each dtype."""
    name, capacity = scale.models[0], bucket(PROMPT_TOKENS + scale.new_tokens)
    cases = [("methods", 1, None, "default", scale.methods)]
    cases += [("parity", scale.prompts, *pair, parity.METHODS) for pair in scale.precisions]
    for section, rows, dtype, precision, names in cases:
        target = models.load(name, dtype)
        for method in ("autoregressive", *names):
            try:
                built = methods.build(method, target)
            except InputError:  # it has no trained head
                continue
            sizes = target, built, rows, capacity, scale.new_tokens
            for part in (PREFILL, "rounds"):
                lower = partial(_call, part, precision, *sizes)
                key = {"method": method, "part": part, "dtype": dtype, "precision": precision}
                yield Program(section, key, lower, is_loop=part != PREFILL)


def _call(
    part: str, precision: str, target: Loaded, built: methods.Built, rows: int, capacity: int,
    new_tokens: int, mesh: Any,
) -> jax.stages.Lowered:  # fmt: skip
    """A program of a call of `jspec.decode`."""
    weights, drafter_weights = (
        jax.eval_shape(lambda tree=tree: tree) for tree in (target.params, built.drafter_params)
    )
    setting = Setting(
        built.model, weights, built.drafter, drafter_weights, devices.find("h100"), rows, capacity,
        new_tokens,
    )  # fmt: skip
    params, drafter_params = setting.placed(mesh)
    call = compiled.call_of(setting.model, rows, capacity, new_tokens)
    given = setting.model, params, setting.drafter, drafter_params
    with jax.default_matmul_precision(precision):
        if part == PREFILL:
            return compiled.lowered_prefill(*given, call, mesh)
        return compiled.lowered_rounds(*given, compiled.state_of(*given, call, mesh), mesh)


def _hollow(scale: Scale) -> Iterator[Program]:
    """Rounds without a forward."""
    model = overhead.HollowModel(scale.config, scale.dtype)
    target = Loaded(model, _shapes(partial(model.init, jax.random.key(0))), None, (), None)
    for batch in scale.round_batches:
        alone = overhead.standalone(scale, batch)
        for name in (*alone, *overhead.METHODS):
            given = alone.get(name)
            method = methods.build(name, target) if given is None else methods.Built(model, *given)
            lower = _rounds(target, method, batch, scale)
            yield Program("overhead", {"method": name, "batch": batch}, lower, is_loop=True)


def _control(scale: Scale) -> Iterator[Program]:
    """Loops, branches, and choices among the vocabulary."""
    passes = jax.ShapeDtypeStruct((), jnp.int32)
    for name, body in loops.BODIES.items():
        yield Program("loops", {"body": name}, _of(loops.looped(body), _floats(1024), passes))
    for rows, (name, choose) in product((1, scale.nodes + 1), loops.CHOICES.items()):
        lower = _of(choose, _floats(rows, scale.config.vocab_size))
        yield Program("loops", {"of": name, "rows": rows}, lower)


def _attention(scale: Scale) -> Iterator[Program]:
    """The kernels of tree attention, and XLA's."""
    for batch, tokens, capacity in attention.plan(scale):
        where = choice.setting(scale.model, capacity, batch)
        given = choice.shapes(where, tokens)
        for by in (choice.XLA, *choice.CANDIDATES["gpu"]):
            key = {"batch": batch, "tokens": tokens, "capacity": capacity, "by": repr(by)}
            yield Program("attention", key, _of(choice.chain(by, where.soft_cap), *given))


def _products(scale: Scale) -> Iterator[Program]:
    """Products whose tiles do not depend on their rows, and XLA's."""
    ways = {"kernel": bits.product, "XLA": bits.by_xla}
    for name, (outputs, inputs) in bits.shapes_of(scale.config).items():
        for (way, function), rows in product(ways.items(), bits.ROWS):
            if way == "kernel" and not (scale.dtype == "bfloat16" and bits.fits(outputs, inputs)):
                continue
            given = [jax.ShapeDtypeStruct((each, inputs), scale.dtype) for each in (rows, outputs)]
            key = {"of": name, "rows": rows, "by": way}
            yield Program(bits.SECTION, key, _of(function, *given))
    config = scale.config
    heads, dim, dtype = config.num_kv_heads, config.head_dim, jnp.bfloat16
    for nodes in (
        bits.ROWS if dim % ordered.BLOCK == 0 and scale.capacity % ordered.BLOCK == 0 else ()
    ):
        new, held = (1, heads, nodes, dim), (1, heads, scale.capacity, dim)
        shapes = [(1, nodes, config.num_heads, dim), new, new, (1, nodes, nodes), held, held, (1,)]
        kinds = [dtype, dtype, dtype, bool, dtype, dtype, jnp.int32]

        def attend(*given: Any) -> Any:
            return ordered.attention(*given[:4], Cached(*given[4:]))

        lower = _of(attend, *map(jax.ShapeDtypeStruct, shapes, kinds))
        yield Program(bits.SECTION, {"of": "attention", "rows": nodes, "by": "kernel"}, lower)
    # Another configuration: what was traced with the other products is not to be found again.
    own = replace(scale, config=replace(scale.config, context=scale.config.context - 1))
    target = Loaded(own.model, jax.eval_shape(partial(random_weights, own.model)), None, (), None)
    for name in scale.first[:2]:
        lower = _rounds(target, first.built(name, target), 1, own)

        def fixed(mesh: Any, lower: Lower = lower) -> jax.stages.Lowered:
            with bits.everywhere():
                return lower(mesh)

        key = {"method": name, "batch": 1, "by": "kernel"}
        yield Program(bits.SECTION, key, fixed, is_loop=True)


# Shapes.


def _shapes(make: Callable[[], Any]) -> Any:
    return jax.eval_shape(make)


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _of(function: Callable[..., Any], *given: PyTree) -> Lower:
    """A function of arrays of these shapes, whole on the devices of a mesh."""

    def lower(mesh: Any) -> jax.stages.Lowered:
        return jax.jit(function).lower(*layout.whole(given, mesh))

    return lower


def _state(target: Loaded, method: methods.Built, batch: int, scale: Scale) -> Any:
    def begin(params: PyTree, drafter_params: PyTree) -> Any:
        sizes = batch, scale.past, scale.capacity
        return random_state(target.model, params, method.drafter, drafter_params, *sizes)

    return jax.eval_shape(begin, target.params, method.drafter_params)


def _rounds(target: Loaded, method: methods.Built, batch: int, scale: Scale) -> Lower:
    """The loop of rounds of `jspec.decode`."""

    def lower(mesh: Any) -> jax.stages.Lowered:
        shapes = target.params, _state(target, method, batch, scale), method.drafter_params
        params, state, drafter_params = layout.whole(shapes, mesh)
        count = layout.whole(jax.ShapeDtypeStruct((), np.int32), mesh)
        given = target.model, params, state, method.drafter, drafter_params, count
        return decode_rounds.lower(*given)

    return lower


def predicted(kind: str, scale: str, rows: Sequence[dict] | None = None) -> list[dict]:
    """Rows of what was predicted of a device and a shape; none if it was not compiled for."""
    known = Ledger(PREDICTED).rows if rows is None else rows
    return [row for row in known if row.get("kind") == kind and row.get("scale") == scale]
