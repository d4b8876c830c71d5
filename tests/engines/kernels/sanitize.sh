#!/bin/sh
# Every variant that runs here under the address and undefined-behaviour sanitizers, damaged headers included.
# Arguments: rounds of products, and of attention, experts and recurrent layers.
set -eu
cd "$(dirname "$0")/../../.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
# Lines are enough to find an error (-g1); to follow every variable takes gcc minutes.
flags="-std=c11 -O1 -g1 -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all"
sources=$PWD/edge_spec/engines/onnx/kernels/src
(cd "$build" && "${CC:-cc}" $flags -c "$sources"/*.c)
for test in attention_selftest experts_selftest recurrent_selftest selftest; do
    "${CC:-cc}" $flags -I"$sources" -o "$build/$test" "$build"/*.o "tests/engines/kernels/$test.c" -lm
done
"$build/attention_selftest" "${2:-128}"
"$build/experts_selftest" "${2:-128}"
"$build/recurrent_selftest" "${2:-128}"
"$build/selftest" "${1:-400}"
