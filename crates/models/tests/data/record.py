"""Records small models and their training, computed by torch and transformers on the CPU in f32.

OMP_NUM_THREADS=1 python record.py [NAME...]

Each case is a file NAME.safetensors. Its metadata has, as JSON:
  config   config.json as Hugging Face writes it (or wrote it, with old rotary scaling names)
  names    the state dict keys in order, including tied ones
  modules  the path and class of every module in order
  decayed  the parameters that Trainer applies weight decay to
Its tensors are:
  the weights under their own names, without tied ones
  tokens, labels      four batches [4, 4, sequence]; training step i takes batch i % 4
  logits, loss        of batch 0
  grad.NAME           the gradient of that loss with respect to each weight
  losses.OPTIMIZER    the losses of 100 training steps, each before its update; see OPTIMIZERS
Recording again reproduces the tensors; the order of the metadata may differ.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers import get_linear_schedule_with_warmup
from transformers.optimization import Adafactor
from transformers.trainer_pt_utils import get_parameter_names

STEPS = 100
WARMUP = 10
NO_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
HERE = pathlib.Path(__file__).parent


def decayed_names(model):
    names = get_parameter_names(model, [nn.LayerNorm], NO_DECAY)
    own = dict(model.named_parameters())
    return [name for name in names if name in own]


def adamw(model):
    decayed = set(decayed_names(model))
    parameters = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in parameters if n in decayed], "weight_decay": 0.1},
        {"params": [p for n, p in parameters if n not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)


def adafactor(model):
    return Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)


def adafactor_steady(model):
    """With an epsilon above the rounding error of gradients that are zero, such as those of key
    biases. The default epsilon amplifies that error, and where its effect is large, not even torch
    reproduces its losses with batches in another order."""
    steady = dict(lr=1e-3, eps=(1e-16, 1e-3))
    return Adafactor(model.parameters(), **steady, scale_parameter=False, relative_step=False)


def adafactor_paper(model):
    return Adafactor(model.parameters(), lr=None, warmup_init=True)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


# The constructor of each optimizer, and whether gradients are clipped to a norm of 1 and the
# learning rate follows the linear schedule with warmup.
OPTIMIZERS = {
    "adamw": (adamw, True),
    "adafactor": (adafactor, True),
    "adafactor_steady": (adafactor_steady, True),
    "adafactor_paper": (adafactor_paper, False),
    "sgd": (sgd, False),
}


def gpt2(**fields):
    off = dict(embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    config = GPT2Config(**off, bos_token_id=0, eos_token_id=0, **fields)
    return lambda: GPT2LMHeadModel._from_config(config, attn_implementation="eager")


def llama(**fields):
    config = LlamaConfig(bos_token_id=0, eos_token_id=0, **fields)
    return lambda: LlamaForCausalLM._from_config(config, attn_implementation="eager")


def perturb(model):
    """Perturbs parameters that start at zero or one, so that their gradients are informative."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def with_old_names(config):
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters
    return config


def train(make, weights, tokens, labels, optimizer):
    make_optimizer, trainers_way = OPTIMIZERS[optimizer]
    model = make()
    model.load_state_dict(weights)
    model.train()
    optimizer = make_optimizer(model)
    if trainers_way:
        schedule = get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    losses = []
    for step in range(STEPS):
        batch = step % len(tokens)
        loss = model(input_ids=tokens[batch], labels=labels[batch], use_cache=False).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        if trainers_way:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if trainers_way:
            schedule.step()
    return torch.tensor(losses, dtype=torch.float32)


def record(name, make, sequence, ignored=0.0, old_names=False, optimizers=()):
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    torch.manual_seed(sum(name.encode()))
    model = make()
    perturb(model)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    tokens = torch.randint(model.config.vocab_size, (4, 4, sequence))
    if model.config.pad_token_id is not None:
        tokens[torch.rand(tokens.shape) < 0.2] = model.config.pad_token_id
    labels = torch.where(torch.rand(tokens.shape) < ignored, -100, tokens)
    model.train()
    output = model(input_ids=tokens[0], labels=labels[0], use_cache=False)
    output.loss.backward()
    parameters = dict(model.named_parameters())
    tensors = {key: value.detach() for key, value in parameters.items()}
    tensors |= {f"grad.{key}": value.grad for key, value in parameters.items()}
    tensors |= {"tokens": tokens.int(), "labels": labels.int()}
    tensors |= {"logits": output.logits.detach(), "loss": output.loss.detach()}
    for optimizer in ("adamw", "adafactor", *optimizers):
        tensors[f"losses.{optimizer}"] = train(make, weights, tokens, labels, optimizer)
    config = json.loads(model.config.to_json_string(use_diff=False))
    metadata = {
        "config": with_old_names(config) if old_names else config,
        "names": list(weights),
        "modules": [[path, type(module).__name__] for path, module in model.named_modules()],
        "decayed": decayed_names(model),
    }
    metadata = {key: json.dumps(value) for key, value in metadata.items()}
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    save_file(tensors, HERE / f"{name}.safetensors", metadata)
    print(name, sum(parameter.numel() for parameter in parameters.values()), "parameters")


record(
    "gpt2_plain",
    gpt2(vocab_size=97, n_positions=32, n_embd=24, n_layer=2, n_head=4, initializer_range=0.15),
    sequence=16,
    optimizers=("adafactor_paper", "sgd"),
)
record(
    "gpt2_odd",
    gpt2(
        vocab_size=61,
        n_positions=19,
        n_embd=15,
        n_layer=3,
        n_head=3,
        n_inner=37,
        activation_function="gelu",
        layer_norm_epsilon=1e-3,
        initializer_range=0.2,
    ),
    sequence=17,
    ignored=0.3,
)
record(
    "gpt2_untied",
    gpt2(
        vocab_size=53,
        n_positions=23,
        n_embd=21,
        n_layer=2,
        n_head=7,
        n_inner=33,
        activation_function="relu",
        layer_norm_epsilon=1e-6,
        initializer_range=0.15,
        scale_attn_weights=False,
        tie_word_embeddings=False,
    ),
    sequence=13,
    optimizers=("adafactor_steady",),
)
record(
    "gpt2_upcast",
    gpt2(
        vocab_size=71,
        n_positions=18,
        n_embd=18,
        n_layer=3,
        n_head=2,
        activation_function="gelu_pytorch_tanh",
        initializer_range=0.2,
        scale_attn_by_inverse_layer_idx=True,
        reorder_and_upcast_attn=True,
    ),
    sequence=18,
)
record(
    "gpt2_vocabulary",
    gpt2(
        vocab_size=1031,
        n_positions=11,
        n_embd=9,
        n_layer=1,
        n_head=1,
        n_inner=27,
        activation_function="silu",
        initializer_range=0.3,
    ),
    sequence=11,
    ignored=0.2,
)
record(
    "gpt2_inverse",
    gpt2(
        vocab_size=67,
        n_positions=20,
        n_embd=20,
        n_layer=3,
        n_head=5,
        n_inner=31,
        activation_function="quick_gelu",
        initializer_range=0.15,
        scale_attn_weights=False,
        scale_attn_by_inverse_layer_idx=True,
    ),
    sequence=15,
)
record(
    "llama_tied",
    llama(
        vocab_size=89,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        initializer_range=0.15,
        tie_word_embeddings=True,
    ),
    sequence=16,
    optimizers=("adafactor_paper",),
)
record(
    "llama_grouped",
    llama(
        vocab_size=83,
        hidden_size=32,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.15,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    sequence=19,
    ignored=0.2,
    old_names=True,
)
record(
    "llama_linear",
    llama(
        vocab_size=1027,
        hidden_size=12,
        intermediate_size=29,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=1,
        hidden_act="gelu",
        max_position_embeddings=64,
        initializer_range=0.25,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5},
    ),
    sequence=12,
)
record(
    "llama_yarn",
    llama(
        vocab_size=59,
        hidden_size=18,
        intermediate_size=35,
        num_hidden_layers=2,
        num_attention_heads=2,
        head_dim=10,
        hidden_act="gelu_pytorch_tanh",
        max_position_embeddings=1024,
        initializer_range=0.2,
        attention_bias=True,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    ),
    sequence=21,
)
record(
    "llama_dynamic",
    llama(
        vocab_size=57,
        hidden_size=21,
        intermediate_size=31,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=6,
        hidden_act="relu",
        max_position_embeddings=8,
        initializer_range=0.2,
        rms_norm_eps=1e-4,
        mlp_bias=True,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 500.0, "factor": 3.0},
    ),
    sequence=15,
)
record(
    "llama_padded",
    llama(
        vocab_size=51,
        hidden_size=16,
        intermediate_size=28,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.2,
        pad_token_id=37,
        tie_word_embeddings=True,
    ),
    sequence=14,
)
