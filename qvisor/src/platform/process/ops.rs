//! The entries of [`PlatformOps`] as functions that the kernel image can call. There is one
//! platform in a sandbox process.

use std::sync::Arc;

use qlib::Va;
use qlib::platform::{DeferredOp, MAX_TOUCHED_PAGES, PlatformOps, Resume};

use super::Shared;
use crate::sys::ordered::{RwLock, place};

static PLATFORM: RwLock<Option<Arc<Shared>>, place::Platform> = RwLock::new(None);

/// Operations in one resume: more than a whole address space of single pages ever needs at once.
const MAX_OPS: u32 = 1 << 20;

pub fn install(shared: Arc<Shared>, ops: &mut PlatformOps) {
    *PLATFORM.write() = Some(shared);
    ops.space_new = space_new;
    ops.space_drop = space_drop;
    ops.space_touched = space_touched;
    ops.space_time = space_time;
    ops.thread_new = thread_new;
    ops.thread_drop = thread_drop;
    ops.thread_resume = thread_resume;
    ops.thread_stop = thread_stop;
    ops.thread_answers = thread_answers;
    ops.fpstate_read = fpstate_read;
    ops.fpstate_write = fpstate_write;
}

fn with<T>(otherwise: T, f: impl FnOnce(&Arc<Shared>) -> T) -> T {
    match &*PLATFORM.read() {
        Some(shared) => f(shared),
        None => otherwise,
    }
}

fn number(result: Result<u64, i32>) -> i64 {
    result.map_or_else(|errno| -i64::from(errno), |n| n as i64)
}

unsafe extern "C" fn space_new(urgent: u32) -> i64 {
    with(-i64::from(libc::ENODEV), |p| number(p.space_new(urgent != 0)))
}

unsafe extern "C" fn space_drop(space: u64) {
    with((), |p| {
        if let Some(space) = p.space(space) {
            space.drop_space();
        }
    });
}

unsafe extern "C" fn space_touched(space: u64, va: Va, pages: u64, bitmap: *mut u64) -> i64 {
    if pages > MAX_TOUCHED_PAGES {
        return -i64::from(libc::EINVAL);
    }
    let words = (pages as usize).div_ceil(64);
    with(-i64::from(libc::ENODEV), |p| match p.space_touched(space, va, pages) {
        Ok(found) => {
            // SAFETY: the kernel's bitmap has a bit for each of `pages` pages, in whole words.
            unsafe {
                std::ptr::copy_nonoverlapping(found.as_ptr(), bitmap, words.min(found.len()))
            };
            0
        }
        Err(errno) => -i64::from(errno),
    })
}

unsafe extern "C" fn space_time(space: u64) -> i64 {
    with(-i64::from(libc::ENODEV), |p| number(p.space_time(space)))
}

unsafe extern "C" fn thread_new(space: u64, creator: u64, token: u64) -> i64 {
    with(-i64::from(libc::ENODEV), |p| number(p.thread_new(space, creator, token)))
}

unsafe extern "C" fn thread_drop(thread: u64) {
    with((), |p| {
        p.with_thread(thread, |space, n| space.thread_drop(p, n));
    });
}

unsafe extern "C" fn thread_resume(thread: u64, resume: *const Resume) {
    // SAFETY: the kernel hands over a valid Resume, whose operations pointer and count describe an
    // array.
    let (resume, ops): (Resume, &[DeferredOp]) = unsafe {
        let resume = *resume;
        let count = resume.op_count.min(MAX_OPS) as usize;
        let none = count == 0 || resume.ops.is_null();
        (resume, if none { &[] } else { std::slice::from_raw_parts(resume.ops, count) })
    };
    with((), |p| p.thread_resume(thread, &resume, ops));
}

unsafe extern "C" fn thread_answers(thread: u64, tid: u32, pid: u32) {
    with((), |p| {
        p.with_thread(thread, |space, n| space.thread_answers(n, tid, pid));
    })
}

unsafe extern "C" fn thread_stop(thread: u64) {
    with((), |p| {
        p.with_thread(thread, |space, n| space.thread_stop(p, n));
    });
}

unsafe extern "C" fn fpstate_read(thread: u64, buf: *mut u8, capacity: u64) -> i64 {
    with(-i64::from(libc::ENODEV), |p| match p.fpstate_read(thread) {
        Ok(image) if image.len() as u64 > capacity => -i64::from(libc::ERANGE),
        Ok(image) => {
            // SAFETY: the kernel's buffer has room for `capacity` bytes.
            unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), buf, image.len()) };
            image.len() as i64
        }
        Err(errno) => -i64::from(errno),
    })
}

unsafe extern "C" fn fpstate_write(thread: u64, buf: *const u8, len: u64) -> i64 {
    // More than any image; a longer one is cut to what the format has.
    const MOST: u64 = 1 << 16;
    let image = match len {
        0 => &[],
        // SAFETY: the kernel's buffer holds `len` bytes.
        _ => unsafe { std::slice::from_raw_parts(buf, len.min(MOST) as usize) },
    };
    with(-i64::from(libc::ENODEV), |p| number(p.fpstate_write(thread, image).map(|()| 0)))
}
