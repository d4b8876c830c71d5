#!/bin/sh
# Our C code under sanitizers: every variant that runs here, the operators and the draw under those of addresses and of
# undefined behaviour, damaged headers and inputs included, and the operators' shared jobs under that of threads.
# Arguments: rounds of products, of attention, experts and recurrent layers, of operators, and of draws.
set -eu
cd "$(dirname "$0")/../../.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
kernels=$PWD/edge_spec/engines/onnx/kernels/src
# Lines are enough to find an error (-g1); to follow every variable takes gcc minutes.
flags="-std=c11 -O1 -g1 -ffp-contract=off -fno-sanitize-recover=all -I$kernels"
mkdir "$build/address" "$build/thread"
(cd "$build/address" && "${CC:-cc}" $flags -fsanitize=address,undefined -c "$kernels"/*.c)
(cd "$build/thread" && "${CC:-cc}" $flags -fsanitize=thread -c "$kernels"/*.c)
for test in attention_selftest experts_selftest recurrent_selftest operators_selftest selftest; do
    "${CC:-cc}" $flags -fsanitize=address,undefined -o "$build/$test" "$build"/address/*.o "tests/engines/kernels/$test.c" -lm -lpthread
done
"${CC:-cc}" $flags -fsanitize=address,undefined -o "$build/draw_selftest" edge_spec/sampling/src/*.c tests/engines/kernels/draw_selftest.c -lm
"${CC:-cc}" $flags -fsanitize=thread -o "$build/shared" "$build"/thread/*.o tests/engines/kernels/operators_selftest.c -lm -lpthread
"$build/attention_selftest" "${2:-128}"
"$build/experts_selftest" "${2:-128}"
"$build/recurrent_selftest" "${2:-128}"
"$build/operators_selftest" "${3:-128}"
"$build/draw_selftest" "${4:-1000}"
"$build/selftest" "${1:-400}"
echo "threads:"
"$build/shared" "${3:-128}"
