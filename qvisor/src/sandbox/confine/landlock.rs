//! A Landlock domain: of all files that paths and descriptors could lead to, those of root, volumes
//! and the own /proc can be opened, and nothing outside of the sandbox can be signalled or reached
//! by an abstract socket. landlock(7).
//!
//! What an empty root does not keep away: a name like `..` below a directory that came as a
//! standard stream, a directory that somebody moved out of a volume, the magic links of /proc.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::io::Errno;

/// The first version that lets files be renamed from one directory to another (Linux 5.19).
const NEEDED: ABI = ABI::V2;
/// The newest whose rules are known here.
const NEWEST: ABI = ABI::V7;

/// What the guest does in its root and volumes. Devices are never opened or made; those that are
/// there may be renamed.
fn in_mounts() -> BitFlags<AccessFs> {
    AccessFs::from_all(NEWEST) & !(AccessFs::Execute | AccessFs::IoctlDev)
}

/// True if the host has what [`enter`] needs.
pub fn is_there() -> bool {
    ruleset().is_ok()
}

/// Enters a domain in which files can be opened in `mounts`, and read in `proc`, and nowhere else,
/// for good: this thread and all that it makes. Else the errno, where the host refuses: ENOSYS or
/// EOPNOTSUPP if it has no Landlock, or one that is too old, E2BIG if this process is in as many
/// domains as can be.
///
/// # Errors
/// When a descriptor cannot be made a rule of.
pub fn enter(mounts: &[BorrowedFd<'_>], proc: BorrowedFd<'_>) -> Result<Result<(), Errno>, Errno> {
    let mut rules = match ruleset() {
        Ok(rules) => rules,
        Err(e) => return Ok(Err(errno(&e))),
    };
    let own = AccessFs::ReadFile | AccessFs::ReadDir;
    // Rights that only directories have are left out for a single file.
    for (at, access) in mounts.iter().map(|m| (m, in_mounts())).chain([(&proc, own)]) {
        match (&mut rules).add_rule(PathBeneath::new(at, access)).map_err(|e| errno(&e)) {
            // Of a file system that has no paths, where Landlock rules nothing.
            Ok(_) | Err(Errno::BADFD) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(rules.restrict_self().map(drop).map_err(|e| errno(&e)))
}

fn ruleset() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(NEEDED))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::Signal | Scope::AbstractUnixSocket)?
        .create()
}

fn errno(error: &RulesetError) -> Errno {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(e) = source {
        if let Some(io) = e.downcast_ref::<std::io::Error>() {
            return Errno::from_io_error(io).unwrap_or(Errno::IO);
        }
        source = e.source();
    }
    // Not the host's: it is too old for what is needed.
    Errno::OPNOTSUPP
}
