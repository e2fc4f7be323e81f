"""Compiler settings of the tests: the fastest to compile, as programs run for milliseconds."""

import os
import re

import jax

# Half as long, on one core.
XLA_FLAGS = (
    "--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE --xla_cpu_parallel_codegen_split_count=1"
)
if jax.__version_info__ < (0, 11):
    # Newer versions of JAX end a process over a flag that they do not know.
    XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"


def environment(**more: str) -> dict[str, str]:
    """The environment of a test's process: it compiles as the tests do, and nothing twice."""
    return (
        os.environ
        | {
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "XLA_FLAGS": f"{XLA_FLAGS} {os.environ.get('XLA_FLAGS', '')}",
            "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }
        | more
    )


def shifted_in_place(hlo: str) -> bool:
    """Returns whether a program writes a slice of an array into a reshaped view of that array.

    XLA for CPUs computes such a shift wrongly (openxla/xla 49176).
    """
    made = {
        name: (op, re.findall(r"%[\w.-]+", operands))
        for name, op, operands in re.findall(r"(%[\w.-]+) = \S+ ([\w-]+)\(([^)]*)\)", hlo)
    }

    def origin(name, through):
        ops = set()
        while made.get(name, ("", ()))[0] in through:
            ops.add(made[name][0])
            name = made[name][1][0]
        return name, ops

    views = {"bitcast", "reshape"}
    for op, operands in made.values():
        if op == "dynamic-update-slice":
            array, reshaped = origin(operands[0], views)
            source, cuts = origin(operands[1], views | {"slice", "dynamic-slice", "copy"})
            if array == source and reshaped and cuts - views:
                return True
    return False
