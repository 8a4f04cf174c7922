"""Generates the text of the recorded run: `python make_text.py` writes train.txt and validation.txt
next to this file. Sentences are built from the lists below and have learnable structure: who does
what is not purely random.
"""

import pathlib
import random

HERE = pathlib.Path(__file__).parent
PEOPLE = {
    "The miller": ["grinds barley", "mends the wheel", "counts sacks"],
    "Our ferryman": ["waits for rain", "rows to the far bank", "paints his boat"],
    "Anna's aunt": ["reads old maps", "writes long letters", "grinds coffee"],
    "Dr. Keller": ["measures the tide", "counts birds", "repairs a clock"],
    "The twins": ["race down the hill", "build a kite", "count stars"],
    "A stranger": ["asks for the inn", "waits by the gate", "sings off key"],
}
PLACES = ["in the valley", "near Brückstadt", "at the mill", "on platform 9", "by the café", "at home"]
TIMES = ["before dawn", "at 7:30", "every Tuesday", "in late autumn", "when the bells ring", "all day"]
ENDS = [".", ".", ".", "!", ", or so they say.", "; nobody knows why.", " -- again."]


def sentence(choose):
    who = choose.choice(list(PEOPLE))
    parts = [who, choose.choice(PEOPLE[who]), choose.choice(PLACES)]
    if choose.random() < 0.6:
        parts.append(choose.choice(TIMES))
    return " ".join(parts) + choose.choice(ENDS)


def write(name, seed, lines):
    """Lines of one to three sentences, some of them empty."""
    choose = random.Random(seed)
    text = (
        "" if choose.random() < 0.1 else " ".join(sentence(choose) for _ in range(choose.randint(1, 3)))
        for _ in range(lines)
    )
    (HERE / name).write_text("".join(line + "\n" for line in text), encoding="utf-8")


write("train.txt", 1, 680)
write("validation.txt", 2, 90)
