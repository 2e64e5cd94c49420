#!/bin/bash
# The package's life, in a Debian that is there for this alone (deb.sh): installed, registered with engines, upgraded below a
# container that runs, removed when that is gone, purged.
set -u
here=/packages
. $here/checks.sh

# all_files: what there is, but for dpkg's own notes and what is made anew.
all_files() { find / -xdev -path /var/lib/dpkg -prune -o -path /var/log -prune -o -path /var/tmp -prune -o -print | sort; }
touch /packages/after
all_files > /packages/before

# Only dpkg itself speaks.
quiet() { ! "$@" 2>&1 | grep -vE '^(Selecting|\(Reading|Preparing|Unpacking|Setting up|Processing|Removing|Purging)'; }
gone() { [ ! -e "$1" ]; }

check "an older build is installed, and says nothing" quiet dpkg -i /packages/older.deb
check "quark works" says "quark " quark --version
check "quark doctor finds a platform" grep -E '^yes +process platform' <(quark doctor)
check "quark do runs something" is hello quark do -- echo hello
completes() {
    # shellcheck disable=SC2034
    (. /usr/share/bash-completion/completions/quark && complete -p quark &&
        COMP_WORDS=(quark hib) COMP_CWORD=1 && _quark quark hib quark && echo "${COMPREPLY[@]}")
}
check "bash completes its words" says hibernate completes

# What an administrator has in there stays.
mkdir /etc/docker /etc/containerd
printf '{\n  "debug": true\n}\n' > /etc/docker/daemon.json
printf '# ours\nversion = 2\n' > /etc/containerd/config.toml
configs="/etc/docker/daemon.json /etc/containerd/config.toml"
save() { local file; for file in $configs; do cp $file "$file.$1"; done; }
same() { local file; for file in $configs; do cmp $file "$file.$1" || return 1; done; }
save original
check "it registers with Docker and containerd" quark install --docker --containerd
check "and by another name" quark install --docker --name quark-idle --runtime-arg=--hibernate-after=30s
check "containerd finds its shim" grep -F io.containerd.quark.v1 /etc/containerd/config.toml
save registered

/usr/bin/python3 - << 'EOF'
import json, subprocess
subprocess.run(["quark", "spec", "--bundle", "/bundle"], check=True)
config = json.load(open("/bundle/config.json"))
config["process"].update(terminal=False, args=["sleep", "1000"])
json.dump(config, open("/bundle/config.json", "w"))
EOF
check "a container runs" bash -c 'quark run --detach --bundle /bundle c < /dev/null > /dev/null 2>&1'
trap 'quark delete --force c > /dev/null 2>&1' EXIT
pid=$(quark list --format json | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["pid"])')

check "the newer build takes its place, and says nothing" quiet dpkg -i /packages/newer.deb
check "it is another binary" says "(deleted)" readlink "/proc/$pid/exe"
check "registrations stay" same registered
check "exec in the container" is there quark exec c echo there
check "its state" says '"status": "running"' quark state c
check "it hibernates" quark hibernate c
check "and wakes for an exec" is awake quark exec c echo awake
check "both programs are those of the package" dpkg --verify quark

check "it is not removed while a container runs" says "a container of quark runs" dpkg -r quark
check "and stays installed" says " ok installed" dpkg-query -W -f '${Status}' quark
check "with its registrations" same registered
check "the container goes on" is there quark exec c echo there
check "the new binary deletes it" quark delete --force c
check "the sandbox has ended" gone "/proc/$pid"

sed -i 's/"debug": true/"debug": true, "default-runtime": "quark-idle"/' /etc/docker/daemon.json
cp /etc/docker/daemon.json{,.default}
check "nor as Docker's default runtime" says '"quark-idle" is the default runtime of Docker' dpkg -r quark
check "which stays it" cmp /etc/docker/daemon.json{,.default}
cp /etc/docker/daemon.json{.registered,}

check "it is removed, and says what is left to do" says "next: systemctl reload docker" dpkg -r quark
check "registrations are gone" same original
check "the programs are gone" bash -c '! ls /usr/bin/*quark*'

check "it is installed again" dpkg -i /packages/newer.deb
echo '{ "/usr/bin/quark"' > /etc/docker/daemon.json
check "a file that nobody understands keeps it not" says "not taken out of Docker: /etc/docker/daemon.json" dpkg -P quark
check "and is left alone" is '{ "/usr/bin/quark"' cat /etc/docker/daemon.json

# That of a format of old, which many have, is nothing to speak of.
echo '{}' > /etc/docker/daemon.json
echo 'disabled_plugins = ["cri"]' > /etc/containerd/config.toml
check "it is installed" quiet dpkg -i /packages/newer.deb
check "and purged without a word" quiet dpkg -P quark
rm -r /etc/docker /etc/containerd /bundle/config.json
all_files > /packages/after
check "nothing is left" diff /packages/before /packages/after
check "dpkg knows it no more" code 1 dpkg -s quark

[ $failures = 0 ] || { echo "$failures failed in there"; exit 1; }
