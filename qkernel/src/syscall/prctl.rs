//! prctl(2) and arch_prctl(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{ARCH_SET_FS, CAP_SETPCAP, CAP_SYS_RESOURCE};
use linux_raw_sys::prctl::{
    PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, PR_CAP_AMBIENT_IS_SET, PR_CAP_AMBIENT_LOWER,
    PR_CAP_AMBIENT_RAISE, PR_CAPBSET_DROP, PR_CAPBSET_READ, PR_GET_AUXV, PR_GET_CHILD_SUBREAPER,
    PR_GET_DUMPABLE, PR_GET_KEEPCAPS, PR_GET_MDWE, PR_GET_NAME, PR_GET_NO_NEW_PRIVS,
    PR_GET_PDEATHSIG, PR_GET_SECCOMP, PR_GET_SECUREBITS, PR_GET_SPECULATION_CTRL,
    PR_GET_THP_DISABLE, PR_GET_TID_ADDRESS, PR_GET_TIMERSLACK, PR_GET_TIMING, PR_GET_TSC,
    PR_MCE_KILL_DEFAULT, PR_MCE_KILL_GET, PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_KEEPCAPS,
    PR_SET_MDWE, PR_SET_MM, PR_SET_MM_ARG_END, PR_SET_MM_ARG_START, PR_SET_MM_ENV_END,
    PR_SET_MM_ENV_START, PR_SET_NAME, PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, PR_SET_SECCOMP,
    PR_SET_SECUREBITS, PR_SET_SPECULATION_CTRL, PR_SET_SYSCALL_USER_DISPATCH, PR_SET_THP_DISABLE,
    PR_SET_TIMERSLACK, PR_SET_TIMING, PR_SET_TSC, PR_SET_VMA, PR_SET_VMA_ANON_NAME, PR_SPEC_ENABLE,
    PR_SPEC_INDIRECT_BRANCH, PR_SPEC_L1D_FLUSH, PR_SPEC_STORE_BYPASS, PR_TSC_ENABLE,
};
use qlib::Va;
use qlib::platform::{DeferredOp, OP_SET_FS, OP_SET_GS};

use super::seccomp;
use crate::arch;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::task::signal::SIGNALS;
use crate::task::{Thread, dispatch};

const ARCH_SET_GS: u32 = 0x1001;
const ARCH_GET_FS: u32 = 0x1003;
const ARCH_GET_GS: u32 = 0x1004;
/// The length of a thread's name with its terminator.
const NAME_BYTES: usize = 16;
/// The highest capability number Linux 6.12 knows (CAP_CHECKPOINT_RESTORE).
pub const LAST_CAP: u32 = 40;
const SECBIT_KEEP_CAPS_LOCKED: u32 = 1 << 5;
const SECBIT_NO_CAP_AMBIENT_RAISE: u32 = 1 << 6;

fn change_creds(thread: &Thread, change: impl FnOnce(&mut Creds)) -> Result<usize> {
    let mut creds = Creds::clone(&thread.creds());
    change(&mut creds);
    thread.set_creds(creds);
    Ok(0)
}

fn flag(value: u64) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

/// prctl(2).
pub fn prctl(
    thread: &Arc<Thread>,
    option: u32,
    arg2: u64,
    arg3: u64,
    arg4: u64,
    arg5: u64,
) -> Result<usize> {
    let rest_is_zero = || if arg3 | arg4 | arg5 != 0 { Err(Errno::EINVAL) } else { Ok(()) };
    let mm = thread.mm();
    match option {
        PR_SET_NAME => {
            thread.set_name(read_name(thread, Va(arg2))?);
            Ok(0)
        }
        PR_GET_NAME => {
            let mut name = thread.attrs.lock().name.clone();
            name.resize(NAME_BYTES, 0);
            mm.write_bytes(Va(arg2), &name)?;
            Ok(0)
        }
        PR_SET_PDEATHSIG => {
            let signo = u32::try_from(arg2).ok().filter(|s| *s <= SIGNALS).ok_or(Errno::EINVAL)?;
            thread.attrs.lock().parent_death_signal = signo;
            Ok(0)
        }
        PR_GET_PDEATHSIG => {
            let signo = thread.attrs.lock().parent_death_signal;
            mm.write(Va(arg2), &signo)?;
            Ok(0)
        }
        PR_SET_DUMPABLE => {
            thread.process.traits.lock().dumpable = u32::from(flag(arg2)?);
            Ok(0)
        }
        PR_GET_DUMPABLE => Ok(thread.process.traits.lock().dumpable as usize),
        PR_SET_KEEPCAPS => {
            let on = flag(arg2)?;
            if thread.creds().securebits & SECBIT_KEEP_CAPS_LOCKED != 0 {
                return Err(Errno::EPERM);
            }
            change_creds(thread, |c| c.keep_caps = on)
        }
        PR_GET_KEEPCAPS => Ok(usize::from(thread.creds().keep_caps)),
        PR_SET_NO_NEW_PRIVS => {
            rest_is_zero()?;
            if arg2 != 1 {
                return Err(Errno::EINVAL);
            }
            change_creds(thread, |c| c.no_new_privs = true)
        }
        PR_GET_NO_NEW_PRIVS => {
            rest_is_zero()?;
            if arg2 != 0 {
                return Err(Errno::EINVAL);
            }
            Ok(usize::from(thread.creds().no_new_privs))
        }
        PR_CAPBSET_READ => {
            let cap = capability(arg2)?;
            Ok((thread.creds().cap_bounding >> cap & 1) as usize)
        }
        PR_CAPBSET_DROP => {
            if !thread.creds().capable_here(CAP_SETPCAP) {
                return Err(Errno::EPERM);
            }
            let cap = capability(arg2)?;
            change_creds(thread, |c| c.cap_bounding &= !(1 << cap))
        }
        PR_CAP_AMBIENT => ambient(thread, arg2, arg3, arg4 | arg5),
        PR_SET_SECUREBITS => set_securebits(thread, arg2),
        PR_GET_SECUREBITS => Ok(thread.creds().securebits as usize),
        PR_SET_CHILD_SUBREAPER => {
            thread.process.tree.lock().is_subreaper = arg2 != 0;
            Ok(0)
        }
        PR_GET_CHILD_SUBREAPER => {
            let is = u32::from(thread.process.tree.lock().is_subreaper);
            mm.write(Va(arg2), &is)?;
            Ok(0)
        }
        PR_SET_TIMERSLACK => {
            // Negative and zero both mean "the default", as on Linux.
            let slack = if arg2 as i64 <= 0 { 0 } else { arg2 };
            thread.attrs.lock().timer_slack_ns = slack;
            Ok(0)
        }
        PR_GET_TIMERSLACK => Ok(thread.timer_slack_ns() as usize),
        PR_SET_MM => set_mm(thread, arg2, Va(arg3), arg4, arg5),
        PR_SET_THP_DISABLE => {
            rest_is_zero()?;
            thread.process.traits.lock().thp_disable = arg2 != 0;
            Ok(0)
        }
        PR_GET_THP_DISABLE => {
            rest_is_zero()?;
            Ok(usize::from(thread.process.traits.lock().thp_disable))
        }
        PR_GET_AUXV => {
            if arg4 | arg5 != 0 {
                return Err(Errno::EINVAL);
            }
            let auxv = thread.process.image.lock().auxv.clone();
            let room = usize::try_from(arg3).unwrap_or(usize::MAX);
            mm.write_bytes(Va(arg2), &auxv[..auxv.len().min(room)])?;
            Ok(auxv.len())
        }
        PR_SET_MDWE => {
            rest_is_zero()?;
            mm.deny_write_exec(u32::try_from(arg2).map_err(|_| Errno::EINVAL)?).map(|()| 0)
        }
        PR_GET_MDWE => {
            rest_is_zero()?;
            if arg2 != 0 { Err(Errno::EINVAL) } else { Ok(mm.denied().bits() as usize) }
        }
        PR_GET_TID_ADDRESS => {
            let address = thread.attrs.lock().clear_child_tid.0;
            mm.write(Va(arg2), &address)?;
            Ok(0)
        }
        // Statistical timing is the only kind there is.
        PR_GET_TIMING => Ok(0),
        PR_SET_TIMING if arg2 == 0 => Ok(0),
        PR_GET_SECCOMP => Ok(thread.seccomp.mode() as usize),
        PR_SET_SECCOMP => seccomp::set(thread, arg2, Va(arg3)),
        PR_SET_SYSCALL_USER_DISPATCH => {
            let range = dispatch::Range { start: arg3, len: arg4, selector: Va(arg5) };
            thread.dispatch.set(arg2, range)?;
            thread.user.answers(None);
            Ok(0)
        }
        PR_GET_TSC => {
            mm.write(Va(arg2), &PR_TSC_ENABLE)?;
            Ok(0)
        }
        // The host decides of it: a program has to take it for enabled, and cannot change it.
        PR_GET_SPECULATION_CTRL | PR_SET_SPECULATION_CTRL => {
            let known = [PR_SPEC_STORE_BYPASS, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_L1D_FLUSH];
            match (known.map(u64::from).contains(&arg2), option) {
                (false, _) => Err(Errno::ENODEV),
                (true, PR_SET_SPECULATION_CTRL) => Err(Errno::ENXIO),
                (true, _) => Ok(PR_SPEC_ENABLE as usize),
            }
        }
        // Nobody is kept from reading the time stamp counter.
        PR_SET_TSC if arg2 == u64::from(PR_TSC_ENABLE) => Ok(0),
        PR_MCE_KILL_GET => {
            rest_is_zero()?;
            if arg2 != 0 { Err(Errno::EINVAL) } else { Ok(PR_MCE_KILL_DEFAULT as usize) }
        }
        // Names of anonymous ranges are not kept: EINVAL, as by a Linux built without them.
        PR_SET_VMA if arg2 == u64::from(PR_SET_VMA_ANON_NAME) => Err(Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}

/// PR_SET_MM: where arguments and environment lie, which is all of it that there is.
fn set_mm(thread: &Thread, what: u64, at: Va, arg4: u64, arg5: u64) -> Result<usize> {
    let what = u32::try_from(what).map_err(|_| Errno::EINVAL)?;
    if arg4 | arg5 != 0 {
        return Err(Errno::EINVAL);
    }
    if !thread.creds().capable(CAP_SYS_RESOURCE) {
        return Err(Errno::EPERM);
    }
    let boot = arch::boot();
    if at < boot.user_min || at >= boot.user_max {
        return Err(Errno::EINVAL);
    }
    let is_mapped = thread.mm().range_after(at).is_some();
    let mut image = thread.process.image.lock();
    let (mut args, mut env) = (image.args.clone(), image.env.clone());
    match what {
        PR_SET_MM_ARG_START => args.start = at,
        PR_SET_MM_ARG_END => args.end = at,
        PR_SET_MM_ENV_START => env.start = at,
        PR_SET_MM_ENV_END => env.end = at,
        _ => return Err(Errno::EINVAL),
    }
    if args.start > args.end || env.start > env.end {
        return Err(Errno::EINVAL);
    }
    if !is_mapped {
        return Err(Errno::EFAULT);
    }
    (image.args, image.env) = (args, env);
    Ok(0)
}

fn read_name(thread: &Thread, at: Va) -> Result<Vec<u8>> {
    let mut name = Vec::new();
    // The string may end just before memory that cannot be read.
    for i in 0..NAME_BYTES as u64 - 1 {
        let byte: u8 = thread.mm().read(at.checked_add(i).ok_or(Errno::EFAULT)?)?;
        if byte == 0 {
            break;
        }
        name.push(byte);
    }
    Ok(name)
}

fn capability(value: u64) -> Result<u32> {
    u32::try_from(value).ok().filter(|c| *c <= LAST_CAP).ok_or(Errno::EINVAL)
}

fn ambient(thread: &Thread, what: u64, cap: u64, rest: u64) -> Result<usize> {
    if rest != 0 {
        return Err(Errno::EINVAL);
    }
    let what = u32::try_from(what).map_err(|_| Errno::EINVAL)?;
    if what == PR_CAP_AMBIENT_CLEAR_ALL {
        return if cap == 0 {
            change_creds(thread, |c| c.cap_ambient = 0)
        } else {
            Err(Errno::EINVAL)
        };
    }
    let bit = 1u64 << capability(cap)?;
    let creds = thread.creds();
    match what {
        PR_CAP_AMBIENT_IS_SET => Ok(usize::from(creds.cap_ambient & bit != 0)),
        PR_CAP_AMBIENT_RAISE => {
            let has = creds.cap_permitted & creds.cap_inheritable & bit != 0;
            if !has || creds.securebits & SECBIT_NO_CAP_AMBIENT_RAISE != 0 {
                return Err(Errno::EPERM);
            }
            change_creds(thread, |c| c.cap_ambient |= bit)
        }
        PR_CAP_AMBIENT_LOWER => change_creds(thread, |c| c.cap_ambient &= !bit),
        _ => Err(Errno::EINVAL),
    }
}

fn set_securebits(thread: &Thread, value: u64) -> Result<usize> {
    const ALL_BITS: u32 = 0x55;
    const ALL: u32 = 0xff;
    let creds = thread.creds();
    let old = creds.securebits;
    let new = u32::try_from(value).ok().filter(|v| v & !ALL == 0).ok_or(Errno::EPERM)?;
    // A lock, once set, stays, and so does the bit it guards.
    let locked_bits = old >> 1 & ALL_BITS;
    let changes_locked = (old ^ new) & locked_bits != 0;
    let unlocks = old & !ALL_BITS & ALL & !new != 0;
    if changes_locked || unlocks || !creds.capable_here(CAP_SETPCAP) {
        return Err(Errno::EPERM);
    }
    change_creds(thread, |c| {
        c.securebits = new;
        c.keep_caps = new & 1 << 4 != 0;
    })
}

/// arch_prctl(2).
pub async fn arch_prctl(thread: &Arc<Thread>, code: u32, addr: u64) -> Result<usize> {
    let set = |kind| {
        if addr >= arch::boot().user_max.0 {
            return Err(Errno::EPERM);
        }
        thread.user.attach_op(DeferredOp { kind, va: Va(addr), ..DeferredOp::default() });
        Ok(0)
    };
    match code {
        ARCH_SET_FS => set(OP_SET_FS),
        ARCH_SET_GS => set(OP_SET_GS),
        ARCH_GET_FS => {
            let base = thread.user.registers().await?.fs_base;
            thread.mm().write(Va(addr), &base)?;
            Ok(0)
        }
        ARCH_GET_GS => {
            let base = thread.user.registers().await?.gs_base;
            thread.mm().write(Va(addr), &base)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}
