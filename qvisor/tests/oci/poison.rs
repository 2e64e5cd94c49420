//! A guest kernel that has been taken over gets nothing: a test build of it
//! (`qkernel/src/arch/poison.rs`) tries, one attempt in each sandbox, and is refused or ended.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::json;

use super::shared::{skip, workspace};
use super::support::{Place, is_kvm, place};

/// Exit status of a sandbox that was ended for an attack.
const REFUSED: i32 = 159;

/// The image, built once, in a target directory of its own.
fn image() -> &'static PathBuf {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let target = workspace().join("target/poison");
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .current_dir(workspace())
            .args([
                "build",
                "--quiet",
                "--release",
                "--locked",
                "-p",
                "qkernel",
                "--bin",
                "qkernel",
            ])
            .args(["--features", "image,poison", "--target", "x86_64-unknown-none", "--target-dir"])
            .arg(&target)
            .env("RUSTFLAGS", "-C force-frame-pointers=yes")
            .env("CARGO_PROFILE_RELEASE_INCREMENTAL", "true")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        assert!(cargo.status().expect("run cargo").success(), "the poisoned kernel does not build");
        target.join("x86_64-unknown-none/release/qkernel")
    })
}

/// Boots the poisoned kernel with an order: what the command said, and the log.
fn boot(p: &Place, order: &str) -> (Output, String) {
    boot_with(p, order, "true", Stdio::inherit())
}

/// The same with a program, for orders about what the kernel does for one, and a standard input.
fn boot_with(p: &Place, order: &str, program: &str, stdin: Stdio) -> (Output, String) {
    p.configure(&[program], |c| c["hostname"] = json!(format!("poison-{order}")));
    let log = p.dir.join("log");
    std::fs::remove_file(&log).ok();
    // The binary that cargo built with the tests: one for release boots no other kernel than its
    // own.
    let mut command = Command::new(env!("CARGO_BIN_EXE_quark"));
    if let Some(platform) = std::env::var_os("QUARK_PLATFORM") {
        command.arg("--platform").arg(platform);
    }
    command
        .arg("--root")
        .arg(&p.root)
        .arg("--log")
        .arg(&log)
        .args(["run", &p.id])
        .current_dir(&p.bundle);
    let output = command.env("QUARK_TEST_KERNEL", image()).stdin(stdin).output().unwrap();
    assert_eq!(p.leftovers(&p.id), [""; 0], "{order}");
    (output, std::fs::read_to_string(&log).unwrap_or_default())
}

/// Calls that must end the sandbox: name, number, arguments.
const REFUSED_CALLS: &[(&str, &str)] = &[
    ("execve", "59-p_bin_sh-0-0"),
    ("execveat", "322-xffffff9c-p_bin_sh-0-0-0"),
    ("fork", "57"),
    ("vfork", "58"),
    // SIGCHLD only: a process.
    ("clone", "56-17"),
    // A thread in a user namespace of its own.
    ("clone", "56-x103d0f00"),
    ("unshare", "272-x10000000"),
    ("setns", "308-0-0"),
    ("chroot", "161-p."),
    ("pivot_root", "155-p.-p."),
    ("mount", "165-pproc-p_-pproc-0-0"),
    ("umount2", "166-p_-2"),
    ("open_tree", "428-xffffff9c-p_-1"),
    ("fsopen", "430-pproc-0"),
    ("move_mount", "429-3-p-3-p-4"),
    ("mount_setattr", "442-3-p-0-0-0"),
    ("ptrace", "101-16-2-0-0"),
    ("process_vm_readv", "310-2-0-0-0-0-0"),
    ("process_vm_writev", "311-2-0-0-0-0-0"),
    ("pidfd_open", "434-2-0"),
    ("pidfd_getfd", "438-3-0-0"),
    // Everybody; another signal.
    ("kill", "62-xffffffffffffffff-9"),
    ("kill", "62-2-19"),
    ("tgkill", "234-2-2-9"),
    ("rt_sigqueueinfo", "129-2-9-0"),
    // AF_UNIX, AF_PACKET, AF_NETLINK for netfilter and audit, AF_ALG, AF_VSOCK, AF_XDP; raw sockets
    // of TCP.
    ("socket", "41-1-x80802-0"),
    ("socket", "41-17-x80803-768"),
    ("socket", "41-16-x80803-12"),
    ("socket", "41-16-x80803-9"),
    ("socket", "41-38-x80805-0"),
    ("socket", "41-40-x80801-0"),
    ("socket", "41-44-x80803-0"),
    ("socket", "41-2-x80803-6"),
    ("socketpair", "53-1-1-0-0"),
    // SO_ATTACH_FILTER; TCP_ULP; iptables.
    ("setsockopt", "54-0-1-26-0-0"),
    ("setsockopt", "54-0-6-31-0-0"),
    ("setsockopt", "54-0-0-64-0-0"),
    ("bpf", "321-0-0-0"),
    ("perf_event_open", "298-0-0-0-0-0"),
    ("userfaultfd", "323-0"),
    ("io_uring_setup", "425-1-0"),
    ("open_by_handle_at", "304-3-0-0"),
    ("name_to_handle_at", "303-3-p-0-0-0"),
    ("init_module", "175-0-0-p"),
    ("finit_module", "313-0-p-0"),
    ("kexec_load", "246-0-0-0-0"),
    ("reboot", "169-0-0-0-0"),
    ("swapon", "167-p_-0"),
    ("keyctl", "250-0-0-0-0-0"),
    ("add_key", "248-puser-pa-pb-1-0"),
    ("personality", "135-x400000"),
    ("capset", "126-0-0"),
    ("setuid", "105-0"),
    ("setresuid", "117-0-0-0"),
    ("seccomp", "317-1-0-0"),
    // PR_SET_SECUREBITS, PR_CAP_AMBIENT, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_PTRACER.
    ("prctl", "157-28-0"),
    ("prctl", "157-47-2-21-0-0"),
    ("prctl", "157-4-1"),
    ("prctl", "157-22-0"),
    ("prctl", "157-x59616d61-1"),
    // Executable memory: new, of what is there, of a file.
    ("mmap", "9-0-4096-7-34-xffffffffffffffff-0"),
    ("mprotect", "10-x100000200000-4096-5"),
    ("pkey_mprotect", "329-x100000200000-4096-5-0"),
    ("memfd_create", "319-pa-x10"),
    // The handler that ends the sandbox.
    ("rt_sigaction", "13-31-0-0-8"),
    // TIOCSTI, TIOCLINUX, FS_IOC_SETFLAGS, KVM_CREATE_VM.
    ("ioctl", "16-0-x5412-0"),
    ("ioctl", "16-0-x541c-0"),
    ("ioctl", "16-0-x40086602-0"),
    ("ioctl", "16-0-xae01-0"),
    // A character and a block device.
    ("mknodat", "259-3-pa-x21b6-x103"),
    ("mknodat", "259-3-pa-x61b6-x800"),
    ("prlimit64", "302-0-7-0-0"),
    ("iopl", "172-3"),
    ("modify_ldt", "154-0-0-0"),
    ("arch_prctl", "158-x1002-0"),
    ("chdir", "80-p_"),
    ("dup2", "33-0-1"),
    // x32's execve.
    ("?", "x40000208-p_bin_sh-0-0"),
];

#[test]
fn host_calls_outside_of_the_filter_end_the_sandbox() {
    let Some(p) = place() else { return };
    if is_kvm() {
        // There a kernel cannot make any.
        let (_, log) = boot(&p, "call-59-p_bin_sh-0-0");
        assert!(log.contains("= no host here"), "{log}");
        return;
    }
    for (name, call) in REFUSED_CALLS {
        let (output, log) = boot(&p, &format!("call-{call}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !log.contains(" = "), "{name} {call}: {log} {error}");
        let reason =
            format!("the sandbox was ended for a host call that it may not make: {name} (");
        assert!(log.contains(&reason), "{name} {call}: {log} {error}");
        assert!(error.contains(&reason), "{name} {call}: {error}");
        assert_eq!(output.status.code(), Some(1), "quark run: the container was not made");
    }
}

/// Calls whose numbers are allowed: what they gain.
#[test]
fn host_calls_inside_of_the_filter_gain_nothing() {
    let Some(p) = place() else { return };
    if is_kvm() {
        return skip("a kernel there cannot make host calls");
    }
    for call in [
        // openat2 of an absolute path needs a structure: this one is refused for its size.
        "437-xffffff9c-p_etc_shadow-0-0",
        "257-xffffff9c-p_etc_shadow-0-0",
        "257-xffffff9c-p_proc_1_root_etc_shadow-0-0",
        "257-xffffff9c-psys_kernel_core_pattern-1-0",
        "257-xffffff9c-pself_mem-2-0",
        "257-xffffff9c-pnew-x42-x1b6",
        "257-xffffff9c-p_new-x42-x1b6",
        "257-xffffff9c-pself_root_etc_shadow-0-0",
        "258-xffffff9c-p_new-511",
        "258-xffffff9c-pnew-511",
        "263-xffffff9c-p_etc_shadow-0",
        "190-1000-puser.a-pb-1-0",
        // clone3: not there.
        "435-0-0",
        // A process that is none of this sandbox's.
        "62-100000-9",
    ] {
        let (_, log) = boot(&p, &format!("call-{call}"));
        let result =
            log.split(&format!("poison: call-{call} = ")).nth(1).and_then(|r| r.split('"').next());
        let result: i64 = result.unwrap_or_else(|| panic!("{call}: {log}")).parse().unwrap();
        assert!((-4095..0).contains(&result), "{call}: {result}");
    }
    let (_, log) = boot(&p, "files");
    assert!(log.contains("poison: files = 0 found"), "{log}");
}

/// A name like `..` would lead out of a directory that came as a standard stream, were there no
/// Landlock domain.
#[test]
fn a_directory_that_came_as_a_stream_leads_nowhere() {
    let Some(p) = place() else { return };
    if is_kvm() {
        return skip("a kernel there cannot make host calls");
    }
    if !qvisor::sandbox::confine::landlock::is_there() {
        return skip("this host has no Landlock");
    }
    let directory = std::fs::File::open("/usr").unwrap();
    let (_, log) = boot_with(&p, "files", "true", directory.into());
    assert!(log.contains("poison: files = 0 found"), "{log}");
}

#[test]
fn host_calls_with_hostile_arguments_have_answers() {
    let Some(p) = place() else { return };
    let (output, log) = boot(&p, "operations");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("poison: operations = "), "{log} {error}");
    assert!(
        error.contains("poisoned"),
        "the sandbox lives to say that it makes no container: {log} {error}"
    );
    for word in ["panic", "fault", "may not make"] {
        assert!(!log.contains(word) && !error.contains(word), "{log} {error}");
    }
    assert_ne!(output.status.code(), Some(REFUSED));
}

/// The functions of qvisor that the kernel calls stand in a table. To write there is code in the
/// sandbox process.
#[test]
fn the_table_of_operations_cannot_be_changed() {
    let Some(p) = place() else { return };
    if is_kvm() {
        return skip("there the operations table is the kernel's own");
    }
    let (output, log) = boot(&p, "table-write");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("poison: writing to the operations table"), "{log} {error}");
    assert!(!log.contains("poison: table-write = "), "the write went through: {log}");
    assert!(log.contains("kernel fault: signal 11 at address"), "{log}");
    assert!(error.contains("kernel fault: signal 11 at address"), "{error}");

    let (output, log) = boot(&p, "table-file");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("poison: 1 descriptors of guest RAM"), "{log} {error}");
    assert!(log.contains("poison: table-file = nothing"), "{log} {error}");

    if host_release() < (6, 10) {
        return skip("this host has no mseal(2)");
    }
    let (output, log) = boot(&p, "table-unprotect");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("poison: table-unprotect = [-1, -1, -1, -1]"), "{log} {error}");
}

/// Of Linux, as uname(2) tells it.
fn host_release() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// What a program is shown is decided by page tables in guest memory. Whatever stands there, none
/// sees the kernel's own frames.
#[test]
fn no_program_is_shown_memory_of_the_kernel() {
    let Some(p) = place() else { return };
    if is_kvm() {
        return skip(
            "there page tables are followed by hardware, and what they can name is the virtual \
            machine's",
        );
    }
    super::escape::add_program(&p, "frames");
    let (output, _) = boot_with(&p, "map-none", "frames", Stdio::null());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("refused: 0 bytes") && output.status.success(),
        "an honest kernel: {text}"
    );
    for order in ["map-heap", "map-table", "map-static", "map-control"] {
        let (output, log) = boot_with(&p, order, "frames", Stdio::null());
        let all = format!("{order}: {output:?} {log}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("GOT"), "{all}");
        assert!(
            log.contains("guest process killed: an operation would map memory of the guest kernel"),
            "{all}"
        );
        assert_eq!(output.status.code(), Some(REFUSED), "{all}");
    }
}
