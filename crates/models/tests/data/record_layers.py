"""Records activation functions and rotary frequencies of transformers in layers.json.

OMP_NUM_THREADS=1 python record_layers.py

Activations, in f64: points, and for each name its class, values and derivatives at the points.
Rotary scaling: Llama configs, a sequence length, the frequencies and the attention scaling factor.
"""

import json
import pathlib

import torch
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

ACTIVATIONS = [
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh",
    "gelu_pytorch_tanh", "hardswish", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2",
    "relu6", "sigmoid", "silu", "swish", "tanh",
]  # fmt: skip

SCALINGS = [
    (32, {"rope_type": "default", "rope_theta": 10000.0}),
    (32, {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}),
    (32, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
    (100, {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
    (32, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    (32, {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}),
    (32, {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False,
          "original_max_position_embeddings": 1000}),
    (32, {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7, "mscale_all_dim": 1.5,
          "original_max_position_embeddings": 1000}),
    (32, {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.25,
          "original_max_position_embeddings": 1000}),
    (32, {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 1000}),
    (32, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    (32, {"rope_type": "llama3", "rope_theta": 100.0, "factor": 5.0, "low_freq_factor": 0.5,
          "high_freq_factor": 3.0, "original_max_position_embeddings": 50}),
]  # fmt: skip


def activation(name, points):
    x = points.clone().requires_grad_()
    module = ACT2FN[name]
    y = module(x)
    y.sum().backward()
    return {"class": type(module).__name__, "values": y.tolist(), "slopes": x.grad.tolist()}


def rotary(sequence, parameters):
    parameters = {"rope_theta": 10000.0} | parameters
    sizes = dict(hidden_size=48, num_attention_heads=3, max_position_embeddings=64)
    config = LlamaConfig(**sizes, rope_parameters=dict(parameters))
    module = LlamaRotaryEmbedding(config)
    module(torch.zeros(1), torch.arange(sequence)[None])
    return {
        "config": {**sizes, "rope_parameters": parameters},
        "sequence": sequence,
        "frequencies": module.inv_freq.tolist(),
        "stretch": float(module.attention_scaling),
    }


# No point is at a kink of an activation.
points = torch.cat([torch.linspace(-12.1, 12.2, 37), torch.linspace(-2.03, 2.01, 24)]).double()
record = {
    "points": points.tolist(),
    "activations": {name: activation(name, points) for name in ACTIVATIONS},
    "rotary": [rotary(*case) for case in SCALINGS],
}
path = pathlib.Path(__file__).parent / "layers.json"
path.write_text(json.dumps(record, indent=1) + "\n")
