//! The filters are what the table says, and `doc/security.md` says what the table says.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use libc::c_long;
use seccompiler::sock_filter;

use super::profiles::{self, Arg, Call, Profile, calls};
use super::{filter, names};

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const TRAP: u32 = libc::SECCOMP_RET_TRAP;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const AUDIT_ARCH_I386: u32 = 0x4000_0003;
/// The sets of threads for which filters are installed: see `platform/*/boot.rs` and
/// `platform/kvm/vcpu.rs`.
const INSTALLED: [&[Profile]; 4] =
    [&[Profile::Process], &[Profile::Loop, Profile::Vcpu], &[Profile::Loop], &[Profile::Vcpu]];

/// What a program of classic BPF (Documentation/networking/filter.rst) answers to a call. It knows
/// what seccompiler uses.
fn run(program: &[sock_filter], arch: u32, number: u32, args: &[u64; 6]) -> u32 {
    let word = |offset: u32| match offset {
        0 => number,
        4 => arch,
        16..64 => (args[(offset as usize - 16) / 8] >> (offset % 8 * 8)) as u32,
        _ => panic!("a load from {offset}"),
    };
    let (mut at, mut a) = (0, 0u32);
    loop {
        let i = &program[at];
        at += 1;
        let jump = |taken: bool| usize::from(if taken { i.jt } else { i.jf });
        match i.code {
            0x20 => a = word(i.k),
            0x54 => a &= i.k,
            0x05 => at += i.k as usize,
            0x15 => at += jump(a == i.k),
            0x25 => at += jump(a > i.k),
            0x35 => at += jump(a >= i.k),
            0x06 => return i.k,
            code => panic!("instruction {code:#x}"),
        }
    }
}

/// Arguments at and around what the conditions of a call name, and others.
fn samples(call: Option<&Call>, seed: &mut u64) -> Vec<[u64; 6]> {
    let mut random = || {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *seed ^ *seed >> 29
    };
    let mut all: Vec<[u64; 6]> = vec![[0; 6], [u64::MAX; 6], std::array::from_fn(|_| random())];
    for conditions in call.iter().flat_map(|c| &c.when) {
        let mut good = [0; 6];
        for arg in conditions {
            match *arg {
                Arg::Is(i, value) => good[i as usize] = value,
                Arg::Int(i, value) | Arg::Bits(i, _, value) => good[i as usize] = value.into(),
                Arg::Not(i, value) => good[i as usize] = u64::from(value) + 1,
            }
        }
        all.push(good);
        for arg in 0..6 {
            for change in [1, 1 << 31, 1 << 32, 1 << (random() % 64), random()] {
                let mut other = good;
                other[arg] ^= change;
                all.push(other);
            }
        }
        for arg in conditions {
            if let Arg::Not(i, value) = *arg {
                let mut bad = good;
                bad[i as usize] = value.into();
                all.push(bad);
            }
        }
    }
    all
}

#[test]
fn filters_allow_exactly_what_the_table_allows() {
    let calls = calls();
    let mut seed = 1;
    for who in INSTALLED {
        let program = filter::program(&calls, who).unwrap();
        assert!(program.len() <= 4096, "BPF_MAXINSNS: {}", program.len());
        let (mut allowed, mut refused) = (0, 0);
        for number in 0..=512u32 {
            let entries: Vec<&Call> =
                calls.iter().filter(|c| c.number == c_long::from(number)).collect();
            let args = entries.iter().flat_map(|c| samples(Some(c), &mut seed)).collect::<Vec<_>>();
            for args in args.into_iter().chain(samples(None, &mut seed)) {
                let may = who.iter().any(|p| profiles::allows(&calls, *p, number.into(), &args));
                let expected = match c_long::from(number) {
                    profiles::ENOSYS => libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
                    _ if may => ALLOW,
                    _ => TRAP,
                };
                let found = run(&program, AUDIT_ARCH_X86_64, number, &args);
                assert_eq!(found, expected, "{} {args:x?} for {who:?}", names::name(number.into()));
                if found == ALLOW {
                    allowed += 1
                } else {
                    refused += 1
                }
                // The x32 numbers, and those of 32-bit programs.
                assert_eq!(
                    run(&program, AUDIT_ARCH_X86_64, number | 0x4000_0000, &args),
                    TRAP,
                    "x32 {number}"
                );
                let old = run(&program, AUDIT_ARCH_I386, number, &args);
                assert!(old != ALLOW && old != TRAP, "i386 {number}: {old:#x}");
            }
        }
        assert!(allowed > 100 && refused > 1000, "{allowed} {refused}");
    }
}

#[test]
fn nothing_that_a_hole_could_use_is_allowed() {
    let calls = calls();
    let allowed: BTreeSet<&str> = calls.iter().map(|c| c.name).collect();
    for profile in Profile::ALL {
        let count = calls.iter().filter(|c| c.who.contains(&profile)).count();
        assert!(count < 89, "gVisor's sentry makes do with 89: {count} for {profile:?}");
    }
    for never in [
        "execve",
        "execveat",
        "fork",
        "vfork",
        "clone3",
        "unshare",
        "setns",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "open_tree",
        "move_mount",
        "fsopen",
        "fsmount",
        "mount_setattr",
        "ptrace",
        "process_vm_readv",
        "process_vm_writev",
        "pidfd_getfd",
        "pidfd_send_signal",
        "open_by_handle_at",
        "name_to_handle_at",
        "init_module",
        "finit_module",
        "kexec_load",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "add_key",
        "keyctl",
        "request_key",
        "capset",
        "setuid",
        "setgid",
        "setresuid",
        "setfsuid",
        "personality",
        "modify_ldt",
        "arch_prctl",
        "iopl",
        "ioperm",
        "swapon",
        "reboot",
        "sethostname",
        "syslog",
        "quotactl",
        "acct",
        "settimeofday",
        "clock_settime",
        "adjtimex",
        "prlimit64",
        "setrlimit",
        "socketpair",
        "memfd_secret",
        "pkey_mprotect",
        "remap_file_pages",
        "process_madvise",
        "kcmp",
        "shmat",
        "shmget",
        "msgget",
        "semget",
        "mq_open",
        "inotify_init1",
        "fanotify_init",
        "tee",
        "splice",
        "vmsplice",
        "chdir",
        "fchdir",
        "dup",
        "dup2",
        "dup3",
        "open",
        "creat",
        "chmod",
        "chown",
        "rename",
        "link",
        "unlink",
        "symlink",
        "mknod",
    ] {
        assert!(!allowed.contains(never), "{never}");
    }
    let may = |name: &str, args: [u64; 6]| {
        let number = calls.iter().find(|c| c.name == name).unwrap().number;
        Profile::ALL.iter().any(|p| profiles::allows(&calls, *p, number, &args))
    };
    assert!(may("pidfd_open", [1, 0, 0, 0, 0, 0]) && !may("pidfd_open", [1, 1, 0, 0, 0, 0]));
    // Executable memory, processes, sockets that are none of the guest's, other processes' memory.
    assert!(may("mmap", [0, 4096, 3, 2, 0, 0]) && !may("mmap", [0, 4096, 7, 2, 0, 0]));
    assert!(!may("mprotect", [0, 4096, 5, 0, 0, 0]));
    assert!(!may("clone", [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]));
    assert!(
        !may("clone", [0x3d_0f00 | libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0])
            && may("clone", [0x3d_0f00, 0, 0, 0, 0, 0])
    );
    let datagram = |domain: i32| [domain as u64, libc::SOCK_DGRAM as u64 | 0x8_0800, 0, 0, 0, 0];
    for domain in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_XDP] {
        assert!(!may("socket", datagram(domain)), "{domain}");
    }
    // AF_UNIX is for containers that ask for it.
    let unasked = profiles::without_unix(profiles::calls());
    let without = |domain| {
        Profile::ALL
            .iter()
            .any(|p| profiles::allows(&unasked, *p, libc::SYS_socket, &datagram(domain)))
    };
    assert!(may("socket", datagram(libc::AF_UNIX)) && !without(libc::AF_UNIX));
    assert!(without(libc::AF_INET));
    let netlink = |protocol: i32| {
        [libc::AF_NETLINK as u64, libc::SOCK_RAW as u64 | 0x8_0800, protocol as u64, 0, 0, 0]
    };
    assert!(
        may("socket", netlink(libc::NETLINK_ROUTE))
            && !may("socket", netlink(libc::NETLINK_NETFILTER))
    );
    // A thread may have a narrower filter, and nothing that would be a way round one.
    let seccomp = calls
        .iter()
        .filter(|c| c.name == "seccomp")
        .flat_map(|c| c.who)
        .copied()
        .collect::<Vec<_>>();
    assert_eq!(seccomp, [Profile::Loop, Profile::Vcpu]);
    assert!(!may("kill", [u64::MAX, libc::SIGKILL as u64, 0, 0, 0, 0]), "everybody");
    assert!(!may("prctl", [libc::PR_SET_SECUREBITS as u64, 0, 0, 0, 0, 0]));
    assert!(!may("rt_sigaction", [libc::SIGSYS as u64, 0, 0, 0, 0, 0]));
    assert!(
        !may("ioctl", [0, libc::TIOCSTI, 0, 0, 0, 0])
            && !may("ioctl", [0, libc::TIOCLINUX, 0, 0, 0, 0])
    );
    assert!(!may("mknodat", [0, 0, (libc::S_IFCHR | 0o666).into(), 0, 0, 0]));
}

#[test]
fn threads_on_kvm_may_less_than_those_that_look_after_stubs() {
    let calls = calls();
    let of =
        |p| calls.iter().filter(|c| c.who.contains(&p)).map(|c| c.name).collect::<BTreeSet<_>>();
    let (all, event_loop, vcpu) = (of(Profile::Process), of(Profile::Loop), of(Profile::Vcpu));
    for name in ["kill", "waitid", "memfd_create", "sched_setaffinity"] {
        assert!(all.contains(name) && !vcpu.contains(name) && !event_loop.contains(name), "{name}");
    }
    assert!(event_loop.contains("epoll_pwait") && !vcpu.contains("epoll_pwait"));
}

const BEGIN: &str =
    "<!-- host calls: written by the test `the_document_lists_the_host_calls` -->\n";
const END: &str = "<!-- end of host calls -->\n";

/// The list in `doc/security.md`.
fn page(calls: &[Call]) -> String {
    let names: BTreeSet<&str> = calls.iter().map(|c| c.name).collect();
    let count = |p| calls.iter().filter(|c| c.who.contains(&p)).count();
    let mut text = format!(
        "{} host calls: {} on the process platform; on kvm {} in the event loop and {} in vCPUs. \
        P: threads on the process platform, L: the event \
         loop on kvm, V: vCPUs.\n\n| call | by | only | for |\n|---|---|---|---|\n",
        names.len(),
        count(Profile::Process),
        count(Profile::Loop),
        count(Profile::Vcpu)
    );
    let mut calls: Vec<&Call> = calls.iter().collect();
    calls.sort_by_key(|c| c.name);
    for call in calls {
        let by: String = call.who.iter().map(|p| p.name()[..1].to_uppercase()).collect();
        writeln!(text, "| `{}` | {by} | {} | {} |", call.name, call.only, call.why).unwrap();
    }
    text
}

/// With `QUARK_WRITE=1` it writes the list.
#[test]
fn the_document_lists_the_host_calls() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../doc/security.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the mark before the list");
    let (_, after) = rest.split_once(END).expect("the mark behind the list");
    let wanted = format!("{before}{BEGIN}\n{}\n{END}{after}", page(&calls()));
    if std::env::var_os("QUARK_WRITE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    } else {
        assert!(
            text == wanted,
            "doc/security.md is out of date: QUARK_WRITE=1 cargo test -p qvisor --lib \
            the_document_lists_the_host_calls"
        );
    }
}

#[test]
fn every_call_has_its_name_and_a_reason() {
    for call in calls() {
        assert_eq!(names::name(call.number), call.name);
        assert!(
            !call.why.is_empty() && call.only.is_empty() == call.when.is_empty(),
            "{}",
            call.name
        );
        for profile in call.who {
            let same = calls()
                .iter()
                .filter(|c| c.number == call.number && c.who.contains(profile))
                .count();
            assert_eq!(same, 1, "{} for {profile:?}", call.name);
        }
    }
}
