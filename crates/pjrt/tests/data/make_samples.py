"""Generates the optimized HLO samples read by ../hlo.rs.

Two tiny programs are compiled for four devices: a fully sharded training step (a scan over layers
that all-gathers each weight and reduce-scatters its gradient), and a wide forward pass with
something to overlap. The CPU backend of jaxlib returns `hlo`; libtpu compiles ahead of time through
the PJRT C API and returns `hlo_with_config`, stored exactly as the plugin wrote it (jaxlib's own
reader may be older than libtpu and would drop or reject fields).

    pip install jax==0.10.2 libtpu==0.0.51
    python make_samples.py            # writes *.pb next to this file
"""

import ctypes
import os
import pathlib
import subprocess
import sys

os.environ.update(
    JAX_PLATFORMS="cpu",
    XLA_FLAGS="--xla_force_host_platform_device_count=4",
    TPU_SKIP_MDS_QUERY="1",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
jax.config.update("jax_traceback_in_locations_limit", 1)

HERE = pathlib.Path(__file__).parent
DEVICES, LAYERS, WIDTH, BATCH = 4, 6, 256, 32
WIDE = 8192


def loss(weights, x):
    """Weights are f32[LAYERS, WIDTH/4, WIDTH] on each device, x is bf16[BATCH/4, WIDTH]."""

    def layer(x, shard):
        weight = jax.lax.all_gather(shard.astype(jnp.bfloat16), "f", axis=0, tiled=True)
        return jax.nn.relu(x @ weight), None

    y, _ = jax.lax.scan(layer, x, weights)
    return (y.astype(jnp.float32) ** 2).mean()


def step(count, weights, x):
    value, grads = jax.value_and_grad(loss)(weights, x)
    return count + 1, weights - 0.01 * grads, jax.lax.pmean(value, "f")


def wide(weights, x):
    """Weights are two of bf16[LAYERS, WIDE/4, WIDE] on each device, x is bf16[WIDE, WIDE]."""

    def layer(x, shards):
        for shard in shards:
            x = x @ jax.lax.all_gather(shard, "f", axis=0, tiled=True)
        return x, None

    y, _ = jax.lax.scan(layer, x, weights)
    return jax.lax.psum_scatter(y, "f", tiled=True)


def lower(function, donated, arguments, results):
    mesh = Mesh(np.array(jax.devices()), ("f",))
    specs = tuple(spec for _, _, spec in arguments)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=results)
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for shape, dtype, spec in arguments
    ]
    return jax.jit(mapped, donate_argnums=donated).lower(*shapes)


def lower_step():
    arguments = [
        ((), jnp.int32, P()),
        ((LAYERS, WIDTH, WIDTH), jnp.float32, P(None, "f")),
        ((BATCH, WIDTH), jnp.bfloat16, P("f")),
    ]
    return lower(step, (1,), arguments, (P(), P(None, "f"), P()))


def lower_wide():
    weight = ((LAYERS, WIDE, WIDE), jnp.bfloat16, P(None, "f"))
    whole = ((4 * WIDE, WIDE), jnp.bfloat16, P("f"))
    return lower(lambda a, b, x: wide((a, b), x), (), [weight, weight, whole], P("f"))


TPU_SAMPLES = {
    "tpu_v4.pb": ("v4:2x2x1", lower_step),
    "tpu_v6e.pb": ("v6e:2x2", lower_step),
    "tpu_v5e_wide.pb": ("v5e:2x2", lower_wide),
}


def field(number, value):
    """One protobuf field: an int is a varint, bytes are length-delimited."""

    def varint(n):
        return varint_more(n) if n > 127 else bytes([n])

    def varint_more(n):
        return bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def compile_options():
    rows = b"".join(field(3, field(1, bytes([device]))) for device in range(DEVICES))
    assignment = field(1, 1) + field(2, DEVICES) + rows
    build = field(4, 1) + field(5, DEVICES) + field(6, 1) + field(9, assignment) + field(19, 1)
    return field(3, build)


class Plugin:
    """The PJRT calls needed here; every argument struct is a list of eight-byte words."""

    ERROR_MESSAGE, INITIALIZE, OPTIMIZED_PROGRAM, TOPOLOGY_CREATE, COMPILE = 6, 8, 53, 87, 94

    def __init__(self, path):
        library = ctypes.CDLL(path)
        library.GetPjrtApi.restype = ctypes.c_void_p
        self.api = ctypes.cast(library.GetPjrtApi(), ctypes.POINTER(ctypes.c_void_p))
        self.kept = []
        self.call(self.INITIALIZE)

    def words(self, *values):
        words = (ctypes.c_uint64 * (len(values) + 2))(8 * (len(values) + 2), 0)
        for i, value in enumerate(values):
            if isinstance(value, int):
                words[i + 2] = value
            else:
                self.kept.append(value)
                words[i + 2] = ctypes.addressof(value)
        return words

    def call(self, index, *values):
        words = self.words(*values)
        error = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self.api[index])(words)
        if error:
            message = self.words(error, 0, 0)
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.api[self.ERROR_MESSAGE])(message)
            raise RuntimeError(ctypes.string_at(message[3], message[4]).decode())
        return words

    def text(self, data):
        return ctypes.create_string_buffer(data, len(data)), len(data)

    def optimize(self, topology, program):
        target = self.call(self.TOPOLOGY_CREATE, *self.text(topology.encode()), 0, 0, 0)[6]
        source = self.words(*self.text(program.encode()), *self.text(b"mlir"))
        executable = self.call(
            self.COMPILE, target, source, *self.text(compile_options()), 0, 0
        )[7]
        out = self.words(0, 0, 0, 0)
        self.call(self.OPTIMIZED_PROGRAM, executable, out)
        code = ctypes.create_string_buffer(out[3])
        out[2] = ctypes.addressof(code)
        self.call(self.OPTIMIZED_PROGRAM, executable, out)
        assert ctypes.string_at(out[4], out[5]) == b"hlo_with_config"
        return code.raw


def write(name, data):
    (HERE / name).write_bytes(data)
    print(name, len(data))


def write_tpu(name):
    import libtpu

    topology, lower_program = TPU_SAMPLES[name]
    program = lower_program().as_text(debug_info=True)
    write(name, Plugin(libtpu.get_library_path()).optimize(topology, program))


def main():
    if len(sys.argv) == 2:
        write_tpu(sys.argv[1])
        return
    module = lower_step().compile().runtime_executable().hlo_modules()[0]
    write("cpu.pb", module.as_serialized_hlo_module_proto())
    # One process per topology: libtpu fixes the chip generation on first use.
    for name in TPU_SAMPLES:
        subprocess.run([sys.executable, __file__, name], check=True)


main()
