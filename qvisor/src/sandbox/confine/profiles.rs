//! Which host calls the threads of a sandbox process may make, and why: the filters,
//! `doc/security.md` and its test are made from this table.
//!
//! What a guest kernel can ask for is narrower still: the checks of `sandbox/hostcall` come before.
//! This is for the day on which one of them fails.

use libc::{SYS_ioctl, c_long};

use crate::sys::IOCTLS;

/// A condition on an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// Argument .0, as 64 bits, is .1.
    Is(u8, u64),
    /// The low 32 bits of argument .0 are .1.
    Int(u8, u32),
    /// The low 32 bits of argument .0 are not .1.
    Not(u8, u32),
    /// Of the low 32 bits of argument .0, those in .1 are .2.
    Bits(u8, u32, u32),
}

/// Kinds of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// All threads on the process platform: the guest kernel runs on each.
    Process,
    /// The event loop on the kvm platform.
    Loop,
    /// vCPUs, which serve the host calls of the guest kernel.
    Vcpu,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 3] = [Profile::Process, Profile::Loop, Profile::Vcpu];

    /// For documents.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Process => "process",
            Profile::Loop => "loop",
            Profile::Vcpu => "vcpu",
        }
    }
}

/// A host call that is allowed.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its number.
    pub number: c_long,
    /// Its name.
    pub name: &'static str,
    /// Who may make it.
    pub who: &'static [Profile],
    /// It is allowed if all conditions of one of these hold, or if there are none.
    pub when: Vec<Vec<Arg>>,
    /// The same in words; empty without conditions.
    pub only: &'static str,
    /// What it is for.
    pub why: &'static str,
}

use Arg::{Bits, Int, Is, Not};

const ALL: &[Profile] = &Profile::ALL;
/// Threads that serve the guest kernel's host calls; the event loop on kvm, too, which takes in
/// mounts and streams by the same code.
const KERNEL: &[Profile] = ALL;
/// Threads that look after stubs.
const STUBS: &[Profile] = &[Profile::Process];
/// Threads on the kvm platform, each of which gets a filter of its own below that of the process.
const KVM: &[Profile] = &[Profile::Loop, Profile::Vcpu];
/// Event loops.
const LOOPS: &[Profile] = &[Profile::Process, Profile::Loop];

/// What pthread_create(3) asks clone(2) for.
const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;

/// A signal of glibc's own, for which it puts a handler in place with the first thread.
const SIGSETXID: i32 = 33;

macro_rules! call {
    ($name:ident, $who:expr, $why:literal) => {
        call!($name, $who, "", [[]; 0], $why)
    };
    ($name:ident, $who:expr, $only:literal, $when:expr, $why:literal) => {
        Call {
            number: libc::$name,
            name: stringify!($name).strip_prefix("SYS_").unwrap_or(stringify!($name)),
            who: $who,
            when: $when.into_iter().map(Vec::from).collect(),
            only: $only,
            why: $why,
        }
    };
}

/// The table.
pub fn calls() -> Vec<Call> {
    let executable = libc::PROT_EXEC as u32;
    let mut calls = vec![
        // Memory of the process itself.
        call!(SYS_brk, ALL, "the allocator"),
        call!(
            SYS_mmap,
            ALL,
            "no PROT_EXEC",
            [vec![Bits(2, executable, 0)]],
            "the allocator, stacks, guest memory, file windows"
        ),
        call!(
            SYS_mprotect,
            ALL,
            "no PROT_EXEC",
            [vec![Bits(2, executable, 0)]],
            "the allocator, guard pages of stacks"
        ),
        call!(SYS_munmap, ALL, "the allocator, stacks, areas of stubs"),
        call!(SYS_mremap, ALL, "realloc(3) of large blocks"),
        call!(
            SYS_madvise,
            ALL,
            "stacks: of threads that end, of the first at each sleep; huge pages behind a working \
            set that comes back, and behind memory that programs touch in long rows"
        ),
        call!(
            SYS_memfd_create,
            STUBS,
            "not executable",
            [vec![Int(1, 11)], vec![Int(1, 3)]],
            "the area of a new stub's threads"
        ),
        // Threads, time, locks.
        call!(
            SYS_clone,
            KERNEL,
            "a thread of this process, as pthread_create(3) makes it",
            [vec![Is(0, THREAD)]],
            "receivers of stubs, the watch over kicks; vCPUs; waits for the host's disk"
        ),
        call!(SYS_exit, ALL, "threads that end"),
        call!(SYS_exit_group, ALL, "the end of the sandbox"),
        call!(SYS_set_robust_list, ALL, "start of a thread (glibc)"),
        call!(SYS_rseq, ALL, "start of a thread (glibc)"),
        call!(SYS_sigaltstack, ALL, "start and end of a thread (Rust's runtime)"),
        call!(SYS_rt_sigprocmask, ALL, "start and end of a thread, abort(3)"),
        call!(
            SYS_rt_sigaction,
            ALL,
            "SIGSEGV, SIGBUS, SIGABRT, 33",
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, SIGSETXID]
                .map(|signal| vec![Int(0, signal as u32)]),
            "the default action for a fault that has no fixup; the first thread (glibc)"
        ),
        call!(SYS_rt_sigreturn, ALL, "return from the handler of faults in guest memory"),
        call!(
            SYS_restart_syscall,
            ALL,
            "a wait that stopping and continuing the process interrupted"
        ),
        call!(
            SYS_prctl,
            STUBS,
            "PR_SET_NAME",
            [vec![Int(0, libc::PR_SET_NAME as u32)]],
            "start of a thread"
        ),
        call!(
            SYS_prctl,
            KVM,
            "PR_SET_NAME, PR_SET_NO_NEW_PRIVS",
            [
                vec![Int(0, libc::PR_SET_NAME as u32)],
                vec![Int(0, libc::PR_SET_NO_NEW_PRIVS as u32), Int(1, 1)]
            ],
            "start of a thread, before its narrower filter"
        ),
        call!(
            SYS_seccomp,
            KVM,
            "SECCOMP_SET_MODE_FILTER without flags",
            [vec![Int(0, libc::SECCOMP_SET_MODE_FILTER), Int(1, 0)]],
            "a thread's narrower filter, below the one it has"
        ),
        call!(SYS_sched_getaffinity, ALL, "start of a thread; which processors a stub may share"),
        call!(
            SYS_sched_setaffinity,
            STUBS,
            "a stub and its receiver kept together or apart, and their threads not"
        ),
        call!(SYS_sched_yield, ALL, "spinning for what comes within microseconds"),
        call!(
            SYS_futex,
            ALL,
            "FUTEX_WAIT, FUTEX_WAKE, FUTEX_WAIT_BITSET",
            [vec![Bits(1, !0x180, 1)], vec![Bits(1, !0x180, 0)], vec![Bits(1, !0x180, 9)]],
            "every lock"
        ),
        call!(SYS_clock_gettime, ALL, "clocks, where the vDSO has to ask"),
        call!(SYS_clock_nanosleep, STUBS, "the watch over kicks; waiting for a stub to begin"),
        call!(SYS_timerfd_settime, KERNEL, "the guest kernel's timer"),
        call!(SYS_getrandom, ALL, "random bytes for guests; hash tables"),
        call!(
            SYS_getpid,
            ALL,
            "abort(3); whether this is the first thread, whose stack is given back at a sleep"
        ),
        call!(SYS_gettid, ALL, "abort(3); as getpid"),
        // Stubs.
        call!(
            SYS_kill,
            STUBS,
            "SIGKILL to one process",
            [vec![Int(1, libc::SIGKILL as u32), Bits(0, 1 << 31, 0)]],
            "the end of a stub"
        ),
        call!(
            SYS_tgkill,
            ALL,
            "SIGURG, SIGABRT",
            [vec![Int(2, libc::SIGURG as u32)], vec![Int(2, libc::SIGABRT as u32)]],
            "a kick that brings a stub's thread out of user code, or a thread out of a stream that blocks; abort(3)"
        ),
        call!(SYS_waitid, STUBS, "a stub that has ended, and whether one has"),
        call!(
            SYS_pidfd_open,
            STUBS,
            "no flags",
            [vec![Is(1, 0)]],
            "the end of a stub, where a receive does not end with it (before Linux 6.11)"
        ),
        // Waiting for what is outside.
        call!(SYS_epoll_pwait, LOOPS, "the event loop"),
        call!(SYS_epoll_ctl, ALL, "what the event loop watches"),
        call!(
            SYS_ppoll,
            ALL,
            "what a stream is ready for; whether a stub is gone; a receiver that finds nothing in \
             slots; a wake that waits for a place"
        ),
        call!(SYS_read, ALL, "the event loop's own wake-up; files of /proc"),
        call!(SYS_write, ALL, "the log, the event loop's own wake-up"),
        // The control socket.
        call!(SYS_accept4, ALL, "control connections; connections to guests"),
        call!(SYS_recvmsg, ALL, "control requests; data for guests"),
        call!(SYS_recvfrom, ALL, "whether a control connection is still there"),
        call!(SYS_sendmsg, ALL, "answers to control requests; data from guests"),
        call!(SYS_shutdown, ALL, "control connections that do not read; sockets of guests"),
        call!(SYS_close, ALL, "every descriptor"),
        call!(
            SYS_fcntl,
            ALL,
            "F_GETFD, F_GETFL, F_SETFL, F_OFD_SETLK, F_OFD_GETLK",
            [
                vec![Int(1, libc::F_GETFL as u32)],
                vec![Int(1, libc::F_SETFL as u32)],
                vec![Int(1, libc::F_GETFD as u32)],
                vec![Int(1, libc::F_OFD_SETLK as u32)],
                vec![Int(1, libc::F_OFD_GETLK as u32)]
            ],
            "the mode of standard streams; locks of files in volumes; places of wakes and the line of sleeps"
        ),
        // Sockets of guests.
        call!(SYS_bind, KERNEL, "sockets"),
        call!(SYS_connect, KERNEL, "sockets"),
        call!(SYS_listen, KERNEL, "sockets"),
        call!(SYS_getsockname, KERNEL, "sockets"),
        call!(SYS_getpeername, KERNEL, "sockets"),
        call!(SYS_getsockopt, ALL, "sockets; who connects to the control socket"),
        call!(SYS_sendto, KERNEL, "questions to rtnetlink and sock_diag"),
        // Files of guests.
        call!(
            SYS_openat,
            ALL,
            "single names below a directory; descriptors anew by /proc; /proc of stubs"
        ),
        call!(SYS_openat2, KERNEL, "files beneath the directories of mounts"),
        call!(SYS_preadv2, KERNEL, "files, streams, the store"),
        call!(SYS_pwritev2, KERNEL, "files, streams, the store"),
        call!(
            SYS_pread64,
            ALL,
            "the store; what is to be cached of files; which pages a stub has mapped; statistics of KVM"
        ),
        call!(
            SYS_lseek,
            KERNEL,
            "directories; which memory is committed; files given as standard streams"
        ),
        call!(SYS_getdents64, KERNEL, "directories"),
        call!(SYS_fstat, ALL, "files, streams"),
        call!(SYS_newfstatat, ALL, "files"),
        call!(SYS_statx, KERNEL, "files"),
        call!(SYS_fstatfs, ALL, "file systems; whether a mount opens devices"),
        call!(SYS_ftruncate, KERNEL, "files, the store, areas of stubs"),
        call!(SYS_fallocate, KERNEL, "files; memory that goes back to the host"),
        call!(SYS_fsync, KERNEL, "files"),
        call!(SYS_fdatasync, KERNEL, "files; the store, where sync_file_range(2) is not known"),
        call!(SYS_syncfs, KERNEL, "file systems"),
        call!(SYS_sync_file_range, KERNEL, "files; the store"),
        call!(SYS_flock, KERNEL, "locks of files in volumes"),
        call!(SYS_readlinkat, KERNEL, "files"),
        call!(SYS_mkdirat, KERNEL, "files"),
        call!(
            SYS_mknodat,
            KERNEL,
            "regular files, FIFOs, sockets",
            [libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK].map(|kind| vec![Bits(
                2,
                libc::S_IFMT,
                kind
            )]),
            "files"
        ),
        call!(SYS_symlinkat, KERNEL, "files"),
        call!(
            SYS_linkat,
            KERNEL,
            "no flags, AT_SYMLINK_FOLLOW",
            [vec![Int(4, 0)], vec![Int(4, libc::AT_SYMLINK_FOLLOW as u32)]],
            "files; by /proc those that have no name yet"
        ),
        call!(
            SYS_renameat2,
            KERNEL,
            "no RENAME_WHITEOUT",
            [vec![Bits(4, libc::RENAME_WHITEOUT, 0)]],
            "files"
        ),
        call!(SYS_unlinkat, KERNEL, "files"),
        call!(SYS_fchmod, KERNEL, "files"),
        call!(SYS_fchmodat, KERNEL, "files"),
        call!(SYS_fchmodat2, KERNEL, "files"),
        call!(SYS_fchownat, KERNEL, "files"),
        call!(SYS_utimensat, KERNEL, "files"),
        call!(SYS_fgetxattr, KERNEL, "files"),
        call!(SYS_fsetxattr, KERNEL, "files"),
        call!(SYS_flistxattr, KERNEL, "files"),
        call!(SYS_fremovexattr, KERNEL, "files"),
    ];
    calls.push(Call {
        number: libc::SYS_socket,
        name: "socket",
        who: KERNEL,
        when: sockets(),
        only: "TCP, UDP, UDP-Lite, ICMP, rtnetlink, sock_diag and, with `--host-uds`, AF_UNIX, close-on-exec and not blocking",
        why: "sockets",
    });
    calls.push(Call {
        number: libc::SYS_setsockopt,
        name: "setsockopt",
        who: KERNEL,
        when: socket_options(),
        only: "levels SOL_SOCKET (no filter program), IP, IPv6, TCP (no TCP_ULP, TCP_REPAIR), \
            UDP, UDP-Lite, ICMPv6, RAW, NETLINK",
        why: "sockets",
    });
    calls.push(ioctl(STUBS, STUB_IOCTLS, "the listeners of stubs, terminals and sockets"));
    calls.push(ioctl(&[Profile::Loop], LOOP_IOCTLS, "interrupts of vCPUs, new streams"));
    calls.push(ioctl(&[Profile::Vcpu], VCPU_IOCTLS, "the virtual machine, terminals and sockets"));
    calls.sort_by_key(|c| (c.number, c.who[0] as u8));
    calls
}

/// The table without what tells of the end of stubs where their listeners do.
pub fn without_end_of_stubs(mut calls: Vec<Call>) -> Vec<Call> {
    calls.retain(|call| call.number != libc::SYS_pidfd_open);
    calls
}

/// The table without what makes AF_UNIX sockets, for containers that reach none.
pub fn without_unix(mut calls: Vec<Call>) -> Vec<Call> {
    let unix = Int(0, libc::AF_UNIX as u32);
    for call in calls.iter_mut().filter(|call| call.number == libc::SYS_socket) {
        call.when.retain(|all| !all.contains(&unix));
    }
    calls
}

/// Kinds of sockets: see `hostcall/socket.rs`.
fn sockets() -> Vec<Vec<Arg>> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let one = |domain: i32, kind: i32, protocol: i32| {
        vec![Int(0, domain as u32), Int(1, (kind | flags) as u32), Int(2, protocol as u32)]
    };
    let mut all = Vec::new();
    for (domain, icmp) in
        [(libc::AF_INET, libc::IPPROTO_ICMP), (libc::AF_INET6, libc::IPPROTO_ICMPV6)]
    {
        for (kind, protocols) in [
            (libc::SOCK_STREAM, &[0, libc::IPPROTO_TCP][..]),
            (libc::SOCK_DGRAM, &[0, libc::IPPROTO_UDP, libc::IPPROTO_UDPLITE, icmp]),
            (libc::SOCK_RAW, &[icmp]),
        ] {
            all.extend(protocols.iter().map(|protocol| one(domain, kind, *protocol)));
        }
    }
    all.extend(
        [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET]
            .map(|kind| one(libc::AF_UNIX, kind, 0)),
    );
    for protocol in [libc::NETLINK_ROUTE, libc::NETLINK_SOCK_DIAG] {
        all.extend(
            [libc::SOCK_DGRAM, libc::SOCK_RAW].map(|kind| one(libc::AF_NETLINK, kind, protocol)),
        );
    }
    all
}

/// Levels of options, less those options that hand the kernel programs or change who speaks: see
/// `hostcall/socket.rs`.
fn socket_options() -> Vec<Vec<Arg>> {
    let level = |level: i32, but: &[i32]| {
        let mut all = vec![Int(1, level as u32)];
        all.extend(but.iter().map(|name| Not(2, *name as u32)));
        all
    };
    let programs = [
        libc::SO_ATTACH_FILTER,
        libc::SO_ATTACH_BPF,
        libc::SO_ATTACH_REUSEPORT_CBPF,
        libc::SO_ATTACH_REUSEPORT_EBPF,
    ];
    vec![
        level(libc::SOL_SOCKET, &programs),
        level(libc::IPPROTO_TCP, &[libc::TCP_ULP, libc::TCP_REPAIR]),
        // From IPT_BASE_CTL on they are iptables'.
        vec![Int(1, libc::IPPROTO_IP as u32), Bits(2, !0x3f, 0)],
        level(libc::IPPROTO_IPV6, &[64]),
        level(libc::IPPROTO_UDP, &[]),
        level(libc::IPPROTO_UDPLITE, &[]),
        level(libc::IPPROTO_ICMPV6, &[]),
        level(libc::IPPROTO_RAW, &[]),
        level(libc::SOL_NETLINK, &[]),
    ]
}

/// SECCOMP_IOCTL_NOTIF_SEND, _RECV, _SET_FLAGS, _ADDFD.
const STUB_IOCTLS: &[u32] = &[0xc018_2101, 0xc050_2100, 0x4008_2104, 0x4018_2103];
/// TCGETS, by which isatty(3) asks, and KVM_SIGNAL_MSI.
const LOOP_IOCTLS: &[u32] = &[libc::TCGETS as u32, 0x4020_aea5];
/// KVM_RUN, what comes with an exit that has no answer, and what makes the next vCPU or memory
/// slot.
const VCPU_IOCTLS: &[u32] = &[
    0xae80,      // KVM_RUN
    0x4020_aea5, // KVM_SIGNAL_MSI
    0x4020_ae46, // KVM_SET_USER_MEMORY_REGION
    0xae41,      // KVM_CREATE_VCPU
    0x4008_ae90, // KVM_SET_CPUID2
    0xaea3,      // KVM_GET_TSC_KHZ
    0xaece,      // KVM_GET_STATS_FD
    0x8138_ae83, // KVM_GET_SREGS
    0x4138_ae84, // KVM_SET_SREGS
    0x8090_ae81, // KVM_GET_REGS
    0x4090_ae82, // KVM_SET_REGS
    0x4004_ae99, // KVM_SET_MP_STATE
    0x8040_ae9f, // KVM_GET_VCPU_EVENTS
    0x4040_aea0, // KVM_SET_VCPU_EVENTS
];

/// ioctl(2) with `own` commands, which come first as they are the frequent ones, and those of
/// terminals and sockets.
fn ioctl(who: &'static [Profile], own: &[u32], why: &'static str) -> Call {
    let mut commands = own.to_vec();
    commands.extend(IOCTLS.iter().map(|(command, ..)| *command as u32));
    commands.push(libc::SIOCGIFCONF as u32);
    let only = match who {
        [Profile::Process] => {
            "SECCOMP_IOCTL_NOTIF_SEND, _RECV, _SET_FLAGS and _ADDFD; the commands in \
            `sys/ioctl.rs`; SIOCGIFCONF"
        }
        [Profile::Loop] => "TCGETS, KVM_SIGNAL_MSI; the commands in `sys/ioctl.rs`; SIOCGIFCONF",
        _ => {
            "KVM_RUN and what makes vCPUs and memory slots; the commands in `sys/ioctl.rs`; \
            SIOCGIFCONF"
        }
    };
    let when = commands.into_iter().map(|command| vec![Int(1, command)]).collect();
    Call { number: SYS_ioctl, name: "ioctl", who, when, only, why }
}

/// clone3(2) is answered with ENOSYS: its flags lie in memory, where a filter does not see them.
/// glibc takes clone(2) then.
pub const ENOSYS: c_long = libc::SYS_clone3;

/// True if `profile` may make a call with these arguments.
#[cfg(test)]
pub fn allows(calls: &[Call], profile: Profile, number: c_long, args: &[u64; 6]) -> bool {
    let holds = |arg: &Arg| match *arg {
        Is(i, value) => args[i as usize] == value,
        Int(i, value) => args[i as usize] as u32 == value,
        Not(i, value) => args[i as usize] as u32 != value,
        Bits(i, mask, value) => args[i as usize] as u32 & mask == value,
    };
    calls.iter().any(|c| {
        c.number == number
            && c.who.contains(&profile)
            && (c.when.is_empty() || c.when.iter().any(|all| all.iter().all(holds)))
    })
}
