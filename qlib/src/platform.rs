//! The platform's operations: the small table through which one kernel image runs on every
//! platform, and the events that come back.
//!
//! On `process` the operations are functions of qvisor, called on the host thread that entered the
//! kernel; on `kvm` they are the image's own ring-0 code. The kernel is entered through
//! [`KernelEntry::dispatch`] with one [`Event`] at a time; it runs every task that became ready and
//! returns. Nothing in here blocks.
//!
//! Who can write to the table can have the sandbox process run what they like. So it lies in the
//! kernel image, in a page of its own ([`KernelEntry`]) that is read-only before the kernel's first
//! instruction, and is no part of guest RAM.

use crate::host::HostCall;
use crate::kvm::KvmInfo;
use crate::{Frames, Gpa, Va};

/// First word of [`BootInfo`]: "QUARKBT1".
pub const BOOT_MAGIC: u64 = 0x3154_424b_5241_5551;
/// Version of everything in this module and in [`crate::host`]. Both sides are built together, so
/// unequal is an error.
pub const ABI_VERSION: u32 = 10;

/// What qvisor tells the kernel at its entry. Lies in guest memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BootInfo {
    /// [`BOOT_MAGIC`].
    pub magic: u64,
    /// [`ABI_VERSION`].
    pub version: u32,
    /// Number of vCPUs the guest shall report.
    pub cpus: u32,
    /// [`PLATFORM_PROCESS`] or [`PLATFORM_KVM`].
    pub platform: u32,
    /// The most detailed level that the sandbox's log keeps, as in [`crate::host::Op::Log`]; 0
    /// none.
    pub log_level: u32,
    /// Kernel virtual address at which guest physical address 0 is mapped; 4 MiB aligned.
    pub phys_base: u64,
    /// Size of RAM in bytes; a multiple of 4 MiB.
    pub ram_bytes: u64,
    /// First 4 MiB-aligned byte that nothing (image, boot information, mailbox) occupies.
    pub free_start: Gpa,
    /// Where the kernel image was loaded (the address that its ELF address 0 has); needed to
    /// relocate it.
    pub image_start: Gpa,
    /// Guest physical buffer through which qvisor hands over the payload of [`EVENT_CONTROL`].
    pub mailbox: Gpa,
    /// Size of the mailbox in bytes.
    pub mailbox_bytes: u64,
    /// Lowest virtual address a user program may map.
    pub user_min: Va,
    /// End (exclusive) of the virtual addresses a user program may map.
    pub user_max: Va,
    /// Virtual address of the vDSO image in every user address space (AT_SYSINFO_EHDR), or 0. On
    /// [`PLATFORM_KVM`] the kernel has one of its own.
    pub vdso: Va,
    /// Bytes of that image, in whole pages; 0 where the kernel has no copy of it.
    pub vdso_bytes: u64,
    /// Where the copy lies: it is what the kernel reads in the place of the image, which is the
    /// platform's and not in guest memory.
    pub vdso_copy: Gpa,
    /// AT_HWCAP of the host CPU.
    pub hwcap: u64,
    /// AT_HWCAP2 of the host CPU.
    pub hwcap2: u64,
    /// Where a patched call site of a user program jumps to, with the system call's number in %rax
    /// and the address of its system-call instruction in %r11; 0: call sites are not to be patched.
    /// See [`may_be_fast`].
    pub fast_entry: Va,
    /// How often a call site must have been used before it is patched.
    pub fast_after: u32,
    /// Bytes of the XSAVE area a signal frame must hold ([`PlatformOps::fpstate_read`] never gives
    /// more).
    pub fpstate_bytes: u64,
    /// Not 0: freed frames are filled with bytes that no program expects. For tests.
    pub poison_frames: u32,
    /// What one user process (an address space, [`PlatformOps::space_new`]) costs the host besides
    /// guest RAM, in bytes, its first thread and the host kernel's memory included; counted in the
    /// container's cgroup. The kernel charges it to the container's memory limit. 0 where it costs
    /// nothing.
    pub host_bytes_per_process: u64,
    /// The same for each further user thread.
    pub host_bytes_per_thread: u64,
    /// User processes (address spaces) that the platform makes at once at most; beyond,
    /// [`PlatformOps::space_new`] gives EAGAIN. It follows from the container's memory limit.
    /// `u32::MAX` for no limit.
    pub max_processes: u32,
    /// User threads of all processes together that it makes at most; beyond,
    /// [`PlatformOps::thread_new`] gives EAGAIN. `u32::MAX` for no limit.
    pub max_threads: u32,
    /// Processes and threads together that the host has room for, roughly, by limits that the guest
    /// does not know (tasks of a cgroup, descriptors). `u32::MAX` for no limit.
    pub max_tasks: u32,
    /// Seed of the kernel's random generator, from the host's getrandom(2).
    pub seed: [u8; 32],
    /// What ring 0 needs to know; zeros on `process`.
    pub kvm: KvmInfo,
}

/// User code runs in stub processes of the host, the kernel in qvisor.
pub const PLATFORM_PROCESS: u32 = 0;
/// User code runs in ring 3 of a virtual machine, the kernel in ring 0. The hardware walks the page
/// tables.
pub const PLATFORM_KVM: u32 = 1;

/// The operations. All are `unsafe extern "C"` as they cross images; the kernel wraps them in safe
/// functions in its `arch` room, and nobody else calls them. `handle` values are chosen by the
/// platform and never reused while live.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlatformOps {
    /// The host's clock `clockid` (CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME) in nanoseconds.
    pub now: unsafe extern "C" fn(clockid: u32) -> u64,
    /// Arms the one timer: an [`EVENT_TIMER`] comes at `deadline_ns` of CLOCK_MONOTONIC; `u64::MAX`
    /// disarms.
    pub set_timer: unsafe extern "C" fn(deadline_ns: u64),
    /// A call to the outside: fills in `ret` (and out-arguments). Never blocks except for disk
    /// I/O.
    pub host_call: unsafe extern "C" fn(call: *mut HostCall),
    /// Makes an empty user address space; its handle, or a negative errno. Not 0, it is `urgent`:
    /// it comes before others that are on their way.
    pub space_new: unsafe extern "C" fn(urgent: u32) -> i64,
    /// Ends an address space with every thread in it. When no user code can run in it any more and
    /// none of its mappings exists, an [`EVENT_SPACE_GONE`] comes: only then may its frames be used
    /// again.
    pub space_drop: unsafe extern "C" fn(space: u64),
    /// Which of the `pages` pages from `va` on (whole pages, at most [`MAX_TOUCHED_PAGES`]) user
    /// code of `space` may have touched since each was mapped there: sets their bits in `bitmap`
    /// (least significant first, whole words), clears the others. A bit may be set for a neighbour
    /// of what was touched. 0, or a negative errno when the platform cannot tell.
    pub space_touched:
        unsafe extern "C" fn(space: u64, va: Va, pages: u64, bitmap: *mut u64) -> i64,
    /// CPU time that the host has given to what ran in `space` since it was made, in ns: the
    /// platform's own work in it included, and no time in which it was ready and had no CPU.
    /// -ENOSYS on a platform that cannot tell, -ESRCH when it is not known any more.
    pub space_time: unsafe extern "C" fn(space: u64) -> i64,
    /// Makes a user thread in `space`; its handle, or a negative errno. `token` comes back in its
    /// traps. The thread is in the stopped state ([`RESUME_REGS`] may be given at once). `creator`
    /// is the handle of a thread of the same space that is stopped (or 0 for the first thread): the
    /// platform may let that thread do the work on its next resume.
    pub thread_new: unsafe extern "C" fn(space: u64, creator: u64, token: u64) -> i64,
    /// Forgets a thread. Its user code never runs again. It must be stopped, dead, or have been
    /// resumed with [`RESUME_EXIT`].
    pub thread_drop: unsafe extern "C" fn(thread: u64),
    /// Lets a trapped thread go on as `resume` says, its operations first. The next trap comes as
    /// an [`EVENT_TRAP`].
    pub thread_resume: unsafe extern "C" fn(thread: u64, resume: *const Resume),
    /// Asks for a thread to be brought into the stopped state: a [`TRAP_STOPPED`] with all
    /// registers comes. If it is in user mode it is interrupted; if it waits in a system call the
    /// call stays unanswered (its result is given later with [`RESUME_RETURN`]); if it is on its
    /// way into a trap of its own, that trap comes instead and the request is void. Harmless on a
    /// thread that is already stopped: nothing comes.
    pub thread_stop: unsafe extern "C" fn(thread: u64),
    /// Asks (`on` not 0) for a [`TRAP_PREEMPTED`] before user code of the thread runs on another
    /// CPU than the kernel was last told of, or after the thread was interrupted in user mode and
    /// its CPU has been given to others. A thread in its system call is told of the CPU that serves
    /// it; everywhere else the first trap comes before any user code runs. 0, or -ENOSYS on a
    /// platform that does not know which CPU user code runs on.
    pub thread_watch: unsafe extern "C" fn(thread: u64, on: u32) -> i64,
    /// Has a thread run on the CPUs of a set only, a bit each, of which one at least exists; all
    /// set: anywhere. 0, or -ENOSYS on a platform that does not decide where user code runs.
    pub thread_bind: unsafe extern "C" fn(thread: u64, cpus: u64) -> i64,
    /// Nobody watches the thread's calls: the platform may have it answer gettid(2) itself with
    /// `tid`, getpid(2) with `pid`, and sched_yield(2). Both 0: the kernel is to see them again,
    /// from now on.
    pub thread_answers: unsafe extern "C" fn(thread: u64, tid: u32, pid: u32),
    /// Copies the floating-point and vector state of a stopped thread to `buf`; its length, or a
    /// negative errno. The format is the one of a Linux signal frame's `fpstate` (XSAVE with the
    /// software-reserved words).
    pub fpstate_read: unsafe extern "C" fn(thread: u64, buf: *mut u8, capacity: u64) -> i64,
    /// Sets that state; `len` 0 resets it to the state of a new program. 0, or a negative errno
    /// when it is not valid.
    pub fpstate_write: unsafe extern "C" fn(thread: u64, buf: *const u8, len: u64) -> i64,
    /// memcpy that survives a page that the host cannot supply (a file window past its file's end):
    /// how many bytes at the end could not be copied.
    pub copy: unsafe extern "C" fn(dst: *mut u8, src: *const u8, len: u64) -> u64,
    /// Gives the memory of frames of RAM back to the host; they read as zeros afterwards. 0, or a
    /// negative errno.
    pub release: unsafe extern "C" fn(frames: *const Frames, count: u64) -> i64,
    /// Tells that the 4 MiB block of RAM that begins at `block` holds frames of user memory from
    /// now on (`is_user` not 0), or does so no more. Where the platform follows page tables by
    /// operations, it maps no other RAM for user code, and never a block's first page, which is the
    /// allocator's. 0, or a negative errno when the block is none, or is that already.
    pub user_block: unsafe extern "C" fn(block: Gpa, is_user: u32) -> i64,
    /// Waits until `*word` may differ from `expected` (a futex wait; may wake for no reason).
    pub lock_wait: unsafe extern "C" fn(word: *const u32, expected: u32),
    /// Wakes one waiter of `word`.
    pub lock_wake: unsafe extern "C" fn(word: *const u32),
    /// Ends the sandbox because the kernel found a bug in itself. `message` is UTF-8.
    pub panic: unsafe extern "C" fn(message: *const u8, len: u64) -> !,
}

/// The most that [`PlatformOps::space_touched`] is asked for at once: what one leaf table maps.
pub const MAX_TOUCHED_PAGES: u64 = 512;

/// The way into the kernel image, and out of it: a page of the image, which an ELF note names
/// ([`NOTE_NAME`]). qvisor reads from it, and fills in the operations, before any code of the image
/// runs; then nobody can write to it. The ELF entry point is `extern "C" fn(*const BootInfo, cpu:
/// u32)`.
#[repr(C, align(4096))]
#[derive(Clone, Copy, Debug)]
pub struct KernelEntry {
    /// [`ABI_VERSION`].
    pub version: u32,
    /// Takes one event, runs all tasks that are ready, arms the timer, returns. Callable from
    /// several host threads at once; the kernel serializes itself.
    pub dispatch: unsafe extern "C" fn(event: *const Event),
    /// The operations: in the image those of ring 0, for [`PLATFORM_KVM`]. On [`PLATFORM_PROCESS`]
    /// qvisor puts its own in their place.
    pub ops: PlatformOps,
}

/// Name of the ELF note whose descriptor is the distance from itself to the image's
/// [`KernelEntry`]: 32 bits, signed.
pub const NOTE_NAME: &[u8] = b"quark";
/// Type of that note.
pub const NOTE_TYPE: u32 = 1;

/// A user thread trapped: see [`Event::trap`].
pub const EVENT_TRAP: u32 = 1;
/// A watched host object became ready: `a` = token, `b` = EPOLL* mask; or `a` = [`ANY_TOKEN`].
pub const EVENT_READY: u32 = 2;
/// Some watched object became ready: [`crate::host::Op::TakeReady`] tells which, and how.
pub const ANY_TOKEN: u64 = 0;
/// The timer's deadline has passed.
pub const EVENT_TIMER: u32 = 3;
/// A control request lies in the mailbox: `a` = request id, `b` = length in bytes (postcard of
/// [`crate::control::Request`]). It stays there until the kernel says with
/// [`crate::host::Op::MailboxTaken`] that it has a copy.
pub const EVENT_CONTROL: u32 = 4;
/// An address space is gone: `a` = its handle.
pub const EVENT_SPACE_GONE: u32 = 5;
/// The host is short of memory: see [`crate::host::Op::PressureWatch`].
pub const EVENT_PRESSURE: u32 = 6;

/// What happened. One at a time, by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    /// EVENT_*.
    pub kind: u32,
    /// First argument, by kind.
    pub a: u64,
    /// Second argument, by kind.
    pub b: u64,
    /// For [`EVENT_TRAP`].
    pub trap: Trap,
}

/// A system call. `nr`, `args`, `ip` are valid; registers are where `in_syscall` is 1 (else a
/// [`PlatformOps::thread_stop`] brings them).
pub const TRAP_SYSCALL: u32 = 1;
/// A page fault: `addr`, `code` (the x86 error code: 1 present, 2 write, 4 user, 16 instruction
/// fetch), `regs`.
pub const TRAP_FAULT: u32 = 2;
/// Another exception: `signo` and `si_code` as Linux would send them, `addr`, `regs`.
pub const TRAP_EXCEPTION: u32 = 3;
/// The thread was stopped on request: `regs`. If it waits in a system call, `regs.rax` is
/// unspecified until [`RESUME_RETURN`] sets it, and `in_syscall` is 1.
pub const TRAP_STOPPED: u32 = 4;
/// The operations of a [`RESUME_HOLD`] have been carried out. The thread is still stopped.
pub const TRAP_SYNCED: u32 = 5;
/// The thread died without being told to (its host task was killed): it never runs again.
pub const TRAP_DEAD: u32 = 6;
/// The thread has done nothing itself, and is to go on on the CPU with number `cpu` now: see
/// [`PlatformOps::thread_watch`]. `regs`. No system call is unanswered.
pub const TRAP_PREEMPTED: u32 = 7;

/// Why a user thread left user mode.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Trap {
    /// TRAP_*.
    pub kind: u32,
    /// For [`TRAP_EXCEPTION`].
    pub signo: i32,
    /// For [`TRAP_EXCEPTION`].
    pub si_code: i32,
    /// For [`TRAP_STOPPED`]: 1 if a system call is still unanswered. For [`TRAP_SYSCALL`]: 1 if the
    /// thread is in the stopped state with that: `regs` are its registers, %rax unspecified.
    pub in_syscall: u32,
    /// For [`TRAP_SYSCALL`]: 1 if the program says so in memory that it shares with the platform,
    /// and may be lying: that the thread has carried out its operations, and runs no user code, is
    /// not known.
    pub unproven: u32,
    /// For [`TRAP_PREEMPTED`].
    pub cpu: u32,
    /// The token given to `thread_new`.
    pub token: u64,
    /// How many times [`PlatformOps::thread_resume`] had been called for this thread when it
    /// trapped. A [`TRAP_STOPPED`] that was on its way while another vCPU answered the thread's
    /// system call has a smaller count than the kernel's own: the thread runs again, and the trap
    /// is void.
    pub resumes: u64,
    /// For [`TRAP_SYSCALL`]: the number as in %rax.
    pub nr: u64,
    /// For [`TRAP_SYSCALL`].
    pub args: [u64; 6],
    /// For [`TRAP_SYSCALL`]: the address after the system-call instruction.
    pub ip: u64,
    /// For [`TRAP_FAULT`]: the address that was touched.
    pub addr: u64,
    /// For [`TRAP_FAULT`]: the x86 page-fault error code.
    pub code: u64,
    /// For all but [`TRAP_DEAD`], and [`TRAP_SYSCALL`] where `in_syscall` is 0.
    pub regs: UserRegs,
}

/// General registers of a user thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct UserRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rip: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub fs_base: u64,
    pub gs_base: u64,
}

/// Answers a system call with `value`; all other registers stay. Valid after TRAP_SYSCALL, also
/// when a TRAP_STOPPED or TRAP_SYNCED came in between.
pub const RESUME_RETURN: u32 = 1;
/// Sets all registers from `regs` and goes on. Valid only in the stopped state (after any trap but
/// TRAP_SYSCALL, or for a new thread).
pub const RESUME_REGS: u32 = 2;
/// Goes on with the registers as they are (after a fault that was mended). Valid only in the
/// stopped state.
pub const RESUME_GO: u32 = 3;
/// Carries out the operations, then stays stopped and traps with TRAP_SYNCED. After TRAP_SYSCALL
/// the call stays unanswered.
pub const RESUME_HOLD: u32 = 4;
/// The thread ends (its host task exits). No further trap comes.
pub const RESUME_EXIT: u32 = 5;

/// True if a patched call site may hand over system call `nr` of x86-64 without a trap. Not those
/// that need the thread's registers, end it, or change its mappings: for these the thread must be
/// stopped anyway.
pub const fn may_be_fast(nr: u64) -> bool {
    // mmap mprotect munmap brk rt_sigreturn mremap madvise clone fork vfork execve exit arch_prctl
    // exit_group remap_file_pages execveat pkey_mprotect rseq clone3
    !matches!(nr, 9..=12 | 15 | 25 | 28 | 56..=60 | 158 | 216 | 231 | 322 | 329 | 334 | 435)
        && nr < 512
}

/// [`may_be_fast`] as a bitmap of `WORDS` words.
pub const fn fast_calls<const WORDS: usize>() -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut nr = 0;
    while nr < 64 * WORDS as u64 {
        if may_be_fast(nr) {
            words[(nr / 64) as usize] |= 1 << (nr % 64);
        }
        nr += 1;
    }
    words
}

/// How a trapped thread goes on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Resume {
    /// RESUME_*.
    pub kind: u32,
    /// Entries at `ops`.
    pub op_count: u32,
    /// For [`RESUME_RETURN`]: the value for %rax.
    pub value: i64,
    /// Changes of the address space to carry out first, in order. The platform copies them before
    /// it returns.
    pub ops: *const DeferredOp,
    /// The root of the address space's page table, for hardware that walks it.
    pub root: Gpa,
    /// For [`RESUME_REGS`].
    pub regs: UserRegs,
}

/// Map `[va, va+len)` to the contiguous `[gpa, gpa+len)` with protection `prot`, replacing what is
/// there.
pub const OP_MAP: u32 = 1;
/// Remove every mapping in `[va, va+len)`.
pub const OP_UNMAP: u32 = 2;
/// Change the protection of what is mapped in `[va, va+len)`, which has no hole and one protection.
pub const OP_PROTECT: u32 = 3;
/// Set the FS base of the thread that carries it out to `va`.
pub const OP_SET_FS: u32 = 4;
/// Set the GS base of the thread that carries it out to `va`.
pub const OP_SET_GS: u32 = 5;
/// Have the host call the thread that carries it out by a name ([`DeferredOp::name`]), if the host
/// has a thread for it. Given only while it is the one thread of its address space.
pub const OP_SET_NAME: u32 = 6;
/// Bytes of a thread's name, the zero at its end included (TASK_COMM_LEN of Linux).
pub const THREAD_NAME_BYTES: usize = 16;

/// One change of a user address space (or of the thread's segment bases), so that what the CPU sees
/// equals the page table. Page aligned.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeferredOp {
    /// OP_*.
    pub kind: u32,
    /// PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4.
    pub prot: u32,
    /// Where.
    pub va: Va,
    /// Bytes.
    pub len: u64,
    /// For [`OP_MAP`].
    pub gpa: Gpa,
}

impl DeferredOp {
    /// [`OP_SET_NAME`] with what of `name` has room.
    pub fn set_name(name: &[u8]) -> Self {
        let mut bytes = [0; THREAD_NAME_BYTES];
        let len = name.len().min(THREAD_NAME_BYTES - 1);
        bytes[..len].copy_from_slice(&name[..len]);
        let words = u128::from_le_bytes(bytes);
        Self {
            kind: OP_SET_NAME,
            va: Va(words as u64),
            len: (words >> 64) as u64,
            ..Self::default()
        }
    }

    /// The name in an [`OP_SET_NAME`], zeros after it.
    pub fn name(&self) -> [u8; THREAD_NAME_BYTES] {
        (u128::from(self.len) << 64 | u128::from(self.va.0)).to_le_bytes()
    }
}
