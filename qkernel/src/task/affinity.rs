//! The CPUs that a thread may run on.

use alloc::string::String;
use core::fmt::Write;

use super::Thread;
use crate::arch;
use crate::errno::{Errno, Result};

/// Those of the container, a bit each. Sets have 64 at most.
pub fn all() -> u64 {
    u64::MAX >> (64 - arch::boot().cpus.clamp(1, 64))
}

/// Those of a thread.
pub fn of(thread: &Thread) -> u64 {
    let own = thread.attrs.lock().affinity & all();
    if own == 0 { all() } else { own }
}

/// Gives it these: EINVAL if none of them exists.
pub fn set(thread: &Thread, cpus: u64) -> Result {
    if cpus & all() == 0 {
        return Err(Errno::EINVAL);
    }
    thread.attrs.lock().affinity = cpus & all();
    apply(thread);
    Ok(())
}

/// Has the platform keep to them, also for a thread that has inherited them. Where the host decides
/// on which CPU a thread runs, the set is kept and shown.
pub fn apply(thread: &Thread) {
    let cpus = of(thread);
    if thread.attrs.lock().affinity != 0 {
        let _ = thread.user.bind(if cpus == all() { u64::MAX } else { cpus });
    }
}

/// One of the CPUs of a thread: the one with this number modulo how many they are.
pub fn pick(thread: &Thread, number: u32) -> u32 {
    let cpus = of(thread);
    let mut each = (0..u64::BITS).filter(|cpu| cpus & 1 << cpu != 0);
    each.nth((number % cpus.count_ones().max(1)) as usize).unwrap_or(0)
}

/// A set as Linux lists it ("0-2,5").
pub fn list(cpus: u64) -> String {
    let has = |cpu: &u32| cpus & 1 << cpu != 0;
    let mut out = String::new();
    let mut next = 0;
    while let Some(first) = (next..u64::BITS).find(has) {
        let end = (first..u64::BITS).find(|cpu| !has(cpu)).unwrap_or(u64::BITS);
        let comma = if out.is_empty() { "" } else { "," };
        let _ = match end - 1 {
            last if last == first => write!(out, "{comma}{first}"),
            last => write!(out, "{comma}{first}-{last}"),
        };
        next = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_listed_as_linux_does() {
        for (cpus, expected) in [
            (0, ""),
            (1, "0"),
            (0b11, "0-1"),
            (0b10_0111, "0-2,5"),
            (1 << 63, "63"),
            (u64::MAX, "0-63"),
            (u64::MAX << 62 | 0b10, "1,62-63"),
        ] {
            assert_eq!(list(cpus), expected);
        }
    }
}
