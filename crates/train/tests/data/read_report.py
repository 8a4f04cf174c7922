"""Reads a fullshard report with the packages it is written for.

cargo test -p fullshard-train --test report
python read_report.py ../../../../target/tmp/report

`transformers` must load trainer_state.json and save it with the same content, and TensorBoard must
read the event file. The values TensorBoard read and the SHA-256 of the event file are written to
events.json, which the test compares with its inputs and its own file. Needs transformers and
tensorboard, in one environment or, run twice, in separate ones.
"""

import hashlib
import json
import math
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


def read_state(path):
    from transformers import TrainerState

    state = TrainerState.load_from_json(path)
    with tempfile.TemporaryDirectory() as folder:
        again = pathlib.Path(folder) / "trainer_state.json"
        state.save_to_json(again)
        ours, theirs = (json.loads(file.read_text()) for file in (path, again))
    assert list(ours) == list(theirs) and ours == theirs
    print(f"transformers loads {path.name}: step {state.global_step}")


def read_events(path):
    import tensorboard
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(path))
    events.Reload()
    tags = events.Tags()
    # JSON has no NaN.
    row = lambda e: [e.wall_time, e.step, e.value if math.isfinite(e.value) else str(e.value)]
    scalars = {tag: [row(e) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    array = lambda event: tensor_util.make_ndarray(event.tensor_proto)
    texts = {tag: [array(e)[0].decode() for e in events.Tensors(tag)] for tag in tags["tensors"]}
    plugins = {tag: events.SummaryMetadata(tag).plugin_data.plugin_name for tag in tags["tensors"]}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    read = {"tensorboard": tensorboard.version.VERSION, "sha256": digest, "scalars": scalars,
            "texts": texts, "plugins": plugins}
    (HERE / "events.json").write_text(json.dumps(read, indent=1) + "\n")
    print(f"tensorboard reads {path.name}: {', '.join(scalars)}; {', '.join(texts)}")


def main():
    folder = pathlib.Path(sys.argv[1])
    for read, name in [(read_state, "trainer_state.json"), (read_events, "events.out.tfevents.0")]:
        try:
            read(folder / name)
        except ModuleNotFoundError as error:
            print(f"{name} is not read: {error}")


main()
