"""One batch over eight devices: by the sharding of its arguments, and by `shard_map`."""

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jspec
from jspec import models

# Eight virtual devices on a CPU, before JAX is used. Leave it out where there are real ones.
jax.config.update("jax_num_cpu_devices", 8)

target = models.load("jspec-800k")
drafter = jspec.Suffix(num_speculative_tokens=6)
sampling = jspec.Sampling(temperature=0.8)
batch = jax.device_count()
prompt = np.tile(target.tokenizer.encode("Once upon a time there was a").ids, (batch, 1))

# Rows lie on the axis "data": by that name each device keeps to its own.
mesh = jax.make_mesh((batch,), ("data",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("data"))


def generate(params, prompt, row_ids):
    """`row_ids` are global: under shard_map every shard would count its own rows from 0."""
    result = jspec.decode(
        target.model,
        params,
        prompt,
        drafter=drafter,
        max_new_tokens=24,
        sampling=sampling,
        key=0,
        row_ids=row_ids,
    )
    return result.tokens


# 1. The arguments say where the rows are; the result stays there.
row_ids = np.arange(batch)
params = jax.device_put(target.params, NamedSharding(mesh, PartitionSpec()))
sharded = generate(params, jax.device_put(prompt, rows), jax.device_put(row_ids, rows))
print(sharded.sharding)

# 2. shard_map: each device runs a loop of its own and stops when its own rows have ended.
data, everywhere = PartitionSpec("data"), PartitionSpec()
mapped = jax.jit(
    jax.shard_map(generate, mesh=mesh, in_specs=(everywhere, data, data), out_specs=data)
)(target.params, prompt, row_ids)

# Rows draw different noise, and the same tokens on one device and on eight.
alone = generate(target.params, prompt, row_ids)
assert (np.asarray(sharded) == np.asarray(alone)).all()
assert (np.asarray(mapped) == np.asarray(alone)).all()
for row in range(3):
    print(target.tokenizer.decode(np.asarray(alone)[row].tolist()))
