//! Memory slots: which guest physical addresses KVM knows. It keeps two bytes for each page of a
//! slot (host kernels that can track pages), so RAM and windows become slots as they are needed,
//! lowest first.

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use qlib::Gpa;
use qlib::kvm::HOLE;
use rustix::io::Errno;

use crate::sandbox::memory::GuestMemory;
use crate::sys::ordered::{Mutex, place};

/// A slot is not smaller, in bytes.
const CHUNK_BYTES: u64 = 64 << 20;

/// What is a slot already of one kind of memory.
#[derive(Clone, Copy, Debug)]
struct Area {
    start: u64,
    /// The end of what is a slot.
    ready: u64,
    end: u64,
}

impl Area {
    /// Up to where it is to be a slot, so that `gpa` is reached and slots stay few.
    fn next(&self, gpa: u64) -> u64 {
        let wanted = gpa.max(self.ready + (self.ready - self.start) / 2);
        (self.start + (wanted - self.start).next_multiple_of(CHUNK_BYTES)).min(self.end)
    }
}

/// The slots of a virtual machine.
#[derive(Debug)]
pub struct Slots {
    inner: Mutex<Inner, place::MemorySlots>,
}

#[derive(Debug)]
struct Inner {
    next: u32,
    ram: Area,
    windows: Area,
}

/// The parts of `[start, end)` beside the hole: start and length.
fn beside_hole(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let below = (start, end.min(HOLE.start.0));
    let above = (start.max(HOLE.end.0), end);
    [below, above]
        .into_iter()
        .filter(|(start, end)| start < end)
        .map(|(start, end)| (start, end - start))
}

impl Slots {
    /// None yet of `memory`.
    pub fn new(memory: &GuestMemory) -> Slots {
        let area = |start, bytes| Area { start, ready: start, end: start + bytes };
        let (ram, windows) =
            (area(0, memory.ram_bytes()), area(memory.ram_bytes(), memory.window_bytes()));
        Slots { inner: Mutex::new(Inner { next: 0, ram, windows }) }
    }

    /// Makes what lies below `gpa` known to KVM, of RAM or of windows, whichever `gpa` is the end
    /// of a part of. Up to where it is then. EFAULT when that is beyond guest memory.
    pub fn reach(&self, vm: &VmFd, memory: &GuestMemory, gpa: Gpa) -> Result<Gpa, Errno> {
        let mut inner = self.inner.lock();
        let is_ram = gpa.0 <= inner.ram.end;
        let area = if is_ram { inner.ram } else { inner.windows };
        if gpa.0 > area.end {
            return Err(Errno::FAULT);
        }
        if gpa.0 <= area.ready {
            return Ok(Gpa(area.ready));
        }
        let end = area.next(gpa.0);
        for (start, bytes) in beside_hole(area.ready, end) {
            let region = kvm_userspace_memory_region {
                slot: inner.next,
                flags: 0,
                guest_phys_addr: start,
                memory_size: bytes,
                userspace_addr: memory.base() + start,
            };
            // SAFETY: guest memory stays reserved for the life of the virtual machine, which its
            // owner keeps shorter than that of the memory; what is mapped there is only guest
            // memory.
            unsafe { vm.set_user_memory_region(region) }
                .map_err(|e| Errno::from_raw_os_error(e.errno()))?;
            inner.next += 1;
        }
        let area = if is_ram { &mut inner.ram } else { &mut inner.windows };
        area.ready = end;
        Ok(Gpa(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_grow_by_halves_up_to_the_end() {
        const MIB: u64 = 1 << 20;
        let mut area = Area { start: 1000 * MIB, ready: 1000 * MIB, end: 3000 * MIB };
        let mut seen = Vec::new();
        while area.ready < area.end {
            area.ready = area.next(area.ready + 1);
            seen.push((area.ready - area.start) / MIB);
        }
        assert_eq!(seen, [64, 128, 192, 320, 512, 768, 1152, 1728, 2000]);
        assert_eq!(Area { ready: 1064 * MIB, ..area }.next(2000 * MIB), 2024 * MIB);
    }

    #[test]
    fn the_hole_is_cut_out() {
        let cut = |start, end| beside_hole(start, end).collect::<Vec<_>>();
        let (low, high) = (HOLE.start.0, HOLE.end.0);
        assert_eq!(cut(0, low), [(0, low)]);
        assert_eq!(cut(high, high + 5), [(high, 5)]);
        assert_eq!(cut(low - 1, high + 1), [(low - 1, 1), (high, 1)]);
        assert_eq!(cut(low + 1, high - 1), []);
    }
}
