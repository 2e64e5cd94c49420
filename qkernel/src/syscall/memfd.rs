//! memfd_create(2).

use alloc::sync::Arc;

use linux_raw_sys::general::{
    MFD_ALLOW_SEALING, MFD_CLOEXEC, MFD_EXEC, MFD_HUGETLB, MFD_NOEXEC_SEAL,
};
use qlib::Va;

use super::open::install;
use crate::errno::{Errno, Result};
use crate::fs::memfd::{self, SEAL_EXEC, SEAL_SEAL};
use crate::task::Thread;

/// The longest name, its NUL not counted.
const MAX_NAME_BYTES: usize = 249;

/// memfd_create(2).
pub fn memfd_create(thread: &Arc<Thread>, name: Va, flags: u32) -> Result<usize> {
    if flags & !(MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL | MFD_EXEC | MFD_HUGETLB) != 0
        || flags & MFD_EXEC != 0 && flags & MFD_NOEXEC_SEAL != 0
    {
        return Err(Errno::EINVAL);
    }
    if flags & MFD_HUGETLB != 0 {
        // There is no pool of huge pages.
        return Err(Errno::ENOMEM);
    }
    let name = thread.mm().read_short_cstr(name, MAX_NAME_BYTES + 1)?;
    let (mode, seals) = match flags {
        _ if flags & MFD_NOEXEC_SEAL != 0 => (0o666, SEAL_EXEC),
        _ if flags & MFD_ALLOW_SEALING != 0 => (0o777, 0),
        _ => (0o777, SEAL_SEAL),
    };
    let file = memfd::create(&thread.creds(), &name, mode, seals)?;
    install(thread, file, flags & MFD_CLOEXEC != 0)
}
