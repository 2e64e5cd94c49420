//! A kernel that has been taken over: of a test build only (the feature `poison`). Instead of
//! making the container it does what its host name says, and tells the log how that went.
//! `qvisor/tests/oci/poison.rs` runs it.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use qlib::host::{HostCall, NO_HANDLE, Op};
use qlib::pagetable::{Pte, PteFlags};
use qlib::platform::PLATFORM_PROCESS;
use qlib::{Gpa, PAGE_SIZE, Va};

use super::{boot, gpa_of, host_call, now_ns};
use crate::klog;

/// A system call of the host, with the registers of this thread. On the kvm platform there is no
/// host to call.
fn host(number: u64, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: none. That is the test: nothing that a kernel does may harm the host.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") args[0], in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], out("rcx") _, out("r11") _);
    }
    result
}

fn path(text: &core::ffi::CStr) -> u64 {
    text.as_ptr() as u64
}

/// Does what the host name "poison-WHAT" or "poison-call-NUMBER-ARGUMENT-…" asks for; false if it
/// asks for nothing. A `p` before an argument: the address of the text that follows.
pub fn attempt(name: &str) -> bool {
    let Some(what) = name.strip_prefix("poison-") else { return false };
    match what.strip_prefix("call-") {
        Some(call) if boot().platform == PLATFORM_PROCESS => raw(what, call),
        Some(_) => klog!(Error, "poison: {what} = no host here"),
        None if what == "operations" => operations(),
        None if what == "files" && boot().platform == PLATFORM_PROCESS => files(),
        None if boot().platform == PLATFORM_PROCESS && what.starts_with("table-") => table(what),
        None if WHICH_FRAME.iter().any(|(name, _)| *name == what) => {
            let chosen = WHICH_FRAME.iter().find(|(name, _)| *name == what);
            FRAME.store(chosen.map_or(0, |(_, number)| *number), Relaxed);
            return false;
        }
        None => klog!(Error, "poison: {what} = unknown"),
    }
    true
}

fn raw(what: &str, call: &str) {
    let mut text = [[0u8; 64]; 7];
    let mut words = [0u64; 7];
    for ((word, text), part) in words.iter_mut().zip(&mut text).zip(call.split('-')) {
        *word = match part.strip_prefix('p') {
            // Slashes and dots cannot be in a host name's place everywhere: they are written as _
            // and ~.
            Some(string) => {
                for (to, from) in text.iter_mut().zip(string.bytes().take(63)) {
                    *to = match from {
                        b'_' => b'/',
                        b'~' => b'-',
                        other => other,
                    };
                }
                text.as_ptr() as u64
            }
            None => part
                .strip_prefix('x')
                .map_or(part.parse(), |hex| u64::from_str_radix(hex, 16))
                .unwrap_or(0),
        };
    }
    let [number, args @ ..] = words;
    klog!(Error, "poison: {what} = {}", host(number, args));
}

/// Looks for a file of the host by every descriptor.
fn files() {
    const OPENAT: u64 = 257;
    let mut found = 0;
    for directory in (0..256).chain([-100i64 as u64]) {
        for name in [
            c"/etc/shadow",
            c"../etc/shadow",
            c"../../etc/shadow",
            c"../../../etc/shadow",
            c"../../../../../../etc/shadow",
            c"/proc/1/root/etc/shadow",
            c"1/root/etc/shadow",
            c"self/cwd/../../../etc/shadow",
            c"2/root/etc/shadow",
            c"3/root/etc/shadow",
            c"sys/kernel/core_pattern",
            c"../sys/kernel/core_pattern",
            c"../../sys/kernel/core_pattern",
            c"../../sysrq-trigger",
        ] {
            let file = host(OPENAT, [directory, path(name), 0, 0, 0, 0]);
            if file >= 0 {
                found += 1;
                klog!(Error, "poison: opened {name:?} below {directory}");
            }
        }
        // Its own memory, and that of the first stub and its maker, to write.
        for name in [c"self/mem", c"2/mem", c"3/mem", c"self/oom_score_adj", c"self/uid_map"] {
            let file = host(OPENAT, [directory, path(name), 2, 0, 0, 0]);
            if file >= 0 {
                found += 1;
                klog!(Error, "poison: opened {name:?} below {directory} to write");
            }
        }
    }
    klog!(Error, "poison: files = {found} found");
}

/// Puts a function of its choice into the operations table and has it called: by a plain write, by
/// the file behind guest RAM, after having made the table's page writable or replaced it.
fn table(what: &str) {
    const MMAP: u64 = 9;
    const MPROTECT: u64 = 10;
    const MUNMAP: u64 = 11;
    const MREMAP: u64 = 25;
    const READ_WRITE: u64 = 3;
    let entry = super::ops::operation_now();
    let page = entry as u64 & !(PAGE_SIZE - 1);
    // SAFETY: none; see above.
    let put = |at: *mut u64, value: u64| unsafe { at.write_volatile(value) };
    // SAFETY: as above.
    let get = |at: *const u64| unsafe { at.read_volatile() };
    let before = get(entry);
    match what {
        "table-write" => {
            klog!(Error, "poison: writing to the operations table");
            put(entry, chosen as *const () as u64);
        }
        "table-file" => {
            let mut same = 0;
            for file in 0..256 {
                let offset = gpa_of(page as *const u8).0;
                let map = host(MMAP, [0, PAGE_SIZE, READ_WRITE, 1, file, offset]);
                // Not of a shorter file: what is past its end is SIGBUS.
                if map > 0 && is_ram(file) {
                    same += 1;
                    put(
                        (map as u64 + (entry as u64 - page)) as *mut u64,
                        chosen as *const () as u64,
                    );
                }
            }
            klog!(Error, "poison: {same} descriptors of guest RAM");
        }
        "table-unprotect" => {
            let results = [
                host(MPROTECT, [page, PAGE_SIZE, READ_WRITE, 0, 0, 0]),
                host(MREMAP, [page, PAGE_SIZE, PAGE_SIZE, 3, page - (1 << 40), 0]),
                host(MUNMAP, [page, PAGE_SIZE, 0, 0, 0, 0]),
                host(MMAP, [page, PAGE_SIZE, READ_WRITE, 0x32, u64::MAX, 0]),
            ];
            klog!(Error, "poison: {what} = {results:?}");
            return;
        }
        _ => {}
    }
    let ran = now_ns(1) == RAN;
    if get(entry) != before {
        put(entry, before);
    }
    klog!(Error, "poison: {what} = {}", if ran { "the sandbox process ran it" } else { "nothing" });
}

/// True if a descriptor is that of guest RAM, by its size.
fn is_ram(file: u64) -> bool {
    const LSEEK: u64 = 8;
    host(LSEEK, [file, 0, 2, 0, 0, 0]) == boot().ram_bytes as i64
}

/// What [`chosen`] gives.
const RAN: u64 = 0x6e61_7220_7361_7720;

unsafe extern "C" fn chosen(_: u32) -> u64 {
    RAN
}

/// Where the program of `test-apps/adversary/frames.c` has a page.
const PAGE_OF_PROGRAM: Va = Va(0x5150_0000_0000);
const WHICH_FRAME: [(&str, u32); 5] =
    [("map-none", 0), ("map-heap", 1), ("map-table", 2), ("map-static", 3), ("map-control", 4)];
static FRAME: AtomicU32 = AtomicU32::new(0);

/// What a stray write puts into the page table instead of an entry: one that names memory of the
/// kernel's.
pub fn instead(va: Va, entry: Pte, root: Gpa) -> Option<Pte> {
    let frame = match FRAME.load(Relaxed) {
        _ if va != PAGE_OF_PROGRAM => return None,
        1 => gpa_of((&raw const *boot()).cast()),
        2 => root,
        3 => gpa_of((&raw const super::boot::BOOT).cast()),
        // The books of the block that the right frame is in.
        4 => Gpa(entry.gpa().0 & !((4 << 20) - 1)),
        _ => return None,
    };
    // Not counted, so that the end of the address space does not stumble over it.
    Some(Pte::new(Gpa(frame.0 & !(PAGE_SIZE - 1)), entry.flags() | PteFlags::WINDOW))
}

/// Every host call with arguments that no kernel has, but those that end the sandbox, answer a
/// command or hold up the thread.
fn operations() {
    const ODD: [u64; 9] = [0, 1, 2, 4096, u64::MAX, 1 << 63, (1 << 63) - 1, 0xffff_ffff, 1 << 32];
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let pick = |n: u64| ODD[(n % ODD.len() as u64) as usize];
    let mut answers = 0u64;
    for op in 0..=255u32 {
        if matches!(
            Op::from_u32(op),
            Some(Op::Exit | Op::ControlReply | Op::MailboxTaken | Op::Log | Op::Close)
        ) {
            continue;
        }
        for _ in 0..200 {
            let handle = if random() % 4 == 0 { NO_HANDLE } else { (random() % 8) as u32 };
            let args =
                [(); 6].map(|()| if random() % 2 == 0 { pick(random()) } else { random() % 64 });
            // Some tables lie in memory that is there: the kernel's own image, read as segments.
            let segs = Gpa(if random() % 2 == 0 {
                pick(random())
            } else {
                (2 << 20) + random() % 4096 * 16
            });
            let mut call =
                HostCall { op, handle, args, segs, seg_count: (random() % 4) as u32, ret: 0 };
            host_call(&mut call);
            answers += 1;
        }
    }
    klog!(Error, "poison: operations = {answers} answers");
}
