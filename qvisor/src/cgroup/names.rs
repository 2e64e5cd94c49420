//! The files by which a sandbox has its cgroup drop what the host remembers of names.

use std::fs::{self, OpenOptions};

use super::{Cgroup, Version};
use crate::sandbox::names::{Files, Interface};

/// Swap areas that are in use, a line each below the heading.
const SWAPS: &str = "/proc/swaps";

impl Cgroup {
    /// These files, open; `None` where the host has no such interface, and where it would write
    /// guest memory to a swap area instead: a version 1 cgroup cannot be told how much to reclaim.
    pub fn names(&self) -> Option<Files> {
        let (interface, held, reclaim) = match self.version {
            Version::V1 if has_swap() => return None,
            Version::V1 => (Interface::V1, "memory.kmem.usage_in_bytes", "memory.force_empty"),
            Version::V2 => (Interface::V2, "memory.stat", "memory.reclaim"),
        };
        let dir = self.dir("memory")?;
        let held = OpenOptions::new().read(true).open(dir.join(held)).ok()?;
        let reclaim = OpenOptions::new().write(true).open(dir.join(reclaim)).ok()?;
        Some(Files { interface, held: held.into(), reclaim: reclaim.into() })
    }
}

fn has_swap() -> bool {
    fs::read_to_string(SWAPS).is_ok_and(|text| text.lines().nth(1).is_some())
}
