#!/bin/sh
# Our C code under libFuzzer with the address and undefined-behaviour sanitizers: packed headers and products, attention
# in the pool, experts, recurrent layers, operators, the draw. Needs clang with its runtime (CC names it). Arguments:
# seconds of each, and a folder in which programs and inputs are kept for the next time; compiling takes minutes.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-60}
kept=$(realpath -m "${2:-build/fuzz}")
flags="-std=c11 -O1 -gline-tables-only -ffp-contract=off -fsanitize=address,fuzzer-no-link -fno-sanitize-recover=all"
undefined="$flags -fsanitize=undefined"
root=$PWD
mkdir -p "$kept/objects"
if [ ! -e "$kept/objects/draw.o" ]; then
    cd "$kept/objects"
    for source in "$root"/edge_spec/engines/onnx/kernels/src/*.c "$root"/edge_spec/sampling/src/*.c; do
        # With checks of every lane the vector code takes ten minutes a file; sanitize.sh has it so.
        case $source in *avx* | *neon*) each=$flags ;; *) each=$undefined ;; esac
        "${CC:-clang}" $each -c "$source"
    done
    cd "$root"
fi
for test in selftest attention_selftest experts_selftest recurrent_selftest operators_selftest draw_selftest; do
    mkdir -p "$kept/$test-inputs"
    "${CC:-clang}" $undefined -fsanitize=fuzzer -Iedge_spec/engines/onnx/kernels/src -Itests/engines/kernels \
        -DSELFTEST="\"$test.c\"" -o "$kept/$test" tests/attack/fuzz_kernels.c "$kept"/objects/*.o -lm -lpthread
    echo "$test"
    "$kept/$test" -max_total_time="$seconds" -max_len=64 -artifact_prefix="$kept/$test-" -print_final_stats=1 \
        "$kept/$test-inputs" 2>&1 | grep -E "cov:|ERROR|SUMMARY|runtime error|stat::number|Test unit" | tail -6
done
