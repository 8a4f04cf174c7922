"""Writes by_size.json: what torch's size policy wraps in a small GPT-2 without tied weights.

Run with torch 2.9.1 and transformers 5.22: python by_size.py > by_size.json
"""

import functools
import json

from torch import nn
from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy
from transformers import GPT2Config, GPT2LMHeadModel

LEAST_SIZES = [1, 20, 30, 50, 70, 100, 140, 148, 149, 170, 244, 245, 300, 620, 621, 1000]


def wrapped(least: int) -> list[str]:
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=25, n_positions=6, n_embd=4, n_layer=2, n_head=2,
            bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
        )
    )
    paths = {id(module): path for path, module in model.named_modules()}
    order = list(paths.values())
    found = []

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
            found.append(paths[id(module)])

    _recursive_wrap(
        model,
        auto_wrap_policy=functools.partial(size_based_auto_wrap_policy, min_num_params=least),
        wrapper_cls=Wrapper,
        ignored_modules=set(),
        ignored_params=set(),
        only_wrap_children=True,
    )
    return sorted(found, key=order.index)


print(json.dumps({least: wrapped(least) for least in LEAST_SIZES}, indent=1))
