"""Many conversations in turn under a memory budget: what the process holds, and whether that grows.

    python benchmarks/many_conversations.py [MODEL] [--conversations 1000] [--turns 2] [--memory 256MiB] [--save FOLDER]

Each turn of each conversation is a short question and an answer of some tokens; the conversations take turns, so that
each has been pushed out of the cells by all others when it is its turn again. Printed is what the process holds after
each fortieth part, the peak in it, and who holds memory by the ledger. The exit code is 1 where the peak is beyond the
budget. With ``--save`` each conversation is saved after each turn, as ``chat --save`` does.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from memory_session import MIB, forget_peak, peak_resident_bytes

import edge_spec
from edge_spec.memory.budget import parse_memory
from edge_spec.memory.usage import resident_bytes

_PARTS = 40


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=12, help="of each answer")
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--save", type=Path, help="save each conversation here after each turn")
    asked = parser.parse_args()
    budget, n = parse_memory(asked.memory), asked.conversations
    with edge_spec.load(asked.model, memory=asked.memory, n_ctx=asked.ctx, engine="onnx") as model:
        chats = [model.chat("You are a friend.", seed=number, max_tokens=asked.tokens) for number in range(n)]
        print(f"{'answers':>7} {'held, MiB':>9} {'peak':>6}  {'kept texts and caches by the ledger, MiB'}")
        forget_peak()
        highest = 0
        for place in range(n * asked.turns):
            number = place % n
            chats[number].send(f"What is {number + 1} times {place // n + 2}?").read()
            if asked.save is not None:
                chats[number].save(asked.save / f"{number}.chat")
            if (place + 1) % max(1, n * asked.turns // _PARTS) == 0:
                gc.collect()
                peak = peak_resident_bytes() or resident_bytes()
                highest = max(highest, peak)
                lines = {
                    f"{each.owner} {each.name}": each.measured_bytes or each.predicted_bytes for each in model.ledger
                }
                told = ", ".join(
                    f"{name} {n_bytes / MIB:.1f}" for name, n_bytes in lines.items() if n_bytes > MIB // 10
                )
                print(f"{place + 1:7} {resident_bytes() / MIB:9.1f} {peak / MIB:6.1f}  {told}", flush=True)
                forget_peak()
        print(f"highest {highest / MIB:.1f} of {budget / MIB:.0f} MiB; {model.cells}, evicted {model.evicted_cells}")
    return int(highest > budget)


if __name__ == "__main__":
    sys.exit(main())
