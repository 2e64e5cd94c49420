//! The platform's operations, in safe form.

use core::sync::atomic::AtomicU32;

use qlib::host::HostCall;
use qlib::{Frames, Gpa};

use super::boot::{boot, is_known};
use super::table::operation;
use crate::errno::{Errno, Result};

/// A clock of the host in nanoseconds.
pub fn now_ns(clockid: u32) -> u64 {
    #[cfg(test)]
    return {
        let _ = clockid;
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64)
    };
    #[cfg(not(test))]
    // SAFETY: an operation of the platform's table takes any clock id.
    unsafe {
        operation!(now)(clockid)
    }
}

/// Where the operation of [`now_ns`] is kept.
#[cfg(feature = "poison")]
pub(super) fn operation_now() -> *mut u64 {
    // SAFETY: the address of a field of a static.
    unsafe { (&raw const (*super::table::table().operations()).now).cast::<u64>().cast_mut() }
}

/// Arms the platform's timer.
pub fn set_timer(deadline_ns: u64) {
    // SAFETY: takes any value.
    unsafe { operation!(set_timer)(deadline_ns) }
}

/// Makes a host call.
pub fn host_call(call: &mut HostCall) {
    // SAFETY: `call` is valid for the length of the call; qvisor checks what it says.
    unsafe { operation!(host_call)(call) }
}

/// Gives frames back to the host.
pub fn release(frames: &[Frames]) -> Result {
    // SAFETY: pointer and count describe `frames`.
    let ret = unsafe { operation!(release)(frames.as_ptr(), frames.len() as u64) };
    if ret < 0 { Err(Errno::from_ret(ret)) } else { Ok(()) }
}

/// Notifies the platform that a block of RAM holds frames of user memory from now on, or does so no
/// more; whether it agrees.
pub fn user_block(block: Gpa, is_user: bool) -> bool {
    // SAFETY: plain numbers.
    unsafe { operation!(user_block)(block, is_user.into()) == 0 }
}

/// Copies from guest physical memory, which may be a file window whose file was cut short: EFAULT
/// then.
pub fn copy_from_gpa(dst: &mut [u8], src: Gpa) -> Result {
    let Some(va) = window_or_ram(src, dst.len()) else { return Err(Errno::EFAULT) };
    // SAFETY: the source lies in guest memory, which is always mapped; the copy survives an
    // unbacked page. User programs may change the source meanwhile: it is copied bytewise by the
    // platform's routine, never referenced.
    let missed = unsafe { operation!(copy)(dst.as_mut_ptr(), va as *const u8, dst.len() as u64) };
    if missed == 0 { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Copies to guest physical memory. As [`copy_from_gpa`].
pub fn copy_to_gpa(dst: Gpa, src: &[u8]) -> Result {
    let Some(va) = window_or_ram(dst, src.len()) else { return Err(Errno::EFAULT) };
    // SAFETY: as in `copy_from_gpa`; the destination is a user frame that no Rust reference points
    // to.
    let missed = unsafe { operation!(copy)(va as *mut u8, src.as_ptr(), src.len() as u64) };
    if missed == 0 { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Copies one page between guest physical addresses. As [`copy_from_gpa`].
pub fn copy_page(dst: Gpa, src: Gpa) -> Result {
    let (Some(to), Some(from)) = (window_or_ram(dst, 4096), window_or_ram(src, 4096)) else {
        return Err(Errno::EFAULT);
    };
    // SAFETY: as in `copy_from_gpa` and `copy_to_gpa`.
    let missed = unsafe { operation!(copy)(to as *mut u8, from as *const u8, 4096) };
    if missed == 0 { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Windows lie above RAM in one linear mapping of this size.
const LINEAR_BYTES: u64 = 1 << 44;

fn window_or_ram(gpa: Gpa, len: usize) -> Option<u64> {
    let end = gpa.0.checked_add(len as u64)?;
    (end <= LINEAR_BYTES).then(|| boot().phys_base + gpa.0)
}

/// Ends the sandbox: the kernel found a bug in itself.
pub fn panic(message: &[u8]) -> ! {
    match is_known() {
        // SAFETY: pointer and length describe `message`.
        true => unsafe { operation!(panic)(message.as_ptr(), message.len() as u64) },
        // Before the kernel knows where it runs nobody can be told.
        false => loop {
            core::hint::spin_loop();
        },
    }
}

/// Sleeps while `word` equals `expected` (the kernel lock's slow path).
pub fn lock_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the word lives in the image.
    unsafe { operation!(lock_wait)(word.as_ptr(), expected) }
}

/// Wakes one sleeper of `word`.
pub fn lock_wake(word: &AtomicU32) {
    // SAFETY: as above.
    unsafe { operation!(lock_wake)(word.as_ptr()) }
}
