"""PyTorch baseline for `fullshard bench step`: one training step of a Hugging Face config.json.

usage: step_torch.py --config FILE [--batch B] [--seq S] [--optim adamw|adafactor]
                     [--remat none|full] [--dtype bfloat16|float32|pure_bfloat16]
                     [--steps N] [--warmup N] [--mode MODE] [--eager]

What a transformers user would run on one GPU: the model from its config with SDPA attention, bf16
autocast over f32 weights, torch.compile, and fused AdamW or the Trainer's Adafactor.
`--remat full` checkpoints every layer, `--mode` is the torch.compile mode, `--eager` skips
torch.compile. `--dtype float32` is without autocast, `pure_bfloat16` has weights and optimizer state
in bf16 too. Without a GPU it runs on the CPU.

Prints one line of JSON. `times` are steps synchronized individually and `step_s` is their median.
`in_a_row_s` is the mean step time of the same number of steps launched back to back, as in
training. `compile_s` is the first step. `mfu` is 6 * parameters * tokens / step_s over the bf16
peak of H100 and H200, `mfu_in_a_row` the same for `in_a_row_s`. `peak_gib` is the allocator's peak
while steps were measured.
"""
import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.optimization import Adafactor

PEAK = 989.4e12
LEARNING_RATE = 1e-4
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--optim", choices=["adamw", "adafactor"], default="adamw")
    parser.add_argument("--remat", choices=["none", "full"], default="none")
    dtypes = ["bfloat16", "float32", "pure_bfloat16"]
    parser.add_argument("--dtype", choices=dtypes, default=dtypes[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--mode", default="default")
    parser.add_argument("--eager", action="store_true")
    return parser.parse_args()


def model_of(path, remat, dtype):
    """The model in training mode, created on the device."""
    config = AutoConfig.for_model(**json.loads(path.read_text()))
    config.use_cache = False
    with DEVICE:
        model = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    if remat == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def optimizer_of(name, model):
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    return Adafactor(
        model.parameters(), lr=LEARNING_RATE, relative_step=False, scale_parameter=False
    )


def trainer(forward, optimizer, tokens, is_mixed):
    """A function that launches one step and returns its loss, which may not be ready yet."""

    def step():
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=is_mixed):
            loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def synchronize():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def seconds(work):
    """The time work takes, including synchronization, and its result."""
    synchronize()
    start = time.perf_counter()
    result = work()
    synchronize()
    return time.perf_counter() - start, result


def peak_gib():
    if DEVICE.type != "cuda":
        return None
    return round(torch.cuda.max_memory_allocated() / 2**30, 2)


def main():
    args = arguments()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # TF32 for matmuls that autocast leaves in f32.
    dtype = torch.bfloat16 if args.dtype == "pure_bfloat16" else torch.float32
    model = model_of(args.config, args.remat, dtype)
    forward = model if args.eager else torch.compile(model, mode=args.mode)
    optimizer = optimizer_of(args.optim, model)
    tokens = torch.randint(model.config.vocab_size, (args.batch, args.seq), device=DEVICE)
    step = trainer(forward, optimizer, tokens, args.dtype == "bfloat16")

    compile_s, first_loss = seconds(step)
    for _ in range(args.warmup):
        step()
    synchronize()
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    in_a_row, _ = seconds(lambda: [step() for _ in range(args.steps)])
    measured = [seconds(step) for _ in range(args.steps)]

    times = [taken for taken, _ in measured]
    step_s, in_a_row_s = statistics.median(times), in_a_row / args.steps
    parameters = sum(parameter.numel() for parameter in model.parameters())
    operations = 6 * parameters * args.batch * args.seq
    report = {
        "peer": "torch eager" if args.eager else "torch.compile",
        "version": f"{torch.__version__}, transformers {transformers.__version__}",
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
        **vars(args) | {"config": args.config.stem},
        "params": parameters,
        "compile_s": round(compile_s, 2),
        "step_s": round(step_s, 5),
        "in_a_row_s": round(in_a_row_s, 5),
        "times": [round(taken, 5) for taken in times],
        "mfu": round(operations / step_s / PEAK, 4),
        "mfu_in_a_row": round(operations / in_a_row_s / PEAK, 4),
        "peak_gib": peak_gib(),
        "first_loss": round(first_loss.item(), 4),
        "loss": round(measured[-1][1].item(), 4),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
