"""Records what Hugging Face's Trainer writes and prints for given values, for the report tests.

python record_report.py

report.json has `state`, the text of a trainer_state.json; `blocks`, the output of log_metrics with
its input values; and `results`, the texts of the files that save_metrics writes, training first.
Numbers that JSON cannot represent are strings.
"""

import contextlib
import io
import json
import pathlib
import tempfile
import types

import transformers
from transformers import TrainerState
from transformers.trainer_pt_utils import log_metrics, save_metrics

HERE = pathlib.Path(__file__).parent

TRAIN = {"epoch": 1.0, "total_flos": 7.5e13, "train_loss": 3.14159265, "train_runtime": 83.456,
         "train_samples": 1200, "train_samples_per_second": 14.379, "train_steps_per_second": 1.0}
EVAL = {"epoch": 1.0, "eval_loss": 2.5, "eval_runtime": 3661.0, "eval_samples": 64,
        "eval_samples_per_second": 17.48, "eval_steps_per_second": 2.185,
        "perplexity": 12.182493960703473}
ODD = {"total_flos": 6.4e21, "a_runtime": 0.999, "b_runtime": 100000.25, "c_runtime": 300000.0,
       "train_mem_gpu": 5368709120, "exact": 0.00005, "half": 0.00015, "large": 1.5e16,
       "round": 123456789.0, "negative": -0.00004, "none": 0, "infinite": float("inf"),
       "undefined": float("nan")}


def state():
    state = TrainerState(
        epoch=1.0, global_step=20, max_steps=20, logging_steps=10, eval_steps=20, save_steps=500,
        train_batch_size=8, num_train_epochs=1, num_input_tokens_seen=4096, total_flos=7.5e13,
        best_metric=2.5, best_global_step=20, best_model_checkpoint="out/checkpoint-20",
        log_history=[
            {"loss": 3.5, "grad_norm": 1.25, "learning_rate": 5e-05, "epoch": 0.5, "step": 10},
            {"loss": 3.0, "grad_norm": 0.75, "learning_rate": 0.0, "epoch": 1.0, "step": 20},
            {"eval_loss": 2.5, "epoch": 1.0, "step": 20},
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trainer_state.json"
        state.save_to_json(path)
        return path.read_text()


def block(trainer, split, values):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        log_metrics(trainer, split, values)
    json_has = lambda value: value == value and abs(value) != float("inf")
    values = {key: value if json_has(value) else str(value) for key, value in values.items()}
    return {"split": split, "values": values, "block": printed.getvalue()}


def main():
    with tempfile.TemporaryDirectory() as folder:
        args = types.SimpleNamespace(output_dir=folder)
        trainer = types.SimpleNamespace(args=args, is_world_process_zero=lambda: True)
        blocks = [block(trainer, *of) for of in [("train", TRAIN), ("eval", EVAL), ("odd", ODD)]]
        save_metrics(trainer, "train", TRAIN)
        save_metrics(trainer, "eval", EVAL)
        names = ["train_results.json", "eval_results.json", "all_results.json"]
        results = {name: (pathlib.Path(folder) / name).read_text() for name in names}
    version = transformers.__version__
    report = {"transformers": version, "state": state(), "blocks": blocks, "results": results}
    (HERE / "report.json").write_text(json.dumps(report, indent=1) + "\n")


main()
