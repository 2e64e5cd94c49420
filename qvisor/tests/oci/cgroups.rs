//! The sandbox process is in its cgroup before it does anything, on hosts of both versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::shared::skip;
use super::support::{Place, finish, place};

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

/// What an earlier container left that was killed in the middle of its making.
#[test]
fn a_cgroup_that_was_left_behind_goes_with_the_next_container() {
    let Some(p) = place() else { return };
    p.configure(&["true"], |_| {});
    let roots = ["memory", "cpu", ""].map(|part| Path::new("/sys/fs/cgroup").join(part));
    let Some(root) = roots.iter().find(|root| root.join("cgroup.procs").exists()) else {
        return skip("no cgroup file system is mounted");
    };
    let left = root.join("quark").join(&p.id);
    if let Err(e) = fs::create_dir_all(&left) {
        return skip(format!("{}: {e}", left.display()));
    }
    p.good(&["run", &p.id]);
    assert!(!left.exists(), "{}", left.display());
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}

/// The file of the container's cgroup into which processes are written.
fn members_file(p: &Place) -> Option<PathBuf> {
    let found = ["memory", ""].map(|part| {
        Path::new("/sys/fs/cgroup").join(part).join("quark").join(&p.id).join("cgroup.procs")
    });
    found.into_iter().find(|path| path.exists())
}

/// Adds a process to the cgroup of the container, in each hierarchy if there are several.
fn join(p: &Place, pid: u32) {
    let file = members_file(p).unwrap();
    let of_all = fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    let all = of_all.map(|dir| dir.path().join("quark").join(&p.id).join("cgroup.procs"));
    for path in all.filter(|path| path.exists()).chain([file]) {
        fs::write(&path, pid.to_string()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

/// It is nobody's to end: another container may have been given the same cgroup.
#[test]
fn a_process_of_somebody_else_is_named() {
    let Some(p) = place() else { return };
    p.configure(&["sleep", "1000"], |_| {});
    p.create(&[]);
    if members_file(&p).is_none() {
        return skip("no cgroup file system is mounted");
    }
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    join(&p, other.id());
    let output = p.output(&["delete", "--force", &p.id]);
    let says = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    let named = format!("in which there are processes: {} (sleep)", other.id());
    assert!(says.contains(&named), "{says}");
    assert!(other.try_wait().unwrap().is_none(), "it was killed");
    other.kill().unwrap();
    other.wait().unwrap();
    let left = p.leftovers(&p.id);
    assert!(left.iter().all(|what| what.starts_with("cgroup ")), "{left:?}");
    for what in left {
        fs::remove_dir(what.trim_start_matches("cgroup ")).ok();
    }
    assert_eq!(p.leftovers(&p.id), [""; 0]);
}
