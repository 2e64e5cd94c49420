//! Memory policies (set_mempolicy(2), mbind(2)), for the one node that there is. All memory is of
//! that node, so a policy decides nothing: it is checked, kept and told of as by a Linux with one.

use alloc::format;
use alloc::string::String;

use crate::errno::{Errno, Result};

const MPOL_DEFAULT: u16 = 0;
const MPOL_PREFERRED: u16 = 1;
/// MPOL_BIND.
const MPOL_BIND: u16 = 2;
const MPOL_INTERLEAVE: u16 = 3;
const MPOL_LOCAL: u16 = 4;
const MPOL_PREFERRED_MANY: u16 = 5;
const MPOL_WEIGHTED_INTERLEAVE: u16 = 6;
const MPOL_F_NUMA_BALANCING: u16 = 1 << 13;
const MPOL_F_RELATIVE_NODES: u16 = 1 << 14;
const MPOL_F_STATIC_NODES: u16 = 1 << 15;
const MODE_FLAGS: u16 = MPOL_F_NUMA_BALANCING | MPOL_F_RELATIVE_NODES | MPOL_F_STATIC_NODES;
const NAMES: [&str; 7] =
    ["default", "prefer", "bind", "interleave", "local", "prefer (many)", "weighted interleave"];

/// Nodes, a bit for each.
pub type Nodes = u64;
/// Those that there are.
pub const ALL_NODES: Nodes = 1;

/// A policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// MPOL_*, with flags.
    mode: u16,
    /// As the program gave them, if flags make that count; else those of them that there are.
    nodes: Nodes,
}

impl Policy {
    /// With a mode and flags as programs give them. EINVAL.
    pub fn new(mode: u32, nodes: Nodes) -> Result<Policy> {
        let given = u16::try_from(mode).map_err(|_| Errno::EINVAL)?;
        let (mode, flags) = (given & !MODE_FLAGS, given & MODE_FLAGS);
        let keeps_nodes = flags & (MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES);
        let balances = flags & MPOL_F_NUMA_BALANCING != 0;
        if mode > MPOL_WEIGHTED_INTERLEAVE
            || keeps_nodes == MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES
            || balances && !matches!(mode, MPOL_BIND | MPOL_PREFERRED_MANY)
        {
            return Err(Errno::EINVAL);
        }
        match (mode, nodes) {
            (MPOL_DEFAULT, 0) => return Ok(Policy::default()),
            (MPOL_PREFERRED | MPOL_LOCAL, 0) if keeps_nodes == 0 => {
                return Ok(Policy { mode: MPOL_LOCAL, nodes: 0 });
            }
            (MPOL_DEFAULT | MPOL_LOCAL, _) | (_, 0) => return Err(Errno::EINVAL),
            _ => {}
        }
        // Relative ones count around in a circle: one of those that there are is always meant.
        let is_relative = flags & MPOL_F_RELATIVE_NODES != 0;
        let there = if is_relative { ALL_NODES } else { nodes & ALL_NODES };
        if there == 0 {
            return Err(Errno::EINVAL);
        }
        Ok(Policy { mode: given, nodes: if keeps_nodes != 0 { nodes } else { there } })
    }

    /// The mode, with its flags.
    pub fn mode(self) -> u32 {
        self.mode.into()
    }

    /// The nodes as get_mempolicy(2) tells them.
    pub fn nodes(self) -> Nodes {
        self.nodes
    }

    /// True if there is one at all.
    pub fn is_set(self) -> bool {
        self.mode != MPOL_DEFAULT
    }

    /// True if pages are taken from one node after the other.
    pub fn interleaves(self) -> bool {
        matches!(self.mode & !MODE_FLAGS, MPOL_INTERLEAVE | MPOL_WEIGHTED_INTERLEAVE)
    }

    /// True if it may have a home node (set_mempolicy_home_node(2)).
    pub fn may_have_home(self) -> bool {
        matches!(self.mode & !MODE_FLAGS, MPOL_BIND | MPOL_PREFERRED_MANY)
    }

    /// As /proc/PID/numa_maps shows it.
    pub fn text(self) -> String {
        let name = NAMES.get(usize::from(self.mode & !MODE_FLAGS)).copied().unwrap_or_default();
        let flag = match self.mode & MODE_FLAGS {
            flags if flags & MPOL_F_STATIC_NODES != 0 => "=static",
            flags if flags & MPOL_F_RELATIVE_NODES != 0 => "=relative",
            0 => "",
            _ => "=balancing",
        };
        if self.nodes == 0 { String::from(name) } else { format!("{name}{flag}:0") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_those_of_one_node() {
        let nodes = |mode, nodes| Policy::new(mode, nodes).map(|p| (p.mode(), p.nodes()));
        assert_eq!(nodes(1, 0), Ok((4, 0)), "none is preferred: the nearest");
        assert_eq!(nodes(1, 3), Ok((1, 1)));
        assert_eq!(nodes(2, 2), Err(Errno::EINVAL));
        assert_eq!(nodes(0x4002, 2), Ok((0x4002, 2)), "relative to those that there are");
        assert_eq!(nodes(0x8002, 2), Err(Errno::EINVAL));
        assert_eq!(nodes(0x2003, 1), Err(Errno::EINVAL));
        assert_eq!(Policy::new(0x8002, 1).unwrap().text(), "bind=static:0");
        assert_eq!(Policy::default().text(), "default");
    }
}
