//! Entering the real kernel image. There is one kernel in a process, so each test is a process of
//! its own: this binary again, with one of the ignored tests.

use std::process::{Command, ExitStatus};
use std::sync::Arc;

use qlib::platform::{ABI_VERSION, BOOT_MAGIC, BootInfo, EVENT_TIMER, Event, PLATFORM_PROCESS};
use qlib::{Gpa, Va};

use super::kernel::{self, Kernel};
use crate::sandbox::events::Poller;
use crate::sandbox::hostcall::HostSide;
use crate::sandbox::loader::{self, IMAGE_START, MAILBOX_BYTES};
use crate::sandbox::mailbox::Replies;
use crate::sandbox::memory::{GuestMemory, Layout, RAM_UNIT, copy};
use crate::sandbox::panic::PANIC_STATUS;
use crate::sandbox::platform::Entry;

fn enter(magics: &[u64]) -> (Arc<GuestMemory>, Kernel) {
    let layout = Layout { base: None, ram_bytes: 16 * RAM_UNIT, window_bytes: RAM_UNIT };
    let memory = Arc::new(GuestMemory::new(layout).unwrap());
    copy::set_crash_hook(kernel::crash);
    let host = HostSide::new(
        memory.clone(),
        Arc::new(Poller::new().unwrap()),
        Arc::new(Replies::new()),
        None,
    );
    kernel::set_host(Arc::new(host.unwrap())).unwrap();
    let ops = Some(kernel::bytes(&kernel::operations()));
    let placement = loader::Placement { base: memory.base(), extra_bytes: 0, ops };
    let loaded = loader::load(&memory, loader::embedded_image(), &placement, None).unwrap();
    loaded.seal(&memory).unwrap();
    let mut info = BootInfo {
        magic: BOOT_MAGIC,
        version: ABI_VERSION,
        cpus: 1,
        platform: PLATFORM_PROCESS,
        log_level: 0,
        phys_base: memory.base(),
        ram_bytes: memory.ram_bytes(),
        free_start: loaded.free_start,
        image_start: IMAGE_START,
        mailbox: loaded.mailbox,
        mailbox_bytes: MAILBOX_BYTES,
        user_min: Va(0x10000),
        user_max: Va(0x7000_0000_0000),
        vdso: Va(0),
        vdso_bytes: 0,
        vdso_copy: Gpa(0),
        hwcap: 0,
        hwcap2: 0,
        fast_entry: Va(0),
        fast_after: 0,
        fpstate_bytes: 1024,
        poison_frames: 0,
        host_bytes_per_process: 0,
        host_bytes_per_thread: 0,
        max_processes: u32::MAX,
        max_threads: u32::MAX,
        max_tasks: u32::MAX,
        seed: [7; 32],
        kvm: Default::default(),
    };
    let enter = |magic: &u64| {
        info.magic = *magic;
        kernel::enter(memory.clone(), &loaded, &info, Entry::Boot).unwrap()
    };
    let kernel = magics.iter().map(enter).last();
    (memory, kernel.unwrap())
}

/// Runs an ignored test of this binary; exit status and standard error.
fn child(test: &str) -> (ExitStatus, String) {
    let name = format!("platform::process::boot_tests::{test}");
    let output = Command::new("timeout")
        .args(["--kill-after=1", "60"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_kernel_boots_and_takes_events() {
    let (status, text) = child("child_boots");
    assert_eq!(status.code(), Some(0), "{text}");
}

#[test]
#[ignore = "run by the_kernel_boots_and_takes_events"]
fn child_boots() {
    let (memory, kernel) = enter(&[BOOT_MAGIC]);
    let mut committed = 0;
    memory.committed(Gpa(0), memory.ram_bytes(), |_, pages| committed += pages).unwrap();
    assert!(committed > 0 && committed * 4096 < 16 << 20, "a fresh kernel holds {committed} pages");
    for _ in 0..100 {
        kernel.dispatch(&Event { kind: EVENT_TIMER, ..Event::default() });
    }
}

#[test]
fn a_kernel_panic_is_reported_with_the_functions_on_its_stack() {
    let (status, text) = child("child_panics");
    assert_eq!(status.code(), Some(PANIC_STATUS), "{text}");
    assert!(text.contains("kernel panic: "), "{text}");
    assert!(text.contains(" _start"), "{text}");
}

#[test]
#[ignore = "run by a_kernel_panic_is_reported_with_the_functions_on_its_stack"]
fn child_panics() {
    // The first time it learns whom to tell, the second time it has a complaint.
    enter(&[BOOT_MAGIC, !BOOT_MAGIC]);
}

#[test]
fn a_fault_in_the_kernel_is_reported_too() {
    let (status, text) = child("child_faults");
    assert_eq!(status.code(), Some(PANIC_STATUS), "{text}");
    assert!(
        text.contains("kernel fault: signal 11 at address 0x8") && text.contains("dispatch"),
        "{text}"
    );
}

#[test]
#[ignore = "run by a_fault_in_the_kernel_is_reported_too"]
fn child_faults() {
    let (_, kernel) = enter(&[BOOT_MAGIC]);
    // SAFETY: none: this is the bug under test, and it ends the process.
    unsafe { kernel.dispatch_fn()(std::ptr::dangling()) }
}

#[test]
fn a_fault_elsewhere_still_kills() {
    let (status, text) = child("child_faults_elsewhere");
    assert_eq!(status.code(), Some(128 + libc::SIGSEGV));
    assert!(text.contains("the VMM crashed: signal 11 at 0x"), "{text}");
}

#[test]
#[ignore = "run by a_fault_elsewhere_still_kills"]
fn child_faults_elsewhere() {
    let _kernel = enter(&[BOOT_MAGIC]);
    let mut byte = 0u8;
    // SAFETY: none: a copy from an address that is not guest memory is a bug, and must end the
    // process.
    unsafe { copy::copy(&mut byte, 64 as *const u8, 1) };
}
