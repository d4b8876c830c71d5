"""Writes with OpenVINO GenAI what ``measure.py`` asks for, a JSON object a line.

    python openvino_worker.py GGUF THREADS

It reads the GGUF itself. Runs in an environment with openvino-genai, where edge-spec need not be.
"""

import json
import sys

import numpy as np
import openvino
import openvino_genai


def main(model: str, n_threads: int) -> None:
    pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=n_threads)
    print('{"ready": true}', flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        ids = np.array([asked["prompt"]], dtype=np.int64)
        settings = openvino_genai.GenerationConfig()
        settings.max_new_tokens = asked["n_tokens"]
        settings.ignore_eos = True
        settings.do_sample = asked["temperature"] > 0
        if settings.do_sample:
            # As the other programs do unless told otherwise.
            settings.temperature, settings.top_k, settings.top_p = asked["temperature"], 40, 0.95
            settings.rng_seed = asked["seed"]
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        done = pipeline.generate(inputs, settings)
        # Milliseconds of a token after the first.
        print(json.dumps({"tokens_per_s": 1e3 / done.perf_metrics.get_tpot().mean}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
