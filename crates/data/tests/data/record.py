"""Records how Hugging Face packages process the samples here: `python record.py ASSETS`.

ASSETS is a directory with GPT-2's original `encoder.json` and `vocab.bpe`; the sources of the
`tiktoken-rs` crate have one. Needs `datasets`, `transformers` and `pyarrow`. Writes the samples and
`recorded.json`; run it again after changing either. Texts are read, tokenized and grouped as in
the `run_clm` example.
"""

import csv
import hashlib
import json
import random
import struct
import sys
import tempfile
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import tokenizers
import transformers

HERE = Path(__file__).parent
TRICKY = [
    "", " ", "\n", "\n\n", "  two  spaces  ", "It's we're I'll they've I'd I'm 'tis don't",
    "tabs\tand\r\nreturns\r", "1234567890 3.14 1e-9 ½ ٣ 四", "naïve café — “quotes” … ‘single’",
    "emoji 😀👩‍👩‍👧 flag 🇨🇭", "中文字符和日本語テキスト 한국어", "\u00a0no\u00a0break\u2028line\u2029para\x85",
    "form\x0cfeed\x0bvertical", "a\x00b", "<|endoftext|>", "one<|endoftext|>two <|endoftext|> three",
    "<|endoftext", "\ufeffmark", "e\u0301 combining", "x" * 300, "ab" * 200 + " " * 50 + "end",
    "!!!??? ... --- ### $%^&*()", "camelCaseAndSnake_case", "trailing space ", " leading",
    "ＦＵＬＬｗｉｄｔｈ", "\U0001d400\U0001d401 math", "mixed\n \n  \n   lines", "http://a.b/c?d=e&f=g#h",
]
WORDS = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had "
    "not but what all were when we there can an your which their said if do will each about how up "
    "out them then she many some so these would other into has more her two like him see time could"
).split()


def lines():
    """Empty and long lines with every kind of line ending; the last line has none."""
    choose = random.Random(5)
    for number in range(2600):
        kind = choose.random()
        if kind < 0.15:
            text = ""
        elif kind < 0.2:
            text = choose.choice([t for t in TRICKY if not set(t) & set("\r\n")])
        else:
            text = " ".join(choose.choices(WORDS, k=choose.randint(1, 9))).capitalize() + "."
        yield text, choose.choice(["\n"] * 8 + ["\r\n", "\r"]), number


def write_samples():
    rows = list(lines())
    text = "".join(text + end for text, end, _ in rows) + "no newline at the end"
    (HERE / "sample.txt").write_bytes(text.encode())
    (HERE / "second.txt").write_bytes("a second file\n\nof three lines".encode())
    rows = [(text, number) for text, _, number in rows[:1300]]
    with open(HERE / "sample.jsonl", "w", newline="", encoding="utf-8") as out:
        for text, number in rows:
            row = {"id": number, "text": text + "\n", "tags": [1, {"a": None}]}
            out.write(json.dumps(row, ensure_ascii=number % 2 == 0) + "\n")
    with open(HERE / "first_column.json", "w", newline="", encoding="utf-8") as out:
        json.dump([{"body": text, "id": number} for text, number in rows[:40]], out)
    # `datasets` reads an empty CSV field as a missing value, on which run_clm fails.
    with open(HERE / "sample.csv", "w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(["id", "text"])
        writer.writerows([number, f"{text}, \"quoted\"\nnext"] for text, number in rows[:200])
    table = pyarrow.table({
        "id": list(range(len(rows))),
        "text": pyarrow.array([text for text, _ in rows], pyarrow.large_string()),
    })
    pyarrow.parquet.write_table(table, HERE / "sample.parquet", row_group_size=300)


def gpt2(assets):
    merges = [tuple(line.split()) for line in (assets / "vocab.bpe").read_text().splitlines()[1:]]
    vocabulary = json.loads((assets / "encoder.json").read_text())
    digest = hashlib.sha256("".join(f"{a} {b}\n" for a, b in merges).encode()).hexdigest()
    return transformers.GPT2Tokenizer(vocab=vocabulary, merges=merges, model_max_length=1024), digest


def blocks_of(tokenizer, files, block_size, split="train", **options):
    """run_clm: load, then tokenize, concatenate and chunk in batches of a thousand."""
    kind = {"txt": "text", "jsonl": "json", "json": "json", "csv": "csv", "parquet": "parquet"}
    kind = kind[files[0].rsplit(".")[-1]]
    if kind == "text":
        options.setdefault("keep_linebreaks", True)
    with tempfile.TemporaryDirectory() as cache:
        files = {"train": [str(HERE / file) for file in files]}
        data = datasets.load_dataset(kind, data_files=files, cache_dir=cache, split=split, **options)
        column = "text" if "text" in data.column_names else data.column_names[0]
        examples = data[column][:]
        tokens = data.map(
            lambda batch: tokenizer(batch[column]), batched=True, remove_columns=data.column_names
        )

        def group(batch):
            joined = {name: sum(rows, []) for name, rows in batch.items()}
            length = len(joined["input_ids"]) // block_size * block_size
            return {
                name: [all[at : at + block_size] for at in range(0, length, block_size)]
                for name, all in joined.items()
            }

        blocks = tokens.map(group, batched=True)["input_ids"][:]
        flat = [token for row in tokens["input_ids"] for token in row]
        return examples, flat, blocks


def digest(tokens):
    return hashlib.sha256(struct.pack(f"<{len(tokens)}i", *tokens)).hexdigest()


def record(tokenizer, files, block_size, **options):
    examples, flat, blocks = blocks_of(tokenizer, files, block_size, **options)
    joined = hashlib.sha256()
    for example in examples:
        joined.update(struct.pack("<Q", len(example.encode())) + example.encode())
    return {
        "files": files, "block_size": block_size, **options,
        "examples": len(examples), "examples_sha256": joined.hexdigest(),
        "tokens": len(flat), "tokens_sha256": digest(flat),
        "blocks": len(blocks), "first": blocks[0], "last": blocks[-1],
        "blocks_sha256": digest([token for block in blocks for token in block]),
    }


def main():
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    write_samples()
    tokenizer, merges = gpt2(Path(sys.argv[1]))
    cases = [
        record(tokenizer, ["sample.txt"], 32),
        record(tokenizer, ["sample.txt"], 32, keep_linebreaks=False),
        record(tokenizer, ["sample.txt", "second.txt"], 128),
        record(tokenizer, ["sample.txt"], 16, split="train[:5%]"),
        record(tokenizer, ["sample.txt"], 16, split="train[5%:]"),
        record(tokenizer, ["sample.jsonl"], 32),
        record(tokenizer, ["first_column.json"], 8),
        record(tokenizer, ["sample.csv"], 32),
        record(tokenizer, ["sample.parquet"], 32),
        record(tokenizer, ["sample.parquet"], 32, split="train[33%:]"),
    ]
    versions = {m.__name__: m.__version__ for m in (datasets, transformers, tokenizers, pyarrow)}
    tricky = [{"text": text, "ids": tokenizer(text)["input_ids"]} for text in TRICKY]
    recorded = {"versions": versions, "merges_sha256": merges, "tricky": tricky, "cases": cases}
    text = json.dumps(recorded, indent=1)
    (HERE / "recorded.json").write_text(text + "\n")


main()
