//! The files by which a sandbox has its cgroup drop what the host remembers of names.

use std::fs::{self, File, OpenOptions};

use super::{Cgroup, Version};

/// Swap areas that are in use, a line each below the heading.
const SWAPS: &str = "/proc/swaps";

/// These files, open.
#[derive(Debug)]
pub struct NameFiles {
    /// What they look like.
    pub version: Version,
    /// Tells how much the host's kernel holds.
    pub held: File,
    /// Written to, it has the host reclaim.
    pub reclaim: File,
}

impl Cgroup {
    /// The files; `None` where the host has no such interface, and where it could write guest
    /// memory to a swap area instead.
    pub fn names(&self) -> Option<NameFiles> {
        if has_swap() {
            return None;
        }
        let version = self.version;
        let (held, reclaim) = match version {
            Version::V1 => ("memory.kmem.usage_in_bytes", "memory.force_empty"),
            Version::V2 => ("memory.stat", "memory.reclaim"),
        };
        let dir = self.dir("memory")?;
        let held = OpenOptions::new().read(true).open(dir.join(held)).ok()?;
        let reclaim = OpenOptions::new().write(true).open(dir.join(reclaim)).ok()?;
        Some(NameFiles { version, held, reclaim })
    }
}

fn has_swap() -> bool {
    fs::read_to_string(SWAPS).is_ok_and(|text| text.lines().nth(1).is_some())
}
