"""Records tensors of every dtype that weights can be loaded from, and one unsupported dtype.

python record_dtypes.py

dtypes.safetensors has the same values as `f16`, `bf16`, `f32` and `f64`, each also cast to f32 by
torch as `NAME.as_f32`, and `i64`.
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
save_file(tensors, pathlib.Path(__file__).parent / "dtypes.safetensors")
