#!/bin/sh
# The Arm kernels under user-mode emulation: right or wrong, not fast or slow.
# Needs gcc-aarch64-linux-gnu and qemu-user or qemu-user-static (Debian's names). Exit status 77: they are missing.
# Digests are compared with those of this machine, so both compute the same bits.
set -eu
cd "$(dirname "$0")/../.."
rounds=${1:-200}
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || echo qemu-aarch64)
for tool in aarch64-linux-gnu-gcc "$qemu" cc; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-std=c11 -O2 -fno-fast-math -ffp-contract=off -Wall -Wextra -Werror -Iedge_spec/kernels/src"
aarch64-linux-gnu-gcc $flags -static -o "$build/arm" edge_spec/kernels/src/*.c tests/kernels/selftest.c -lm
cc $flags -o "$build/here" edge_spec/kernels/src/*.c tests/kernels/selftest.c -lm
for cpu in max cortex-a76 cortex-a72; do
    echo "$cpu:"
    "$qemu" -cpu "$cpu" "$build/arm" "$rounds" | tee "$build/$cpu"
done
echo "here:"
"$build/here" "$rounds" | tee "$build/own"
grep -q '^neon-i8mm .*digest' "$build/max"
grep -q '^neon-dotprod .*digest' "$build/cortex-a76"
test "$(sed -n 's/.*digest //p' "$build/max" "$build/cortex-a76" "$build/cortex-a72" "$build/own" | sort -u | wc -l)" = 1
echo "all digests agree"
