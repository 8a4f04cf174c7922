"""Opens exported models with transformers and compares them with their recordings.

cargo test -p fullshard-checkpoint --test transformers
python open_exports.py ../../../../target/tmp/exports

Every folder of exports is named like a recording in crates/models/tests/data, optionally with the
suffixes `_bf16` or `_f16`, and `_sharded`. AutoModelForCausalLM must find all weights and no others,
in the dtype of the export, and the weights must equal the recorded ones, cast to that dtype by torch.
In float32 the logits of the recorded tokens must be close to the recorded ones. The SHA-256 of every
opened file and the difference of the logits are written to transformers.json, which the test
compares with the exports.
"""

import hashlib
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GenerationConfig

HERE = pathlib.Path(__file__).parent
RECORDINGS = HERE.parents[2] / "models" / "tests" / "data"


DTYPES = {"_bf16": torch.bfloat16, "_f16": torch.float16}


def recording_of(folder):
    """The recording of an export and the dtype of its weights."""
    name = folder.name.removesuffix("_sharded")
    suffix = next((suffix for suffix in DTYPES if name.endswith(suffix)), "")
    recording = load_file(RECORDINGS / f"{name.removesuffix(suffix)}.safetensors")
    return recording, DTYPES.get(suffix, torch.float32)


def logits_difference(model, recording):
    with torch.no_grad():
        logits = model(recording["tokens"][0].long(), use_cache=False).logits
    expected = recording["logits"]
    difference = ((logits - expected).abs().max() / expected.abs().max()).item()
    assert difference < 1e-5, difference
    return difference


def open_export(folder):
    recording, dtype = recording_of(folder)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info.values()), (folder, info)
    assert model.dtype == dtype, model.dtype
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        assert parameter.dtype == dtype, (folder, name)
        assert torch.equal(parameter, recording[name].to(dtype)), (folder, name)
    assert not [name for name in recording if name.startswith("grad.") and name[5:] not in parameters]
    GenerationConfig.from_pretrained(folder)
    files = sorted(folder.iterdir())
    return {
        "class": type(model).__name__,
        "parameters": len(parameters),
        "logits_difference": logits_difference(model, recording) if dtype == torch.float32 else None,
        "files": {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
    }


def main():
    folders = sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir())
    opened = {folder.name: open_export(folder) for folder in folders}
    result = {"transformers": transformers.__version__, "opened": opened}
    (HERE / "transformers.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"opened {len(opened)}; largest difference of logits "
          f"{max(case['logits_difference'] or 0 for case in opened.values()):.1e}")


main()
