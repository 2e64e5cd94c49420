//! The sandbox process is in its cgroup before it does anything, on hosts of both versions.

use std::process::{Command, Stdio};

use serde_json::json;

use super::shared::skip;
use super::support::{finish, place};

/// A hook inside the sandbox's namespaces that tells its cgroup, and fails so that all is undone.
const TELL: &str = "cat /proc/self/cgroup >&2; exit 1";

#[test]
fn the_sandbox_starts_in_its_cgroup() {
    let Some(p) = place() else { return };
    p.configure(&["true"], |c| {
        c["hooks"] =
            json!({"createContainer": [{"path": "/bin/sh", "args": ["sh", "-c", TELL], "env": ["PATH=/bin"]}]});
    });
    let stderr = String::from_utf8(p.output(&["run", &p.id]).stderr).unwrap();
    assert!(stderr.contains(&format!(":/quark/{}", p.id)), "{stderr}");
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

#[test]
fn the_sandbox_starts_in_its_cgroup_on_a_version_2_host() {
    let Some(p) = place() else { return };
    p.configure(&["true"], |c| {
        c["hooks"] =
            json!({"createContainer": [{"path": "/bin/sh", "args": ["sh", "-c", TELL], "env": ["PATH=/bin"]}]});
    });
    // A host on which only the version 2 hierarchy is mounted.
    let script = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit 99; \
                  \"$@\"; code=$?; find /sys/fs/cgroup -name \"$ID\" >&2; exit $code";
    let mut command = Command::new("unshare");
    let quark = p.quark(&["run", &p.id]);
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(quark.get_program());
    command.args(quark.get_args()).env("ID", &p.id).current_dir(&p.bundle);
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = finish(child, &["unshare"]);
    if output.status.code() == Some(99) {
        return skip("the cgroup hierarchies cannot be replaced here");
    }
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr.lines().count(), 1, "no cgroup is left: {stderr}");
    assert!(stderr.contains(&format!("0::/quark/{}", p.id)), "{stderr}");
}
