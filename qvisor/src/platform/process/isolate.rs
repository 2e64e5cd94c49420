//! What a zygote's surroundings are made of: namespaces, an empty root, no capability, a descriptor
//! table of its own. This code runs in a copy of a process that may have had other threads: it
//! makes system calls and nothing else, allocates nothing and takes no lock.
//!
//! What the host refuses of it is left out and told ([`Missing`]); what no host refuses must
//! succeed.

use std::arch::asm;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::layout::*;
use super::steps::{Missing, STEP_SHIFT, Step};

/// User and group id of zygote and stubs, inside and outside of their user namespace: "nobody".
pub const STUB_ID: u32 = 65534;

/// What that code is told.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Surroundings {
    /// The control page.
    pub control: *mut u8,
    /// The zygote's end of its socket.
    pub socket: i32,
    /// Guest RAM.
    pub ram: i32,
    /// Where it goes on: `quark_zygote`.
    pub entry: u64,
    /// The root directory that it starts with is an empty one.
    pub root_is_empty: bool,
    /// For tests: the step that fails, or 0.
    pub fail_step: u32,
}

type Tried = Result<(), i32>;

fn tried(result: libc::c_long) -> Tried {
    // This process has an errno of its own: its memory is a copy.
    if result < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    } else {
        Ok(())
    }
}

fn prctl(option: i32, a: u64, b: u64) -> Tried {
    // SAFETY: no option that is used here takes a pointer but the name's, which is one.
    tried(unsafe { libc::prctl(option, a, b, 0u64, 0u64) }.into())
}

fn unshare(flags: i32) -> Tried {
    // SAFETY: plain numbers.
    tried(unsafe { libc::unshare(flags) }.into())
}

impl Surroundings {
    fn word(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: offsets are constants inside the page, 8-aligned; it is mapped as long as this
        // code runs.
        unsafe { &*self.control.add(offset as usize).cast() }
    }

    fn futex(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: as above, 4-aligned.
        unsafe { &*self.control.add(offset as usize).cast() }
    }

    fn step(&self, step: Step, make: impl FnOnce() -> Tried) -> Tried {
        if self.fail_step == step as u32 { Err(libc::EIO) } else { make() }
    }

    fn optional(&self, missing: &mut Missing, step: Step, make: impl FnOnce() -> Tried) -> bool {
        let done = self.step(step, make).is_ok();
        if !done {
            missing.add(step);
        }
        done
    }

    fn required(&self, step: Step, make: impl FnOnce() -> Tried) {
        if let Err(errno) = self.step(step, make) {
            let report = -(i64::from(step as u32) << STEP_SHIFT | i64::from(errno));
            self.word(CTL_READY).store(report as u64, Ordering::SeqCst);
            self.wake(CTL_READY);
            // SAFETY: ends this copy without running anything of the sandbox's.
            unsafe { libc::_exit(1) }
        }
    }

    fn wake(&self, offset: u64) {
        // SAFETY: the word is mapped.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.futex(offset).as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
                0,
                0,
                0,
            )
        };
    }
}

/// Namespaces besides the user namespace.
const NAMESPACES: [(Step, i32); 6] = [
    (Step::MountNamespace, libc::CLONE_NEWNS),
    (Step::NetworkNamespace, libc::CLONE_NEWNET),
    (Step::IpcNamespace, libc::CLONE_NEWIPC),
    (Step::UtsNamespace, libc::CLONE_NEWUTS),
    (Step::CgroupNamespace, libc::CLONE_NEWCGROUP),
    (Step::PidNamespace, libc::CLONE_NEWPID),
];

/// Does it all, and goes on in stub code.
pub extern "C" fn isolate(s: &Surroundings) -> ! {
    let mut missing = Missing::default();
    let m = &mut missing;
    // SAFETY: no groups.
    s.optional(m, Step::Groups, || tried(unsafe { libc::syscall(libc::SYS_setgroups, 0, 0) }));
    // Its owner is the sandbox process' user, who keeps all power over what is in it, also without
    // capabilities.
    let own_ids = s.optional(m, Step::UserNamespace, || unshare(libc::CLONE_NEWUSER));
    if own_ids {
        // Else the files in /proc by which ids are mapped are root's of the host.
        let _ = prctl(libc::PR_SET_DUMPABLE, 1, 0);
        s.futex(CTL_READY).store(WANTS_MAP, Ordering::SeqCst);
        s.wake(CTL_READY);
    }
    let mut nested = true;
    if s.fail_step != 0 || unshare(NAMESPACES.iter().fold(0, |all, n| all | n.1)).is_err() {
        for (step, flag) in NAMESPACES {
            let done = s.optional(m, step, || unshare(flag));
            nested = if step == Step::PidNamespace { done } else { nested };
        }
    }
    let own_mounts = !m.has(Step::MountNamespace);
    s.optional(m, Step::Root, || match (s.root_is_empty, own_mounts) {
        // In a Landlock domain no mount can be made.
        (true, _) => go_to_root(),
        (false, true) => empty_root(),
        (false, false) => Err(libc::EPERM),
    });
    if own_ids {
        s.optional(m, Step::IdMap, || mapped(s));
    }
    s.optional(m, Step::BoundingSet, || {
        for capability in 0..64 {
            match prctl(libc::PR_CAPBSET_DROP, capability, 0) {
                // The last has been dropped.
                Err(libc::EINVAL) => break,
                result => result?,
            }
        }
        Ok(())
    });
    s.optional(m, Step::Securebits, || {
        /// NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE and their locks, KEEP_CAPS' lock: from
        /// linux/securebits.h.
        const ALL_LOCKED: u64 = 0xef;
        prctl(libc::PR_SET_SECUREBITS, ALL_LOCKED, 0)
    });
    s.optional(m, Step::Ids, || {
        let id = STUB_ID;
        // SAFETY: plain numbers.
        unsafe {
            tried(libc::syscall(libc::SYS_setresgid, id, id, id))?;
            tried(libc::syscall(libc::SYS_setresuid, id, id, id))
        }
    });
    s.required(Step::Capabilities, drop_capabilities);
    s.required(Step::NoNewPrivs, || prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0));
    s.required(Step::NoCore, || {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid struct rlimit.
        tried(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) }.into())
    });
    // SAFETY: no arguments.
    s.required(Step::Session, || tried(unsafe { libc::setsid() }.into()));
    s.required(Step::Name, || prctl(libc::PR_SET_NAME, c"quark-zygote".as_ptr() as u64, 0));
    // The zygote's naps are short.
    let _ = prctl(libc::PR_SET_TIMERSLACK, 1, 0);
    s.required(Step::Dumpable, || prctl(libc::PR_SET_DUMPABLE, 1, 0));
    s.required(Step::Descriptors, || descriptors(s));
    s.word(CTL_NESTED).store(u64::from(nested), Ordering::SeqCst);
    if nested {
        // That is what processes see of a parent outside of their namespace. If it ends, so does
        // the namespace's init process.
        s.word(CTL_PARENT).store(0, Ordering::SeqCst);
    }
    s.word(CTL_MISSING).store(missing.0, Ordering::SeqCst);
    // SAFETY: stub code is mapped there; it takes nothing from here but the control page in %r12,
    // and never comes back.
    unsafe { asm!("jmp {entry}", entry = in(reg) s.entry, in("r12") s.control, options(noreturn)) }
}

/// Waits until the sandbox process has written the maps of ids.
fn mapped(s: &Surroundings) -> Tried {
    /// Looks; the sandbox process is busy with nothing else.
    const PATIENCE: u32 = 1000;
    let word = s.futex(CTL_MAPPED);
    let orphaned = || {
        // SAFETY: no arguments.
        let parent = unsafe { libc::getppid() };
        u64::from(parent.unsigned_abs()) != s.word(CTL_PARENT).load(Ordering::SeqCst)
    };
    for _ in 0..PATIENCE {
        if orphaned() {
            // SAFETY: ends this copy without running anything of the sandbox's.
            unsafe { libc::_exit(1) }
        }
        match word.load(Ordering::SeqCst) {
            0 => {}
            1 => return Ok(()),
            _ => return Err(libc::EPERM),
        }
        let wait = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        // SAFETY: the word is mapped.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT,
                0,
                &raw const wait,
                0,
                0,
            )
        };
    }
    Err(libc::ETIMEDOUT)
}

/// An empty read-only file system becomes the root, and everything else goes. pivot_root(2).
fn empty_root() -> Tried {
    const FSCONFIG_SET_STRING: u32 = 1;
    const FSCONFIG_CMD_CREATE: u32 = 6;
    const FLAGS: u64 = libc::MOUNT_ATTR_RDONLY
        | libc::MOUNT_ATTR_NOSUID
        | libc::MOUNT_ATTR_NODEV
        | libc::MOUNT_ATTR_NOEXEC;
    let (root, dot, none) = (c"/".as_ptr(), c".".as_ptr(), std::ptr::null::<libc::c_char>());
    // SAFETY: strings that live as long as this process, and descriptors of its own.
    unsafe {
        tried(
            libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, std::ptr::null()).into(),
        )?;
        let context = libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 1u32);
        tried(context)?;
        for (key, value) in [(c"mode", c"0555"), (c"nr_inodes", c"1"), (c"size", c"4096")] {
            let (key, value) = (key.as_ptr(), value.as_ptr());
            tried(libc::syscall(libc::SYS_fsconfig, context, FSCONFIG_SET_STRING, key, value, 0))?;
        }
        tried(libc::syscall(libc::SYS_fsconfig, context, FSCONFIG_CMD_CREATE, none, none, 0))?;
        let mount = libc::syscall(libc::SYS_fsmount, context, 1u32, FLAGS);
        tried(mount)?;
        let here = libc::MOVE_MOUNT_F_EMPTY_PATH;
        tried(libc::syscall(
            libc::SYS_move_mount,
            mount,
            c"".as_ptr(),
            libc::AT_FDCWD,
            root,
            here,
        ))?;
        tried(libc::fchdir(mount as i32).into())?;
        tried(libc::syscall(libc::SYS_pivot_root, dot, dot))?;
        tried(libc::umount2(dot, libc::MNT_DETACH).into())?;
    }
    go_to_root()
}

fn go_to_root() -> Tried {
    // SAFETY: a string.
    tried(unsafe { libc::chdir(c"/".as_ptr()) }.into())
}

fn drop_capabilities() -> Tried {
    const VERSION_3: u32 = 0x2008_0522;
    // Where it is unknown there are none.
    let _ = prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64, 0);
    let (header, none) = ([VERSION_3, 0], [0u32; 6]);
    // SAFETY: a header and sets of that version.
    tried(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) })
}

/// The socket and guest RAM go to their numbers, everything else is closed.
fn descriptors(s: &Surroundings) -> Tried {
    // SAFETY: descriptors of this process, which has a table of its own.
    unsafe {
        // Out of the way first: one may have the other's number.
        let socket = libc::fcntl(s.socket, libc::F_DUPFD, FD_FILES);
        tried(socket.into())?;
        let ram = libc::fcntl(s.ram, libc::F_DUPFD, FD_FILES);
        tried(ram.into())?;
        tried(libc::dup2(socket, FD_SOCKET).into())?;
        tried(libc::dup2(ram, FD_RAM).into())?;
        tried(libc::syscall(libc::SYS_close_range, FD_RAM + 1, u32::MAX, 0))
    }
}
