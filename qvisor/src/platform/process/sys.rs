//! Thin wrappers over the raw host calls this platform needs.

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use qlib::Va;
use rustix::net;

use crate::procfs;

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

    /// Asks for synchronous wake-ups (Linux 6.6), or for ordinary ones; false if this host has no choice.
    pub fn set_sync_wake_up(&self, on: bool) -> bool {
        // SAFETY: the argument is a plain number.
        unsafe { libc::ioctl(self.0.as_raw_fd(), IOCTL_SET_FLAGS, if on { SYNC_WAKE_UP } else { 0 }) == 0 }
    }

    /// Whether a stopped call waits to be received (or all tasks are gone).
    pub fn has_call(&self) -> bool {
        self.poll(0) != 0
    }

    /// Waits for the next stopped call. `poll_first`: this host's RECV does not end when all tasks are gone.
    pub fn receive(&self, poll_first: bool) -> Received {
        loop {
            if poll_first && self.hung_up(-1) {
                return Received::Gone;
            }
            let mut n = Notification::default();
            // SAFETY: `n` is a zeroed struct seccomp_notif of the size that the number says.
            let r = unsafe { libc::ioctl(self.0.as_raw_fd(), IOCTL_RECV, &raw mut n) };
            if r == 0 {
                return Received::Call(n);
            }
            // ENOENT: the caller was killed meanwhile, or nobody is left.
            if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) && self.hung_up(0) {
                return Received::Gone;
            }
        }
    }

    fn hung_up(&self, timeout_ms: i32) -> bool {
        let ready = self.poll(timeout_ms);
        ready & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 && ready & libc::POLLIN == 0
    }

    /// poll(2) for a stopped call: what is ready, 0 when nothing is.
    fn poll(&self, timeout_ms: i32) -> i16 {
        let mut p = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: i64::from(timeout_ms.max(0)) * 1_000_000 };
        let timeout = if timeout_ms < 0 { std::ptr::null() } else { &raw const timeout };
        // SAFETY: one valid pollfd, a valid time or none, no signal mask.
        match unsafe { libc::ppoll(&mut p, 1, timeout, std::ptr::null()) } {
            1.. => p.revents,
            _ => 0,
        }
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

    /// Lets the host carry out the stopped call. Only for calls whose arguments are plain numbers that have been approved.
    pub fn let_continue(&self, id: u64) -> io::Result<()> {
        self.send(Response { id, val: 0, error: 0, flags: FLAG_CONTINUE })
    }
}

/// Which filter flags and actions this host knows: tries without installing anything.
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

/// The host's release, as (major, minor).
pub fn host_release() -> (u32, u32) {
    let name = rustix::system::uname();
    let mut parts =
        name.release().to_str().unwrap_or_default().split(['.', '-']).map(|p| p.trim().parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// A new memfd of `len` bytes.
pub fn memfd(name: &std::ffi::CStr, len: u64, executable: bool) -> io::Result<OwnedFd> {
    const MFD_NOEXEC_SEAL: u32 = 8;
    const MFD_EXEC: u32 = 16;
    let kind = if executable { MFD_EXEC } else { MFD_NOEXEC_SEAL };
    // SAFETY: a NUL-terminated name.
    let mut fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind) };
    if fd < 0 {
        // Before Linux 6.3 neither flag is known.
        // SAFETY: as above.
        fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    }
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that memfd_create has just made.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain numbers.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len as i64) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// A pair of sockets for messages: this process' own, which learns who has sent a message, and the other.
pub fn message_sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = net::SocketFlags::CLOEXEC;
    let (ours, theirs) = net::socketpair(net::AddressFamily::UNIX, net::SocketType::SEQPACKET, flags, None)?;
    net::sockopt::set_socket_passcred(&ours, true)?;
    Ok((ours, theirs))
}

/// Sends a message without waiting for room.
pub fn send_message(socket: &OwnedFd, words: [u32; 4], file: Option<&OwnedFd>) -> io::Result<()> {
    let mut bytes = [0; 16];
    for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    let files = file.map(|f| [f.as_fd()]);
    if let Some(files) = &files {
        control.push(net::SendAncillaryMessage::ScmRights(files));
    }
    let flags = net::SendFlags::NOSIGNAL | net::SendFlags::DONTWAIT;
    net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// A message.
#[derive(Debug)]
pub struct Message {
    /// What it says.
    pub words: [u32; 4],
    /// The process that has sent it, in our PID namespace; the host vouches for it.
    pub sender: u32,
    /// The descriptor that came along.
    pub file: Option<OwnedFd>,
}

/// Waits for the next message; `None` when none has come in time.
///
/// # Errors
/// UnexpectedEof when nobody has the other end any more.
pub fn receive_message(socket: &OwnedFd, timeout: Duration) -> io::Result<Option<Message>> {
    let wait = rustix::time::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let mut ready = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    match rustix::event::poll(&mut ready, Some(&wait)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(e) => return Err(e.into()),
    }
    let mut bytes = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut control = net::RecvAncillaryBuffer::new(&mut space);
    let flags = net::RecvFlags::CMSG_CLOEXEC;
    let received = net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let (mut sender, mut file) = (0, None);
    for message in control.drain() {
        match message {
            net::RecvAncillaryMessage::ScmCredentials(who) => sender = who.pid.as_raw_nonzero().get() as u32,
            net::RecvAncillaryMessage::ScmRights(mut files) => file = files.next(),
            _ => {}
        }
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut words = [0; 4];
    for (to, word) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *to = u32::from_ne_bytes(*word);
    }
    Ok(Some(Message { words, sender, file }))
}

/// Waits while `*word == expected`, at most `timeout`. The word may be shared between processes.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let ts = libc::timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    // SAFETY: the word lives as long as the reference; a spurious return is allowed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &raw const ts, 0, 0) };
}

/// Stores `value` and wakes all waiters.
pub fn futex_store_wake(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::SeqCst);
    futex_wake(word);
}

/// Wakes all waiters.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
}

/// Sends `signal` to thread `tid` of process `pid`.
pub fn tgkill(pid: u32, tid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    match unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Kills child process `pid`, which has not been reaped yet (so the number cannot mean another).
pub fn kill(pid: u32) {
    // SAFETY: plain numbers.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
}

/// Reaps child `pid`. Stubs send no signal at their end, so they need `__WALL` and an unaware `wait` never takes one.
pub fn reap(pid: u32) {
    loop {
        // SAFETY: a null status pointer is allowed.
        let r = unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::__WALL) };
        if r >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// Whether child `pid` has ended but is not reaped.
pub fn has_ended(pid: u32) -> bool {
    // SAFETY: siginfo_t is plain data that waitid fills in.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid pointer to it.
    let r = unsafe {
        libc::waitid(libc::P_PID, pid, &raw mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL)
    };
    // SAFETY: waitid succeeded, so the field is valid; 0 means that nothing has ended.
    r != 0 || unsafe { info.si_pid() } != 0
}

/// Waits for the end of child `pid` without reaping it. Of all of it: the host lets nobody wait for a process whose first thread has ended
/// before its other threads have, each of which has then let go of the memory. An error means that somebody else has reaped it.
pub fn wait_end(pid: u32) {
    loop {
        // SAFETY: a null siginfo pointer is allowed.
        let r = unsafe {
            libc::waitid(libc::P_PID, pid, std::ptr::null_mut(), libc::WEXITED | libc::WNOWAIT | libc::__WALL)
        };
        if r == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// Processor time that thread `tid` of process `pid` has used, in clock ticks; `None` if /proc does not say.
pub fn thread_ticks(pid: u32, tid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(procfs::path(&format!("{pid}/task/{tid}/stat"))).ok()?;
    // utime and stime are fields 14 and 15; the name in field 2 may hold anything but ends at the last parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Whether that thread blocks `signal`; `None` if /proc does not say.
pub fn blocks_signal(pid: u32, tid: u32, signal: i32) -> Option<bool> {
    let status = std::fs::read_to_string(procfs::path(&format!("{pid}/task/{tid}/status"))).ok()?;
    let mask = status.lines().find_map(|l| l.strip_prefix("SigBlk:"))?;
    Some(u64::from_str_radix(mask.trim(), 16).ok()? >> (signal - 1) & 1 == 1)
}

/// Which of `pages` pages from `va` on process `pid` has in its host page table, as a bitmap. The host fills an entry in when its
/// page is touched, for a read together with those of its neighbours in the aligned 64 KiB that are in memory too.
pub fn mapped_pages(pid: u32, va: Va, pages: u64) -> io::Result<Vec<u64>> {
    /// "Present", and "swapped", which a page on the move is too.
    const THERE: u64 = 3 << 62;
    let mut entries = vec![0; pages as usize * 8];
    let file = std::fs::File::open(procfs::path(&format!("{pid}/pagemap")))?;
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut entries, va.0 / qlib::PAGE_SIZE * 8)?;
    let mut bitmap = vec![0; (pages as usize).div_ceil(64)];
    for (page, entry) in entries.as_chunks::<8>().0.iter().enumerate() {
        bitmap[page / 64] |= u64::from(u64::from_le_bytes(*entry) & THERE != 0) << (page % 64);
    }
    Ok(bitmap)
}

/// How many mappings process `pid` has.
pub fn count_mappings(pid: u32) -> io::Result<u64> {
    let mut file = std::fs::File::open(procfs::path(&format!("{pid}/maps")))?;
    let mut block = vec![0; 64 << 10];
    let mut lines = 0;
    loop {
        match io::Read::read(&mut file, &mut block)? {
            0 => return Ok(lines),
            n => lines += block[..n].iter().filter(|b| **b == b'\n').count() as u64,
        }
    }
}

/// How many mappings the host lets a process have (proc(5), vm.max_map_count); its default where it does not say.
pub fn max_map_count() -> u64 {
    const DEFAULT: u64 = 65530;
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(DEFAULT)
}

/// AT_HWCAP2: programs may use RDFSBASE and its kin.
pub const HWCAP2_FSGSBASE: u64 = 2;

/// AT_HWCAP2 of this process.
pub fn hwcap2() -> u64 {
    // SAFETY: a plain query.
    unsafe { libc::getauxval(libc::AT_HWCAP2) }
}

/// Whether programs may use RDFSBASE and its kin.
pub fn has_fsgsbase() -> bool {
    hwcap2() & HWCAP2_FSGSBASE != 0
}

/// The processors that a thread may use.
#[derive(Clone, Copy)]
pub struct Processors(libc::cpu_set_t);

impl Processors {
    /// Those of thread `tid` (0: this one); `None` if the host does not say.
    pub fn of(tid: u32) -> Option<Self> {
        // SAFETY: a cpu_set_t is plain data, of the size that is passed.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let r = libc::sched_getaffinity(tid as i32, size_of::<libc::cpu_set_t>(), &raw mut set);
            (r == 0).then_some(Self(set))
        }
    }

    /// Their numbers.
    fn numbers(&self) -> Vec<usize> {
        // SAFETY: plain data; the indices are below the size of the set.
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &self.0) }).collect()
    }

    /// Only `cpu`.
    pub fn only(cpu: usize) -> Self {
        // SAFETY: plain data; the macro checks the index.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            Self(set)
        }
    }

    /// All of these but `cpu`; `None` if none is left.
    pub fn without(mut self, cpu: usize) -> Option<Self> {
        // SAFETY: the macros check the index.
        unsafe {
            libc::CPU_CLR(cpu, &mut self.0);
            (libc::CPU_COUNT(&self.0) > 0).then_some(self)
        }
    }

    /// Lets thread `tid` (0: this one) use these only. Where the host refuses, it stays as it was.
    pub fn give_to(&self, tid: u32) {
        // SAFETY: plain data, of the size that is passed.
        unsafe { libc::sched_setaffinity(tid as i32, size_of::<libc::cpu_set_t>(), &raw const self.0) };
    }
}

/// The processor that this thread runs on; `None` if the host does not say.
pub fn current_processor() -> Option<usize> {
    // SAFETY: no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Keeps this thread and child `pid` (and the threads it will make) on one of the processors that this thread may use, the
/// `pick`th modulo their number. Where the host refuses, they stay where they are.
pub fn share_core(pid: u32, pick: u32) {
    let usable = Processors::of(0).map_or(Vec::new(), |all| all.numbers());
    let Some(cpu) = usable.get(pick as usize % usable.len().max(1)) else { return };
    for task in [0, pid] {
        Processors::only(*cpu).give_to(task);
    }
}
