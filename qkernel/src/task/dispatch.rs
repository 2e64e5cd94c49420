//! Calls that a program has given back to itself (PR_SET_SYSCALL_USER_DISPATCH of prctl(2),
//! Documentation/admin-guide/syscall-user-dispatch): each becomes a SIGSYS, unless it is made in a
//! range of the program, or a byte of it says otherwise. That is asked before all else.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linux_raw_sys::general::{SIGSEGV, SIGSYS};
use linux_raw_sys::prctl::{PR_SYS_DISPATCH_INCLUSIVE_ON, PR_SYS_DISPATCH_OFF, PR_SYS_DISPATCH_ON};
use qlib::Va;

use crate::arch;
use crate::errno::{Errno, Result};
use crate::mm::AddressSpace;
use crate::sync::Mutex;

/// What the byte says (SYSCALL_DISPATCH_FILTER_ALLOW, SYSCALL_DISPATCH_FILTER_BLOCK).
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// Which calls a thread makes.
#[derive(Clone, Copy, Default)]
pub struct Range {
    /// Those whose address after the instruction is from here on,
    pub start: u64,
    /// in so many bytes; past the end of all addresses it goes on at 0.
    pub len: u64,
    /// Others as a byte here says, unless this is 0.
    pub selector: Va,
}

/// A thread's part. Nobody inherits it.
#[derive(Default)]
pub struct State {
    /// Looked at for each call.
    is_on: AtomicBool,
    range: Mutex<Range>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is made.
    Made,
    /// It becomes a signal.
    Caught,
    /// The program ends by this signal: its byte is not there, or says nothing that is known.
    Ends(u32),
}

impl State {
    /// PR_SET_SYSCALL_USER_DISPATCH. EINVAL, EFAULT.
    pub fn set(&self, mode: u64, range: Range) -> Result {
        let Range { start, len, selector } = range;
        let end = start.wrapping_add(len);
        let range = match u32::try_from(mode) {
            Ok(PR_SYS_DISPATCH_OFF) if start | len | selector.0 == 0 => range,
            // An empty range is none, but only at 0.
            Ok(PR_SYS_DISPATCH_ON) if start == 0 || end > start => range,
            // The calls that are caught: all others are made.
            Ok(PR_SYS_DISPATCH_INCLUSIVE_ON) if end > start => {
                Range { start: end, len: len.wrapping_neg(), selector }
            }
            _ => return Err(Errno::EINVAL),
        };
        if selector >= arch::boot().user_max {
            return Err(Errno::EFAULT);
        }
        *self.range.lock() = range;
        self.is_on.store(mode != 0, Relaxed);
        Ok(())
    }

    /// What has been set, and the mode.
    pub fn get(&self) -> (u64, Range) {
        (self.is_on.load(Relaxed).into(), *self.range.lock())
    }

    /// All calls are made (execve(2)).
    pub fn reset(&self) {
        self.is_on.store(false, Relaxed);
        *self.range.lock() = Range::default();
    }

    /// True if not every call is made.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// What becomes of a call with this address after its instruction. ERESTARTNOMEM when there is
    /// no memory for the page of the byte.
    pub fn verdict(&self, mm: &AddressSpace, ip: u64) -> Result<Verdict> {
        let Range { start, len, selector } = *self.range.lock();
        if !self.is_on() || ip.wrapping_sub(start) < len {
            return Ok(Verdict::Made);
        }
        if selector.0 == 0 {
            return Ok(Verdict::Caught);
        }
        match mm.read::<u8>(selector) {
            Ok(ALLOW) => Ok(Verdict::Made),
            Ok(BLOCK) => Ok(Verdict::Caught),
            Ok(_) => Ok(Verdict::Ends(SIGSYS)),
            Err(Errno::ERESTARTNOMEM) => Err(Errno::ERESTARTNOMEM),
            Err(_) => Ok(Verdict::Ends(SIGSEGV)),
        }
    }
}
