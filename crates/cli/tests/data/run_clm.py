"""run_clm's grouping of a text file: lines are tokenized, joined by the thousand and chunked."""

BLOCK = 64
TOGETHER = 1000


def blocks(tokenizer, path):
    with open(path, encoding="utf-8", newline="") as file:
        lines = file.readlines()
    tokens = tokenizer(lines)["input_ids"]
    cut = []
    for start in range(0, len(tokens), TOGETHER):
        joined = sum(tokens[start : start + TOGETHER], [])
        whole = len(joined) // BLOCK * BLOCK
        cut += [joined[at : at + BLOCK] for at in range(0, whole, BLOCK)]
    return cut
