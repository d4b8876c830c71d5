#!/bin/sh
# The Arm kernels, and the draw, under user-mode emulation: right or wrong, not fast or slow.
# Needs gcc-aarch64-linux-gnu and qemu-user or qemu-user-static (Debian's names). Exit status 77: they are missing.
# Digests are compared with those of this machine, so both compute the same bits.
# Arguments: rounds of products, of attention, experts and recurrent layers, and of draws.
set -eu
cd "$(dirname "$0")/../../.."
rounds=${1:-200}
attention_rounds=${2:-128}
draw_rounds=${3:-1000}
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || echo qemu-aarch64)
for tool in aarch64-linux-gnu-gcc "$qemu" cc; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
# As setup.py builds them: another level of optimisation is another program.
flags="-std=c11 -O3 -fno-fast-math -ffp-contract=off -fvisibility=hidden -Wall -Wextra -Werror"
flags="$flags -Iedge_spec/engines/onnx/kernels/src -Iedge_spec/sampling/src"
for test in selftest attention_selftest experts_selftest recurrent_selftest; do
    aarch64-linux-gnu-gcc $flags -static -o "$build/arm-$test" edge_spec/engines/onnx/kernels/src/*.c "tests/engines/kernels/$test.c" -lm
    cc $flags -o "$build/here-$test" edge_spec/engines/onnx/kernels/src/*.c "tests/engines/kernels/$test.c" -lm
done
# The compiler does not see that there is always a best token.
flags="$flags -Wno-maybe-uninitialized"
aarch64-linux-gnu-gcc $flags -static -o "$build/arm-draw_selftest" edge_spec/sampling/src/*.c tests/engines/kernels/draw_selftest.c -lm
cc $flags -o "$build/here-draw_selftest" edge_spec/sampling/src/*.c tests/engines/kernels/draw_selftest.c -lm
# What it prints is kept for the comparison and shown, also where it fails.
run() {
    kept=$1
    shift
    "$@" >"$build/$kept" || { cat "$build/$kept"; exit 1; }
    cat "$build/$kept"
}
for cpu in max cortex-a76 cortex-a72; do
    echo "$cpu:"
    run "$cpu" "$qemu" -cpu "$cpu" "$build/arm-selftest" "$rounds"
    run "attention-$cpu" "$qemu" -cpu "$cpu" "$build/arm-attention_selftest" "$attention_rounds"
    run "experts-$cpu" "$qemu" -cpu "$cpu" "$build/arm-experts_selftest" "$attention_rounds"
    run "recurrent-$cpu" "$qemu" -cpu "$cpu" "$build/arm-recurrent_selftest" "$attention_rounds"
    run "draw-$cpu" "$qemu" -cpu "$cpu" "$build/arm-draw_selftest" "$draw_rounds"
done
echo "here:"
run own "$build/here-selftest" "$rounds"
run attention-own "$build/here-attention_selftest" "$attention_rounds"
run experts-own "$build/here-experts_selftest" "$attention_rounds"
run recurrent-own "$build/here-recurrent_selftest" "$attention_rounds"
run draw-own "$build/here-draw_selftest" "$draw_rounds"
grep -q '^neon-i8mm .*digest' "$build/max"
grep -q '^neon-dotprod .*digest' "$build/cortex-a76"
for kind in "" attention- experts- recurrent- draw-; do
    digests=$(cd "$build" && sed -n 's/.*digest //p' "${kind}max" "${kind}cortex-a76" "${kind}cortex-a72" "${kind}own")
    test "$(echo "$digests" | sort -u | wc -l)" = 1 || { echo "digests differ"; exit 1; }
done
echo "all digests agree"
