#!/bin/sh
# Every variant that runs here under the address and undefined-behaviour sanitizers, damaged headers included.
# Arguments: rounds of products and of attention.
set -eu
cd "$(dirname "$0")/../.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
for test in selftest attention_selftest; do
    "${CC:-cc}" -std=c11 -O1 -g -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all \
        -Iedge_spec/kernels/src -o "$build/$test" edge_spec/kernels/src/*.c "tests/kernels/$test.c" -lm
done
"$build/attention_selftest" "${2:-64}"
"$build/selftest" "${1:-400}"
