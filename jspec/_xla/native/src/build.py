"""Builds the library of kernels while jspec is installed, where there is a C++ compiler.

Without one, or where the build fails, jspec is installed all the same, and XLA computes.
"""

import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SETS = {
    "x86_64": {
        "avx512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c",
        "avx2": "-mavx2 -mfma -mf16c",
    },
    "aarch64": {"neon": ""},
}
"""Flags of each instruction set, by processor. Which one is used, the process finds out."""
INTEGERS = {
    "x86_64": {
        "integers_avx512": SETS["x86_64"]["avx512"],
        "integers_avx2": SETS["x86_64"]["avx2"],
        "integers_avx512vnni": SETS["x86_64"]["avx512"] + " -mavx512vnni",
        "integers_amx": SETS["x86_64"]["avx512"] + " -mavx512vnni -mamx-tile -mamx-int8 -mamx-bf16",
        "integers_avxvnni": SETS["x86_64"]["avx2"] + " -mavxvnni",
    },
    "aarch64": {"integers_neon": "", "integers_neondot": "-march=armv8.2-a+dotprod"},
}
"""Flags for products of integers. Sets that a compiler does not know are left out."""
NAMES = {"AMD64": "x86_64", "arm64": "aarch64"}
# Sums stay in the order in which they are written: no -ffast-math.
FLAGS = "-O3 -std=c++17 -fPIC -ffp-contract=off".split()


def compile_library(sources: Path, target: Path) -> str | None:
    """Writes the library; returns why it could not."""
    machine = NAMES.get(platform.machine(), platform.machine())
    if machine not in SETS:
        return f"there are no kernels for the processor {machine}"
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler is None:
        return "there is no C++ compiler: c++, g++ or clang++"
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is None or not jaxlib.submodule_search_locations:
        return "jaxlib, which has the headers, is not installed where this is built"
    headers = Path(jaxlib.submodule_search_locations[0]) / "include"

    integers = {
        name: flags for name, flags in INTEGERS[machine].items() if _takes(compiler, flags.split())
    }
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder, f"{name}.o") for name in (*SETS[machine], *integers, "ffi")]
        commands = [
            [*FLAGS, *flags.split(), f"-DJSPEC_SET={name}", "-c", str(sources / source)]
            for source, sets in (("kernels.cc", SETS[machine]), ("integers.cc", integers))
            for name, flags in sets.items()
        ]
        defines = [f"-DJSPEC_HAS_{name}" for name in integers]
        commands.append([*FLAGS, *defines, "-isystem", str(headers), "-c", str(sources / "ffi.cc")])
        started = [
            subprocess.Popen(
                [compiler, *command, "-o", str(place)], stderr=subprocess.PIPE, text=True
            )
            for command, place in zip(commands, objects, strict=True)
        ]
        errors = [process.communicate()[1] for process in started]
        failed = [text for process, text in zip(started, errors, strict=True) if process.returncode]
        if not failed:
            link = [compiler, "-shared", *map(str, objects), "-o", str(target)]
            linked = subprocess.run(link, stderr=subprocess.PIPE, text=True, check=False)
            failed = [linked.stderr] if linked.returncode else []
        if failed:
            return f"{compiler} failed: {failed[0].strip()[-1000:]}"
    return None


def _takes(compiler: str, flags: list[str]) -> bool:
    """Returns whether a compiler knows these flags."""
    command = [compiler, *flags, "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class CustomBuildHook(BuildHookInterface):
    """Hatch's hook: the library is part of the wheel, or lies alongside its sources."""

    def initialize(self, version: str, build_data: dict) -> None:
        sources = Path(self.root, "jspec", "_xla", "native", "src")
        self.folder = tempfile.TemporaryDirectory()
        editable = version == "editable"
        target = (sources if editable else Path(self.folder.name)) / "libjspec.so"
        if failure := compile_library(sources, target):
            self.app.display_warning(f"jspec is built without kernels for CPUs: {failure}")
            return
        if not editable:
            build_data["force_include"][str(target)] = "jspec/_xla/native/src/libjspec.so"
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"], build_data["pure_python"] = f"py3-none-{tag}", False

    def finalize(self, version: str, build_data: dict, artifact_path: str) -> None:
        self.folder.cleanup()
