"""Speed of a model with experts that does not fit its memory: ours with paged experts, llama.cpp with a mapped file.

    python benchmarks/paged_experts.py MODEL.gguf --memory 5000 3500 2500 --engine onnx llama

Each run is a process of its own, alone in a control group that is limited to the memory that it is given, the system's
cache of files included, and begins with nothing of the file in that cache. Needs a user who may create groups. What
ONNX Runtime maps must have been prepared: run once with as much memory as the file needs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from hard_limit import impose, make_group, of_group

MIB = 1 << 20


def on_onnx(asked: dict[str, Any]) -> dict[str, Any]:
    """Measure one run of ours: seconds to load, to the first token and for each further one."""
    import edge_spec

    begin = perf_counter()
    with edge_spec.load(
        asked["model"],
        engine="onnx",
        memory=asked["memory"] * MIB,
        speculation="off",
        n_ctx=512,
        prefill_chunk=64,
        max_rows=8,
        cache_dir=asked["cache"],
    ) as model:
        loaded = perf_counter()
        # Every token is as likely as any: each uses other experts, more than those of real texts do.
        even: dict[str, Any] = {"temperature": 1e4, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        reply = model.generate(tokens=asked["text"], max_tokens=asked["new"], seed=1, ignore_eos=True, **even)
        next(reply)
        first = perf_counter()
        reply.read()
        end = perf_counter()
        return {
            "load": loaded - begin,
            "first token": first - loaded,
            "each token": (end - first) / (len(reply.token_ids) - 1),
            "notes": list(model.notes),
            "given up": [*model.degradations, *reply.notices],
        }


def on_llama(asked: dict[str, Any]) -> dict[str, Any]:
    """The same of llama.cpp by itself, which maps the file and repacks nothing."""
    import llama_cpp

    begin = perf_counter()
    of_model, of_context = llama_cpp.llama_model_default_params(), llama_cpp.llama_context_default_params()
    of_model.use_mmap, of_model.use_extra_bufts = True, False
    of_context.n_ctx, of_context.n_batch = 512, 64
    of_context.n_threads = of_context.n_threads_batch = len(os.sched_getaffinity(0))
    model = llama_cpp.llama_model_load_from_file(asked["model"].encode(), of_model)
    context = llama_cpp.llama_init_from_model(model, of_context)

    def decode(*tokens: int) -> None:
        ids = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, len(tokens))):
            raise SystemExit("llama.cpp failed to decode")

    loaded = perf_counter()
    decode(*asked["text"])
    first = perf_counter()
    drawn = random.Random(1)
    for _ in range(asked["new"] - 1):
        decode(drawn.randrange(300, 60_000))
    end = perf_counter()
    return {"load": loaded - begin, "first token": first - loaded, "each token": (end - first) / (asked["new"] - 1)}


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    """Measure one run, and how much it reads from the disk."""
    found = {"onnx": on_onnx, "llama": on_llama}[asked["engine"]](asked)
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    read = next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
    return {**found, "read MiB": read // MIB}


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """One run in a process and a group of its own."""
    files = [Path(asked["model"]), *Path(asked["cache"]).glob("onnx/*/weights.bin")]
    for path in files if asked["cold"] else ():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    group = make_group() if asked["limited"] else ""
    if group:
        impose(group, (asked["memory"] + asked["slack"]) * MIB, 0)
    command = [sys.executable, __file__, "--one", json.dumps(asked)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            preexec_fn=lambda: group and (Path(group) / "cgroup.procs").write_text(str(os.getpid()), "ascii"),
        )
        if done.returncode:
            return {"failed": done.returncode, "said": done.stderr.decode()[-500:], **of_group(group)}
        return {**json.loads(done.stdout), **of_group(group)}
    finally:
        if group:
            Path(group).rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--memory", type=int, nargs="+", default=[], metavar="MIB")
    parser.add_argument("--engine", nargs="+", choices=["onnx", "llama"], default=["onnx"])
    parser.add_argument("--cache", type=Path, default=Path("benchmark-models/cache"))
    parser.add_argument("--read", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=24)
    parser.add_argument("--warm", action="store_true", help="leave the system's cache of files as it is")
    parser.add_argument("--unlimited", action="store_true", help="give no group, only the budget")
    parser.add_argument("--slack", type=int, default=64, metavar="MIB", help="of a group beyond the memory")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.one:
        print(json.dumps(measured(json.loads(values.one))))
        return
    text = [1 + 97 * place % 60_000 for place in range(values.read)]
    for memory in values.memory:
        for engine in values.engine:
            found = run(
                {
                    "model": str(values.model),
                    "cache": str(values.cache),
                    "memory": memory,
                    "engine": engine,
                    "new": values.new,
                    "text": text,
                    "cold": not values.warm,
                    "limited": not values.unlimited,
                    "slack": values.slack,
                }
            )
            print(memory, engine, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
