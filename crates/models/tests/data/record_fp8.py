"""Records torch's FP8 casts in fp8.json.

OMP_NUM_THREADS=1 python record_fp8.py

Each case has bf16 values. For both FP8 types it has the exponent of the scale, the smallest power
of two by which the largest value fits the type, and the bits that torch casts the values divided
by the scale to.
"""

import json
import math
import pathlib

import torch

TYPES = {"f8E4M3FN": torch.float8_e4m3fn, "f8E5M2": torch.float8_e5m2}


def cases():
    generator = torch.Generator().manual_seed(7)
    normal = torch.randn(160, generator=generator)
    yield "normal", normal
    yield "small", 1e-9 * normal
    yield "large", 1e30 * normal
    # A wide range of magnitudes: most become subnormal or zero.
    yield "wide", normal * torch.exp2(torch.arange(160) % 40 - 20)
    # Every step of an eight-bit mantissa, so half of the halfway points are covered.
    steps = 1 + torch.arange(128) / 128
    yield "steps", torch.cat([steps, -steps, 2.0**-16 * steps])
    yield "zero", torch.zeros(32)
    for largest in (448.0, 450.0, 1.75, 1.7578125, 57344.0, 3.3e38, 1e-36):
        yield f"up to {largest}", largest * torch.linspace(-0.5, 1, 32)


def scale(largest, dtype):
    largest = max(largest, 2.0**-100)
    mantissa, exponent = math.frexp(largest / torch.finfo(dtype).max)
    return 2.0 ** (exponent - (mantissa == 0.5))


recorded = {}
for name, values in cases():
    values = values.bfloat16().double()
    case = {"values": values.tolist()}
    for key, dtype in TYPES.items():
        by = scale(values.abs().max().item(), dtype)
        bits = (values / by).float().to(dtype).view(torch.uint8)
        case[key] = {"exponent": round(math.log2(by)), "bits": bytes(bits.tolist()).hex()}
    recorded[name] = case
path = pathlib.Path(__file__).with_name("fp8.json")
path.write_text(json.dumps(recorded) + "\n")
