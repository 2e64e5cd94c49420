//! The end of a sandbox that made a host call outside of its filter: one line that says which, in
//! the log and on standard error.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use super::names;
use crate::sandbox::ended::{self, ATTACK_STATUS};
use crate::sys::{self, utc::Utc};

const NONE: RawFd = -1;
/// The log's descriptor; one of the two.
static TEXT_LOG: AtomicI32 = AtomicI32::new(NONE);
static JSON_LOG: AtomicI32 = AtomicI32::new(NONE);

/// Where the last line goes besides standard error: the file of the log, and whether its lines are
/// JSON.
pub fn set_log(file: OwnedFd, is_json: bool) {
    let place = if is_json { &JSON_LOG } else { &TEXT_LOG };
    place.store(file.as_raw_fd(), Ordering::Release);
    // For the rest of the process's life.
    std::mem::forget(file);
}

/// Has SIGSYS end the process with a line.
///
/// # Errors
/// Those of sigaction(2).
pub fn catch() -> io::Result<()> {
    // SAFETY: all-zero is a valid sigaction, and the handler has the signature that SA_SIGINFO asks
    // for.
    let rc = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_refused as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut())
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A line of limited length, made without an allocation: the refused call may have come from within
/// the allocator.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).ok_or(fmt::Error)?;
        let n = text.len().min(room.len());
        room[..n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

impl Line {
    fn text(&self) -> &str {
        self.bytes.get(..self.len).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("?")
    }
}

impl From<fmt::Arguments<'_>> for Line {
    fn from(text: fmt::Arguments<'_>) -> Line {
        let mut line = Line { bytes: [0; 512], len: 0 };
        line.write_fmt(text).ok();
        line
    }
}

fn log(to: RawFd, line: &Line) {
    // SAFETY: the buffer is valid for its length. There is nothing to be done if it cannot be
    // written.
    unsafe { libc::write(to, line.bytes.as_ptr().cast(), line.len) };
}

/// Says in log and on standard error why the sandbox is ended. Allocates nothing, takes no lock.
fn report(reason: &str) {
    let now = Utc::now();
    sys::say_without_waiting(Line::from(format_args!("quark: {reason}\n")).text().as_bytes());
    match TEXT_LOG.load(Ordering::Acquire) {
        NONE => {}
        fd => log(fd, &format_args!("time=\"{now}\" level=error msg=\"{reason}\"\n").into()),
    }
    match JSON_LOG.load(Ordering::Acquire) {
        NONE => {}
        fd => log(
            fd,
            &format_args!("{{\"level\":\"error\",\"msg\":\"{reason}\",\"time\":\"{now}\"}}\n")
                .into(),
        ),
    }
}

extern "C" fn on_refused(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// The beginning of siginfo_t for SIGSYS (sigaction(2)).
    #[repr(C)]
    struct Refused {
        signo: c_int,
        errno: c_int,
        code: c_int,
        address: usize,
        number: c_int,
        arch: u32,
    }
    // SAFETY: the kernel hands a valid siginfo and ucontext to an SA_SIGINFO handler, ours alone
    // until it returns; the former is 128 bytes, of which these are the first.
    let (info, context) =
        unsafe { (&*info.cast::<Refused>(), &*context.cast::<libc::ucontext_t>()) };
    let register = |index: c_int| context.uc_mcontext.gregs[index as usize] as u64;
    let args =
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
            .map(register);
    let name = names::name(info.number.into());
    let mut reason = Line { bytes: [0; 512], len: 0 };
    let (number, address) = (info.number, info.address);
    let args = Args(args);
    write!(
        reason,
        "the sandbox was ended for a host call that it may not make: {name} {args} ({number}) at \
        {address:#x}"
    )
    .ok();
    let reason = reason.text();
    report(reason);
    ended::ended(ATTACK_STATUS, reason);
    // SAFETY: _exit has no precondition. Not exit: other threads still run the guest.
    unsafe { libc::_exit(ATTACK_STATUS) }
}

struct Args([u64; 6]);

impl fmt::Display for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "({a:#x}, {b:#x}, {c:#x}, {d:#x}, {e:#x}, {g:#x})")
    }
}
