#!/bin/bash
# Runs a command beside a dockerd of its own, in network and mount namespaces of its own, and leaves nothing behind.
#
#   test-apps/docker/with-docker.sh QUARK COMMAND…    QUARK: the binary that is the daemon's runtime "quark"
#
# The command finds DOCKER_HOST, the image quark-test (busybox), the runtimes runc, quark, quark-idle (which sleeps after 500 ms) and runsc (quark by
# another name), a directory WORK, and LIMIT seconds (240). With GVISOR, a path, gVisor's binary is the runtime gvisor. Needs root and: apt-get install docker.io containerd runc iptables iproute2 busybox-static
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)

. "$here/test-apps/checks.sh"
skip() { skip_test docker::all "$1"; }

if [ -z "${QUARK_DOCKER_TEST:-}" ]; then
    [ "$(id -u)" = 0 ] || skip "needs root"
    for tool in dockerd docker containerd runc ip busybox; do
        command -v $tool > /dev/null ||
            skip "no $tool; apt-get install docker.io containerd runc iptables iproute2 busybox-static"
    done
    # Bounded in time, whatever hangs.
    exec env QUARK_DOCKER_TEST=1 timeout -k 20 "${LIMIT:-240}" unshare --net --mount --propagation private "$0" "$@"
fi

[ $# -ge 2 ] && [ -x "$1" ] || { echo "usage: $0 QUARK COMMAND… (QUARK: a binary; build it first)" >&2; exit 2; }
quark=$(realpath "$1")
shift
WORK=$(mktemp -d /tmp/quark-docker.XXXXXX)
export WORK DOCKER_HOST=unix://$WORK/docker.sock
docker() { timeout -k 5 60 docker "$@"; }
daemon= command=

cleanup() {
    trap - EXIT TERM INT
    [ -z "$command" ] || kill "$command" 2> /dev/null
    if [ -n "$daemon" ]; then
        ids=$(docker ps -aq 2> /dev/null)
        # shellcheck disable=SC2086
        [ -z "$ids" ] || docker rm -f $ids > /dev/null 2>&1
        kill "$daemon" 2> /dev/null
        for _ in $(seq 100); do kill -0 "$daemon" 2> /dev/null || break; sleep 0.1; done
        kill -9 "$daemon" 2> /dev/null
        wait "$daemon" 2> /dev/null
    fi
    for mount in $(grep -o " $WORK[^ ]* " /proc/self/mountinfo | sort -r); do umount -l "$mount" 2> /dev/null; done
    rm -rf "$WORK"
}
trap cleanup EXIT
trap 'echo "not ok - out of time"; exit 1' TERM INT

ip link set lo up
make_root "$WORK/rootfs"

ln -s "$quark" "$WORK/runsc"
gvisor=
[ -z "${GVISOR:-}" ] || gvisor="\"gvisor\": { \"path\": \"$(realpath "$GVISOR")\", \"runtimeArgs\": [\"--platform=systrap\"] },"
cat > "$WORK/daemon.json" << END_OF_FILE
{ "experimental": true, "runtimes": {
    $gvisor
    "quark": { "path": "$quark" },
    "quark-idle": { "path": "$quark", "runtimeArgs": ["--hibernate-after=500ms"] },
    "runsc": { "path": "$WORK/runsc", "runtimeArgs": ["-platform=systrap", "--dcache=7"] } } }
END_OF_FILE
dockerd --config-file "$WORK/daemon.json" --data-root "$WORK/data" --exec-root "$WORK/exec" --pidfile "$WORK/pid" -H "$DOCKER_HOST" \
    > "$WORK/dockerd.log" 2>&1 &
daemon=$!
for _ in $(seq 150); do docker version > /dev/null 2>&1 && break; sleep 0.1; done
docker version > /dev/null 2>&1 || { echo "not ok - dockerd does not start"; tail -20 "$WORK/dockerd.log"; exit 1; }
tar -C "$WORK/rootfs" -c . | docker import - quark-test:latest > /dev/null || { echo "not ok - import"; exit 1; }

# In the background, so that the end of the time reaches this script at once.
"$@" < /dev/null &
command=$!
wait "$command"
status=$?
command=
[ $status = 0 ] || { echo "the daemon's log ends:"; grep -v level=info "$WORK/dockerd.log" | tail -15; }
exit $status
