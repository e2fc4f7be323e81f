"""Compiles programs ahead of time, and says what XLA says of them. None of them is run."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jspec import decoding
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._xla import backend
from jspec.decoding import engine
from jspec.models import sharding
from jspec.planning import launches, layout
from jspec.planning.launches import Launches
from jspec.policies.fixed_width import FixedWidth
from jspec.protocols import CausalLM, Drafter, Drafting, WidthPolicy
from jspec.round.request import Prepared, chunk_of, prepare
from jspec.sampling import Sampling
from jspec.types import PyTree, State, Stopping


@dataclass(frozen=True)
class Compiled:
    """XLA's analysis of a program, in bytes and operations of one device."""

    function: str
    arguments: int
    """Bytes of weights, cache and all else that the program is given."""
    temporaries: int
    """Bytes that it holds besides its arguments, at most; on a TPU vector memory is included."""
    flops: float
    """Operations of a prompt chunk, or of one round at each width; a loop counts once. jspec's
    CPU kernels are left out; 0 for a GPU, where XLA counts none.
    """
    accessed: float
    """Bytes that its operations read and write, counted as `flops`."""
    code: int
    """Bytes of the program itself."""
    instructions: int
    """Instructions of the program after XLA's passes, those inside of fusions too."""
    seconds: float
    """Of compiling."""
    launches: Launches | None = None
    """Launches of a round at each width on a GPU; None for other programs and devices."""

    @property
    def held(self) -> int:
        """Bytes that a device holds while the program runs."""
        return self.arguments + self.temporaries

    def as_dict(self) -> dict[str, Any]:
        """Returns all figures by name, as `jspec plan --json` writes them."""
        return asdict(self) | {"held": self.held}


@dataclass(frozen=True)
class Programs:
    """The programs of a generation, whose weights need not exist.

    Args:
        model: the target.
        params: its weights, or their shapes.
        drafter: proposes the trees.
        drafter_params: its weights, or their shapes.
        mesh: devices to compile for, axes `data` and `model`: `mesh_here`'s or a `Topology`'s.
        rows: that decode together.
        capacity: most tokens of a row, prompt and output.
        max_new_tokens: of these, the most of the output.
        sampling: as in `jspec.decode`; None: greedy decoding.
        policy: as in `jspec.decode`.
        policy_params: its own, or their shapes.

    Raises:
        InputError: if a number is out of range, or the rows do not divide over the mesh.

    Example:
        >>> import jspec
        >>> from jspec.planning import mesh_here
        >>> model = jspec.testing.PrefixLM()
        >>> asked = Programs(
        ...     model, model.init(), jspec.Autoregressive(), None, jspec.planning.mesh_here(),
        ...     capacity=16, max_new_tokens=8,
        ... )
        >>> asked.rounds().function
        'rounds'
    """

    model: CausalLM
    params: PyTree
    drafter: Drafter
    drafter_params: PyTree
    mesh: Any
    rows: int = 1
    capacity: int = 2048
    max_new_tokens: int = 128
    sampling: Sampling | None = None
    policy: WidthPolicy = FixedWidth()  # noqa: RUF009 (frozen)
    policy_params: PyTree = None

    def __post_init__(self):
        context, data = self.model.context, self.mesh.shape["data"]
        check_integer("rows", self.rows, 1, None)
        check_integer("capacity", self.capacity, 2, context, "what the model's context holds")
        check_integer(
            "max_new_tokens", self.max_new_tokens, 1, self.capacity - 1, "what a row holds"
        )
        if self.rows % data:
            raise InputError(
                f"{self.rows} rows do not divide over data={data} devices; give a multiple of "
                f"{data} rows, such as {-(-self.rows // data) * data}"
            )
        # As loading onto this mesh would lay it out.
        object.__setattr__(self, "model", sharding.laid_out(self.model, self.mesh))
        object.__setattr__(self, "params", layout.spread(self.params, self.mesh))
        placed = layout.spread_drafter(self.drafter_params, self.mesh)
        object.__setattr__(self, "drafter_params", placed)
        object.__setattr__(self, "policy_params", layout.whole(self.policy_params, self.mesh))

    def prefill(self) -> Compiled:
        """Compiles the program that reads prompts.

        Raises:
            InputError: if the compiler refuses it, such as for lack of memory.
        """
        with self._plan_for_mesh():
            arrays, static = self._prefill_arguments
            lowered = decoding._prefill.lower(self.model, self.params, **arrays, **static)
            return self._compile("prefill", lowered)

    def rounds(self) -> Compiled:
        """Compiles the loop of rounds of `jspec.decode`.

        Raises:
            InputError: as `prefill` does.
        """
        with self._plan_for_mesh():
            count = layout.whole(jax.ShapeDtypeStruct((), jnp.int32), self.mesh)
            lowered = decoding.decode_rounds.lower(
                self.model, self.params, self.state, self._drafting, count
            )
            return self._compile("rounds", lowered)

    def step(self) -> Compiled:
        """Compiles one step of a `jspec.Engine`.

        Raises:
            InputError: as `prefill` does.
        """
        with self._plan_for_mesh():
            until_one_ends = layout.whole(jax.ShapeDtypeStruct((), jnp.bool_), self.mesh)
            lowered = engine._step.lower(
                self.model, self.params, self.state, self._drafting, 1, until_one_ends
            )
            return self._compile("step", lowered)

    @property
    def _drafting(self) -> Drafting:
        return Drafting(self.drafter, self.drafter_params, self.policy, self.policy_params)

    @cached_property
    def state(self) -> State:
        """The shapes of the state before the first round, with their shardings."""
        with backend.plan_for(self._platform):
            arrays, static = self._prefill_arguments
            state = jax.eval_shape(
                lambda params, arrays: decoding._prefill(self.model, params, **arrays, **static),
                self.params,
                arrays,
            )
        return layout.state_of(state, arrays["memory"], arrays["states"], self.mesh)

    @cached_property
    def _prefill_arguments(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments of `decoding._prefill` after model and params: shapes, and what is static."""
        call, mesh, sizes = self._call, self.mesh, (self.rows, self.capacity, self.mesh)
        call_arrays = jax.tree.map(lambda leaf: layout.by_row(leaf, self.rows, mesh), call.arrays)
        arrays = dict(
            call=call_arrays,
            memory=layout.model_memory(self.model, *sizes),
            positions=call_arrays.prompt_lengths,
            states=tuple(layout.memory_of(part, *sizes) for part in (self.drafter, self.policy)),
            drafting=self._drafting,
        )
        return arrays, dict(size=call.size, capacity=call.capacity, chunk=call.chunk)

    @cached_property
    def _call(self) -> Prepared:
        """The shapes of a call of `jspec.decode` whose prompts fill the cache."""
        # Of one row, so that many need no memory for their prompts.
        tokens = np.zeros((1, self.capacity - self.max_new_tokens), np.int32)
        row_call = prepare(
            self.model, tokens, None, self.max_new_tokens,
            stopping=Stopping(eos=0), sampling=self.sampling,
            key=None if self.sampling is None else jax.random.key(0), capacity=self.capacity,
        )  # fmt: skip

        def of_rows(leaf: Any) -> jax.ShapeDtypeStruct:
            shape = (self.rows, *leaf.shape[1:]) if leaf.ndim else ()
            return jax.ShapeDtypeStruct(shape, leaf.dtype)

        arrays = jax.tree.map(of_rows, row_call.arrays)
        return row_call._replace(arrays=arrays, chunk=chunk_of(self.rows, self.capacity))

    @property
    def _platform(self) -> str:
        return self.mesh.devices.flat[0].platform

    @contextmanager
    def _plan_for_mesh(self) -> Iterator[None]:
        """Yields a context in which programs are lowered for the mesh's devices."""
        # Where JAX 0.12 lowers a kernel of Triton, it asks the mesh for the chip.
        abstract = jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)
        with backend.plan_for(self._platform), abstract:
            yield

    def _compile(self, function: str, lowered: jax.stages.Lowered) -> Compiled:
        here = self.mesh.devices.flat[0] in jax.devices()
        setting = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
        # What is compiled for a device that is not here cannot be read back from disk.
        jax.config.update("jax_enable_compilation_cache", setting and here)
        try:
            return self._compiled(function, lowered)
        except jax.errors.JaxRuntimeError as error:
            kind = self.mesh.devices.flat[0].device_kind
            reason = " ".join(str(error).split())
            advice = "take another method"
            if "RESOURCE_EXHAUSTED" in reason or "Ran out of memory" in reason:
                advice = "it does not fit: take fewer rows, a shorter context or more devices"
            raise InputError(
                f"the program {function} does not compile for {kind} ({reason:.160}); {advice}"
            ) from error
        finally:
            jax.config.update("jax_enable_compilation_cache", setting)

    def _compiled(self, function: str, lowered: jax.stages.Lowered) -> Compiled:
        begin, options, counts = time.perf_counter(), dict[str, Any](), None
        with tempfile.TemporaryDirectory() as folder:
            if self._platform == "gpu":
                options["xla_gpu_autotune_level"] = 0  # without the chip no tiles can be tried
            if self._platform == "gpu" and function != "prefill":
                # XLA writes what rounds launch to files alone.
                options |= {"xla_dump_to": folder, **launches.OPTIONS}
            program = lowered.compile(compiler_options=options or None)
            if "xla_dump_to" in options:
                counts = launches.of_rounds(Path(folder))
        memory: Any = program.memory_analysis()
        costs: Any = program.cost_analysis() or {}
        if isinstance(costs, Sequence):  # one for each partition, in older versions of JAX
            costs = costs[0]
        peak = getattr(memory, "peak_memory_in_bytes", 0) - memory.argument_size_in_bytes
        # On TPU temp_size_in_bytes counts a buffer again where a loop passes it on; on a CPU the
        # peak leaves out what is needed besides.
        use_peak = self._platform != "cpu" and peak > 0
        return Compiled(
            function=function,
            arguments=int(memory.argument_size_in_bytes),
            temporaries=int(peak if use_peak else memory.temp_size_in_bytes),
            flops=float(costs.get("flops", 0.0)),
            accessed=float(costs.get("bytes accessed", 0.0)),
            code=int(memory.generated_code_size_in_bytes),
            instructions=launches.count_instructions(program.as_text() or ""),
            seconds=time.perf_counter() - begin,
            launches=counts,
        )
