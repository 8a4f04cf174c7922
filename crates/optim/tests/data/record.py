"""Records reference results of torch and Hugging Face optimizers and schedules.

    OMP_NUM_THREADS=1 python record.py

writes optimizers.json and schedules.json next to this file, with torch 2.9.1 and transformers
5.22. Gradients are integers times a power of two per step, so they are exact in any encoding.
"""

import json
import pathlib

import numpy
import torch
from transformers import get_scheduler
from transformers.optimization import Adafactor

HERE = pathlib.Path(__file__).parent
SHAPES = [[7, 5], [13], [3, 4, 5], [1], [5, 7], [64, 3]]
STEPS = 20
GRADIENT_EXPONENTS = [-8 + (7 * step) % 5 - 2 for step in range(STEPS)]
LEARNING_RATES = [0.01 * (1 - step / 40) for step in range(STEPS)]

OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}),
    "adafactor_trainer": (
        Adafactor,
        {"scale_parameter": False, "relative_step": False, "weight_decay": 0.1},
    ),
    "adafactor_paper": (Adafactor, {"lr": None}),
    "adafactor_paper_warmup": (Adafactor, {"lr": None, "warmup_init": True}),
    "adafactor_beta1": (
        Adafactor,
        {"beta1": 0.9, "scale_parameter": True, "relative_step": False, "weight_decay": 0.1},
    ),
    "sgd": (torch.optim.SGD, {}),
    "sgd_momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd_nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
}

SCHEDULES = [
    ("linear", {}),
    ("cosine", {}),
    ("cosine", {"num_cycles": 1.25}),
    ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {}),
    ("polynomial", {"power": 2.0, "lr_end": 1e-4}),
    ("constant", {}),
    ("constant_with_warmup", {}),
    ("inverse_sqrt", {}),
    ("inverse_sqrt", {"timescale": 11}),
    ("cosine_with_min_lr", {"min_lr": 1e-4}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2, "num_cycles": 0.75}),
    ("cosine_warmup_with_min_lr", {"min_lr": 1e-4}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.2, "warmup_lr_rate": 0.3}),
    ("warmup_stable_decay", {"num_decay_steps": 11}),
    (
        "warmup_stable_decay",
        {
            "num_decay_steps": 11,
            "num_stable_steps": 20,
            "warmup_type": "cosine",
            "decay_type": "linear",
            "min_lr_ratio": 0.1,
        },
    ),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 30, "warmup_type": "1-sqrt", "decay_type": "1-sqrt"},
    ),
]


def exact(tensor):
    """The values of an f32 tensor, each in the fewest digits that round-trip."""
    flat = tensor.detach().numpy().astype(numpy.float32).ravel()
    return [float(str(number)) for number in flat]


def gradients(generator):
    """Integers; the first row of the first matrix is always zero."""
    steps = []
    for _ in range(STEPS):
        step = [torch.randint(-300, 301, shape, generator=generator) for shape in SHAPES]
        step[0][0] = 0
        steps.append(step)
    return steps


def run(kind, options, initial, steps):
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in initial]
    decaying = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]
    groups = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    options = {"lr": LEARNING_RATES[0], **options}
    optimizer = kind(groups, **options)
    for number, step in enumerate(steps):
        for parameter, gradient in zip(parameters, step):
            parameter.grad = gradient.float() * 2.0 ** GRADIENT_EXPONENTS[number]
        if options["lr"] is not None:
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATES[number]
        optimizer.step()
    states = [optimizer.state[parameter] for parameter in parameters]
    tensors = [
        {name: exact(value) for name, value in state.items() if name not in ("step", "RMS")}
        for state in states
    ]
    return {"parameters": [exact(parameter) for parameter in parameters], "states": tensors}


def record_optimizers():
    generator = torch.Generator().manual_seed(0)
    initial = [torch.randn(shape, generator=generator) * 0.5 for shape in SHAPES]
    steps = gradients(generator)
    runs = {
        name: run(kind, options, initial, steps) for name, (kind, options) in OPTIMIZERS.items()
    }
    return {
        "shapes": SHAPES,
        "initial": [exact(tensor) for tensor in initial],
        "learning_rates": LEARNING_RATES,
        "gradient_exponents": GRADIENT_EXPONENTS,
        "gradients": [[tensor.ravel().tolist() for tensor in step] for step in steps],
        "runs": runs,
    }


def record_schedules():
    learning_rate, total = 1e-3, 50
    runs = []
    for name, options in SCHEDULES:
        for warmup in (7, 0):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=learning_rate)
            scheduler = get_scheduler(name, optimizer, warmup, total, dict(options))
            factors = [float(scheduler.lr_lambdas[0](step)) for step in range(total + 5)]
            runs.append(
                {"name": name, "options": options, "warmup": warmup, "factors": factors}
            )
    return {"learning_rate": learning_rate, "total": total, "runs": runs}


def write(name, data):
    (HERE / name).write_text(json.dumps(data, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write("optimizers.json", record_optimizers())
    write("schedules.json", record_schedules())
