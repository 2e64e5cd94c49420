#!/bin/bash
# The Debian package: what lintian and man say of it, and its life in a small Debian of its own (installed.sh).
#
#   test-apps/packages/deb.sh target/debian/quark_VERSION_amd64.deb
#
# `make test-deb` makes what it needs. Needs root.
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
. "$here/test-apps/checks.sh"
export LC_ALL=C.UTF-8

deb=$(realpath "${1:?usage: deb.sh PACKAGE.deb}")
[ "$(id -u)" = 0 ] || { echo "deb.sh: needs root"; exit 1; }
mkdir -p "$here/target/test-deb"
work=$(mktemp -d "$here/target/test-deb/XXXXXX")
trap 'rm -rf "$work"' EXIT
dpkg-deb -x "$deb" "$work/files" || exit 1
dpkg-deb -R "$deb" "$work/older" || exit 1
bin=$work/files/usr/bin
man=$work/files/usr/share/man

# Warnings and worse count, but for those that packaging/deb/lintian-overrides has a reason for.
check "lintian finds nothing" lintian --fail-on error,warning "$deb"
check "the package is of this version" \
    is "$("$bin/quark" --version | cut -d' ' -f2)" dpkg-deb -f "$deb" Version
check "it needs no other package" is "" dpkg-deb -f "$deb" Depends Pre-Depends

linked_statically() { ! readelf -lW "$1" | grep INTERP; }
has_no_symbols() { ! readelf -SW "$1" | grep -F .symtab; }
for program in quark containerd-shim-quark-v1; do
    check "$program is static" linked_statically "$bin/$program"
    check "$program is stripped" has_no_symbols "$bin/$program"
done

# Without a word of man's or groff's, and with something to read.
renders() {
    local said
    said=$(MANROFFOPT=-ww MANWIDTH=80 man --warnings=w -l "$1" 2>&1 > "$work/page") || return 1
    [ -z "$said" ] || { echo "$said"; return 1; }
    grep -q '^SEE ALSO' "$work/page"
}
every_page_renders() {
    local page
    for page in "$man"/man?/*; do renders "$page" || { echo "$page"; return 1; }; done
}
commands=$("$bin/quark" --help | sed -n '/^Commands:/,/^Options:/s/^  \([a-z]\{2,\}\) .*/\1/p' | grep -vx help | sort)
check "man pages render" every_page_renders
check "every command has a page" \
    is "$(printf 'quark-%s.1.gz\n' $commands | cat - <(echo quark.1.gz) | sort)" bash -c "ls $man/man1 | sort"
check "so has the shim" test -e "$man/man8/containerd-shim-quark-v1.8.gz"

# licences TEXT…: the copyright file has these.
licences() {
    local text
    for text in "$@"; do grep -F -- "$text" "$work/files/usr/share/doc/quark/copyright" > /dev/null || { echo "$text"; return 1; }; done
}
check "the copyright file has what is linked" licences "GNU C Library" "Rust standard library" \
    $'tokio 1.' $'clap 4.' "Permission is hereby granted" "Neither the name"
check "the changelog is Debian's" bash -c "zcat $work/files/usr/share/doc/quark/changelog.gz > $work/changelog &&
    [ \"\$(dpkg-parsechangelog -l $work/changelog -S Version 2>&1)\" = '$(dpkg-deb -f "$deb" Version)' ]"

# An older build: another version, and a binary that is not the same.
sed -i 's/^Version: .*/Version: 0.0.1/' "$work/older/DEBIAN/control"
echo >> "$work/older/usr/bin/quark"
mkdir "$work/packages"
dpkg-deb --root-owner-group -Znone -b "$work/older" "$work/packages/older.deb" > /dev/null || exit 1
cp "$deb" "$work/packages/newer.deb"
cp "$here/test-apps/checks.sh" "$here/test-apps/packages/installed.sh" "$work/packages"

root=$work/root
cp -a "$here/target/rootfs/python" "$root" || exit 1
mkdir "$root/bundle"
cp -a "$here/target/rootfs/busybox" "$root/bundle/rootfs" || exit 1
mv "$work/packages" "$root/packages"
# Its root is changed by pivot_root and not by chroot, in which nobody makes user namespaces. Nothing outlives the PID namespace.
timeout -k 10 120 unshare --mount --pid --net --fork --kill-child bash -euc '
    cd "$1"
    mount --bind . . && cd "$1"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    mount -t tmpfs -o mode=755 none run
    pivot_root . mnt/bench
    umount -l /mnt/bench
    export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
    exec bash /packages/installed.sh' bash "$root" < /dev/null || failures=$((failures + 1))

[ $failures = 0 ] || { echo "$failures failed"; exit 1; }
echo "all passed"
