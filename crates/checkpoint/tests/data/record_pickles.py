"""Records files of torch.save, and what torch reads from them.

pip install torch
python record_pickles.py

pickles/ has state dicts that can be read, under several dtypes, strides, protocols and wrappings,
and files that must be refused: one of them would run a command that leaves the file
`executed-by-a-pickle`. pickles.json has dims, dtype and the SHA-256 of the values as float32 (as
they are if not floating point) of every tensor that can be read.
"""

import hashlib
import json
import os
import pathlib
from collections import OrderedDict

import torch
from torch import nn

HERE = pathlib.Path(__file__).parent
OUT = HERE / "pickles"


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch executed-by-a-pickle",)


def state_dict():
    torch.manual_seed(3)
    matrix = torch.randn(6, 4)
    cube = torch.randn(2, 3, 4)
    return OrderedDict({
        "plain": torch.randn(3, 5),
        "f16": torch.randn(7).half(),
        "bf16": torch.randn(7).bfloat16(),
        "f64": torch.randn(7).double(),
        "i64": torch.arange(5),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(1.5),
        "nothing": torch.empty(0, 3),
        "parameter": nn.Parameter(torch.randn(2, 2)),
        "frozen": nn.Parameter(torch.randn(2, 2), requires_grad=False),
        # Views of the same storages.
        "matrix": matrix,
        "tied": matrix,
        "transposed": matrix.t(),
        "rows": matrix[2:4],
        "column": matrix[:, 1],
        "every_second": matrix[::2, 1::2],
        "permuted": cube.permute(2, 0, 1),
        "swapped": cube.transpose(0, 1),
        "unit_dim": matrix[:, :1].t(),
    })


def save(name, content, **options):
    torch.save(content, OUT / name, **options)


def describe(tensor):
    value = tensor.detach().contiguous()
    value = value.float() if value.is_floating_point() else value
    digest = hashlib.sha256(value.numpy().tobytes()).hexdigest()
    return {"dims": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "sha256": digest}


def main():
    OUT.mkdir(exist_ok=True)
    tensors = state_dict()
    linear = nn.Linear(3, 2)
    readable = {
        "protocol2.bin": (tensors, tensors, {}),
        "protocol5.pt": (tensors, tensors, {"pickle_protocol": 5}),
        "training.pth": ({"epoch": 3, "model": linear.state_dict(), "optimizer": Command(),
                          "seeds": {1, 2}, "large": 1 << 70, "bytes": b"ab"}, linear.state_dict(), {}),
        "lightning.ckpt": ({"state_dict": linear.state_dict(), "note": "text"}, linear.state_dict(), {}),
    }
    for name, (content, _, options) in readable.items():
        save(name, content, **options)
    recorded = {name: {key: describe(value) for key, value in expected.items()}
                for name, (_, expected, _) in readable.items()}
    (HERE / "pickles.json").write_text(json.dumps(recorded, indent=1) + "\n")

    save("command.bin", Command())
    save("command_as_tensor.bin", {"good": torch.ones(2), "bad": Command()})
    save("module.pt", linear)
    save("legacy.bin", linear.state_dict(), _use_new_zipfile_serialization=False)
    save("expanded.pt", {"wide": torch.ones(1).expand(1000)})
    save("no_tensors.pt", {"epoch": 3})
    save("quantized.pt", {"q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)})


main()
