"""What the first call of each method compiles: seconds of tracing, lowering and XLA, and its size.

python -m benchmarks.compile
JAX_PLATFORMS=cpu python -m benchmarks.compile --device h100    # needs the extra cuda-aot
"""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from jax import monitoring
from jax.extend.backend import get_backend
from rich.table import Table

import jspec
from benchmarks.harness import command, console, headline, record
from jspec._validate.errors import InputError
from jspec._xla import backend
from jspec.methods import LLM
from jspec.planning import Programs, Topology, gpu_chips
from jspec.planning.launches import count_instructions

STEP, GRAMMAR = "Engine.step", "a grammar"
METHODS: dict[str, tuple[str, dict[str, Any], str]] = {
    "plain": ("autoregressive", {}, ""),
    "token_recycling": ("token_recycling", {}, ""),
    "suffix": ("suffix", {}, ""),
    "spine": ("spine", {"num_speculative_tokens": 15}, ""),
    "auto": ("auto", {}, ""),
    "eagle": ("eagle", {}, ""),
    "dyspec": ("dyspec", {}, ""),
    "Engine.step of auto": ("auto", {}, STEP),
    "auto with a JSON schema": ("auto", {}, GRAMMAR),
}
"""The method of each line, its options, and what is compiled other than `jspec.decode`."""
PROMPT = "Once upon a time, there was a small boy who liked to play"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "xla",
}
"""JAX's names of what it times, and ours."""
COUNTS = ("programs", "StableHLO ops", "instructions", "kernels of a round")
_OP = re.compile(r"^\s+%", re.MULTILINE)


def main(
    model: Annotated[str, typer.Option(help="folder, GGUF file, name or hub id")] = "jspec-7m",
    names: Annotated[
        str, typer.Option("--methods", help=f"comma-separated, of {', '.join(METHODS)}")
    ] = ",".join(METHODS),
    device: Annotated[str, typer.Option(help=f"cpu, or of {', '.join(gpu_chips.CHIPS)}")] = "cpu",
    new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Counts each method in a process of its own, of one greedy row, without the cache on disk."""
    for name in names.split(","):
        if name not in METHODS:
            raise InputError(f"--methods has {name}; give some of {', '.join(METHODS)}")
    chip = None if device == "cpu" else Topology.of(f"{device}:1").name
    headline(f"first calls, {model}, {new_tokens} tokens, for {device}")
    counts = COUNTS if chip else COUNTS[:-1]
    table = Table("method", "trace, s", "lower, s", "XLA, s", *counts)
    pool = ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1)
    for name in names.split(","):
        if chip and METHODS[name][2] == GRAMMAR:
            console.print(f"{name}: left out, since plans have no grammars")
            continue
        row = pool.submit(of_chip if chip else of_call, name, model, new_tokens, chip).result()
        seconds = (f"{row[kind]:.1f}" for kind in EVENTS.values())
        table.add_row(name, *seconds, *(f"{row[one]:,}" for one in counts))
        record(out, {"bench": "compile", "model": model, "chip": device, "method": name} | row)
    console.print(table)


def of_call(name: str, model: str, new_tokens: int, _: None = None) -> dict[str, float]:
    """Counts what the first call of a method compiles here, and runs it."""
    method, options, extra = METHODS[name]
    llm = jspec.LLM(model, method, **options)
    grammar = jspec.grammar.json_schema(SCHEMA, llm.target.tokenizer) if extra == GRAMMAR else None
    earlier = set(get_backend().live_executables())
    with count() as row:
        if extra == STEP:
            jax.block_until_ready(step(llm, new_tokens))
        else:
            call = llm.decode(PROMPT, max_new_tokens=new_tokens, processors=grammar or ())
            jax.block_until_ready(call.result)
    texts = [
        part.to_string()
        for one in set(get_backend().live_executables()) - earlier
        for part in one.hlo_modules()
    ]
    return row | {"instructions": sum(map(count_instructions, texts))}


def of_chip(name: str, model: str, new_tokens: int, chip: str) -> dict[str, float]:
    """Counts the programs of a method for a chip that need not be here: they are not run."""
    method, options, extra = METHODS[name]
    with backend.plan_for("gpu"):
        llm = jspec.LLM(model, method, **options)
    programs = Programs(
        llm.model, llm.params, llm.drafter, llm.drafter_params, Topology.of(chip).mesh(1, 1),
        capacity=2 * new_tokens, max_new_tokens=new_tokens,
        policy=llm.policy, policy_params=llm.policy_params,
    )  # fmt: skip
    with count() as row:
        prompt, rounds = programs.prefill(), programs.step() if extra == STEP else programs.rounds()
    row["instructions"] = prompt.instructions + rounds.instructions
    return row | {"kernels of a round": rounds.launches.kernels}


def step(llm: LLM, new_tokens: int) -> Any:
    """Returns what the first rounds of an engine emit."""
    engine = llm.engine(1, 2 * new_tokens)
    prompt = llm.target.tokenizer.encode(PROMPT).ids
    state = engine.insert(engine.init(), 0, engine.prefill(prompt))
    return engine.generate(state)[1]


@contextmanager
def count() -> Iterator[dict[str, float]]:
    """Yields a row that in the end has the seconds, programs and StableHLO ops of what it spans.

    JAX times traces inside of traces, and programs that run while another one is traced: seconds
    count for the innermost alone.
    """
    seconds, row, spans = Counter(), dict[str, float](), list[tuple[float, float]]()

    def listen(event: str, duration: float, **_: Any) -> None:
        if event not in EVENTS:
            return
        begin, inside = time.perf_counter() - duration, 0.0
        while spans and spans[-1][0] >= begin:
            inside += spans.pop()[1]
        spans.append((begin, duration))
        seconds[EVENTS[event]] += duration - inside
        row["programs"] += event.endswith("backend_compile_duration")

    row["programs"] = 0
    jax.config.update("jax_enable_compilation_cache", False)
    monitoring.register_event_duration_secs_listener(listen)
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_dump_ir_to", folder)
        try:
            yield row
        finally:
            jax.config.update("jax_dump_ir_to", None)
            monitoring.unregister_event_duration_listener(listen)
        texts = [file.read_text("utf-8") for file in Path(folder).glob("*_compile.mlir")]
    row |= {kind: seconds[kind] for kind in EVENTS.values()}
    row["StableHLO ops"] = sum(len(_OP.findall(text)) for text in texts)


if __name__ == "__main__":
    command(main)
