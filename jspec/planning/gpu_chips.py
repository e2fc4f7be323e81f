"""GPUs that programs are compiled for ahead of time, on machines that have none.

XLA compiles for a chip by a description of it. What it says is published: NVIDIA's CUDA C++
programming guide has the limits of a compute capability, the white papers of the architectures have
the rest; XLA keeps the same figures in `xla/backends/gpu/target_config/specs`.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from jspec._validate.errors import InputError
from jspec.costs import devices


@dataclass(frozen=True)
class Chip:
    """Properties of a chip that XLA needs and no data sheet gives."""

    capability: tuple[int, int]
    cores: int
    """Streaming multiprocessors."""
    lanes: int
    """Float32 lanes of one."""
    cache: int
    """Bytes of the level-2 cache."""
    shared: int
    """Bytes of shared memory of a multiprocessor; a block may have 1 KiB less."""
    clock: float
    """GHz, at most."""


CHIPS = {
    "a100": Chip((8, 0), 108, 64, 40 << 20, 164 << 10, 1.41),
    "h100": Chip((9, 0), 132, 128, 50 << 20, 228 << 10, 1.98),
    "h200": Chip((9, 0), 132, 128, 50 << 20, 228 << 10, 1.98),
    "b200": Chip((10, 0), 148, 128, 126 << 20, 228 << 10, 1.965),
}
"""By the names of `jspec.costs.devices`, in small letters."""


def chips(name: str, count: int, hosts: int = 1) -> list[Any]:
    """Returns `count` chips as devices that programs can be compiled for."""
    if not any(find_spec(f"jax_plugins.xla_cuda{version}") for version in (13, 12)):
        raise InputError(
            f"compiling for {name} needs JAX's plugin for CUDA, which is not installed; pip "
            "install 'jspec-jax[cuda-aot]' into an environment of its own, and run this there"
        )
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(
        platform="cuda", target_config=description(name), topology=f"1x{hosts}x{count}"
    )
    return list(topology.devices)


def description(name: str) -> str:
    """Returns a chip as the text of XLA's `GpuTargetConfigProto`."""
    chip, sheet = CHIPS[name], devices.find(name)
    major, minor = chip.capability
    # Instructions of this very architecture, such as Hopper's matrix products: "sm_90a".
    features = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
    return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} {features} }}
  name: "{sheet.kind}"
  device_vendor: "NVIDIA Corporation"
  core_count: {chip.cores}
  fpus_per_core: {chip.lanes}
  clock_rate_ghz: {chip.clock}
  memory_bandwidth: {round(sheet.bandwidth)}
  device_memory_size: {sheet.memory}
  l2_cache_size: {chip.cache}
  shared_memory_per_core: {chip.shared}
  shared_memory_per_block: {48 << 10}
  shared_memory_per_block_optin: {chip.shared - (1 << 10)}
  registers_per_core_limit: {64 << 10}
  registers_per_block_limit: {64 << 10}
  threads_per_core_limit: 2048
  threads_per_block_limit: 1024
  threads_per_warp: 32
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: {2**16 - 1}
  block_dim_limit_z: {2**16 - 1}
  device_address_bits: 64
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{sheet.kind}"
"""
