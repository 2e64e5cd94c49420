#!/bin/bash
# Runs containers under a dockerd of its own (with-docker.sh), and checks what users of `docker run
# --runtime quark` rely on.
#
#   test-apps/docker/test.sh [QUARK]      QUARK: the binary (default target/release/quark, else target/debug/quark)
#   RUNTIME=runc test-apps/docker/test.sh  checks the test itself, with Docker's own runtime (hibernation is left out)
#
# Needs root and: apt-get install docker.io containerd runc iptables iproute2 busybox-static
set -u
here=$(cd "$(dirname "$0")/../.." && pwd)
runtime=${RUNTIME:-quark}
quark=${1:-}
for candidate in target/release/quark target/debug/quark; do
    [ -n "$quark" ] || { [ -x "$here/$candidate" ] && quark=$here/$candidate; }
done
quark=$(realpath "${quark:-/bin/false}")
[ -n "${WORK:-}" ] || exec "$here/test-apps/docker/with-docker.sh" "$quark" "$0" "$quark"

# The client and the daemon are often of different versions; what the daemon speaks is asked of it.
docker() { timeout -k 5 60 docker "$@"; }
. "$here/test-apps/checks.sh"

fetch() { # fetch PORT PATH: an HTTP request with bash alone
    local line body=
    exec 3<> "/dev/tcp/127.0.0.1/$1" || return 1
    printf 'GET %s HTTP/1.0\r\nHost: test\r\n\r\n' "$2" >&3
    while IFS= read -t 10 -r line <&3; do body=$line; done
    exec 3>&-
    echo "${line:-$body}"
}
fetch_soon() { # the same, until something listens
    for _ in $(seq 100); do
        { [ -n "$(fetch "$@" 2> /dev/null)" ] && fetch "$@"; } 2> /dev/null && return 0
        sleep 0.1
    done
    return 1
}

run() { docker run --runtime "$runtime" "$@"; }
state() { docker inspect -f '{{.State.Status}}' "$1"; }
soon() { # soon TEXT COMMAND…: within ten seconds the command prints exactly this
    for _ in $(seq 100); do is "$@" > /dev/null && return 0; sleep 0.1; done
    is "$@"
}

check "run --rm passes the exit code" code 7 run --rm --network none quark-test sh -c 'exit 7'
check "run --rm passes output" is hello run --rm --network none quark-test echo hello
check "run -i passes input" is 5 bash -c "echo -n 12345 | docker run --runtime $runtime -i --rm --network none quark-test wc -c"
check "a missing program is code 127" code 127 run --rm --network none quark-test no-such-program
check "environment, directory, user, host name" is "v /tmp 7 box" \
    run --rm --network none -e A=v -w /tmp -u 7:8 -h box quark-test sh -c 'echo $A $(pwd) $(id -u) $(hostname)'
check "a read-only root" says "Read-only file system" run --rm --network none --read-only quark-test touch /x
mkdir "$WORK/volume"
check "a volume" is "" run --rm --network none -v "$WORK/volume:/v" quark-test sh -c 'echo data > /v/file'
check "what was written to it" is data cat "$WORK/volume/file"
check "a read-only volume" says "Read-only file system" run --rm --network none -v "$WORK/volume:/v:ro" quark-test touch /v/x

check "run -d -p" run -d --name web --memory 256m --pids-limit 200 -p 18080:8080 quark-test \
    sh -c 'echo serving; httpd -f -p 8080 -h /www & trap "exit 3" TERM; while :; do wait; sleep 1; done'
check "a request to the published port" is 'hello from the guest' fetch_soon 18080 /
check "logs" soon serving docker logs web
check "exec" is "42" docker exec web echo 42
check "exec passes the exit code" code 9 docker exec web sh -c 'exit 9'
check "exec -i passes input" is 3 bash -c "echo -n abc | docker exec -i web wc -c"
check "exec -d" docker exec -d web sh -c 'echo detached > /www/detached'
check "what it did" is detached fetch_soon 18080 /detached
check "exec of a missing program is code 126" code 126 docker exec web no-such-program
check "stats" says web docker stats --no-stream
check "pause" docker pause web
check "it is paused" is paused state web
check "unpause" docker unpause web
check "a request after it" is 'hello from the guest' fetch 18080 /
if [ "$runtime" = quark ]; then
    id=$(docker inspect -f '{{.Id}}' web)
    # Where Docker keeps a runtime's state depends on its version.
    state_root=$(find "$WORK" /run -path "*/$id/control.sock" -printf '%h\n' 2> /dev/null | head -1)
    state_root=${state_root%/*}
    hibernation() { # hibernation [ID]
        "$quark" --root "$state_root" state "${1:-$id}" | sed -n 's/.*"hibernation": "\(.*\)".*/\1/p'
    }
    check "it is among the containers of all roots" says "$id" "$quark" list --all-roots
    ends_its_container() { # An exec that ends the container ends too, each time.
        local i
        for i in 1 2 3 4 5 6; do
            docker run --runtime quark -d --name ends quark-test sh -c 'trap "exit 1" TERM; sleep 1000 & wait' >/dev/null
            timeout 20 docker exec ends sh -c 'true; kill $(echo 1)'
            [ $? -ne 124 ] || return 1
            docker rm -f ends >/dev/null
        done
    }
    check "an exec that ends the container ends" ends_its_container
    check "kill -s STOP" docker kill -s STOP web
    check "it is hibernated" soon Hibernated hibernation
    check "it still counts as running" is running state web
    check "top shows it asleep" grep -q "^$id.* Hibernated .*$state_root" <("$quark" top)
    check "metrics tell of it" says "quark_container_up{id=\"$id\",root=\"$state_root\"} 1" "$quark" metrics
    check "a request wakes it" is 'hello from the guest' fetch 18080 /
    check "kill -s STOP again" docker kill -s STOP web
    check "exec wakes it" is awake docker exec web echo awake
    check "kill -s STOP a third time" docker kill -s STOP web
    check "kill -s CONT" docker kill -s CONT web
    check "a request after it" is 'hello from the guest' fetch 18080 /
    check "one that is to sleep by itself" docker run --runtime quark-idle -d --name idle -p 18081:8080 \
        quark-test httpd -f -p 8080 -h /www
    check "it sleeps" soon Hibernated hibernation "$(docker inspect -f '{{.Id}}' idle)"
    check "a request wakes it" is 'hello from the guest' fetch 18081 /
    check "it sleeps again" soon Hibernated hibernation "$(docker inspect -f '{{.Id}}' idle)"
    check "rm -f of a sleeper" docker rm -f idle
    counted() { docker logs --tail 1 counts; }
    counts_on() { [ "$(counted)" -gt "$1" ]; }
    # containerd (before 2.0) refuses content that it still has of another checkpoint ("already exists"): the configuration is
    # the same in all of a container. A lease that is given back in step has it take away what nobody needs.
    forget() {
        local containerd=(ctr -a "$WORK/exec/containerd/containerd.sock" -n moby)
        "${containerd[@]}" leases create --id sweep && "${containerd[@]}" leases delete --sync sweep
    }
    check "one that counts" docker run --runtime quark -d --name counts --network none quark-test \
        sh -c 'i=0; while :; do i=$((i + 1)); echo $i; sleep 0.1; done'
    sleep 0.5
    check "checkpoint create, and it goes on" docker checkpoint create --leave-running counts zero
    check "it runs" is running state counts
    check "containerd forgets it" forget
    check "checkpoint create" docker checkpoint create counts one
    check "it has ended" soon exited state counts
    last=$(counted)
    check "both are there" is "zero one" bash -c "docker checkpoint ls counts | awk 'NR > 1 { print \$1 }' | sort -r | xargs"
    check "containerd forgets it, too" forget
    check "start --checkpoint" docker start --checkpoint one counts
    sleep 1
    check "it counts on" counts_on "$last"
    check "it has counted nothing twice" is "" bash -c "docker logs counts | uniq -d"
    check "exec in it" is 42 docker exec counts echo 42
    check "rm -f of it" docker rm -f counts
    check "called as runsc" docker run --runtime runsc -d --name as-runsc --network none quark-test sleep 1000
    check "exec in it" is 42 docker exec as-runsc echo 42
    check "its end" code 0 docker rm -f as-runsc
    cp "$WORK/daemon.json" "$WORK/daemon.json.old"
    installed=(--docker --config "$WORK/daemon.json" --name quark-late --prefix "$WORK/prefix" --reload --docker-pid-file "$WORK/pid")
    check "install" "$quark" install "${installed[@]}"
    check "dockerd knows it at once" soon late docker run --runtime quark-late --rm --network none quark-test echo late
    cp "$WORK/daemon.json" "$WORK/daemon.json.late"
    also=("${installed[@]/quark-late/quark-later}")
    check "install by a second name" "$quark" install "${also[@]}"
    check "uninstall keeps a binary that another runtime needs" says "kept $WORK/prefix/bin/quark" "$quark" uninstall "${also[@]}"
    check "which is there" test -x "$WORK/prefix/bin/quark"
    check "nothing of the second is left" cmp "$WORK/daemon.json" "$WORK/daemon.json.late"
    check "uninstall" "$quark" uninstall "${installed[@]}"
    check "its binary goes" test ! -e "$WORK/prefix/bin/quark"
    check "nothing of it is left" cmp "$WORK/daemon.json" "$WORK/daemon.json.old"
    known() { docker info -f '{{json .Runtimes}}' | grep -o 'quark-late\|quark-idle' | sort -u; }
    check "dockerd has forgotten it" soon quark-idle known
fi
check "stop" docker stop -t 10 web
check "its exit code" is 3 docker inspect -f '{{.State.ExitCode}}' web
check "start again" docker start web
check "a request to it" is 'hello from the guest' fetch_soon 18080 /
check "kill" docker kill web
check "the exit code of a killed one" soon 137 docker inspect -f '{{.State.ExitCode}}' web
check "rm" docker rm web
check "one that uses its memory up ends" code 137 run --name hog --network none --memory 64m quark-test tail /dev/zero
check "why is known" soon true docker inspect -f '{{.State.OOMKilled}}' hog
check "rm" docker rm hog
check "no containers left" is "" docker ps -aq
if [ "$runtime" = quark ]; then
    check "no state left" is "" bash -c "ls -d $state_root/$id 2> /dev/null"
    check "no sandbox left" is "" pgrep -f "sandbox-process $id"
fi

[ $failures = 0 ] || { echo "$failures failed"; exit 1; }
echo "all passed"
