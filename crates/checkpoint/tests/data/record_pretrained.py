"""Records models of transformers' save_pretrained and of torch.save under the names Hugging Face uses.

pip install torch transformers safetensors
python record_pretrained.py

Every folder of pretrained/ is a tiny GPT-2 or Llama, tied or not, in float32, float16 or bfloat16, in
one file or in shards with an index, as safetensors or as pytorch_model.bin. pretrained.json has
dims, dtype and the SHA-256 of the values as float32 of all parameters, from the model itself.
"""

import hashlib
import json
import pathlib
import shutil

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).parent
OUT = HERE / "pretrained"


def gpt2(tied):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=13, n_positions=6, n_embd=4, n_layer=2, n_head=2, tie_word_embeddings=tied))


def llama(tied):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=13, hidden_size=8, intermediate_size=10, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=tied))


# The model, its dtype, and the largest shard.
SAFETENSORS = {
    "gpt2_tied": (gpt2, True, torch.float32, "1GB"),
    "gpt2_untied_f16": (gpt2, False, torch.float16, "1GB"),
    "llama_bf16_sharded": (llama, False, torch.bfloat16, "1KB"),
    "llama_tied_sharded": (llama, True, torch.float32, "2KB"),
}
PICKLED = {
    "gpt2_tied_bin": (gpt2, True, torch.float32, 1),
    "llama_bf16_bin_sharded": (llama, False, torch.bfloat16, 3),
}


def build(make, tied, dtype):
    torch.manual_seed(11)
    model = make(tied)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model.to(dtype)


def write_bin(model, folder, shards):
    """Files as transformers wrote them before safetensors."""
    folder.mkdir(parents=True)
    state = model.state_dict()
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return
    names = list(state)
    files = {name: f"pytorch_model-{i * shards // len(names) + 1:05}-of-{shards:05}.bin"
             for i, name in enumerate(names)}
    for file in sorted(set(files.values())):
        torch.save({name: state[name].clone() for name in names if files[name] == file}, folder / file)
    size = sum(value.nbytes for value in state.values())
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2) + "\n")


def describe(value):
    digest = hashlib.sha256(value.detach().float().contiguous().numpy().tobytes()).hexdigest()
    return {"dims": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."), "sha256": digest}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    models = {}
    for case, (make, tied, dtype, shard) in SAFETENSORS.items():
        models[case] = build(make, tied, dtype)
        models[case].save_pretrained(OUT / case, max_shard_size=shard)
    for case, (make, tied, dtype, shards) in PICKLED.items():
        models[case] = build(make, tied, dtype)
        write_bin(models[case], OUT / case, shards)
    recorded = {case: {name: describe(value) for name, value in model.named_parameters()}
                for case, model in models.items()}
    result = {"transformers": transformers.__version__, "torch": torch.__version__, "models": recorded}
    (HERE / "pretrained.json").write_text(json.dumps(result, indent=1) + "\n")


main()
