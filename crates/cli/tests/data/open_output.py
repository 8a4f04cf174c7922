"""Opens the output of a fullshard run with transformers and evaluates it.

    python open_output.py FOLDER [VALIDATION.txt]

FOLDER is the output folder of ../recorded.rs, as in record_run.py, which must run first. The mean
loss over all blocks of the text, in f32 on a CPU, is added to run.json as opened_loss.
"""

import json
import os
import pathlib
import sys

os.environ["USE_TORCH_XLA"] = "0"

import torch
from run_clm import blocks
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).parent


def main():
    folder = pathlib.Path(sys.argv[1])
    text = sys.argv[2] if len(sys.argv) > 2 else HERE / "validation.txt"
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    assert model.dtype == torch.float32, model.dtype
    cut = torch.tensor(blocks(AutoTokenizer.from_pretrained(folder), text))
    with torch.no_grad():
        losses = [model(block[None], labels=block[None]).loss.double() for block in cut]
    loss = (sum(losses) / len(losses)).item()
    ours = json.loads((folder / "eval_results.json").read_text())["eval_loss"]
    print(f"{type(model).__name__}, {len(cut)} blocks: loss {loss}, ours {ours}")
    path = HERE / "run.json"
    recorded = json.loads(path.read_text())
    recorded["opened_loss"] = loss
    path.write_text(json.dumps(recorded) + "\n")


main()
