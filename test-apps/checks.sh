# What the tests with real engines have in common; they source it. $here is the repository.
# shellcheck shell=bash
failures=0

# skip_test NAME REASON: ends the test, and notes it for scripts/skips.
skip_test() {
    echo "SKIPPED $1: $2" | tee -a "$here/target/skipped"
    exit 0
}

# make_root DIRECTORY: a root file system with busybox, users and a page to serve.
make_root() {
    local applet
    mkdir -p "$1"/{bin,etc,proc,sys,dev,tmp,www,root}
    cp "$(command -v busybox)" "$1/bin/busybox"
    for applet in $(busybox --list); do
        [ "$applet" = busybox ] || ln -s busybox "$1/bin/$applet"
    done
    printf '%s\n' root:x:0:0:root:/root:/bin/sh app:x:1000:1000:app:/tmp:/bin/sh > "$1/etc/passwd"
    printf '%s\n' root:x:0: app:x:1000: extra:x:2000: > "$1/etc/group"
    echo 'hello from the guest' > "$1/www/index.html"
}

check() { # check NAME COMMAND…: passes when the command does
    local name=$1 output begin
    shift
    begin=$(date +%s%N)
    if output=$("$@" 2>&1); then
        echo "ok - $name ($((($(date +%s%N) - begin) / 1000000)) ms)"
    else
        echo "not ok - $name"
        # shellcheck disable=SC2001
        sed 's/^/#   /' <<< "$output" | head -20
        failures=$((failures + 1))
    fi
}
is() { # is EXPECTED COMMAND…: the command prints exactly this
    local expected=$1 output
    shift
    output=$("$@" 2>&1)
    [ "$output" = "$expected" ] || { echo "got: $output"; echo "not: $expected"; return 1; }
}
code() { # code EXPECTED COMMAND…: the command ends with this code
    local expected=$1 output
    shift
    output=$("$@" 2>&1)
    local got=$?
    [ $got = "$expected" ] || { echo "$output"; echo "exit code $got, not $expected"; return 1; }
}
says() { # says TEXT COMMAND…: the command prints this somewhere
    local text=$1 output
    shift
    output=$("$@" 2>&1)
    grep -qF -- "$text" <<< "$output" || { echo "$output"; echo "does not say: $text"; return 1; }
}
