//! kcmp(2): whether two processes share something of the kernel.

use alloc::sync::Arc;
use core::cmp::Ordering;

use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::fs::Fd;
use crate::random;
use crate::sync::Once;
use crate::task::{Thread, access};

const KCMP_FILE: u32 = 0;
const KCMP_VM: u32 = 1;
const KCMP_FILES: u32 = 2;
const KCMP_FS: u32 = 3;
const KCMP_SIGHAND: u32 = 4;

/// kcmp(2). 0: the same; 1 and 2 put what is not in an order that says nothing of where it lies.
pub fn kcmp(
    thread: &Arc<Thread>,
    pid1: u32,
    pid2: u32,
    kind: u32,
    idx1: u64,
    idx2: u64,
) -> Result<usize> {
    let [one, two] = [thread.find_thread(pid1)?, thread.find_thread(pid2)?];
    access::check(thread, &one, AccessMode::Real)?;
    access::check(thread, &two, AccessMode::Real)?;
    let of = |thread: &Thread, index: u64| address(thread, kind, index);
    Ok(match scrambled(of(&one, idx1)?).cmp(&scrambled(of(&two, idx2)?)) {
        Ordering::Equal => 0,
        Ordering::Less => 1,
        Ordering::Greater => 2,
    })
}

/// Where the kernel keeps what `kind` asks for of a thread.
fn address(thread: &Thread, kind: u32, index: u64) -> Result<usize> {
    Ok(match kind {
        KCMP_FILE => {
            let fd = Fd::try_from(index).map_err(|_| Errno::EBADF)?;
            Arc::as_ptr(&thread.files().get(fd)?).addr()
        }
        KCMP_VM => Arc::as_ptr(&thread.mm()).addr(),
        KCMP_FILES => Arc::as_ptr(&thread.files()).addr(),
        KCMP_FS => Arc::as_ptr(&*thread.fs.lock()).addr(),
        KCMP_SIGHAND => thread.process.signals.lock().actions_identity(),
        _ => return Err(Errno::EINVAL),
    })
}

/// One to one, in an order of its own at each boot.
fn scrambled(address: usize) -> u64 {
    static COOKIES: Once<(u64, u64)> = Once::new();
    let (mask, factor) = *COOKIES.get_or_set(|| (random::next_u64(), random::next_u64() | 1));
    (address as u64 ^ mask).wrapping_mul(factor)
}
