#!/bin/sh
# The Arm kernels, the operators and the draw under user-mode emulation: right or wrong, not fast or slow.
# Needs gcc-aarch64-linux-gnu and qemu-user or qemu-user-static (Debian's names). Exit status 77: they are missing.
# Digests are compared with those of this machine, so both compute the same bits.
# Arguments: rounds of products, of attention, experts and recurrent layers, of draws, and of operators.
set -eu
cd "$(dirname "$0")/../../.."
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || echo qemu-aarch64)
for tool in aarch64-linux-gnu-gcc "$qemu" cc; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
kernels=$PWD/edge_spec/engines/onnx/kernels/src
draw=$PWD/edge_spec/sampling/src
# As setup.py builds them: another level of optimisation is another program. The compiler does not see that there is
# always a best token.
flags="-std=c11 -O3 -fno-fast-math -ffp-contract=off -fvisibility=hidden -Wall -Wextra -Werror -Wno-maybe-uninitialized"
flags="$flags -I$kernels -I$draw"
for machine in arm here; do
    [ "$machine" = arm ] && cc="aarch64-linux-gnu-gcc -static" || cc=cc
    mkdir "$build/$machine"
    (cd "$build/$machine" && $cc $flags -c "$kernels"/*.c "$draw"/*.c)
    for test in selftest attention_selftest experts_selftest recurrent_selftest draw_selftest operators_selftest; do
        $cc $flags -o "$build/$machine-$test" "$build/$machine"/*.o "tests/engines/kernels/$test.c" -lm -lpthread
    done
done
# What they print is kept for the comparison and shown, also where one fails. The rest: where it runs, and its name.
run() {
    machine=$1
    shift
    echo "$machine:"
    for test in "selftest ${products:-200}" "attention_selftest ${others:-128}" "experts_selftest ${others:-128}" \
        "recurrent_selftest ${others:-128}" "draw_selftest ${draws:-1000}" "operators_selftest ${operators:-64}"; do
        name=${test% *}
        "$@-$name" "${test#* }" >"$build/$name-$machine" || { cat "$build/$name-$machine"; exit 1; }
        cat "$build/$name-$machine"
    done
}
products=${1:-} others=${2:-} draws=${3:-} operators=${4:-}
for cpu in max cortex-a76 cortex-a53; do
    run "$cpu" "$qemu" -cpu "$cpu" "$build/arm"
done
run here "$build/here"
grep -q '^neon-i8mm .*digest' "$build/selftest-max"
grep -q '^neon-dotprod .*digest' "$build/selftest-cortex-a76"
grep -q '^neon  .*digest' "$build/selftest-cortex-a53"
for name in selftest attention_selftest experts_selftest recurrent_selftest draw_selftest; do
    test "$(sed -n 's/.*digest //p' "$build/$name"-* | sort -u | wc -l)" = 1 || { echo "digests of $name differ"; exit 1; }
done
# Those of the operators are five, in the same order everywhere.
test "$(sed -n 's/.*digest //p' "$build"/operators_selftest-* | sort -u | wc -l)" = 5 || { echo "digests of operators differ"; exit 1; }
echo "all digests agree"
