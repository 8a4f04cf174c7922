"""Records the run of ../recorded.rs in PyTorch, with transformers' Trainer.

    cargo test -p fullshard --test recorded     # fails without run.json, but leaves FOLDER
    python record_run.py FOLDER                 # ../../../../target/tmp/recorded/f32
    python open_output.py FOLDER

FOLDER has the tokenizer that our run saved and order.json, the order in which it saw the blocks.
Writes run.json: loss, gradient norm and learning rate of each step, and the final evaluation. One
process with batches of eight is equivalent to four devices with two each. Recorded with torch 2.9.1
and transformers 5.22 on a CPU.
"""

import json
import math
import os
import pathlib
import sys
import tempfile

os.environ["USE_TORCH_XLA"] = "0"

import numpy
import torch
import transformers
from run_clm import blocks

HERE = pathlib.Path(__file__).parent


def noise(name, count):
    """Values between -0.035 and 0.035, exact in any language: a hash of name and index."""
    h = numpy.arange(count, dtype=numpy.uint64) * 2654435761 + sum(name.encode())
    h &= 0xFFFFFFFF
    h ^= h >> 15
    h = h * 2246822519 & 0xFFFFFFFF
    h ^= h >> 13
    return (h / 2.0**32 - 0.5) * 0.07


def fill(model):
    for name, parameter in model.named_parameters():
        base = 1.0 if ".ln_" in name and name.endswith(".weight") else 0.0
        values = (base + noise(name, parameter.numel())).astype(numpy.float32)
        parameter.data.copy_(torch.from_numpy(values).view(parameter.shape))


class InGivenOrder(transformers.Trainer):
    def _get_train_sampler(self, train_dataset=None):
        return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)


def main():
    folder = pathlib.Path(sys.argv[1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    train = blocks(tokenizer, HERE / "train.txt")
    order = json.loads((folder / "order.json").read_text())
    assert sorted(order) == list(range(len(train))), "order.json is not of this text"
    rows = lambda cut: [{"input_ids": block, "labels": block} for block in cut]
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config.from_pretrained(HERE / "gpt2_config.json"))
    fill(model)
    # Trainer counts labels as the loss does, without the first of each row, only if it recognizes
    # the loss type, which for GPT-2 it does not. Losses would be 63/64 of the mean.
    model.loss_type = "ForCausalLM"
    with tempfile.TemporaryDirectory() as output:
        trainer = InGivenOrder(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=output, use_cpu=True, num_train_epochs=1, optim="adafactor",
                learning_rate=0.005, per_device_train_batch_size=8, per_device_eval_batch_size=8,
                save_strategy="no", logging_steps=1, report_to="none", disable_tqdm=True,
            ),
            train_dataset=rows([train[at] for at in order]),
            eval_dataset=rows(blocks(tokenizer, HERE / "validation.txt")),
            data_collator=transformers.default_data_collator,
        )
        trainer.train()
        evaluated = trainer.evaluate()
    steps = [log for log in trainer.state.log_history if "grad_norm" in log]
    recorded = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "order": order,
        "learning_rate": [log["learning_rate"] for log in steps],
        "grad_norm": [log["grad_norm"] for log in steps],
        "loss": [log["loss"] for log in steps],
        "eval_samples": len(trainer.eval_dataset),
        "eval_loss": evaluated["eval_loss"],
        "perplexity": math.exp(evaluated["eval_loss"]),
    }
    (HERE / "run.json").write_text(json.dumps(recorded) + "\n")
    print(f"{len(steps)} steps, loss {steps[0]['loss']} to {steps[-1]['loss']}, "
          f"evaluation {evaluated['eval_loss']}")


main()
