"""torch.compile baseline for `fullshard bench step --breakdown`: a profile of a GPT-2 2B step.

usage: profile_torch.py BATCH

The model of examples/configs/gpt2_config.json in transformers, bf16 autocast over f32 weights,
fused AdamW, no dropout, one GPU. Prints JSON with the keys of `bench step --breakdown --json`:
`time.step`, measured without a profiler, and `breakdown` with the kinds and kernels of three
further steps, in seconds and launches per step. Modules are not available here, so a kernel's kind
is derived from its name: Inductor names kernels by the ops they fuse, libraries by what they are.
"""
import json
import re
import sys
import time

import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from transformers import GPT2Config, GPT2LMHeadModel

WARM_UP, MEASURED, PROFILED = 3, 6, 3

# The first pattern that matches a name determines the kind.
KINDS = [
    ("collectives", r"nccl"),
    ("attention", r"fmha|flash|sdpa|dot_do_o|convert_dq"),
    ("matmuls", r"nvjet|gemm|cutlass|cublas|xmma|splitk|triton_tem"),
    ("optimizer", r"adam|multi_tensor_apply"),
    ("copies", r"memcpy|memset|copy_kernel|catarray"),
    ("reductions", r"triton_(red|per)|reduce|norm|softmax|embedding.*backward|index_put"),
]
# Parts of the names of Inductor kernels that only move values.
MOVES = {"clone", "copy", "to", "view", "t", "transpose", "permute", "slice", "cat", "unsqueeze"}
MOVES |= {"triton", "poi", "fused", "expand", "split", "_"}


def kind_of(name):
    for kind, pattern in KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    parts = set(re.sub(r"\d+", "", name.lower()).replace("_to_copy", "_to").split("_")) - {""}
    return "copies" if parts <= MOVES else "elementwise"


def trainer(batch):
    """A function that runs one step."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    config = GPT2Config(
        n_embd=3072,
        n_layer=18,
        n_head=24,
        n_positions=1024,
        vocab_size=50257,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    with torch.device("cuda"):
        model = GPT2LMHeadModel(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    compiled = torch.compile(model)
    tokens = torch.randint(0, config.vocab_size, (batch, config.n_positions), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds_a_step(step, steps):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def kernels_of(step, steps):
    """Start, end (both in microseconds) and name of everything that the GPU ran."""
    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    found = []
    for event in taken.events():
        # Annotations that span several kernels are also listed on the device.
        annotation = getattr(event, "is_user_annotation", False)
        if event.device_type == torch.autograd.DeviceType.CUDA and not annotation:
            found.append((event.time_range.start, event.time_range.end, event.name))
    return sorted(found)


def busy_time(kernels):
    done = busy = 0
    for start, end, _ in kernels:
        busy += max(0, end - max(done, start))
        done = max(done, end)
    return busy


def broken_down(kernels, steps):
    a_step = lambda microseconds: microseconds / 1e6 / steps
    span = max(end for _, end, _ in kernels) - kernels[0][0]
    busy = busy_time(kernels)
    kinds, names = {"idle": (0, span - busy)}, {}
    for start, end, name in kernels:
        for sums, key in ((kinds, kind_of(name)), (names, name)):
            count, total = sums.get(key, (0, 0))
            sums[key] = (count + 1, total + end - start)

    def rows(sums):
        for key, (count, total) in sorted(sums.items(), key=lambda row: -row[1][1]):
            figures = {"seconds": a_step(total), "share": total / span, "launches": count / steps}
            yield key, figures

    return {
        "steps": steps,
        "span": a_step(span),
        "busy": a_step(busy),
        "idle": a_step(span - busy),
        "kinds": [{"kind": kind} | figures for kind, figures in rows(kinds)],
        "kernels": [{"name": name, "kind": kind_of(name)} | row for name, row in rows(names)],
    }


def main(batch):
    step = trainer(batch)
    for _ in range(WARM_UP):
        step()
    measured = seconds_a_step(step, MEASURED)
    kernels_of(step, 1)  # The first profile of a process includes setup.
    report = {
        "peer": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "device_kind": torch.cuda.get_device_name(),
        "batch": batch,
        "time": {"step": measured},
        "breakdown": broken_down(kernels_of(step, PROFILED), PROFILED),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main(int(sys.argv[1]))
