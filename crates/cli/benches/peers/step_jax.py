"""JAX baseline for `fullshard bench step`: one training step of a Hugging Face config.json.

GPT-2 and Llama written by hand, as a careful JAX user would: cuDNN attention, bf16 compute over f32
weights, norms and log-sum-exp in f32, and donated state.
Arguments: --config FILE --batch B --seq S --optim adamw|adafactor --steps N --warmup N, and
--remat none|dots|full: saved per layer for the backward pass: everything, matmuls, its input;
--scan: stacked, scanned layers instead of unrolled layers with separate arrays;
--pad_vocabulary: pads the embedding to a multiple of 128 rows and masks the added logits.
--dtype float32: compute in f32, too.
XLA_FLAGS holds the compiler's flags. Without a GPU it runs on the CPU.

Prints one line of JSON. `times` are steps synchronized individually and `step_s` is their median.
`in_a_row_s` is the mean step time of the same number of steps launched back to back, as in
training. `mfu` is 6 * parameters * tokens / step_s over the H200's bf16 peak, `mfu_in_a_row` the
same for `in_a_row_s`. `peak_gib` is the device's peak memory in use; `state_gib` and
`temporaries_gib` are from the compiler.
"""
import argparse
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
import jax
import jax.numpy as jnp
import numpy as np

PEAK, LEARNING_RATE = 989.4e12, 1e-4


def model_of(config):
    """Sizes under common names, the layer function and the shapes of its weights."""
    m = SimpleNamespace(vocabulary=config["vocab_size"], rope=None, positions=None)
    if config["model_type"] == "gpt2":
        m.block, m.norm, m.eps = gpt2_block, layer_norm, config["layer_norm_epsilon"]
        m.width, m.layers, m.heads = config["n_embd"], config["n_layer"], config["n_head"]
        m.kv_heads, m.head_dim, m.positions = m.heads, m.width // m.heads, config["n_positions"]
        d, inner = m.width, config.get("n_inner") or 4 * m.width
        products = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, inner), "down": (inner, d)}
        vectors = {f"{name}_bias": shape[1:] for name, shape in products.items()}
        m.norm_shapes = {"scale": (d,), "bias": (d,)}
    elif config["model_type"] == "llama":
        m.block, m.norm, m.eps = llama_block, rms_norm, config["rms_norm_eps"]
        m.width, m.layers = config["hidden_size"], config["num_hidden_layers"]
        m.heads, m.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        m.head_dim = config.get("head_dim") or m.width // m.heads
        m.rope = (config["rope_theta"], config.get("rope_scaling"))
        d, q, kv = m.width, m.heads * m.head_dim, m.kv_heads * m.head_dim
        inner = config["intermediate_size"]
        products = {"q": (d, q), "k": (d, kv), "v": (d, kv), "out": (q, d)}
        products |= {"gate": (d, inner), "up": (d, inner), "down": (inner, d)}
        vectors, m.norm_shapes = {}, {"scale": (d,)}
    else:
        raise SystemExit(f"model_type {config['model_type']}: only gpt2 and llama are written here")
    m.tied = config.get("tie_word_embeddings", config["model_type"] == "gpt2")
    m.block_shapes = products | vectors | {"norm1": m.norm_shapes, "norm2": m.norm_shapes}
    return m


def initial(m, rows, scan):
    """Weights in f32: one tree per layer, or one tree with layers as the first dimension."""
    keys = iter(jax.random.split(jax.random.key(0), 4 + len(m.block_shapes) * m.layers))
    normal = jax.jit(lambda key, shape: 0.02 * jax.random.normal(key, shape), static_argnums=1)

    def leaf(path, shape, lead=()):
        name = path[-1].key
        if name == "scale" or name.endswith("bias"):
            return jnp.full(lead + shape, float(name == "scale"))
        return normal(next(keys), lead + shape)

    tree = partial(jax.tree_util.tree_map_with_path, is_leaf=lambda node: isinstance(node, tuple))
    shapes = {"table": (rows, m.width), "norm": m.norm_shapes}
    if m.positions:
        shapes["positions"] = (m.positions, m.width)
    if not m.tied:
        shapes["head"] = (rows, m.width)
    weights = tree(leaf, shapes)
    if scan:
        weights["blocks"] = tree(partial(leaf, lead=(m.layers,)), m.block_shapes)
    else:
        weights["blocks"] = [tree(leaf, m.block_shapes) for _ in range(m.layers)]
    return weights


def layer_norm(x, p, eps):
    x32 = x.astype(jnp.float32)
    centered = x32 - x32.mean(-1, keepdims=True)
    scaled = centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + eps)
    return (scaled * p["scale"] + p["bias"]).astype(x.dtype)


def rms_norm(x, p, eps):
    x32 = x.astype(jnp.float32)
    scaled = x32 * jax.lax.rsqrt((x32**2).mean(-1, keepdims=True) + eps)
    return (scaled * p["scale"]).astype(x.dtype)


def linear(x, p, name):
    y = x @ p[name].astype(x.dtype)
    bias = p.get(f"{name}_bias")
    return y if bias is None else y + bias.astype(x.dtype)


def rotary(m, length):
    """Cosines and sines of the rotary angles: length x 1 x head_dim / 2."""
    theta, scaling = m.rope
    frequency = theta ** -(np.arange(0, m.head_dim, 2) / m.head_dim)
    if scaling:
        if scaling.get("rope_type") != "llama3":
            raise SystemExit(f"rope_scaling {scaling}: only llama3 is written here")
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * np.pi)
        kept = np.clip((turns - low) / (high - low), 0, 1)
        frequency = kept * frequency + (1 - kept) * frequency / scaling["factor"]
    angles = np.outer(np.arange(length), frequency)[:, None, :]
    return jnp.float32(np.cos(angles)), jnp.float32(np.sin(angles))


def rotate(x, cos, sin):
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attend(m, angles, q, k, v):
    """Causal attention of flat q, k and v; k and v may have fewer heads (GQA)."""
    by_head = lambda x: x.reshape(*x.shape[:2], -1, m.head_dim)
    q, k, v = by_head(q), by_head(k), by_head(v)
    if angles:
        q, k = rotate(q, *angles), rotate(k, *angles)
    implementation = "cudnn" if jax.default_backend() == "gpu" else "xla"
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
    return y.reshape(*y.shape[:2], -1)


def gpt2_block(m, angles, x, p):
    q, k, v = jnp.split(linear(m.norm(x, p["norm1"], m.eps), p, "qkv"), 3, -1)
    x = x + linear(attend(m, angles, q, k, v), p, "out")
    up = linear(m.norm(x, p["norm2"], m.eps), p, "up")
    return x + linear(jax.nn.gelu(up, approximate=True), p, "down")


def llama_block(m, angles, x, p):
    h = m.norm(x, p["norm1"], m.eps)
    x = x + linear(attend(m, angles, *(linear(h, p, name) for name in "qkv")), p, "out")
    h = m.norm(x, p["norm2"], m.eps)
    return x + linear(jax.nn.silu(linear(h, p, "gate")) * linear(h, p, "up"), p, "down")


def cross_entropy(vocabulary, logits, tokens):
    """Mean over all tokens except the last of each row, which has no target."""
    column, logits = jnp.arange(logits.shape[-1]), logits.astype(jnp.float32)
    logits = jnp.where(column < vocabulary, logits, -1e9)
    is_target = column == jnp.roll(tokens, -1, 1)[..., None]
    losses = jax.nn.logsumexp(logits, -1) - jnp.where(is_target, logits, 0).sum(-1)
    return losses[:, :-1].mean()


def loss_of(m, compute, remat, scan, weights, tokens):
    block = partial(m.block, m, rotary(m, tokens.shape[1]) if m.rope else None)
    if remat != "none":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        policy = policy if remat == "dots" else None
        block = jax.checkpoint(block, policy=policy, prevent_cse=not scan)
    x = weights["table"][tokens]
    if m.positions:
        x = x + weights["positions"][: tokens.shape[1]]
    x = x.astype(compute)
    if scan:
        x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, weights["blocks"])
    else:
        for p in weights["blocks"]:
            x = block(x, p)
    head = weights["table" if m.tied else "head"].astype(compute)
    logits = jnp.einsum("bsd,vd->bsv", m.norm(x, weights["norm"], m.eps), head)
    return cross_entropy(m.vocabulary, logits, tokens)


def adamw_state(w):
    return jnp.zeros_like(w), jnp.zeros_like(w)


def adamw(step, w, g, state):
    """The update of one tensor, with PyTorch's defaults."""
    mean, square = 0.9 * state[0] + 0.1 * g, 0.999 * state[1] + 0.001 * g * g
    direction = mean / (1 - 0.9**step) / (jnp.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return w - LEARNING_RATE * (direction + 0.01 * w), (mean, square)


def adafactor_state(w):
    return [jnp.zeros(w.shape)] if w.ndim == 1 else [jnp.zeros(size) for size in w.shape]


def adafactor(step, w, g, state):
    """The update of one tensor as in Hugging Face's Trainer: no relative step, no scaling."""
    square, new = g * g + 1e-30, step**-0.8
    squares = [square] if w.ndim == 1 else [square.mean(1), square.mean(0)]
    state = [(1 - new) * old + new * square for old, square in zip(state, squares)]
    u = g * jax.lax.rsqrt(state[-1])
    if w.ndim == 2:
        u = u * jax.lax.rsqrt(state[0] / state[0].mean())[:, None]
    return w - LEARNING_RATE * u / jnp.maximum(1, jnp.sqrt((u * u).mean())), state


OPTIMIZERS = {"adamw": (adamw_state, adamw), "adafactor": (adafactor_state, adafactor)}


def each_tensor(function, scan, weights, *others):
    """Applies a function to every tensor, and to stacked tensors per layer."""

    def apply(path, *tensors):
        stacked = scan and path[0].key == "blocks"
        return (jax.vmap(function) if stacked else function)(*tensors)

    return jax.tree_util.tree_map_with_path(apply, weights, *others)


def training_step(m, compute, remat, scan, update, weights, state, tokens):
    loss = partial(loss_of, m, compute, remat, scan)
    loss, gradients = jax.value_and_grad(loss)(weights, tokens)
    step = state["step"] + 1
    updated = each_tensor(partial(update, step), scan, weights, gradients, state["tensors"])
    structure = jax.tree.structure(weights)
    weights, tensors = zip(*structure.flatten_up_to(updated))
    state = {"step": step, "tensors": structure.unflatten(tensors)}
    return structure.unflatten(weights), state, loss


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--optim", choices=["adamw", "adafactor"], default="adamw")
    parser.add_argument("--remat", choices=["none", "dots", "full"], default="none")
    parser.add_argument("--scan", action="store_true")
    parser.add_argument("--pad_vocabulary", action="store_true")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    return parser.parse_args()


def main():
    args = arguments()
    m = model_of(json.loads(args.config.read_text()))
    rows = -(-m.vocabulary // 128) * 128 if args.pad_vocabulary else m.vocabulary
    weights = initial(m, rows, args.scan)
    padding = (rows - m.vocabulary) * m.width * (1 if m.tied else 2)
    parameters = sum(w.size for w in jax.tree.leaves(weights)) - padding
    new_state, update = OPTIMIZERS[args.optim]
    state = {"step": jnp.zeros(()), "tensors": each_tensor(new_state, args.scan, weights)}
    tokens = jax.random.randint(jax.random.key(1), (args.batch, args.seq), 0, m.vocabulary)

    start = time.perf_counter()
    step = partial(training_step, m, jnp.dtype(args.dtype), args.remat, args.scan, update)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(weights, state, tokens).compile()
    compile_s = time.perf_counter() - start

    def seconds(steps):
        """The time of `steps` steps launched back to back, and the loss of the last."""
        nonlocal weights, state
        start = time.perf_counter()
        for _ in range(steps):
            weights, state, loss = compiled(weights, state, tokens)
        loss.block_until_ready()
        return time.perf_counter() - start, loss

    _, first_loss = seconds(1)
    for _ in range(args.warmup):
        seconds(1)
    in_a_row_s = seconds(args.steps)[0] / args.steps
    measured = [seconds(1) for _ in range(args.steps)]

    times = [taken for taken, _ in measured]
    step_s = statistics.median(times)
    operations = 6 * parameters * args.batch * args.seq
    device, memory = jax.devices()[0], compiled.memory_analysis()
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    report = {
        "peer": "jax",
        "version": jax.__version__,
        "device": device.device_kind,
        **vars(args) | {"config": args.config.stem},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "params": parameters,
        "compile_s": round(compile_s, 2),
        "step_s": round(step_s, 5),
        "in_a_row_s": round(in_a_row_s, 5),
        "times": [round(taken, 5) for taken in times],
        "mfu": round(operations / step_s / PEAK, 4),
        "mfu_in_a_row": round(operations / in_a_row_s / PEAK, 4),
        "peak_gib": peak and round(peak / 2**30, 2),
        "state_gib": round(memory.argument_size_in_bytes / 2**30, 2),
        "temporaries_gib": round(memory.temp_size_in_bytes / 2**30, 2),
        "first_loss": round(float(first_loss), 4),
        "loss": round(float(measured[-1][1]), 4),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
