"""Records PyTorch/XLA FSDP checkpoints and what PyTorch/XLA makes of them.

pip install torch==2.9.0 torch_xla==2.9.0 numpy safetensors
PJRT_DEVICE=CPU python record_xla_fsdp.py

One process writes the files of all ranks: a rank's shards do not depend on other processes. Every
case is a folder of xla_fsdp with the files of its ranks, and CASE.safetensors has the tensors of
`consolidate_sharded_model_checkpoints`. Between them the cases have nested units, tied and frozen
parameters, buffers kept in bfloat16, an optimizer, sizes that do not divide, flat parameters and
shards along dim 0.
"""

import pathlib
import tempfile

import torch
import torch_xla.core.xla_model as xm
from safetensors.torch import save_file
from torch import nn
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
from torch_xla.distributed.fsdp import consolidate_sharded_model_checkpoints

OUT = pathlib.Path(__file__).parent / "xla_fsdp"
CASES = {
    "plain": (3, {"buffer_dtype": torch.bfloat16}),
    "flat": (2, {"flatten_parameters": True}),
    "dim0": (4, {"shard_param_on_dim_0": True}),
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 26)
        self.proj = nn.Linear(26, 5)
        self.proj.bias.requires_grad_(False)

    def forward(self, x):
        return x + self.proj(self.fc(x))


class Net(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.embed = nn.Embedding(11, 5)
        self.blocks = nn.ModuleList([wrap(Block()), Block()])
        self.norm = nn.BatchNorm1d(5)
        self.norm.running_mean.normal_()
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def write_rank(path, rank, world, options):
    torch.manual_seed(7)

    def wrap(module):
        groups = [list(range(world))]
        return FSDP(module, sharding_groups=groups, sharding_rank=rank,
                    sharding_world_size=world, **options)

    model = wrap(Net(wrap))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "shard_metadata": model.get_shard_metadata(),
    }
    xm.save(content, path, master_only=False)


for case, (world, options) in CASES.items():
    folder = OUT / case
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        write_rank(folder / f"net_rank-{rank:08d}-of-{world:08d}.pth", rank, world, options)
    with tempfile.TemporaryDirectory() as temporary:
        full, _ = consolidate_sharded_model_checkpoints(
            str(folder / "net"), save_path=f"{temporary}/consolidated.pth")
    save_file({name: value.contiguous() for name, value in full.items()}, OUT / f"{case}.safetensors")
    print(case, {name: (tuple(value.shape), value.dtype) for name, value in full.items()})
