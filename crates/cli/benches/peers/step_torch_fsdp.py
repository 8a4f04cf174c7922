"""PyTorch baseline for jobs on CPU: a training step of a Hugging Face config.json by FSDP2.

usage: torchrun --nproc_per_node N step_torch_fsdp.py --config FILE [--batch B] [--seq S]
                                                      [--steps N] [--warmup N] [--compile]

What a transformers user would run on several CPU hosts: the model from its config with SDPA
attention in f32, `fully_shard` for each block and for the whole, gloo, and AdamW (fused where it
takes sharded parameters). `--batch` is that of all processes. `--compile` compiles each block.
Process 0 prints `step SECONDS`, the median of steps that are waited for separately.
"""
import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

LEARNING_RATE = 5e-5


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def sharded_model(path, processes, compiled):
    """The f32 model in training mode: every block is a unit, and the rest is one."""
    config = AutoConfig.for_model(**json.loads(path.read_text()))
    config.use_cache = False
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="sdpa"
    ).train()
    mesh = init_device_mesh("cpu", (processes,))
    inner = model.base_model
    for block in inner.h if hasattr(inner, "h") else inner.layers:
        if compiled:
            block.compile()
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def optimizer_of(model):
    try:
        return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    except RuntimeError:
        return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def main():
    args = arguments()
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    model = sharded_model(args.config, processes, args.compile)
    optimizer = optimizer_of(model)
    torch.manual_seed(1 + rank)
    shape = (args.batch // processes, args.seq)
    tokens = torch.randint(0, model.config.vocab_size, shape)
    times = []
    for _ in range(args.warmup + args.steps):
        dist.barrier()
        start = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item()
        dist.barrier()
        times.append(time.perf_counter() - start)
    if rank == 0:
        step = statistics.median(times[args.warmup :])
        kind = "compiled" if args.compile else "eager"
        print(f"torch {torch.__version__} fsdp2 gloo {kind}, {processes} processes: step {step:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
