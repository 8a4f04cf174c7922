"""JAX baseline for the dispatch benchmark: prints best and median microseconds per launch.

usage: dispatch_jax.py DEVICES ARGUMENTS LAUNCHES ROUNDS
"""
import os
import sys
import time

devices, arguments, launches, rounds = map(int, sys.argv[1:5])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

sharding = NamedSharding(Mesh(jax.devices(), ("x",)), PartitionSpec("x"))
values = [jax.device_put(jnp.ones(devices), sharding) for _ in range(arguments)]


@jax.jit
def total(*values):
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


total(*values).block_until_ready()
times = []
for _ in range(rounds + 1):
    start = time.perf_counter()
    for _ in range(launches):
        result = total(*values)
    result.block_until_ready()
    times.append((time.perf_counter() - start) * 1e6 / launches)
times = sorted(times[1:])
print(times[0], times[rounds // 2])
