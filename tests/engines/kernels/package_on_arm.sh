#!/bin/sh
# The whole package on 64-bit Arm under user-mode emulation: right or wrong, not fast or slow.
# The wheel is built by a cross compiler and installed, with the packages that it needs, beside a Python of Debian for
# Arm. As a processor with matrix products, one with dot products (Raspberry Pi 5) and one with neither (Raspberry Pi 4),
# the demo then writes 50 tokens, which have to be those that it writes here, and `edge-spec check` compares what every
# way to draft writes with plain decoding.
# Needs gcc-aarch64-linux-gnu and qemu-user (Debian's names), apt and dpkg of a Debian whose Python is new enough, and
# the package index. PYTHON has edge-spec installed and can build it. Exit status 77: something is missing. It takes five
# minutes of a processor; on a busy one finding out which widths agree may be given up, and then nothing is drafted.
set -eu
cd "$(dirname "$0")/../../.."
python=${PYTHON:-python3}
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || echo qemu-aarch64)
for tool in aarch64-linux-gnu-gcc "$qemu" "$python" apt-get dpkg; do
    command -v "$tool" >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# apt looks at nothing and changes nothing of this system but its list of sources.
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/root"
touch "$work/apt/status"
arm_apt() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=false \
        -o APT::Sandbox::User= -o Debug::NoLocking=true -o Dir::State="$work/apt" \
        -o Dir::State::status="$work/apt/status" -o Dir::Cache="$work/apt/cache" "$@" >"$work/log" 2>&1
}
if ! { arm_apt update && arm_apt install --yes --download-only python3 libstdc++6; }; then
    cat "$work/log"
    echo "skipped: apt finds no Python for arm64"
    exit 77
fi
for package in "$work/apt/cache/archives"/*.deb; do
    dpkg -x "$package" "$work/root"
done

# Processes that Python starts are emulated, too: this is what it takes for itself.
emulated=$work/root/usr/bin/emulated
printf '#!/bin/sh\nexec "%s" -0 "$0" "%s" "$@"\n' "$qemu" "$work/root/usr/bin/python3" >"$emulated"
chmod +x "$emulated"
export QEMU_LD_PREFIX="$work/root"
unset PYTHONPATH PYTHONHOME
version=$("$emulated" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# Built in a copy, so that nothing in the checkout is of another machine.
mkdir "$work/source"
tar --exclude=./.git --exclude=./.venv --exclude=./build --exclude=./dist --exclude='./.*_cache' --exclude='*.so' \
    --exclude=__pycache__ --exclude='*.egg-info' -cf - . | tar -xf - -C "$work/source"
_PYTHON_HOST_PLATFORM=linux-aarch64 CC=aarch64-linux-gnu-gcc LDSHARED="aarch64-linux-gnu-gcc -shared" \
    "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheels" "$work/source"
platforms="--platform linux_aarch64 --platform manylinux2014_aarch64"
for minor in $(seq 17 36); do # of the C library; Debian 12 has 2.36
    platforms="$platforms --platform manylinux_2_${minor}_aarch64"
done
# shellcheck disable=SC2086
"$python" -m pip install --quiet --only-binary=:all: --python-version "$version" $platforms \
    --target "$work/root/usr/lib/python3/dist-packages" "$work/wheels"/*.whl

# Nobody's settings, and not the checkout's package.
cd "$work"
export HOME="$work/home" XDG_CACHE_HOME="$work/home" XDG_CONFIG_HOME="$work/home" XDG_DATA_HOME="$work/home"
# A short context and one thread: finding out which widths agree takes a minute otherwise, after which it is given up.
settings="--engine onnx --threads 1 --ctx 256"
# shellcheck disable=SC2086
write() { # the ids of the tokens, and whether drafts may change them
    "$@" -m edge_spec run demo $settings --cache-dir "$work/cache-$name" --seed 7 -n 50 --ignore-eos --json \
        -p "Tell me a story about a dog." >"$work/$name.json"
    "$python" -c 'import json, sys; said = json.load(sys.stdin); print(said["identity"], said["token_ids"])' \
        <"$work/$name.json" >"$work/$name.tokens"
    cat "$work/$name.tokens"
}
# What Linux says of a processor: the emulator leaves it as it is here, and ONNX Runtime cannot read that.
describe() {
    mkdir -p "$work/root/proc"
    for core in 0 1; do
        printf 'processor\t: %s\nFeatures\t: fp asimd crc32 cpuid %s\nCPU implementer\t: 0x41\n' "$core" "$2"
        printf 'CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: %s\nCPU revision\t: 1\n\n' "$1"
    done >"$work/root/proc/cpuinfo"
}
as() { # its name, the emulator's processor, its part number, and its instructions
    name=$1
    export QEMU_CPU="$2"
    describe "$3" "$4"
    echo "$name ($QEMU_CPU):"
    "$emulated" -m edge_spec doctor | grep -x "own kernels *built, $name" || { echo "other kernels are used"; exit 1; }
    write "$emulated"
    cmp "$work/here.tokens" "$work/$name.tokens"
    # shellcheck disable=SC2086
    "$emulated" -m edge_spec check demo $settings --cache-dir "$work/cache-$name" --limit 1 -n 32
}
name=here
echo "$name:"
write "$python"
as neon cortex-a72 0xd08 ""
as neon-dotprod cortex-a76 0xd0b "atomics fphp asimdhp asimdrdm asimddp"
as neon-i8mm max,sve=off,sme=off 0xd40 "atomics fphp asimdhp asimdrdm asimddp i8mm bf16"
echo "the tokens agree"
