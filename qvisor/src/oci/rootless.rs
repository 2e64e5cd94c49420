//! Containers of ordinary users: a user namespace in which the caller is root, and what of the host
//! they have no right to.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;

use super::view::View;
use super::{network, wire};
use crate::cgroup::Hierarchies;
use crate::platform::probe::Finding;
use crate::sys::{self, Spawn};

/// True if the caller is an ordinary user, who needs a user namespace for all that a sandbox
/// process does.
pub fn is_needed() -> bool {
    !rustix::process::geteuid().is_root()
}

/// Gives the user namespace of process `pid`, which has just been made, its ids: 0 is the caller's
/// own, and the others are those that /etc/subuid and /etc/subgid give them, if newuidmap(1) and
/// newgidmap(1) are there to set them.
///
/// # Errors
/// Those of user_namespaces(7).
pub fn map_ids(pid: i32) -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let ranges = subordinate("/etc/subuid", user).zip(subordinate("/etc/subgid", user));
    if let Some((users, groups)) = ranges {
        let (with_users, with_groups) =
            (helper("newuidmap", pid, user, users), helper("newgidmap", pid, group, groups));
        match (with_users, with_groups) {
            (true, true) => return Ok(()),
            (false, false) => {
                tracing::debug!(
                    "newuidmap and newgidmap are of no use: only user and group 0 exist inside"
                )
            }
            // One of them is set for good.
            _ => {
                return Err(io::Error::other(
                    "newuidmap and newgidmap do not agree: see /etc/subuid and /etc/subgid",
                ));
            }
        }
    }
    // Without this an ordinary user may not map a group (user_namespaces(7)).
    fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    fs::write(format!("/proc/{pid}/uid_map"), format!("0 {user} 1"))?;
    fs::write(format!("/proc/{pid}/gid_map"), format!("0 {group} 1"))
}

fn helper(program: &str, pid: i32, own: u32, (first, count): (u32, u32)) -> bool {
    let arguments = [
        pid.to_string(),
        "0".into(),
        own.to_string(),
        "1".into(),
        "1".into(),
        first.to_string(),
        count.to_string(),
    ];
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|s| s.success())
}

/// The first range of ids that a file as /etc/subuid gives to `user`: where it begins, and how many
/// they are. Users that /etc/passwd does not have are found by their number alone: getpwuid(3)
/// loads modules, with which a static program crashes.
pub fn subordinate(file: &str, user: u32) -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    range_of(&fs::read_to_string(file).ok()?, user, name_of(&users, user))
}

/// The name of a user in a text as /etc/passwd.
fn name_of(users: &str, user: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
        (id.parse() == Ok(user)).then_some(name)
    })
}

fn range_of(text: &str, user: u32, name: Option<&str>) -> Option<(u32, u32)> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().splitn(3, ':');
        let (owner, first, count) =
            (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (owner == user.to_string() || Some(owner) == name)
            .then_some((first, count))
            .filter(|(_, count)| *count > 0)
    })
}

/// What keeps ordinary users of this host from making user namespaces: a setting, and what to do.
pub fn obstacle() -> Option<String> {
    let value = |name: &str| {
        let path = Path::new("/proc/sys").join(name);
        fs::read_to_string(path).ok().map(|v| v.trim().to_owned())
    };
    [
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ]
    .into_iter()
    .find(|(name, bad, _)| value(name).as_deref() == Some(bad))
    .map(|(_, _, cure)| {
        format!("this host does not let them make user namespaces; an administrator may: {cure}")
    })
}

/// The first argument by which a process knows that it is to try what a sandbox process of an
/// ordinary user does.
pub const PROBE_COMMAND: &CStr = c"rootless-probe";

/// What this host offers to ordinary users, for `quark doctor`. Call it while this process has one
/// thread.
pub fn findings() -> Vec<Finding> {
    let mut all = Vec::new();
    let mut add = |available, name, detail: String| all.push(Finding { name, available, detail });
    if !is_needed() {
        match obstacle() {
            Some(why) => add(false, "rootless", why),
            None => add(
                true,
                "rootless",
                "ordinary users may make user namespaces; what they lack their own quark doctor \
                tells"
                    .into(),
            ),
        }
        return all;
    }
    match probe() {
        Ok(()) => add(
            true,
            "rootless",
            "a user namespace with mounts, /proc and a network of its own could be made".into(),
        ),
        Err(e) => add(false, "rootless", obstacle().unwrap_or_else(|| format!("{e:#}"))),
    }
    let user = rustix::process::geteuid().as_raw();
    let helpers =
        ["/usr/bin/newuidmap", "/usr/bin/newgidmap"].iter().all(|p| Path::new(p).exists());
    match (subordinate("/etc/subuid", user).zip(subordinate("/etc/subgid", user)), helpers) {
        (Some(((_, users), (_, groups))), true) => {
            add(
                true,
                "rootless ids",
                format!("0 is yours, and {users} more users and {groups} more groups"),
            );
        }
        (None, _) => add(
            false,
            "rootless ids",
            format!(
                "files can be user 0's only: give user {user} a range in /etc/subuid and \
                /etc/subgid"
            ),
        ),
        (_, false) => add(
            false,
            "rootless ids",
            "files can be user 0's only: install newuidmap and newgidmap (package uidmap)".into(),
        ),
    }
    match Hierarchies::detect().and_then(|h| h.is_delegated()) {
        Ok(true) => add(true, "rootless cgroup", "this user's own cgroup can be divided".into()),
        Ok(false) => add(
            false,
            "rootless cgroup",
            "none is delegated to this user: limits of linux.resources are not applied".into(),
        ),
        Err(e) => add(false, "rootless cgroup", format!("{e:#}")),
    }
    all
}

/// Has a process try it.
fn probe() -> Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    let args = [c"quark".to_owned(), PROBE_COMMAND.to_owned()];
    let mut child = sys::spawn(&Spawn {
        new_namespaces: CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWNET,
        parent_death_signal: Some(libc::SIGKILL),
        prepare: Some(&map_ids),
        ..Spawn::here(&args, [null.as_fd(); 3], theirs.as_fd())
    })?;
    drop(theirs);
    let why = wire::receive::<String>(&ours)?;
    if child.wait()? == 0 {
        return Ok(());
    }
    bail!("{}", why.map_or_else(|| "the process that tried ended".to_owned(), |(why, _)| why))
}

/// The main function of that process.
pub fn probe_main() -> i32 {
    let Ok(parent) = sys::take_setup_fd().map(UnixStream::from) else { return 1 };
    let tried = (|| -> Result<()> {
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
            .context("making the mounts private")?;
        View::default().open().context("showing the host's files")?;
        mount(Some("proc"), "/proc", Some("proc"), MsFlags::MS_NOSUID, None::<&str>)
            .context("mounting /proc (in a container it must not be masked)")?;
        network::loopback_up().context("bringing up the loopback device")
    })();
    match tried {
        Ok(()) => 0,
        Err(e) => {
            wire::send(&parent, &format!("{e:#}"), &[]).ok();
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_go_by_name_or_number() {
        let text = "root:1:2\nann:100000:65536\n1234:200000:1000\n\nbad:line\n";
        assert_eq!(range_of(text, 7, Some("ann")), Some((100_000, 65_536)));
        assert_eq!(range_of(text, 1234, None), Some((200_000, 1000)));
        assert_eq!(range_of(text, 8, Some("bob")), None);
    }
    #[test]
    fn a_user_has_the_name_of_the_first_line_with_their_number() {
        let text = "root:x:0:0::/root:/bin/sh\n+::::::\nann:x:1000:1::/:\nanna:x:1000:1::/:";
        assert_eq!(name_of(text, 1000), Some("ann"));
        assert_eq!(name_of(text, 0), Some("root"));
        assert_eq!(name_of(text, 100), None);
    }
}
