"""torch baseline for the matmul benchmark: prints TFLOP/s of an N^3 bf16 matmul.

usage: matmul_torch.py N REPEAT
"""
import sys
import time

import torch

n, repeat = map(int, sys.argv[1:3])
a = torch.rand(n, n, device="cuda", dtype=torch.bfloat16) * 2 - 1
b = torch.rand(n, n, device="cuda", dtype=torch.bfloat16) * 2 - 1
for _ in range(3):
    c = a @ b
torch.cuda.synchronize()
start = time.perf_counter()
for _ in range(repeat):
    c = a @ b
torch.cuda.synchronize()
seconds = (time.perf_counter() - start) / repeat
print(f"{2 * n**3 / seconds / 1e12:.1f} TFLOP/s, {seconds * 1e3:.3f} ms")
