//! landlock_create_ruleset(2), landlock_add_rule(2) and landlock_restrict_self(2): a program
//! forbids itself, and those that it starts, what it has no need of (landlock(7)).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use linux_raw_sys::general::{CAP_SYS_ADMIN, O_RDWR};
use qlib::Va;

use super::install;
use crate::abi::abi_struct;
use crate::creds::Creds;
use crate::creds::landlock::Rules;
use crate::errno::{Errno, Result};
use crate::fs::{Fd, FileOps, OpenFile, landlock};
use crate::sync::Mutex;
use crate::task::Thread;

/// LANDLOCK_CREATE_RULESET_VERSION of linux/landlock.h.
const CREATE_RULESET_VERSION: u32 = 1;
/// LANDLOCK_RULE_PATH_BENEATH.
const RULE_PATH_BENEATH: u32 = 1;

abi_struct! {
    /// struct landlock_path_beneath_attr, which has no room between its fields, nor after them.
    pub struct PathBeneath { pub allowed_access: [u8; 8], pub parent_fd: [u8; 4], }
}

/// A ruleset, behind its descriptor.
struct Ruleset(Mutex<Rules>);

impl FileOps for Ruleset {
    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[landlock-ruleset]".to_vec()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// landlock_create_ruleset(2).
pub fn landlock_create_ruleset(
    thread: &Arc<Thread>,
    attr: Va,
    size: usize,
    flags: u32,
) -> Result<usize> {
    if flags != 0 {
        let asks_version = flags == CREATE_RULESET_VERSION && attr.0 == 0 && size == 0;
        return if asks_version { Ok(landlock::VERSION) } else { Err(Errno::EINVAL) };
    }
    // All of struct landlock_ruleset_attr is handled_access_fs.
    let handled: u64 = thread.mm().read_sized(attr, size, size_of::<u64>())?;
    if handled & !landlock::ALL != 0 {
        return Err(Errno::EINVAL);
    }
    if handled == 0 {
        return Err(Errno::ENOMSG);
    }
    let rules = Ruleset(Mutex::new(Rules::new(handled)));
    install::one(thread, OpenFile::new(Arc::new(rules), O_RDWR), true)
}

/// The ruleset behind a descriptor. EBADF, EBADFD.
fn ruleset(thread: &Thread, fd: Fd) -> Result<Arc<OpenFile>> {
    let file = thread.files().get(fd)?;
    if file.downcast::<Ruleset>().is_some() { Ok(file) } else { Err(Errno::EBADFD) }
}

/// landlock_add_rule(2).
pub fn landlock_add_rule(
    thread: &Arc<Thread>,
    ruleset_fd: Fd,
    rule_type: u32,
    rule_attr: Va,
    flags: u32,
) -> Result<usize> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let file = ruleset(thread, ruleset_fd)?;
    let Ruleset(rules) = file.downcast().ok_or(Errno::EBADFD)?;
    if rule_type != RULE_PATH_BENEATH {
        return Err(Errno::EINVAL);
    }
    let attr: PathBeneath = thread.mm().read(rule_attr)?;
    let allowed = u64::from_ne_bytes(attr.allowed_access);
    if allowed == 0 {
        return Err(Errno::ENOMSG);
    }
    if allowed & !rules.lock().handled() != 0 {
        return Err(Errno::EINVAL);
    }
    let parent = thread.files().get(i32::from_ne_bytes(attr.parent_fd))?;
    // What lies in no tree is nobody's way.
    let place = parent.path.as_ref().filter(|place| !place.mount.is_hidden());
    let place = place.ok_or(Errno::EBADFD)?;
    if !place.inode().is_dir() && allowed & !landlock::OF_FILES != 0 {
        return Err(Errno::EINVAL);
    }
    landlock::allow(&mut rules.lock(), place, allowed)?;
    Ok(0)
}

/// landlock_restrict_self(2).
pub fn landlock_restrict_self(thread: &Arc<Thread>, ruleset_fd: Fd, flags: u32) -> Result<usize> {
    let creds = thread.creds();
    if !creds.no_new_privs && !creds.capable_here(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let file = ruleset(thread, ruleset_fd)?;
    let Ruleset(rules) = file.downcast().ok_or(Errno::EBADFD)?;
    let domain = creds.domain.with(&rules.lock())?;
    thread.set_creds(Creds { domain, ..Creds::clone(&creds) });
    Ok(0)
}
