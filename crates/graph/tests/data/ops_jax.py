"""Records values and gradients of ops, computed by JAX on the CPU, in ops_jax.json.

JAX_PLATFORMS=cpu python ops_jax.py

Each case has its inputs, indices if the op takes any, its output, a cotangent of the output and the
resulting gradients. Inputs and cotangents are exact in the case's dtype. Everything is computed
from them in f32, also for bf16, so the recorded values do not depend on one implementation's
rounding.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

RANDOM = np.random.default_rng(0)
DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}


def normal(*dims):
    return RANDOM.standard_normal(dims)


def positive(*dims):
    return RANDOM.uniform(0.5, 2.0, dims)


def distinct(*dims):
    """Values that stay distinct in bf16's eight-bit mantissa, so the order is the same in both."""
    count = int(np.prod(dims))
    return RANDOM.permutation((np.arange(count) - count / 2) / 16).reshape(dims)


def layer_norm(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def conv2d(images, kernel):
    return jax.lax.conv_general_dilated(
        images, kernel, (2, 1), [(1, 1), (0, 2)], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def max_pool(images):
    return jax.lax.reduce_window(
        images, -jnp.inf, jax.lax.max, (1, 3, 2, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (0, 0), (0, 0)]
    )


def mixed(x, y):
    """With a cumulative sum as a matmul, which accumulates in f32."""
    triangle = jnp.tri(len(x), dtype=x.dtype)
    return triangle @ (jnp.tanh(x) * jnp.exp(-jnp.square(y))) / (1 + jnp.abs(x))


CASES = {
    "softmax": (lambda x: jax.nn.softmax(x, 1), [normal(3, 5)]),
    "log_softmax": (lambda x: jax.nn.log_softmax(x, 0), [normal(4, 3)]),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), [normal(3, 5)]),
    "layer_norm": (layer_norm, [normal(3, 8), normal(8), normal(8)]),
    "rms_norm": (rms_norm, [normal(3, 8), normal(8)]),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), [normal(16)]),
    "gelu_tanh": (lambda x: jax.nn.gelu(x, approximate=True), [normal(16)]),
    "gelu_sigmoid": (lambda x: x * jax.nn.sigmoid(1.702 * x), [normal(16)]),
    "silu": (jax.nn.silu, [normal(16)]),
    "matmul": (jnp.matmul, [normal(2, 3, 4), normal(2, 4, 5)]),
    "attention_scores": (
        lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k),
        [normal(2, 3, 2, 4), normal(2, 5, 2, 4)],
    ),
    "take": (lambda x, i: jnp.take(x, i, axis=0), [normal(6, 3)], [[0, 5, 2], [2, 2, 1]]),
    "conv2d": (conv2d, [normal(2, 5, 4, 2), normal(3, 2, 2, 3)]),
    "max_pool": (max_pool, [distinct(2, 5, 4, 2)]),
    "top_k": (lambda x: jax.lax.top_k(x, 3)[0], [distinct(3, 6)]),
    "erf": (jax.lax.erf, [normal(16)]),
    "pow": (lambda x: x**1.7, [positive(16)]),
    "reduce_max": (lambda x: x.max((0, 2)), [distinct(2, 3, 4)]),
    "mixed": (mixed, [normal(4, 3), normal(4, 3)]),
}


def tensor(array):
    """Dimensions and values, with the nine digits that distinguish f32 values."""
    values = np.asarray(array, np.float32).ravel()
    return {"dims": list(array.shape), "values": [float(f"{value:.9g}") for value in values]}


def rounded(array, dtype):
    """f32 values rounded to the dtype."""
    return jnp.asarray(array, DTYPES[dtype]).astype(jnp.float32)


def record(name, dtype, function, inputs, indices=None):
    inputs = [rounded(x, dtype) for x in inputs]
    extra = [] if indices is None else [jnp.asarray(indices, jnp.int32)]
    output, pullback = jax.vjp(lambda *x: function(*x, *extra), *inputs)
    cotangent = rounded(normal(*output.shape), dtype)
    case = {
        "name": name,
        "dtype": dtype,
        "inputs": [tensor(x) for x in inputs],
        "output": tensor(output),
        "cotangent": tensor(cotangent),
        "gradients": [tensor(x) for x in pullback(cotangent)],
    }
    if extra:
        case["indices"] = tensor(extra[0])
    return case


def main():
    cases = [record(name, dtype, *case) for name, case in CASES.items() for dtype in DTYPES]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    path = pathlib.Path(__file__).with_name("ops_jax.json")
    path.write_text(f'{{"jax":"{jax.__version__}","cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
