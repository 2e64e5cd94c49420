//! Starting this program anew, in cgroups and namespaces of its own.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sched::CloneFlags;
use rustix::process::{Signal, WaitIdOptions, WaitIdStatus, pidfd_send_signal, waitid};

/// The descriptor at which a spawned process finds its set-up socket.
pub const SETUP_FD: RawFd = 3;

/// Variables of the environment that a spawned process inherits, and how it sees them: switches for
/// whoever looks for errors in quark.
const DEBUG_SWITCHES: [(&str, &CStr); 3] = [
    ("QUARK_TRACE", c"QUARK_TRACE=1"),
    ("QUARK_POISON_FRAMES", c"QUARK_POISON_FRAMES=1"),
    ("QUARK_SLOW_DISK", c"QUARK_SLOW_DISK=1"),
];

/// What the C library of a spawned process is told (ld.so(8)): of the stacks of threads that have
/// ended it keeps three for others. Without that it would keep 40 MiB of them, with what those
/// threads had touched, and each process of the guest has a thread for some time.
const TUNABLES: &CStr = c"GLIBC_TUNABLES=glibc.pthread.stack_cache_size=204800";

/// A process to start from this program's own file.
pub struct Spawn<'a> {
    /// argv; the environment has nothing but [`TUNABLES`] and [`DEBUG_SWITCHES`], and the working
    /// directory is "/".
    pub args: &'a [CString],
    /// Standard input, output and error.
    pub stdio: [BorrowedFd<'a>; 3],
    /// What it has as its descriptor [`SETUP_FD`]. It has no others.
    pub socket: BorrowedFd<'a>,
    /// The cgroup (version 2) it is born in: its directory.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Files of cgroups (version 1) into which it writes "0" to move itself, before anything else.
    pub cgroup_files: Vec<BorrowedFd<'a>>,
    /// Network namespace it joins.
    pub network: Option<BorrowedFd<'a>>,
    /// Namespaces that are made for it.
    pub new_namespaces: CloneFlags,
    /// What its timens_offsets are to be: it is in a time namespace of its own then
    /// (time_namespaces(7)).
    pub clocks: Option<&'a CStr>,
    /// The signal it gets when its parent ends.
    pub parent_death_signal: Option<i32>,
    /// What this process does with its process id before it does anything: it waits for that.
    pub prepare: Option<&'a dyn Fn(i32) -> io::Result<()>>,
}

impl<'a> Spawn<'a> {
    /// One that stays where this process is.
    pub fn here(args: &'a [CString], stdio: [BorrowedFd<'a>; 3], socket: BorrowedFd<'a>) -> Self {
        Spawn {
            args,
            stdio,
            socket,
            cgroup: None,
            cgroup_files: Vec::new(),
            network: None,
            new_namespaces: CloneFlags::empty(),
            clocks: None,
            parent_death_signal: None,
            prepare: None,
        }
    }
}

impl std::fmt::Debug for Spawn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spawn").field("args", &self.args).finish_non_exhaustive()
    }
}

/// A child process.
#[derive(Debug)]
pub struct Child {
    pid: i32,
    pidfd: OwnedFd,
}

/// struct clone_args of clone3(2), up to the version of Linux 5.7.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// The namespaces that a process is born in.
const AT_BIRTH: CloneFlags = CloneFlags::CLONE_NEWPID.union(CloneFlags::CLONE_NEWUSER);

/// From linux/sched.h; the one in libc has a type that is too small.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// The steps between clone and exec, for messages about one that failed.
const STEPS: &[&str] = &[
    "entering the cgroup",
    "joining the network namespace",
    "making namespaces",
    "starting a session",
    "setting up",
    "setting up descriptors",
    "executing",
    "waiting for its user and group ids",
    "setting its clocks",
];

/// Starts a process. This one must have no other thread.
///
/// # Errors
/// With the step that failed.
pub fn spawn(spawn: &Spawn<'_>) -> io::Result<Child> {
    let mut argv: Vec<*const libc::c_char> = spawn.args.iter().map(|a| a.as_ptr()).collect();
    argv.push(std::ptr::null());
    let go = spawn.prepare.map(|_| io::pipe()).transpose()?;
    let mut environment = [std::ptr::null(); DEBUG_SWITCHES.len() + 2];
    let on = DEBUG_SWITCHES.iter().filter(|(name, _)| std::env::var_os(name).is_some());
    let settings = std::iter::once(TUNABLES).chain(on.map(|(_, setting)| *setting));
    for (slot, setting) in environment.iter_mut().zip(settings) {
        *slot = setting.as_ptr();
    }
    let plan = Plan {
        argv,
        environment,
        stdio: spawn.stdio.map(|f| f.as_raw_fd()),
        socket: spawn.socket.as_raw_fd(),
        cgroup_files: spawn.cgroup_files.iter().map(AsRawFd::as_raw_fd).collect(),
        network: spawn.network.map(|f| f.as_raw_fd()),
        // All but these can be made afterwards, when the cgroup that they are charged to is
        // entered. They belong to the user namespace.
        unshare: (spawn.new_namespaces - AT_BIRTH).bits(),
        clocks: spawn.clocks.map(CStr::to_bytes),
        death: spawn.parent_death_signal,
        go: go.as_ref().map(|(reader, writer)| [reader.as_raw_fd(), writer.as_raw_fd()]),
    };
    let (reader, writer) = io::pipe()?;
    // The child's descriptors 0 to 3 are set one after another; what is still to be set must not
    // lie there.
    let writer = above_setup(writer.into())?;
    let mut pidfd: RawFd = -1;
    let mut args = CloneArgs {
        flags: libc::CLONE_PIDFD as u64 | (spawn.new_namespaces & AT_BIRTH).bits() as u64,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(cgroup) = spawn.cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM the child has its own copy of this process, which has one thread,
    // and continues on its own copy of this stack; `args` is a valid clone_args of the size given.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    if pid < 0 {
        return Err(named("making a process", io::Error::last_os_error()));
    }
    if pid == 0 {
        let (step, errno) = plan.carry_out();
        let report = (step as u64) << 32 | u64::from(errno.unsigned_abs());
        // SAFETY: the buffer is a local of the size given; _exit ends this copy without running
        // anything of the parent's.
        unsafe {
            libc::write(writer.as_raw_fd(), (&raw const report).cast(), size_of::<u64>());
            libc::_exit(127)
        }
    }
    drop(writer);
    // SAFETY: clone3 succeeded, so it stored a new descriptor there.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let mut child = Child { pid: i32::try_from(pid).unwrap_or(i32::MAX), pidfd };
    if let (Some(prepare), Some((reader, writer))) = (spawn.prepare, go) {
        drop(reader);
        let prepared = prepare(child.pid).map_err(|e| named("giving it its user and group ids", e));
        // The child has the other end: a pipe takes one byte.
        if let Err(e) = prepared.and_then(|()| { &writer }.write_all(b"g")) {
            child.kill().ok();
            child.wait().ok();
            return Err(e);
        }
    }
    // The write end closes at exec.
    let mut report = [0; 8];
    let mut reader = io::PipeReader::from(OwnedFd::from(reader));
    match reader.read(&mut report)? {
        0 => Ok(child),
        _ => {
            child.wait().ok();
            let report = u64::from_ne_bytes(report);
            let step = STEPS.get((report >> 32) as usize).copied().unwrap_or("starting");
            Err(named(step, io::Error::from_raw_os_error((report & 0xffff_ffff) as i32)))
        }
    }
}

fn named(step: &str, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{step}: {error}"))
}

fn above_setup(fd: OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, SETUP_FD + 1)?)
}

/// What the child does, in plain numbers and pointers into memory that it has its own copy of.
struct Plan<'a> {
    argv: Vec<*const libc::c_char>,
    environment: [*const libc::c_char; DEBUG_SWITCHES.len() + 2],
    stdio: [RawFd; 3],
    socket: RawFd,
    cgroup_files: Vec<RawFd>,
    network: Option<RawFd>,
    unshare: i32,
    clocks: Option<&'a [u8]>,
    death: Option<i32>,
    /// A pipe from which a byte must come first, and its other end.
    go: Option<[RawFd; 2]>,
}

impl Plan<'_> {
    /// Returns only when a step fails: which, and its errno.
    fn carry_out(&self) -> (usize, i32) {
        const EXE: &CStr = c"/proc/self/exe";
        // SAFETY: system calls only, on numbers and on strings that live as long as this process;
        // nothing allocates or takes a lock.
        unsafe {
            if let Some([reader, writer]) = self.go {
                libc::close(writer);
                let mut byte = 0u8;
                if libc::read(reader, (&raw mut byte).cast(), 1) != 1 {
                    return (7, errno());
                }
            }
            for &fd in &self.cgroup_files {
                if libc::write(fd, b"0".as_ptr().cast(), 1) < 0 {
                    return (0, errno());
                }
            }
            if self.network.is_some_and(|fd| libc::setns(fd, libc::CLONE_NEWNET) < 0) {
                return (1, errno());
            }
            if libc::unshare(self.unshare) < 0 {
                return (2, errno());
            }
            if self.clocks.is_some_and(|offsets| !set_clocks(offsets)) {
                return (8, errno());
            }
            if libc::setsid() < 0 {
                return (3, errno());
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            if self
                .death
                .is_some_and(|s| libc::prctl(libc::PR_SET_PDEATHSIG, s as libc::c_ulong) < 0)
                || libc::chdir(c"/".as_ptr()) < 0
            {
                return (4, errno());
            }
            // First out of the way, then to their places: a source may have another's number.
            let mut high = [0; 4];
            for (to, from) in high.iter_mut().zip(self.stdio.iter().chain([&self.socket])) {
                *to = libc::fcntl(*from, libc::F_DUPFD_CLOEXEC, SETUP_FD + 1);
                if *to < 0 {
                    return (5, errno());
                }
            }
            for (to, from) in high.iter().enumerate() {
                if libc::dup2(*from, to as RawFd) < 0 {
                    return (5, errno());
                }
            }
            let rest = libc::syscall(
                libc::SYS_close_range,
                (SETUP_FD + 1) as libc::c_uint,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            );
            if rest < 0 {
                return (5, errno());
            }
            libc::execve(EXE.as_ptr(), self.argv.as_ptr(), self.environment.as_ptr());
            (6, errno())
        }
    }
}

/// Enters a time namespace with these offsets; whether it has.
///
/// # Safety
/// As for [`Plan::carry_out`], which it is a part of.
unsafe fn set_clocks(offsets: &[u8]) -> bool {
    // SAFETY: system calls only, on numbers, on strings, and on `offsets`.
    unsafe {
        if libc::unshare(libc::CLONE_NEWTIME) < 0 {
            return false;
        }
        let file = libc::open(c"/proc/self/timens_offsets".as_ptr(), libc::O_WRONLY);
        let namespace = libc::open(c"/proc/self/ns/time_for_children".as_ptr(), libc::O_RDONLY);
        // All at once: it is set as a whole. Both close at exec, as all above the set-up socket do.
        file >= 0
            && namespace >= 0
            && libc::write(file, offsets.as_ptr().cast(), offsets.len()) == offsets.len() as isize
            && libc::setns(namespace, libc::CLONE_NEWTIME) == 0
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// A descriptor that becomes readable when it ends.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.pidfd.as_fd()
    }

    /// Sends it SIGKILL.
    ///
    /// # Errors
    /// Those of pidfd_send_signal(2).
    pub fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, Signal::KILL)?)
    }

    /// Waits until it ends: its exit code, or 128 + signal.
    ///
    /// # Errors
    /// When it was waited for before.
    pub fn wait(&mut self) -> io::Result<i32> {
        loop {
            match waitid(rustix::process::WaitId::PidFd(self.pidfd()), WaitIdOptions::EXITED) {
                Ok(Some(status)) => return Ok(exit_code(&status)),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn exit_code(status: &WaitIdStatus) -> i32 {
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
}

/// Takes ownership of the descriptor that [`spawn`] handed over. Call once, at the start of the
/// process.
///
/// # Errors
/// When there is none.
pub fn take_setup_fd() -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD touches nothing but the descriptor table.
    if unsafe { libc::fcntl(SETUP_FD, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and by the contract of this function nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(SETUP_FD) })
}

/// A new user namespace with the line `id_map` for users and groups. Needs CAP_SETUID and
/// CAP_SETGID in this one; this process must have no other thread.
///
/// # Errors
/// Those of user_namespaces(7).
pub fn user_namespace(id_map: &str) -> io::Result<OwnedFd> {
    let parent = std::process::id().cast_signed();
    let mut pidfd: RawFd = -1;
    let mut args = CloneArgs {
        flags: (libc::CLONE_PIDFD | libc::CLONE_NEWUSER) as u64,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    // SAFETY: as in `spawn`; the child only waits for its end, and ends with this process.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) };
    if pid == 0 {
        // SAFETY: system calls only.
        unsafe {
            libc::syscall(
                libc::SYS_close_range,
                0 as libc::c_uint,
                libc::c_uint::MAX,
                0 as libc::c_uint,
            );
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
            // The parent may have ended before it asked for that.
            while libc::getppid() == parent {
                libc::pause();
            }
            libc::_exit(0)
        }
    }
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: clone3 succeeded, so it stored a new descriptor there.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let mut child = Child { pid: i32::try_from(pid).unwrap_or(i32::MAX), pidfd };
    let made = std::fs::write(format!("/proc/{pid}/gid_map"), id_map)
        .and_then(|()| std::fs::write(format!("/proc/{pid}/uid_map"), id_map))
        .and_then(|()| std::fs::File::open(format!("/proc/{pid}/ns/user")));
    child.kill().ok();
    child.wait().ok();
    made.map(OwnedFd::from)
}
