"""Records tensors of every dtype that weights can be loaded from, and one unsupported dtype.

python record_dtypes.py

dtypes.safetensors has the same values as `f16`, `bf16`, `f32` and `f64`, each also cast to f32 by
torch as `NAME.as_f32`, and `i64`. `rounded` has f32 values around the ties, the limits and the
subnormal numbers of 16 bits, and `rounded.bf16` and `rounded.f16` are those values cast by torch.
"""

import pathlib

import torch
from safetensors.torch import save_file

NUMBERS = [0.0, -0.0, 1.0, -1.5, 1 / 3, 6.1e-5, 5.96e-8, 65504.0, 3.0e38, 1e-40, 1e-300,
           float("inf"), float("-inf")]
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}

exact = torch.tensor(NUMBERS, dtype=torch.float64)
tensors = {name: exact.to(dtype) for name, dtype in TYPES.items()}
for name, value in list(tensors.items()):
    tensors[f"{name}.as_f32"] = value.to(torch.float32, copy=True)
tensors["i64"] = torch.arange(3)
torch.manual_seed(5)
# The bits that bfloat16 and float16 drop, at, below and above the middle.
bits = torch.tensor([0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x3F801000, 0x3F803000,
                     0x3F800FFF, 0x3F801001, 0x7F7FFFFF, 0x7F7F8000, 0x477FEFFF, 0x477FF000,
                     0x33000000, 0x33000001, 0x33C00000, 0x00000001, 0x00018000], dtype=torch.int32)
rounded = torch.cat([bits.view(torch.float32), -bits.view(torch.float32), exact.float(), torch.randn(40)])
tensors["rounded"] = rounded
tensors["rounded.bf16"] = rounded.bfloat16()
tensors["rounded.f16"] = rounded.half()
save_file(tensors, pathlib.Path(__file__).parent / "dtypes.safetensors")
