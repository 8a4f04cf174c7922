"""Reduces a profile of training steps and their program to a few ranges of the step.

    python3 cut_profile.py PROFILE.xplane.pb PROGRAM.pb STEPS FOLDER FIRST-LAST ...

The files here are from GPT-2 2B (`examples/configs/gpt2_config.json`), AdamW, batch 16, on an H200,
with attention in blocks, reduced with `3 . 0-60 944-1104 1211-1309 3080-3084`: the embedding and
the first layer, the loss, the backward pass of a layer, and the gradient of the embedding.

PROFILE is the output of `fullshard train --profile` on a GPU, PROGRAM the optimized program as
returned by the plugin (`hlo_with_config`). Writes `breakdown.xplane.pb` and `breakdown.hlo.pb`,
which match each other, and `breakdown.json` with kernel times summed by name prefix.

Ranges are given by kernel indices within a step. They end at kernels whose instruction is certain,
so the same parts are removed from both files. Operands from outside become parameters, time between
ranges is removed, and only fields that are read remain in each message. Standard library only.
"""

import json
import re
import sys
from itertools import count
from pathlib import Path

FREE = "add-dependency after-all bitcast constant get-tuple-element parameter tuple".split()
INSTRUCTION_FIELDS = {1, 2, 3, 7, 8, 9, 11, 13, 14, 28, 30, 35, 36, 38, 63}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            size, at = varint(data, at)
            value, at = bytes(data[at : at + size]), at + size
        else:
            size = 8 if wire == 1 else 4
            value, at = (wire, bytes(data[at : at + size])), at + size
        yield number, value


def encoded_int(value):
    out = bytearray()
    while True:
        out.append(value & 127 | (128 if value > 127 else 0))
        value >>= 7
        if not value:
            return bytes(out)


def encoded(pairs):
    out = b""
    for number, value in pairs:
        if isinstance(value, int):
            out += encoded_int(number << 3) + encoded_int(value)
        elif isinstance(value, tuple):
            out += encoded_int(number << 3 | value[0]) + value[1]
        else:
            value = value.encode() if isinstance(value, str) else value
            out += encoded_int(number << 3 | 2) + encoded_int(len(value)) + value
    return out


def get(data, number, default=None):
    return next((value for found, value in fields(data) if found == number), default)


def ints(data, number):
    found = []
    for at, value in fields(data):
        if at != number:
            continue
        if isinstance(value, int):
            found.append(value)
        else:
            place = 0
            while place < len(value):
                one, place = varint(value, place)
                found.append(one)
    return found


def bare(shape):
    """A shape without its layout."""
    pairs = ((n, v) for n, v in fields(shape) if n in (2, 3, 4, 6))
    return encoded((n, bare(v) if n == 4 else v) for n, v in pairs)


class Program:
    def __init__(self, data):
        module = get(data, 1)
        self.name = get(module, 1)
        self.entry_id = get(module, 6)
        self.payloads = [value for number, value in fields(module) if number == 22]
        self.computations = {
            get(value, 5): value for number, value in fields(module) if number == 3
        }
        self.schedule = {}
        for number, entry in fields(get(module, 7)):
            if number == 1:
                self.schedule[get(entry, 1)] = ints(get(entry, 2, b""), 1)
        entry = self.computations[self.entry_id]
        self.entry = {get(value, 35): value for number, value in fields(entry) if number == 2}

    def slim(self, instruction):
        opcode = get(instruction, 2)
        kept = [(n, v) for n, v in fields(instruction) if n in INSTRUCTION_FIELDS]
        kept = [(n, encoded([(2, get(v, 2, b""))]) if n == 7 else v) for n, v in kept]
        if opcode in (b"custom-call", b"while"):
            config = get(instruction, 43, b"")
            payload = get(instruction, 99)
            if not config and payload is not None:
                place = get(payload, 2)
                config = get(payload, 1, b"") if place is None else self.payloads[place]
            kept.append((43, config))
        return encoded(kept)

    def fused(self, instruction, number):
        """An instruction inside a fusion, whose name and metadata do not matter."""
        kept = [(n, v) for n, v in fields(self.slim(instruction)) if n not in (1, 7, 8)]
        kept = [(n, bare(v) if n == 3 else v) for n, v in kept]
        return encoded([(1, str(number))] + kept)

    def parameter(self, instruction, number):
        pairs = [(1, get(instruction, 1)), (2, "parameter"), (3, get(instruction, 3))]
        return encoded(pairs + [(9, number), (35, get(instruction, 35))])

    def cut(self, keep):
        """The program with only these instructions of its entry computation, by name."""
        order = self.schedule[self.entry_id]
        kept = [i for i in order if get(self.entry[i], 1).decode() in keep]
        needed = {o for i in kept for o in ints(self.entry[i], 36)} - set(kept)
        outside = [i for i in order if i in needed]
        body = [(1, "cut")]
        body += [(2, self.parameter(self.entry[i], n)) for n, i in enumerate(outside)]
        body += [(2, self.slim(self.entry[i])) for i in kept]
        body += [(5, self.entry_id), (6, kept[-1])]
        called, left = set(), {c for i in kept for c in ints(self.entry[i], 38)}
        while left:
            called |= left
            inside = (v for c in left for n, v in fields(self.computations[c]) if n == 2)
            left = {c for v in inside for c in ints(v, 38)} - called
        module, names = [(1, self.name)], count()
        for number, computation in self.computations.items():
            if number in called:
                slim = self.slim if number in self.schedule else lambda v: self.fused(v, next(names))
                pairs = [(n, v) for n, v in fields(computation) if n in (1, 2, 5, 6)]
                module.append((3, encoded((n, slim(v) if n == 2 else v) for n, v in pairs)))
        module += [(3, encoded(body)), (6, self.entry_id)]
        schedule = {c: ids for c, ids in self.schedule.items() if c in called}
        schedule[self.entry_id] = outside + kept
        entries = []
        for computation, ids in schedule.items():
            sequence = encoded([(1, b"".join(encoded_int(i) for i in ids))])
            entries.append((1, encoded([(1, computation), (2, sequence)])))
        module.append((7, encoded(entries)))
        return encoded([(1, encoded(module))])


class Gpu:
    """The kernels of the first GPU, in order: name, stats by name, start and duration in ps."""

    def __init__(self, data):
        planes = [value for number, value in fields(data) if number == 1]
        plane = next(p for p in planes if get(p, 2, b"").startswith(b"/device:GPU:"))
        table = lambda n: {
            get(v, 1): get(get(v, 2), 2, b"").decode() for m, v in fields(plane) if m == n
        }
        names, stats = table(4), table(5)
        self.kernels = []
        for number, line in fields(plane):
            if number != 3:
                continue
            begin = get(line, 3, 0) * 1000
            for at, event in fields(line):
                if at != 4:
                    continue
                said = {}
                for place, stat in fields(event):
                    if place == 4:
                        text = get(stat, 5)
                        text = text.decode() if text is not None else stats.get(get(stat, 7))
                        said[stats[get(stat, 1)]] = text
                start = begin + get(event, 2, 0)
                self.kernels.append((start, get(event, 3, 0), names[get(event, 1)], said))
        self.kernels = sorted((k for k in self.kernels if "hlo_module" in k[3]), key=lambda k: k[0])


def profile(kernels):
    tables = {4: {}, 5: {}}

    def number(table, text):
        return tables[table].setdefault(text, len(tables[table]) + 1)

    events = []
    for start, duration, name, said in kernels:
        pairs = [(1, number(4, name)), (2, start), (3, duration)]
        for stat in ("hlo_module", "hlo_op"):
            pairs.append((4, encoded([(1, number(5, stat)), (7, number(5, said[stat]))])))
        events.append((4, encoded(pairs)))
    plane = [(2, "/device:GPU:0"), (3, encoded([(2, "Stream #14(Compute)")] + events))]
    for table, names in tables.items():
        for text, at in names.items():
            entry = encoded([(1, at), (2, text)])
            plane.append((table, encoded([(1, at), (2, entry)])))
    return encoded([(1, encoded(plane))])


def certain(program, step):
    """The schedule positions of a step's kernels, where they are certain."""
    order = [program.entry[i] for i in program.schedule[program.entry_id]]
    names = {re.sub(r"\W", "_", get(v, 1).decode()): place for place, v in enumerate(order)}
    unique = [i for i, name in enumerate(step) if step.count(name) == 1 and name in names]
    places = {i: names[step[i]] for i in unique}
    for before, after in zip(unique, unique[1:]):
        between = range(places[before] + 1, places[after])
        launching = [p for p in between if get(order[p], 2).decode() not in FREE]
        kernels = [i for i in range(before + 1, after) if not step[i].startswith("Memset")]
        if len(launching) == len(kernels):
            places.update(zip(kernels, launching))
    return places, [get(v, 1).decode() for v in order]


def kernel_names(stretches, step, places, order, keep):
    """New names for kernels shared by equal instructions whose naming instruction is removed."""
    symbol = lambda name: re.sub(r"\W", "_", name)
    kept, every, names = {symbol(name) for name in keep}, {symbol(name) for name in order}, {}
    for at in (at for first, end in stretches for at in range(first, end)):
        if at in places and step[at] in every - kept:
            names.setdefault(step[at], symbol(order[places[at]]))
    return names


def main(profile_path, program_path, steps, folder, ranges):
    program = Program(Path(program_path).read_bytes())
    kernels = Gpu(Path(profile_path).read_bytes()).kernels
    each = len(kernels) // steps
    step = [kernel[2] for kernel in kernels[:each]]
    assert [kernel[2] for kernel in kernels] == step * steps, "steps differ"
    places, order = certain(program, step)
    keep, stretches = set(), []
    for first, last in ranges:
        first = min(i for i in places if i >= first)
        last = max(i for i in places if i <= last)
        stretches.append((first, last + 1))
        keep |= set(order[places[first] : places[last] + 1])
    names = kernel_names(stretches, step, places, order, keep)
    kept, now, before = [], 0, None
    for turn in range(steps):
        for first, end in stretches:
            for at in range(first, end):
                start, duration, name, said = kernels[turn * each + at]
                name = names.get(name, name)
                # A range starts when the previous one ends.
                gap = start - before if at > first else 0
                now += gap
                kept.append((now, duration, name, said))
                before = start
            now += kept[-1][1]
    sums = {}
    for _, duration, name, _ in kept:
        group = next((g for g in ("nvjet", "Memset", "memcpy") if name.startswith(g)), "own")
        launches, total = sums.get(group, (0, 0))
        sums[group] = (launches + 1, total + duration)
    folder = Path(folder)
    (folder / "breakdown.xplane.pb").write_bytes(profile(kept))
    (folder / "breakdown.hlo.pb").write_bytes(program.cut(keep))
    about = {
        "steps": steps,
        "span_ps": max(start + duration for start, duration, _, _ in kept),
        "kernels": {g: {"launches": n, "picoseconds": t} for g, (n, t) in sums.items()},
    }
    (folder / "breakdown.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    cuts = [tuple(map(int, cut.split("-"))) for cut in sys.argv[5:]]
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], cuts)
