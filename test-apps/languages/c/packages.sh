# Installs, runs and removes packages by apt, from a repository in a directory.
set -e
mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial
rm -rf /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/srv/packages ./' >/etc/apt/sources.list
apt-get update -qq
apt-get install -y -qq hello cowsay >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
hello
/usr/games/cowsay installed
dpkg-query -W -f '${Package} ${Status}\n' hello cowsay
dpkg --verify hello && echo verified
apt-get purge -y -qq hello >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
! command -v hello >/dev/null && echo removed
dpkg --audit
