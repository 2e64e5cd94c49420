//! The vDSO that guest programs get on the `kvm` platform: the clocks of the [clock page](page),
//! which is mapped right before the image, without a system call. Whatever the page does not know,
//! or not now, is asked of the kernel.
//!
//! Built by qkernel's build script with rustc and the toolchain's own linker (no crates, no C
//! compiler), and embedded in the kernel image. It runs in user mode, in programs that know nothing
//! of Rust: no panic, no memory of its own, no relocation.
#![no_std]
#![allow(unsafe_code)]

#[path = "../qlib/src/clock/page.rs"]
mod page;

use core::arch::asm;

use page::{ClockPage, Source, TIMESPEC_NS, source_of};

const SYS_GETTIMEOFDAY: u64 = 96;
const SYS_TIME: u64 = 201;
const SYS_CLOCK_GETTIME: u64 = 228;
const SYS_CLOCK_GETRES: u64 = 229;
const SYS_GETCPU: u64 = 309;

const CLOCK_REALTIME_COARSE: u32 = 5;
const CLOCK_MONOTONIC_COARSE: u32 = 6;
/// What the kernel's clock_getres(2) says of coarse clocks, in nanoseconds.
const COARSE_RESOLUTION_NS: u64 = 4_000_000;

/// struct timespec, and struct timeval.
#[repr(C)]
pub struct Time {
    seconds: i64,
    part: i64,
}

/// struct timezone.
#[repr(C)]
pub struct Zone {
    minutes_west: i32,
    dst_time: i32,
}

/// A system call with up to three arguments.
#[inline(always)]
fn system_call(number: u64, a: u64, b: u64, c: u64) -> i64 {
    let result;
    // SAFETY: the same call that the program would make itself, with the arguments that it gave: it
    // answers for its pointers. The kernel changes no other register than these.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// The clock page: it lies right before the image.
#[inline(always)]
fn clock_page() -> &'static ClockPage {
    let address: *const ClockPage;
    // SAFETY: computes an address; the linker defines the symbol as the first byte of the image,
    // whose headers are mapped.
    unsafe {
        asm!("lea {}, [rip + __ehdr_start - \
            4096]", out(reg) address, options(pure, nomem, nostack, preserves_flags))
    };
    // SAFETY: the kernel maps the clock page there, readable, for as long as the image. It changes
    // under the reference, which is what its atomic words are for. A program that takes it away
    // gets the SIGSEGV that it asked for.
    unsafe { &*address }
}

/// The time stamp counter, read after all loads before it.
#[inline(always)]
fn tsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter; the kernel leaves CR4.TSD clear.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high,
        options(nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}

#[inline(always)]
fn now_ns(clock: u32) -> Option<u64> {
    clock_page().read_with(source_of(clock)?, tsc)
}

/// clock_gettime(2).
///
/// # Safety
/// `out` must be writable, as for the system call; an address that is not gives SIGSEGV instead of
/// EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_gettime(clock: i32, out: *mut Time) -> i32 {
    match now_ns(clock as u32) {
        Some(ns) => {
            let time = Time { seconds: (ns / TIMESPEC_NS) as i64, part: (ns % TIMESPEC_NS) as i64 };
            // SAFETY: as the caller promises.
            unsafe { out.write_unaligned(time) };
            0
        }
        None => system_call(SYS_CLOCK_GETTIME, clock as u64, out as u64, 0) as i32,
    }
}

/// gettimeofday(2).
///
/// # Safety
/// `out` and `zone` must be null or writable, as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_gettimeofday(out: *mut Time, zone: *mut Zone) -> i32 {
    let Some(ns) = clock_page().read_with(Source::Realtime, tsc) else {
        return system_call(SYS_GETTIMEOFDAY, out as u64, zone as u64, 0) as i32;
    };
    if !out.is_null() {
        let time =
            Time { seconds: (ns / TIMESPEC_NS) as i64, part: (ns % TIMESPEC_NS / 1000) as i64 };
        // SAFETY: as the caller promises.
        unsafe { out.write_unaligned(time) };
    }
    if !zone.is_null() {
        // SAFETY: as the caller promises.
        unsafe { zone.write_unaligned(Zone { minutes_west: 0, dst_time: 0 }) };
    }
    0
}

/// time(2).
///
/// # Safety
/// `out` must be null or writable, as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_time(out: *mut i64) -> i64 {
    let Some(ns) = clock_page().read_with(Source::Realtime, tsc) else {
        return system_call(SYS_TIME, out as u64, 0, 0);
    };
    let seconds = (ns / TIMESPEC_NS) as i64;
    if !out.is_null() {
        // SAFETY: as the caller promises.
        unsafe { out.write_unaligned(seconds) };
    }
    seconds
}

/// clock_getres(2).
///
/// # Safety
/// `out` must be null or writable, as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_clock_getres(clock: i32, out: *mut Time) -> i32 {
    if source_of(clock as u32).is_none() {
        return system_call(SYS_CLOCK_GETRES, clock as u64, out as u64, 0) as i32;
    }
    let is_coarse = clock as u32 == CLOCK_REALTIME_COARSE || clock as u32 == CLOCK_MONOTONIC_COARSE;
    if !out.is_null() {
        let part = if is_coarse { COARSE_RESOLUTION_NS } else { 1 } as i64;
        // SAFETY: as the caller promises.
        unsafe { out.write_unaligned(Time { seconds: 0, part }) };
    }
    0
}

/// getcpu(2): the kernel's word, for nothing that user mode can read names the processor on every
/// machine.
///
/// # Safety
/// `cpu` and `node` must be null or writable; the kernel checks them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdso_getcpu(cpu: *mut u32, node: *mut u32, _unused: *mut u8) -> i32 {
    system_call(SYS_GETCPU, cpu as u64, node as u64, 0) as i32
}
