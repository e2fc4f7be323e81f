"""One batch over the devices of several hosts: each host runs this script.

    python examples/several_hosts.py --processes 2 --process 0 --coordinator 10.0.0.1:9911
    python examples/several_hosts.py --processes 2 --process 1 --coordinator 10.0.0.1:9911

Without arguments it is a run of one process, on whatever devices it has. Instead
of the arguments it takes JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
"""

import argparse
import os

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jspec
from jspec import models


def main() -> None:
    asked = argparse.ArgumentParser()
    at = os.environ.get("JAX_COORDINATOR_ADDRESS", "localhost:9911")
    count = os.environ.get("JAX_NUM_PROCESSES", "1")
    number = os.environ.get("JAX_PROCESS_ID", "0")
    asked.add_argument("--coordinator", default=at, help="host:port of process 0")
    asked.add_argument("--processes", type=int, default=int(count), help="of the run")
    asked.add_argument("--process", type=int, default=int(number), help="which this one is")
    asked.add_argument("--timeout", type=int, default=60, help="seconds to wait for the others")
    given = asked.parse_args()
    # First of all: from here on, JAX has the devices of all processes.
    if given.processes > 1:
        jax.distributed.initialize(
            given.coordinator, given.processes, given.process,
            initialization_timeout=given.timeout,
        )  # fmt: skip

    # Rows over hosts, weights over each host's devices: a layer's exchanges stay in a host.
    hosts, devices = jax.process_count(), jax.local_device_count()
    mesh = jax.make_mesh((hosts, devices), ("data", "model"), (AxisType.Auto, AxisType.Auto))
    target = models.load("jspec-800k", mesh=mesh)

    # All hosts know all prompts here; each puts the rows of its own devices there.
    text = target.tokenizer.encode("Once upon a time").ids
    prompts = np.tile(np.array(text, np.int32), (2 * hosts, 1))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    batch = jax.make_array_from_callback(prompts.shape, rows, lambda index: prompts[index])
    result = jspec.decode(
        target.model, target.params, batch, drafter=jspec.Suffix(num_speculative_tokens=4),
        max_new_tokens=16, sampling=jspec.Sampling(temperature=0.8), key=0,
    )  # fmt: skip

    # Each host has the texts of its own rows.
    for shard in result.tokens.addressable_shards:
        if shard.replica_id == 0:
            first = shard.index[0].start or 0
            for row, tokens in enumerate(np.asarray(shard.data), start=first):
                print(f"row {row}: {tokens.tolist()}", flush=True)


if __name__ == "__main__":
    main()
