//! Reference counts that change without a lock. Generic over the atomic cell, so that a model
//! checker can try every interleaving of the very code that runs in the kernel.

use core::sync::atomic::{AtomicU16, Ordering};

/// A 16-bit atomic cell.
pub trait Cell {
    /// Relaxed load.
    fn load(&self) -> u16;
    /// Compare and exchange; the bool says which ordering a success has: acquire-release, else
    /// relaxed.
    fn compare_exchange(&self, current: u16, new: u16, acq_rel: bool) -> Result<u16, u16>;
}

impl Cell for AtomicU16 {
    fn load(&self) -> u16 {
        self.load(Ordering::Relaxed)
    }
    fn compare_exchange(&self, current: u16, new: u16, acq_rel: bool) -> Result<u16, u16> {
        let success = if acq_rel { Ordering::AcqRel } else { Ordering::Relaxed };
        self.compare_exchange_weak(current, new, success, Ordering::Relaxed)
    }
}

/// The count is at its maximum: no further reference can be taken, the caller must copy the frame
/// instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saturated;

/// Takes one more reference. The caller holds one already, so the count cannot reach zero
/// meanwhile. Panics when the count is zero (the frame is free: a bug of the kernel).
pub fn inc(cell: &impl Cell) -> Result<(), Saturated> {
    let mut now = cell.load();
    loop {
        assert_ne!(now, 0, "reference to a free frame");
        let more = now.checked_add(1).ok_or(Saturated)?;
        match cell.compare_exchange(now, more, false) {
            Ok(_) => return Ok(()),
            Err(other) => now = other,
        }
    }
}

/// Drops one reference; whether it was the last. Whoever gets true, and nobody else, frees the
/// frame. Panics when the count is zero (the frame is free: a bug of the kernel).
pub fn dec(cell: &impl Cell) -> bool {
    let mut now = cell.load();
    loop {
        assert_ne!(now, 0, "frame freed twice");
        match cell.compare_exchange(now, now - 1, true) {
            Ok(_) => return now == 1,
            Err(other) => now = other,
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::{AtomicU16, AtomicU64, Ordering};
    use loom::sync::{Arc, Mutex};

    use super::*;

    impl Cell for AtomicU16 {
        fn load(&self) -> u16 {
            self.load(Ordering::Relaxed)
        }
        fn compare_exchange(&self, current: u16, new: u16, acq_rel: bool) -> Result<u16, u16> {
            let success = if acq_rel { Ordering::AcqRel } else { Ordering::Relaxed };
            self.compare_exchange(current, new, success, Ordering::Relaxed)
        }
    }

    /// One frame: its count, its bytes, and whether it is in the free bitmap (under the lock).
    struct Frame {
        refs: AtomicU16,
        bytes: AtomicU64,
        free: Mutex<u32>,
    }

    impl Frame {
        fn drop_ref(&self) {
            if dec(&self.refs) {
                // The last one must see what all the others wrote before they let go.
                assert_eq!(self.bytes.load(Ordering::Relaxed), 2);
                *self.free.lock().unwrap() += 1;
            }
        }
    }

    #[test]
    fn exactly_one_of_two_holders_frees_and_sees_all_writes() {
        loom::model(|| {
            let frame = Arc::new(Frame {
                refs: AtomicU16::new(2),
                bytes: AtomicU64::new(0),
                free: Mutex::new(0),
            });
            let other = frame.clone();
            let thread = loom::thread::spawn(move || {
                other.bytes.fetch_add(1, Ordering::Relaxed);
                other.drop_ref();
            });
            frame.bytes.fetch_add(1, Ordering::Relaxed);
            frame.drop_ref();
            thread.join().unwrap();
            assert_eq!(*frame.free.lock().unwrap(), 1);
            assert_eq!(frame.refs.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn a_fork_racing_with_an_unmap_keeps_the_frame() {
        loom::model(|| {
            let frame = Arc::new(Frame {
                refs: AtomicU16::new(2),
                bytes: AtomicU64::new(2),
                free: Mutex::new(0),
            });
            let other = frame.clone();
            // One holder forks (a second reference, kept), the other unmaps.
            let thread = loom::thread::spawn(move || other.drop_ref());
            inc(&frame.refs).unwrap();
            thread.join().unwrap();
            assert_eq!(*frame.free.lock().unwrap(), 0);
            assert_eq!(frame.refs.load(Ordering::Relaxed), 2);
            frame.drop_ref();
            frame.drop_ref();
            assert_eq!(*frame.free.lock().unwrap(), 1);
        });
    }
}
