"""Logins by Debian's unmodified sshd and PAM, and a job of its cron, in a container each of quark and runc: what a user finds must be
the same."""
import concurrent.futures
import os
import re
import subprocess
import time

import catalog
import place
from harness import runtimes

LIMIT_S = 60
# cron looks at its tables at each full minute.
CRON_LIMIT_S = 70
PARALLEL = 12
USER, PASSWORD = "ann", "correct horse"
ASK = "/usr/local/bin/ask"
# What PAM and the kernel have to say of a session.
SESSION = "id; cat /proc/self/loginuid; echo; ulimit -Sn; ulimit -Hn; echo $FROM_PAM $HOME $SHELL"
OPTIONS = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "NumberOfPasswordPrompts=1"]


def prepare(root):
    """What an administrator would set up: a user, keys, limits, a variable, a table of cron."""
    catalog.ssh_key(root)
    catalog.chroot(root, "useradd", "--create-home", "--shell", "/bin/bash", USER)
    catalog.chroot(root, "chpasswd", text=f"{USER}:{PASSWORD}\nroot:{PASSWORD}\n")
    catalog.chroot(root, "sh", "-c", f"install -d -m 700 -o {USER} -g {USER} /home/{USER}/.ssh && "
                   f"install -m 600 -o {USER} -g {USER} /root/.ssh/authorized_keys /home/{USER}/.ssh/")
    catalog.write(root, "/etc/ssh/sshd_config.d/test.conf", "PermitRootLogin yes\nMaxStartups 100\nUseDNS no\n")
    catalog.write(root, "/etc/security/limits.d/test.conf", f"{USER} soft nofile 300\n{USER} hard nofile 400\n")
    catalog.write(root, "/etc/environment", "FROM_PAM=given\n")
    catalog.write(root, ASK, f"#!/bin/sh\necho '{PASSWORD}'\n", mode=0o755)
    for records in ("/var/log/wtmp", "/var/log/lastlog", "/run/utmp"):
        catalog.write(root, records, b"", mode=0o664)
    catalog.write(root, "/srv/table", f'MAILTO=""\n* * * * * ({SESSION}) > /tmp/of-cron 2>&1\n')
    catalog.chroot(root, "crontab", "-u", USER, "/srv/table")


SERVER = catalog.Server("logins", ["/bin/sh", "-c", "cron && exec /usr/sbin/sshd -D -e"], 22, None, prepare=prepare, directories=("/run/sshd",),
                        gains_rights=True)


class Client:
    """OpenSSH's client, run on the host from the same root file system."""

    def __init__(self, where):
        self.where = where

    def run(self, program, *arguments, key, text=None, check=True):
        options = ["-i", "/root/.ssh/id_ed25519", "-o", "PasswordAuthentication=no"] if key else ["-o", "PubkeyAuthentication=no"]
        done = subprocess.run(["chroot", self.where.root, program, *OPTIONS, *options, *arguments], input=text, capture_output=True, text=True,
                              timeout=LIMIT_S, env={**os.environ, "SSH_ASKPASS": ASK, "SSH_ASKPASS_REQUIRE": "force", "HOME": "/root"})
        if check and done.returncode:
            raise runtimes.Failed(f"{program} {' '.join(arguments)}: exit code {done.returncode}: {(done.stderr + done.stdout).strip()[-400:]}")
        return done

    def command(self, user, command, key=True):
        return self.run("ssh", f"{user}@{self.where.address}", command, key=key).stdout

    def terminal(self, user, script, key=True):
        """What an interactive shell on a pty shows."""
        return self.run("ssh", "-tt", f"{user}@{self.where.address}", key=key, text=script).stdout


def plain(text):
    """Without what differs from run to run: times, addresses, what steers a terminal."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", text)
    text = re.sub(r"10\.77\.\d+\.\d+", "ADDRESS", text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d|[A-Z][a-z]{2} +\d+ \d\d:\d\d", "TIME", text)


def ways_in(client):
    """Each way to log in, and what was found there."""
    found = {}
    for user in ("root", USER):
        for key in (True, False):
            how = f"{user} by {'key' if key else 'password'}"
            found[how] = client.command(user, SESSION, key)
            script = f"stty -echo; PS1=\necho BE''GIN; tty | sed 's/[0-9]*$//'; {SESSION}; who | wc -l; exit\n"
            shown = client.terminal(user, script, key)
            found[how + " on a terminal"] = shown.rpartition("BEGIN")[2]
    return found


def refusals(client):
    """Who is not known is refused; what a command ends with is what ssh ends with."""
    nobody = client.run("ssh", f"not-{USER}@{client.where.address}", "id", key=False, check=False)
    status = client.run("ssh", f"{USER}@{client.where.address}", "exit 7", key=True, check=False).returncode
    return {"a user that is not there": f"{nobody.returncode} {nobody.stderr}", "the exit status of a command": status}


def copies(client):
    """scp and sftp, there and back."""
    root, address = client.where.root, client.where.address
    content = os.urandom(3 << 20)
    catalog.write(root, "/srv/sent", content)
    catalog.write(root, "/srv/batch", "put /srv/sent two\nget two /srv/two\nls -l two\nrm two\n")
    client.run("scp", "-q", "/srv/sent", f"{USER}@{address}:one", key=True)
    client.run("scp", "-q", "-O", f"{USER}@{address}:one", "/srv/one", key=False)
    listed = client.run("sftp", "-q", "-b", "/srv/batch", f"{USER}@{address}", key=True).stdout
    for name in ("one", "two"):
        with open(os.path.join(root, "srv", name), "rb") as f:
            if f.read() != content:
                raise runtimes.Failed(f"{name} is not what was sent")
    return {"sftp": re.sub(r" +", " ", listed)}


def parallel(client):
    """Many at once, all of which must get in."""
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        answers = list(pool.map(lambda n: client.command(USER, f"echo $(({n} * 3))", key=n % 2 == 0), range(PARALLEL)))
    catalog.clients.expect(answers, [f"{n * 3}\n" for n in range(PARALLEL)], f"{PARALLEL} logins at once")


def records(client):
    """`who` and `last` by one who is on a terminal, and the file capabilities that Debian gives to ping."""
    tool = "stty -echo; PS1=\necho BE''GIN; who | tr -s ' '; last -w | sed '/^$/d; /^wtmp/d' | awk '{print $1, $3}' | sort | uniq -c;" \
        " /sbin/getcap /usr/bin/ping; ping -q -c 1 -W 5 127.0.0.1 | grep transmitted | cut -d, -f1-3; grep Cap /proc/self/status; exit\n"
    return {"who, last, ping": client.terminal(USER, tool).rpartition("BEGIN")[2]}


def cron(container, where):
    """The job of a user's table."""
    path = "/tmp/of-cron"
    end = time.monotonic() + CRON_LIMIT_S
    while time.monotonic() < end:
        done = container.runtime.call("exec", container.id, "cat", path, check=False)
        if done.returncode == 0 and "given" in done.stdout:
            return {"a job of cron": done.stdout}
        container.alive()
        time.sleep(1)
    raise runtimes.Failed(f"no job of cron within {CRON_LIMIT_S} s: {container.output()}")


def life(runtime):
    """What was found on a runtime; with "failed" if something could not be done."""
    found = {}
    try:
        with place.Place(runtime, SERVER) as where, where.start() as container:
            client = Client(where)
            client.ready = lambda: client.command("root", "true")
            client.close = lambda: None
            place.ready_s(container, client)
            for step in (ways_in, refusals, copies, records):
                found.update(step(client))
            parallel(client)
            found.update(cron(container, where))
    except (runtimes.Failed, catalog.clients.Wrong, subprocess.TimeoutExpired) as error:
        found["failed"] = str(error)
    return {what: plain(str(value)) for what, value in found.items()}


def compare(all_of_them, say):
    """What was found of each; and where quark differs from runc, as lines of text."""
    found = {r.name: life(r) for r in all_of_them if r.name in ("runc", "quark")}
    theirs, ours = found.get("runc", {}), found.get("quark", {})
    differences = [f"{what}: quark {ours.get(what)!r}, runc {theirs.get(what)!r}" for what in {**theirs, **ours}
                   if "runc" in found and ours.get(what) != theirs.get(what)]
    if "failed" in ours and not differences:
        differences.append(ours["failed"])
    say(f"logins: {len(ours)} ways looked at, {len(differences)} different")
    for line in differences:
        say(f"logins: {line}")
    return found, differences
