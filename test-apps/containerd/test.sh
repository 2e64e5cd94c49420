#!/bin/bash
# Runs containers under a containerd of its own, in a network namespace of its own, through quark's own shim, and checks
# what users of `ctr` and of containerd's clients rely on.
#
#   test-apps/containerd/test.sh [QUARK]      QUARK: the binary (default target/release/quark); the shim lies beside it
#   RUNTIME=io.containerd.runc.v2 test-apps/containerd/test.sh  checks the test itself (hibernation is left out)
#   CHECKS=no KEEP='…' test-apps/containerd/test.sh  runs commands with that containerd instead; ctr, run and soon are functions
#
# Needs root and: apt-get install containerd runc iproute2 busybox-static
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
runtime=${RUNTIME:-io.containerd.quark.v1}
limit=${LIMIT:-110}

. "$here/test-apps/checks.sh"
skip() { skip_test containerd::all "$1"; }

if [ -z "${QUARK_CONTAINERD_TEST:-}" ]; then
    [ "$(id -u)" = 0 ] || skip "needs root"
    for tool in containerd ctr runc ip busybox; do
        command -v $tool > /dev/null || skip "no $tool; apt-get install containerd runc iproute2 busybox-static"
    done
    # Bounded in time, whatever hangs; in its own network and mount namespaces, so that nothing is left there.
    exec env QUARK_CONTAINERD_TEST=1 timeout -k 20 "$limit" unshare --net --mount --propagation private "$0" "$@"
fi

quark=$(realpath "${1:-$here/target/release/quark}")
shim=$(dirname "$quark")/containerd-shim-quark-v1
[ "$runtime" != io.containerd.quark.v1 ] || { [ -x "$quark" ] && [ -x "$shim" ]; } ||
    { echo "no quark or containerd-shim-quark-v1 binary; build them first"; exit 1; }

work=$(mktemp -d /tmp/quark-containerd.XXXXXX)
sock=$work/c.sock
daemon=
ctr() { timeout -s KILL 20 ctr -a "$sock" "$@"; }

start_containerd() {
    # It leaves directories of images where XDG_RUNTIME_DIR says.
    XDG_RUNTIME_DIR=$work PATH=$(dirname "$quark"):$PATH containerd --config "$work/config.toml" >> "$work/containerd.log" 2>&1 &
    daemon=$!
    for _ in $(seq 150); do ctr version > /dev/null 2>&1 && return 0; sleep 0.1; done
    echo "not ok - containerd does not start"
    tail -20 "$work/containerd.log"
    exit 1
}
stop_containerd() {
    [ -n "$daemon" ] || return 0
    kill "${1:--TERM}" "$daemon" 2> /dev/null
    for _ in $(seq 100); do kill -0 "$daemon" 2> /dev/null || break; sleep 0.1; done
    kill -9 "$daemon" 2> /dev/null
    wait "$daemon" 2> /dev/null
    daemon=
}
processes() { # processes PATTERN: those with this containerd's socket among their arguments, and the pattern in all of them
    local file
    for file in $(grep -lsaF -- "$sock" /proc/[0-9]*/cmdline); do
        { tr '\0' ' ' < "$file"; } 2> /dev/null | grep -q -- "$1" && cut -d/ -f3 <<< "$file"
    done
}
shims() { processes '^[^ ]*containerd-shim-'; }
cleanup() {
    trap - EXIT TERM INT
    local task pid
    [ -n "$daemon" ] || start_containerd
    for task in $(ctr task ls -q 2> /dev/null); do ctr task rm -f "$task" > /dev/null 2>&1; done
    for task in $(ctr c ls -q 2> /dev/null); do ctr c rm "$task" > /dev/null 2>&1; done
    for pid in $(shims); do kill -9 "$pid" 2> /dev/null; done
    stop_containerd
    for mount in $(grep -o " $work[^ ]* " /proc/self/mountinfo | sort -r); do umount -l "$mount" 2> /dev/null; done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'echo "not ok - out of time"; exit 1' TERM INT

soon() { # soon COMMAND…: within ten seconds the command succeeds
    for _ in $(seq 100); do "$@" > /dev/null 2>&1 && return 0; sleep 0.1; done
    "$@"
}

ip link set lo up
make_root "$work/rootfs"
# An image as `docker save` has it.
mkdir "$work/image"
tar -C "$work/rootfs" -cf "$work/image/layer.tar" .
diff=sha256:$(sha256sum "$work/image/layer.tar" | cut -d' ' -f1)
cat > "$work/image/config.json" << END
{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin"],"Cmd":["sh"]},"rootfs":{"type":"layers","diff_ids":["$diff"]}}
END
echo '[{"Config":"config.json","RepoTags":["docker.io/library/quark-test:latest"],"Layers":["layer.tar"]}]' > "$work/image/manifest.json"
tar -C "$work/image" -cf "$work/image.tar" manifest.json config.json layer.tar
image=docker.io/library/quark-test:latest

cat > "$work/config.toml" << END
version = 2
root = "$work/root"
state = "$work/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
address = "$sock"
END
start_containerd
ctr image import "$work/image.tar" > /dev/null || { echo "not ok - import"; exit 1; }

options=()
if [ "$runtime" = io.containerd.quark.v1 ]; then
    echo "Root = \"$work/quark\"" > "$work/quark.toml"
    options=(--runtime-config-path "$work/quark.toml")
fi
run() { ctr run --runtime "$runtime" "${options[@]}" "$@"; }
status() { ctr task ls | awk -v id="$1" '$1 == id { print $3 }'; }
task_pid() { ctr task ls | awk -v id="$1" '$1 == id { print $2 }'; }
gone() { [ -z "$(task_pid "$1")" ]; }
remove() { ctr task rm -f "$1" > /dev/null 2>&1; ctr c rm "$1"; }
is_status() { is "$2" status "$1"; }

if [ "${CHECKS:-}" = no ]; then
    eval "$KEEP"
    exit
fi

check "run --rm passes the exit code" code 7 run --rm $image a1 sh -c 'exit 7'
check "run --rm passes output" is hello run --rm $image a2 echo hello
check "standard error is passed" says "No such file" run --rm $image a3 ls /nothing
# Not at once: ctr forgets to tell of an end that comes while it makes the container.
check "input is passed, and its end" is 5 bash -c "(sleep 1; echo -n 12345) | timeout -s KILL 30 ctr -a $sock run --runtime $runtime ${options[*]} --rm $image a4 wc -c"
check "a missing program is told" says "no-such-program" run --rm $image a5 no-such-program
check "environment and directory" is "v /tmp" run --rm --env A=v --cwd /tmp $image a6 sh -c 'echo $A $(pwd)'
check "much output arrives whole" is 1000000 bash -c "timeout 50 ctr -a $sock run --runtime $runtime ${options[*]} --rm $image a7 sh -c 'yes 0123456 | dd bs=8000 count=125 iflag=fullblock 2>/dev/null' | wc -c"
check "a terminal" says "/dev/pts/0" timeout -s KILL 30 script -qec "ctr -a $sock run --runtime $runtime ${options[*]} -t --rm $image a8 sh -c 'tty; sleep 1'" /dev/null

# Writes containerd's events to a file, until the process $events is ended.
listen() {
    ( timeout 90 ctr -a "$sock" events > "$1" 2>/dev/null ) &
    events=$!
}
listen "$work/events"
check "run -d" run -d $image web sh -c 'trap "exit 3" TERM; httpd -f -p 8080 -h /www & while :; do sleep 1 & wait $!; done'
check "it runs" is_status web RUNNING
check "exec passes output and code" code 5 bash -c "timeout -s KILL 30 ctr -a $sock task exec --exec-id e1 web sh -c 'echo out; exit 5' | grep -q out && timeout -s KILL 30 ctr -a $sock task exec --exec-id e2 web sh -c 'exit 5'"
check "exec passes input" is 3 bash -c "(sleep 1; echo -n abc) | timeout -s KILL 30 ctr -a $sock task exec --exec-id e3 web wc -c"
check "exec with a terminal" says "/dev/pts/" timeout -s KILL 30 script -qec "ctr -a $sock task exec -t --exec-id e4 web sh -c 'tty; sleep 1'" /dev/null
check "its processes are listed" says "$(task_pid web)" ctr task ps web
check "statistics" says "memory" ctr task metrics web
check "pause" ctr task pause web
check "it is paused" is_status web PAUSED
check "resume" ctr task resume web
check "it runs again" is_status web RUNNING
if [ "$runtime" = io.containerd.quark.v1 ]; then
    hibernation() { "$quark" --root "$work/quark/default" state "$1" | grep -o '"hibernation": *"[A-Za-z]*"' | grep -o '[A-Za-z]*"$' | tr -d '"'; }
    run -d $image sleeper sleep 1000
    check "SIGSTOP hibernates" ctr task kill -s SIGSTOP sleeper
    check "it sleeps" is Hibernated hibernation sleeper
    check "containerd sees it run" is_status sleeper RUNNING
    check "exec wakes it" is awake ctr task exec --exec-id w sleeper echo awake
    run -d $image zq sleep 1000
    check "a whole ID is found in containerd's directory, short as it is" says idle "$quark" why zq
    remove zq
    check "task checkpoint" says checkpoint/sleeper ctr task checkpoint sleeper
    check "which is told" soon grep -q "/tasks/checkpointed" "$work/events"
    remove sleeper

    counted() { ctr task exec --exec-id "c$RANDOM" "$1" cat /dev/shm/count; }
    counts_past() { [ "$(counted "$1")" -gt "$2" ]; }
    run -d $image counts sh -c 'i=0; while :; do i=$((i + 1)); echo $i > /dev/shm/count; sleep 0.1; done'
    soon counts_past counts 30
    check "container checkpoint --task" ctr c checkpoint --task --image counts quark-saved:1
    check "it goes on" is_status counts RUNNING
    check "and is not paused" counts_past counts "$(counted counts; sleep 0.3)"
    remove counts > /dev/null
    check "container restore --live" ctr c restore --live counts2 quark-saved:1
    # One that had started from the beginning would not be there yet.
    check "it goes on where it was" counts_past counts2 30
    check "it runs" is_status counts2 RUNNING
    check "exec in it" is up ctr task exec --exec-id u counts2 echo up
    check "a signal ends it" ctr task kill -s SIGKILL counts2
    check "which is told" soon is_status counts2 STOPPED
    check "its code is known" says "exit code 137" ctr task rm counts2
    remove counts2 > /dev/null 2>&1
    saves() { run -d --annotation io.quark.checkpoint-when='now ready' --annotation "io.quark.checkpoint-path=$work/said" "$@"; }
    check "one that is to be saved when it says so" saves $image says sh -c 'echo not yet; sleep 0.5; echo now ready; sleep 1000'
    check "it is saved" soon test -e "$work/said/manifest.json"
    check "and ends" soon is_status says STOPPED
    remove says
    check "it is saved once" saves $image says sh -c 'echo now ready; sleep 1000'
    sleep 0.5
    check "and runs from then on" is_status says RUNNING
    remove says
    run -d --log-uri "file://$work/logged-too" $image files sleep 1000
    check "checkpoint of one with a file for output" ctr c checkpoint --task --image files quark-saved:3
    remove files > /dev/null
    check "which is what it must have" says "standard stream 1 is a pipe or device now" ctr c restore --live files quark-saved:3
    check "it was not started" is_status files CREATED
    remove files
    check "what was never made goes" gone files
fi
check "kill passes a signal" ctr task kill -s SIGTERM web
check "it stops" soon is_status web STOPPED
check "its code is known" says "exit code 3" ctr task rm web
remove web > /dev/null 2>&1
kill $events 2> /dev/null
for topic in create start exit delete exec-added exec-started paused resumed; do
    check "event /tasks/$topic" grep -q "/tasks/$topic" "$work/events"
done

# A pod: containers with its ID among their annotations, that are to share namespaces of the first.
pod=(--annotation io.kubernetes.cri.sandbox-id=pod1)
run -d "${pod[@]}" $image pod1 httpd -f -p 127.0.0.1:8081 -h /www
pid=$(task_pid pod1)
# With runc its first process is in these namespaces; the sandbox of quark is in the network's alone.
joined=(--with-ns "network:/proc/$pid/ns/net" --with-ns "ipc:/proc/$pid/ns/ipc" --with-ns "uts:/proc/$pid/ns/uts")
check "a second container of a pod" run -d "${pod[@]}" "${joined[@]}" --with-ns "pid:/proc/$pid/ns/pid" $image pod2 sleep 1000
fetched() { is "hello from the guest" ctr task exec --exec-id "f$RANDOM" pod2 wget -qO- http://127.0.0.1:8081/; }
check "it reaches the first by the pod's loopback device" soon fetched
one_shim() { [ "$(shims | wc -l)" = 1 ]; }
check "both have one shim" one_shim
remove pod2
check "which stays for the first" is_status pod1 RUNNING
remove pod1
if [ "$runtime" = io.containerd.quark.v1 ]; then
    # The same with one guest kernel for both.
    run -d "${pod[@]}" --annotation io.quark.pod=shared $image pod1 httpd -f -p 127.0.0.1:8081 -h /www
    pid=$(task_pid pod1)
    joined=(--with-ns "network:/proc/$pid/ns/net" --with-ns "ipc:/proc/$pid/ns/ipc" --with-ns "uts:/proc/$pid/ns/uts")
    check "a container that shares the kernel of its pod" run -d "${pod[@]}" "${joined[@]}" $image pod2 sh -c 'echo kept > /file; sleep 1000'
    check "it reaches the first" soon fetched
    check "it has processes of its own" says "1 sleep 1000" ctr task exec --exec-id p1 pod2 ps -o pid,args
    check "and files of its own" is "" ctr task exec --exec-id p2 pod1 sh -c 'cat /file 2> /dev/null'
    # A writer whose reader does not read holds its buffer.
    ctr task exec -d --exec-id p3 pod2 sh -c 'dd if=/dev/zero bs=32M count=1 2> /dev/null | sleep 1000'
    holds() { ctr task metrics "$1" | awk -v least="$2" -v most="$3" '/^memory.usage/ { exit !($2 >= least && $2 <= most) }'; }
    check "its statistics are of its programs" soon holds pod2 33554432 67108864
    among=("${joined[@]}" --with-ns "pid:/proc/$(task_pid pod2)/ns/pid")
    check "a container may be among the processes of another" says "sleep 1000" run --rm "${pod[@]}" "${among[@]}" $image pod2b ps
    check "a signal ends it" ctr task kill -s SIGKILL pod2
    check "which is told" soon is_status pod2 STOPPED
    remove pod2
    check "and the first goes on" is_status pod1 RUNNING
    ends_with_7() { run "${pod[@]}" "${joined[@]}" $image pod3 sh -c 'exit 7'; [ $? = 7 ]; }
    check "one that ends has its code" ends_with_7
    listen "$work/pod-events"
    run -d "${pod[@]}" "${joined[@]}" --memory-limit 67108864 $image pod5 dd if=/dev/zero of=/dev/null bs=200M count=1
    check "want of memory ends one" soon is_status pod5 STOPPED
    check "its code is 137" says "exit code 137" ctr task rm pod5
    check "why is told" soon grep -q "/tasks/oom.*pod5" "$work/pod-events"
    kill $events 2> /dev/null
    remove pod5
    run -d "${pod[@]}" "${joined[@]}" $image pod4 sleep 1000
    check "all end with the first" ctr task kill -s SIGKILL pod1
    check "the others too" soon is_status pod4 STOPPED
    remove pod4
    remove pod3 > /dev/null 2>&1
    remove pod1
fi
no_shims() { is "" shims; }
check "and then goes" soon no_shims

# Whatever dies, the others know, and nothing is left.
run -d $image r1 sleep 1000
run -d $image r2 sh -c 'while :; do echo line; sleep 0.05; done' > /dev/null
stop_containerd
start_containerd
check "containers outlive containerd" is_status r1 RUNNING
check "also those that write meanwhile" is_status r2 RUNNING
check "exec after that" is back ctr task exec --exec-id x r1 echo back
kill -9 "$(task_pid r1)"
check "a sandbox that is killed is told" soon is_status r1 STOPPED
check "its code is 137" says "exit code 137" ctr task rm r1
pid=$(task_pid r2)
kill -9 "$(processes '^[^ ]*containerd-shim-.* -id r2 ')"
check "a container whose shim is killed goes" soon bash -c "! kill -0 $pid"
[ "$runtime" != io.containerd.quark.v1 ] || check "its state too" soon bash -c "[ ! -e $work/quark/default/r2 ]"
check "its root too" soon bash -c "! grep -q $work/state/.*/r2/rootfs /proc/self/mountinfo"
remove r1 > /dev/null 2>&1
remove r2 > /dev/null 2>&1

# A client that is stopped does not read: the program waits, everything else goes on.
run $image full sh -c 'yes 0123456789 & sleep 1000' > /dev/null &
soon is_status full RUNNING
clients=$(processes '^ctr .* run .* full ')
# shellcheck disable=SC2086
kill -STOP $clients
sleep 0.5
check "exec beside output that nobody reads" is beside ctr task exec --exec-id b full echo beside
check "a container whose output nobody reads ends" ctr task kill -s SIGKILL full
check "it is told" soon is_status full STOPPED
# shellcheck disable=SC2086
kill -CONT $clients
soon gone full
remove full > /dev/null 2>&1
check "run with output to a file" run -d --log-uri "file://$work/logged" $image logger echo to a file
check "output to a file" soon grep -q "to a file" "$work/logged"
remove logger

many=${MANY:-50}
together() {
    local n
    for n in $(seq "$many"); do echo "$n"; done |
        xargs -P 8 -I{} timeout -k 5 60 ctr -a "$sock" run -d --runtime "$runtime" "${options[@]}" "$image" many{} sleep 1000
    [ "$(ctr task ls | grep -c RUNNING)" = "$many" ]
}
check "$many containers at once" together
pss() { # the PSS of processes, in KiB each
    local pid sum=0 count=0
    for pid in "$@"; do
        sum=$((sum + $(awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup" 2> /dev/null || echo 0)))
        count=$((count + 1))
    done
    echo "$((sum / (count > 0 ? count : 1))) KiB of $count"
}
sleep 1
# shellcheck disable=SC2046
echo "# PSS of a shim: $(pss $(shims))"
check "they go" bash -c "seq $many | xargs -P 8 -I{} timeout -k 5 60 ctr -a $sock task rm -f many{}"
check "no shim is left" soon no_shims

[ $failures = 0 ] || { echo "$failures checks failed; containerd said:"; grep -v level=info "$work/containerd.log" | tail -30; }
[ $failures = 0 ]
