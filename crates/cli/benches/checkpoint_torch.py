"""Saves and loads the state of GPT-2 with AdamW by torch.distributed.checkpoint, and loads the model
by transformers, on the disk of a folder. The peer of `fullshard bench checkpoint`:

    python3 checkpoint_torch.py CONFIG.json FOLDER
"""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from transformers import GPT2Config, GPT2LMHeadModel


def timed(name, work):
    start = time.perf_counter()
    result = work()
    print(f"{name}: {time.perf_counter() - start:.2f} s", flush=True)
    return result


config = GPT2Config(**json.loads(Path(sys.argv[1]).read_text()))
folder = Path(tempfile.mkdtemp(dir=sys.argv[2]))
model = GPT2LMHeadModel(config)
# Tied weights once, as in our checkpoints.
state = {name: value.detach() for name, value in model.named_parameters()}
for name in list(state):
    state[f"{name}.exp_avg"] = torch.zeros_like(state[name])
    state[f"{name}.exp_avg_sq"] = torch.zeros_like(state[name])
print(f"{sum(value.nbytes for value in state.values()) / 1e9:.2f} GB, torch {torch.__version__}")

for threads in [1, 4]:
    writer = dcp.FileSystemWriter(folder / f"dcp-{threads}", thread_count=threads, sync_files=True)
    timed(f"torch.distributed.checkpoint save, {threads} threads", lambda: dcp.save(state, storage_writer=writer))
timed("torch.distributed.checkpoint load", lambda: dcp.load(state, checkpoint_id=str(folder / "dcp-4")))
timed("transformers save_pretrained", lambda: model.save_pretrained(folder / "model"))


def load():
    # Files are mapped, so weights are read when they are first used.
    loaded = GPT2LMHeadModel.from_pretrained(folder / "model")
    return sum(float(value.sum()) for value in loaded.parameters())


timed("transformers from_pretrained, and a sum of all weights", load)
shutil.rmtree(folder)
