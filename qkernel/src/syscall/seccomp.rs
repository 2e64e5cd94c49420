//! seccomp(2), and what prctl(2) has of it: see [`crate::task::seccomp`].

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::ptrace::{
    SECCOMP_FILTER_FLAG_LOG, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_SPEC_ALLOW,
    SECCOMP_FILTER_FLAG_TSYNC, SECCOMP_FILTER_FLAG_TSYNC_ESRCH,
    SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, SECCOMP_GET_ACTION_AVAIL, SECCOMP_GET_NOTIF_SIZES,
    SECCOMP_MODE_FILTER, SECCOMP_MODE_STRICT, SECCOMP_SET_MODE_FILTER, SECCOMP_SET_MODE_STRICT,
};
use qlib::Va;
use qlib::seccomp::{Insn, MAX_INSNS, Program, ret};

use super::{install, listener};
use crate::account;
use crate::errno::{Errno, Result};
use crate::task::filters::NewFilter;
use crate::task::listener::Listener;
use crate::task::{Thread, seccomp as filters};

/// The flags that are served. Speculation is not restricted anyway.
const FLAGS: u32 = SECCOMP_FILTER_FLAG_TSYNC
    | SECCOMP_FILTER_FLAG_LOG
    | SECCOMP_FILTER_FLAG_SPEC_ALLOW
    | SECCOMP_FILTER_FLAG_NEW_LISTENER
    | SECCOMP_FILTER_FLAG_TSYNC_ESRCH
    | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

/// seccomp(2).
pub fn seccomp(thread: &Arc<Thread>, operation: u32, flags: u32, args: Va) -> Result<usize> {
    match operation {
        SECCOMP_SET_MODE_STRICT if flags == 0 && args.0 == 0 => {
            thread.seccomp.be_strict()?;
            thread.user.answers(None);
            Ok(0)
        }
        SECCOMP_SET_MODE_FILTER if flags & !FLAGS == 0 => add(thread, flags, args),
        SECCOMP_GET_ACTION_AVAIL if flags == 0 => {
            use ret::{ALLOW, ERRNO, KILL_PROCESS, KILL_THREAD, LOG, TRACE, TRAP, USER_NOTIF};
            let action: u32 = thread.mm().read(args)?;
            match action {
                KILL_PROCESS | KILL_THREAD | TRAP | ERRNO | TRACE | LOG | ALLOW | USER_NOTIF => {
                    Ok(0)
                }
                _ => Err(Errno::EOPNOTSUPP),
            }
        }
        SECCOMP_GET_NOTIF_SIZES if flags == 0 => {
            thread.mm().write(args, &listener::SIZES).map(|()| 0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// PR_SET_SECCOMP of prctl(2).
pub fn set(thread: &Arc<Thread>, mode: u64, filter: Va) -> Result<usize> {
    match u32::try_from(mode) {
        Ok(SECCOMP_MODE_STRICT) => seccomp(thread, SECCOMP_SET_MODE_STRICT, 0, Va(0)),
        Ok(SECCOMP_MODE_FILTER) => seccomp(thread, SECCOMP_SET_MODE_FILTER, 0, filter),
        _ => Err(Errno::EINVAL),
    }
}

fn add(thread: &Arc<Thread>, flags: u32, args: Va) -> Result<usize> {
    let has = |flag| flags & flag != 0;
    let is_new = has(SECCOMP_FILTER_FLAG_NEW_LISTENER);
    let (for_all, is_plain) =
        (has(SECCOMP_FILTER_FLAG_TSYNC), has(SECCOMP_FILTER_FLAG_TSYNC_ESRCH));
    // A number would be that of a descriptor, or of a thread.
    let is_unclear = for_all && is_new && !is_plain;
    if is_unclear || has(SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) && !is_new {
        return Err(Errno::EINVAL);
    }
    let program = read_program(thread, args)?;
    let (listener, fd) = if is_new {
        let (listener, file) = Listener::make(has(SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV));
        (Some(listener), Some(install::fd(thread, file, true)?))
    } else {
        (None, None)
    };
    let new = NewFilter { program, logs: has(SECCOMP_FILTER_FLAG_LOG), listener };
    let added = match for_all {
        false => filters::add(thread, new).map(|()| None),
        true => filters::add_to_all(thread, new),
    };
    let result = match added {
        Ok(None) => return Ok(fd.map_or(0, |fd| fd as usize)),
        Ok(Some(_)) if is_plain => Err(Errno::ESRCH),
        Ok(Some(tid)) => Ok(tid as usize),
        Err(error) => Err(error),
    };
    // Nobody has seen the descriptor yet.
    if let Some(fd) = fd {
        drop(thread.files().remove(fd));
    }
    result
}

/// Reads and checks the program that a `struct sock_fprog` names.
fn read_program(thread: &Arc<Thread>, args: Va) -> Result<Program> {
    let mm = thread.mm();
    let [length, insns]: [u64; 2] = mm.read(args)?;
    let length = usize::from(length as u16);
    if !(1..=MAX_INSNS).contains(&length) {
        return Err(Errno::EINVAL);
    }
    filters::check_right(thread)?;
    let insns: Vec<[u8; size_of::<Insn>()]> = mm.read_array(Va(insns), length)?;
    // The check takes two bytes more for each.
    account::ask_for::<(Insn, u16)>(length)?;
    let insns = insns.into_iter().map(Insn::from_bytes).collect();
    Program::new(insns).ok_or(Errno::EINVAL)
}
