//! The end of a container's cgroup.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Cgroup, has_children, members_of};
use crate::sys;

/// How long processes that have been killed may take to leave a cgroup. Their end is not yet over
/// when the one that was waited for has ended.
const LEAVING: Duration = Duration::from_secs(5);

impl Cgroup {
    /// Removes its directories, and those above it that were made for it and are empty now.
    ///
    /// # Errors
    /// When a process stays in it, with the names of those that do.
    pub fn remove(&self) -> Result<()> {
        let mut failure = None;
        // One for all: a process that stays is in each.
        let end = Instant::now() + LEAVING;
        for dir in self.made.iter().rev() {
            let own = self.dirs.values().any(|d| d == dir);
            match if own { remove_when_empty(dir, end) } else { fs::remove_dir(dir) } {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) if !own => {
                    tracing::debug!("cgroup {} stays: {e}", dir.display());
                }
                Err(e) => {
                    let what = format!("removing cgroup {}{}", dir.display(), who_stays(dir));
                    failure = Some(anyhow::Error::new(e).context(what))
                }
            }
        }
        // A parent that was there when this cgroup was made may be another container's leftover.
        for dir in self.dirs.values() {
            if let Some(parent) =
                dir.parent().filter(|p| p.file_name().is_some_and(|n| n == "quark"))
            {
                fs::remove_dir(parent).ok();
            }
        }
        match failure {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }
}

impl Cgroup {
    /// The processes in it that stay: those of a container that has just ended are waited for.
    pub(super) fn stayers(&self) -> Result<Vec<i32>> {
        let end = Instant::now() + LEAVING;
        let mut looks = 0;
        loop {
            let members = self.members()?;
            let are_ending = members.iter().all(|pid| sys::is_ending(pid.cast_unsigned()));
            // It may be on its way from the one sign of that to the next.
            looks = if are_ending { 0 } else { looks + 1 };
            if members.is_empty() || looks == 2 || Instant::now() >= end {
                return Ok(members);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// rmdir(2) of a container's own directory, waiting while the host says EBUSY, until `end`.
fn remove_when_empty(dir: &Path, end: Instant) -> io::Result<()> {
    let mut pause = Duration::from_millis(1);
    loop {
        match fs::remove_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && Instant::now() < end => {
                std::thread::sleep(pause)
            }
            other => return other,
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// The processes that are in the cgroup, in words.
fn who_stays(dir: &Path) -> String {
    let named = |pid: i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{pid} ({})", name.trim())
    };
    match members_of(dir) {
        Ok(members) if !members.is_empty() => {
            let members: Vec<_> = members.into_iter().map(named).collect();
            format!(", in which there are processes: {}", members.join(", "))
        }
        _ if has_children(dir) => ", below which there are others".to_owned(),
        _ => String::new(),
    }
}
