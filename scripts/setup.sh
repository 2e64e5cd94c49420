#!/bin/bash
# Installs what building and testing need and this machine lacks: apt packages and the Rust target of the kernel image.
# Does nothing, and needs no root, when everything is there. "setup.sh kvm-vm" installs what scripts/kvm-vm needs, instead,
# "setup.sh servers", "judge", "cri", "deb" and "test-deb" what `make servers`, `judge`, `critest`, `deb` and `test-deb` need besides.
# With --check first, nothing is installed: the status is 1 if anything is missing, which is said.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
exec </dev/null

check=
if [ "${1:-}" = --check ]; then
    check=1
    shift
fi
# Says what is missing, and ends there if nothing is to be installed.
missing() {
    [ -z "$check" ] || { echo "setup: missing: $*" >&2 && exit 1; }
}

# command that must exist : package that brings it
packages=()
needed=(
    cc:gcc
    make:make
    python3:python3
    debootstrap:debootstrap
    busybox:busybox-static
    runc:runc
    dockerd:docker.io
    containerd:containerd
    iptables:iptables
    ip:iproute2
    script:bsdutils
    curl:curl
    unshare:util-linux
    mount:mount
    newuidmap:uidmap
)
if [ "${1:-}" = kvm-vm ]; then
    needed=(
        qemu-system-x86_64:qemu-system-x86
        busybox:busybox-static
        cpio:cpio
        modprobe:kmod
        mkfs.ext4:e2fsprogs
        xz:xz-utils
        zstd:zstd
    )
elif [ "${1:-}" = servers ]; then
    needed=(go:golang-go)
elif [ "${1:-}" = judge ]; then
    needed=(cc:gcc go:golang-go runc:runc debootstrap:debootstrap unshare:util-linux)
elif [ "${1:-}" = cri ]; then
    needed=(cc:gcc go:golang-go containerd:containerd runc:runc iptables:iptables ip:iproute2)
    [ -e /usr/lib/cni/bridge ] || packages=(containernetworking-plugins)
elif [ "${1:-}" = deb ]; then
    needed=(strip:binutils dpkg-deb:dpkg)
elif [ "${1:-}" = test-deb ]; then
    needed=(lintian:lintian man:man-db)
elif [ $# -gt 0 ]; then
    echo "usage: scripts/setup.sh [--check] [kvm-vm|servers|judge|cri|deb|test-deb]" >&2
    exit 2
fi
# Debian keeps some of these out of a user's PATH.
PATH=$PATH:/usr/sbin:/sbin

for entry in "${needed[@]}"; do
    command -v "${entry%%:*}" >/dev/null || packages+=("${entry#*:}")
done
# Clients that the distribution's own Python finds.
if [ "${1:-}" = servers ]; then
    for module in paramiko pg8000 pymysql; do
        /usr/bin/python3 -c "import $module" 2>/dev/null || packages+=("python3-$module")
    done
fi
# Descriptions of images are read by the distribution's own Python.
if [ $# = 0 ] || [ "$1" = servers ] || [ "$1" = cri ]; then
    /usr/bin/python3 -c 'import yaml' 2>/dev/null || packages+=(python3-yaml)
fi
# A compiler without the C library's headers cannot build the test programs.
[ -e /usr/include/stdio.h ] || [ $# -gt 0 ] || packages+=(libc6-dev)
# busybox must be the static one: it goes into root file systems alone.
if command -v busybox >/dev/null && ldd "$(command -v busybox)" >/dev/null 2>&1; then
    packages+=(busybox-static)
fi
# Debian 12's own QEMU is 7.2, which breaks AVX in guests.
if [ "${1:-}" = kvm-vm ] && command -v qemu-system-x86_64 >/dev/null; then
    version=$(qemu-system-x86_64 --version | sed -n '1s/.* version \([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 8 ] || packages+=(qemu-system-x86)
fi

if [ ${#packages[@]} -gt 0 ]; then
    missing "${packages[@]}"
    if [ "$(id -u)" != 0 ]; then
        echo "setup: needs root to install: ${packages[*]}" >&2
        echo "setup: run: sudo apt-get install --no-install-recommends ${packages[*]}" >&2
        exit 1
    fi
    echo "setup: installing ${packages[*]}"
    # For Debian 12, later versions of QEMU are in its backports.
    backports=
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    if [[ " ${packages[*]} " = *" qemu-system-x86 "* ]] && [ "$codename" = bookworm ]; then
        backports=bookworm-backports
        if ! apt-get indextargets --format '$(RELEASE)' | grep -x $backports >/dev/null; then
            mirror=$(apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' |
                awk '$1 == "Packages" && $2 == "bookworm" && $3 == "main" { print $4; exit }' || true)
            echo "deb ${mirror:-http://deb.debian.org/debian} $backports main" >/etc/apt/sources.list.d/backports.list
        fi
    fi
    apt-get update -q
    # Services must not start by themselves: the tests run a dockerd of their own.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        trap 'rm -f $policy' EXIT
    fi
    apt-get install -q -y --no-install-recommends ${backports:+-t $backports} "${packages[@]}"
fi
# Any of the same major version will do.
cargo_deb=3.8.0
if [ "${1:-}" = deb ] && [[ "$(cargo deb --version 2>/dev/null)" != "cargo-deb ${cargo_deb%%.*}".* ]]; then
    missing "cargo-deb $cargo_deb"
    echo "setup: building cargo-deb $cargo_deb"
    cargo install --quiet --locked --version $cargo_deb cargo-deb
fi
if [ $# -gt 0 ]; then
    echo "setup: complete"
    exit
fi

if ! command -v cargo >/dev/null; then
    echo "setup: no Rust toolchain: install rustup from https://rustup.rs, then run this again" >&2
    exit 1
fi
target=x86_64-unknown-none
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    missing "the Rust target $target"
    echo "setup: adding the Rust target $target"
    if ! command -v rustup >/dev/null; then
        echo "setup: this toolchain has no rustup; install the Rust standard library for $target yourself" >&2
        exit 1
    fi
    rustup target add $target
fi
for component in rustfmt clippy; do
    cargo-${component#rust} --version >/dev/null 2>&1 || {
        missing "$component"
        rustup component add $component
    }
done
echo "setup: complete"
