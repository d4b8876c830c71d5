#!/bin/sh
# Every variant that runs here under the address and undefined-behaviour sanitizers, damaged headers included.
set -eu
cd "$(dirname "$0")/../.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
"${CC:-cc}" -std=c11 -O1 -g -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all \
    -Iedge_spec/kernels/src -o "$build/selftest" edge_spec/kernels/src/*.c tests/kernels/selftest.c -lm
"$build/selftest" "${1:-400}"
