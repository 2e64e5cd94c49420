//! lsm_list_modules(2), lsm_get_self_attr(2), lsm_set_self_attr(2): which Linux security modules
//! there are, none of which has attributes of processes.

use alloc::sync::Arc;

use qlib::Va;

use crate::errno::{Errno, Result};
use crate::task::Thread;

/// LSM_ID_CAPABILITY and LSM_ID_LANDLOCK (linux/lsm.h).
const MODULES: [u64; 2] = [100, 110];
/// LSM_FLAG_SINGLE.
const SINGLE: u32 = 1;
/// struct lsm_ctx without what it ends with.
const CONTEXT_BYTES: u32 = 32;

/// lsm_list_modules(2).
pub fn lsm_list_modules(thread: &Arc<Thread>, ids: Va, size: Va, flags: u32) -> Result<usize> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let mm = thread.mm();
    let room: u32 = mm.read(size)?;
    let needed = size_of_val(&MODULES) as u32;
    mm.write(size, &needed)?;
    if room < needed {
        return Err(Errno::E2BIG);
    }
    mm.write(ids, &MODULES)?;
    Ok(MODULES.len())
}

/// lsm_get_self_attr(2).
pub fn lsm_get_self_attr(
    thread: &Arc<Thread>,
    attr: u32,
    ctx: Va,
    size: Va,
    flags: u32,
) -> Result<usize> {
    let is_single = flags == SINGLE && ctx.0 != 0;
    if attr == 0 || size.0 == 0 || flags != 0 && !is_single {
        return Err(Errno::EINVAL);
    }
    let mm = thread.mm();
    mm.read::<u32>(size)?;
    mm.write(size, &0_u32)?;
    Err(Errno::EOPNOTSUPP)
}

/// lsm_set_self_attr(2).
pub fn lsm_set_self_attr(
    thread: &Arc<Thread>,
    _attr: u32,
    ctx: Va,
    size: u32,
    flags: u32,
) -> Result<usize> {
    if flags != 0 || size < CONTEXT_BYTES {
        return Err(Errno::EINVAL);
    }
    if u64::from(size) > qlib::PAGE_SIZE {
        return Err(Errno::E2BIG);
    }
    // Its ID, its flags, how long it is, and how long what it ends with.
    let [_, _, len, context_len] = thread.mm().read::<[u64; 4]>(ctx)?;
    let fits = context_len.checked_add(u64::from(CONTEXT_BYTES)).is_some_and(|least| least <= len);
    if len > u64::from(size) || !fits {
        return Err(Errno::EINVAL);
    }
    Err(Errno::EOPNOTSUPP)
}
