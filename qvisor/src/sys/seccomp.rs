//! seccomp(2) with user notification: the listener of a filter (seccomp_unotify(2)).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;

/// struct seccomp_data of seccomp(2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SeccompData {
    /// Number, as in %eax.
    pub nr: i32,
    /// AUDIT_ARCH_*.
    pub arch: u32,
    /// The address after the instruction.
    pub instruction_pointer: u64,
    /// Arguments.
    pub args: [u64; 6],
}

/// struct seccomp_notif of seccomp_unotify(2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Notification {
    /// Names the stopped call.
    pub id: u64,
    /// The thread, in our PID namespace.
    pub pid: u32,
    /// Unused.
    pub flags: u32,
    /// The call.
    pub data: SeccompData,
}

#[repr(C)]
struct Response {
    id: u64,
    val: i64,
    error: i32,
    flags: u32,
}

const IOCTL_RECV: u64 = 0xc050_2100;

const IOCTL_SEND: u64 = 0xc018_2101;

const IOCTL_SET_FLAGS: u64 = 0x4008_2104;

const SYNC_WAKE_UP: u64 = 1;

const FLAG_CONTINUE: u32 = 1;

/// SECCOMP_FILTER_FLAG_NEW_LISTENER.
pub const FILTER_NEW_LISTENER: u64 = 1 << 3;

/// SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (Linux 5.19).
pub const FILTER_WAIT_KILLABLE: u64 = 1 << 5;

/// A seccomp listener.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// What [`Listener::receive`] came back with.
#[derive(Debug)]
pub enum Received {
    /// A stopped call.
    Call(Notification),
    /// No task has this filter any more.
    Gone,
}

impl Listener {
    /// `fd` must be a listener.
    pub fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Asks for synchronous wake-ups (Linux 6.6), or for ordinary ones; false if this host has no
    /// choice.
    pub fn set_sync_wake_up(&self, on: bool) -> bool {
        // SAFETY: the argument is a plain number.
        unsafe {
            libc::ioctl(self.0.as_raw_fd(), IOCTL_SET_FLAGS, if on { SYNC_WAKE_UP } else { 0 }) == 0
        }
    }

    /// Waits for the next stopped call. `end`: what can be read when the process whose calls these
    /// are has ended, on a host that does not end a receive then: it counts a process among those
    /// that have the filter until it is reaped.
    pub fn receive(&self, end: Option<BorrowedFd<'_>>) -> Received {
        loop {
            if let Some(end) = end
                && self.waits_in_vain(end)
            {
                return Received::Gone;
            }
            if let Some(n) = self.receive_waiting() {
                return Received::Call(n);
            }
            // ENOENT: the caller was killed meanwhile, or nobody is left.
            if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) && self.hung_up() {
                return Received::Gone;
            }
        }
    }

    /// The stopped call that [waits](look_at), unless its caller is gone by now; never waits then.
    pub fn receive_waiting(&self) -> Option<Notification> {
        let mut n = Notification::default();
        // SAFETY: `n` is a zeroed struct seccomp_notif of the size that the number says.
        let r = unsafe { libc::ioctl(self.0.as_raw_fd(), IOCTL_RECV, &raw mut n) };
        (r == 0).then_some(n)
    }

    /// Waits for a stopped call, or until none can come any more: true then.
    fn waits_in_vain(&self, end: BorrowedFd<'_>) -> bool {
        let mut fds = [self.0.as_fd(), end].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        loop {
            // EINTR: a kick that came too late.
            if rustix::event::poll(&mut fds, None).is_ok() {
                return !fds[0].revents().contains(PollFlags::IN);
            }
        }
    }

    /// True if the host says that nobody has the filter, and no call waits.
    fn hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut fds, Some(&now)).map(|_| fds[0].revents());
        // An error alone says that the host was interrupted while it looked.
        ready.is_ok_and(|r| r.contains(PollFlags::HUP) && !r.contains(PollFlags::IN))
    }

    fn send(&self, mut response: Response) -> io::Result<()> {
        // SAFETY: a valid struct seccomp_notif_resp.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), IOCTL_SEND, &raw mut response) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Ends the stopped call with `value` in %rax, any 64 bits.
    pub fn answer(&self, id: u64, value: i64) -> io::Result<()> {
        self.send(Response { id, val: value, error: 0, flags: 0 })
    }

    /// Gives the stopped thread `file` as its descriptor `number`, in place of what it has there.
    pub fn put_file(&self, id: u64, file: &OwnedFd, number: i32) -> io::Result<()> {
        #[repr(C)]
        struct AddFd {
            id: u64,
            flags: u32,
            srcfd: u32,
            newfd: u32,
            newfd_flags: u32,
        }
        /// SECCOMP_IOCTL_NOTIF_ADDFD (Linux 5.9).
        const IOCTL_ADDFD: u64 = 0x4018_2103;
        const SETFD: u32 = 1;
        let request = AddFd {
            id,
            flags: SETFD,
            srcfd: file.as_raw_fd() as u32,
            newfd: number as u32,
            newfd_flags: libc::O_CLOEXEC as u32,
        };
        // SAFETY: a valid struct seccomp_notif_addfd.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), IOCTL_ADDFD, &raw const request) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Lets the host carry out the stopped call. Only for calls whose arguments are plain numbers
    /// that have been approved.
    pub fn let_continue(&self, id: u64) -> io::Result<()> {
        self.send(Response { id, val: 0, error: 0, flags: FLAG_CONTINUE })
    }
}

/// What [`look_at`] has found, a bit for each listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// A stopped call waits to be received.
    pub calls: u64,
    /// No task has the filter any more, and no call waits.
    pub gone: u64,
    /// The other descriptor can be read.
    pub other: bool,
}

/// How long [`look_at`] waits for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Never,
    /// So long.
    For(Duration),
    /// Until something comes.
    Ever,
}

/// Whether calls wait to be received of `listeners`, 64 at most, or `other` can be read.
pub fn look_at<'a>(
    listeners: impl IntoIterator<Item = &'a Listener>,
    other: Option<BorrowedFd<'a>>,
    wait: Wait,
) -> Found {
    let mut fds: SmallVec<[PollFd<'_>; 8]> = listeners
        .into_iter()
        .map(|listener| listener.0.as_fd())
        .chain(other)
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let count = fds.len() - usize::from(other.is_some());
    let limit = match wait {
        Wait::Never => Some(Duration::ZERO),
        Wait::For(time) => Some(time),
        Wait::Ever => None,
    };
    let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or_default());
    // Whoever waited looks again, whatever ended the wait.
    if rustix::event::poll(&mut fds, limit.as_ref()).is_err() {
        return Found::default();
    }
    let other = fds.get(count).is_some_and(|fd| fd.revents().contains(PollFlags::IN));
    let mut found = Found { other, ..Found::default() };
    for (at, fd) in fds.iter().take(count).enumerate() {
        let ready = fd.revents();
        if ready.contains(PollFlags::IN) {
            found.calls |= 1 << at;
        } else if ready.contains(PollFlags::HUP) {
            found.gone |= 1 << at;
        }
    }
    found
}

/// True if this host knows a filter flag: tries without installing anything.
pub fn filter_flag_known(flag: u64) -> bool {
    // SAFETY: a null program is never installed: EFAULT says that the flags were accepted.
    let r = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            FILTER_NEW_LISTENER | flag,
            std::ptr::null::<u8>(),
        )
    };
    r < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}
