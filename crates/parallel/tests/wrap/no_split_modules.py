"""Records which classes `transformers` wraps by default: `_no_split_modules` of each model type.

Reads the sources in a wheel, so that neither transformers nor torch needs to be installed:

    pip download transformers --no-deps -d wheels
    python3 no_split_modules.py wheels/transformers-*.whl > no_split_modules.json
"""

import ast
import json
import re
import sys
import zipfile

MODEL_TYPES = ["gpt2", "llama"]


def no_split_modules(source):
    """The first non-empty `_no_split_modules` of a file's classes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                names = [target.id for target in getattr(line, "targets", []) if isinstance(target, ast.Name)]
                if "_no_split_modules" in names:
                    if value := ast.literal_eval(line.value):
                        return value
    raise SystemExit("no _no_split_modules")


wheel = zipfile.ZipFile(sys.argv[1])
recorded = {"transformers": re.search(r"transformers-([^-]+)-", sys.argv[1]).group(1)}
for name in MODEL_TYPES:
    recorded[name] = no_split_modules(wheel.read(f"transformers/models/{name}/modeling_{name}.py"))
print(json.dumps(recorded, indent=2))
