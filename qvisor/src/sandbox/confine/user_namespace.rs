//! A user namespace around a sandbox process that root started: outside of it the process is a user
//! whom no file belongs to. Root and volumes are id-mapped mounts (mount_setattr(2)), so the same
//! users own the same files as without. user_namespaces(7).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::process::{Gid, Resource, Uid};
use rustix::thread::LinkNameSpaceType;

/// The host's user and group id of the sandbox' root. Ids from 2^30 on belong to nobody, and are
/// below what ping_group_range can hold.
pub const FIRST_ID: u32 = 1 << 30;
/// How many users and groups files can have: [`FIRST_ID`] and all that follow.
pub const IDS: u32 = u32::MAX - FIRST_ID;
/// What users are called inside who are not there, the host's root among them: the kernel's default
/// for its `overflowuid`. The host's root must not have an id of its own: a process with CAP_FOWNER
/// could change the mode of each of its files that it has open.
pub const OUTSIDER: u32 = 65534;

static ENTERED: AtomicBool = AtomicBool::new(false);

/// The line of uid_map and gid_map.
pub fn id_map() -> String {
    format!("0 {FIRST_ID} {IDS}\n")
}

/// The user id by which this process sees the one who made it, as all who are outside.
pub fn maker() -> Option<u32> {
    ENTERED.load(Ordering::Acquire).then_some(OUTSIDER)
}

/// Enters `namespace` as its root, for good. The process has one thread.
///
/// # Errors
/// Those of setns(2).
pub fn enter(namespace: &OwnedFd) -> Result<(), Errno> {
    // It did not hold for root.
    crate::sandbox::limits::lift(Resource::Nproc)?;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))?;
    rustix::thread::set_thread_groups(&[])?;
    let (user, group) = (Uid::ROOT, Gid::ROOT);
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    ENTERED.store(true, Ordering::Release);
    Ok(())
}
