"""Makes gpt2_merges.txt, the merges of GPT-2's tokenizer, from tiktoken's r50k_base.tiktoken.

That file has the tokens as bytes in the order in which they were learned. A merge is recovered by
byte-pair encoding its token with all earlier tokens, which leaves two parts.

    python3 make_gpt2_merges.py r50k_base.tiktoken > gpt2_merges.txt
"""

import base64
import sys

printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
others = [byte for byte in range(256) if byte not in printable]
unicode = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def spelled(token):
    return "".join(unicode[byte] for byte in token)


def parts(token, rank):
    pieces = [bytes([byte]) for byte in token]
    while True:
        pairs = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(zip(pieces, pieces[1:]))]
        earliest, i = min(pairs, default=(rank, 0))
        if earliest >= rank:
            return pieces
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


lines = [line.split() for line in open(sys.argv[1], "rb")]
ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
assert [token for token in ranks][:256] == [bytes([byte]) for byte in printable + others]
for token, rank in ranks.items():
    if len(token) > 1:
        left, right = parts(token, rank)
        print(spelled(left), spelled(right))
