//! The kernel's page tables, made before it runs: guest physical memory, mapped linearly from the
//! kernel's base on, each page with no more rights than it needs. The kernel itself cannot change
//! them: the pages that hold them are mapped read-only.

use qlib::kvm::{CPU_AREA_BYTES, CPU_GUARD_BYTES, HOLE};
use qlib::{Gpa, PAGE_SIZE};
use rustix::io::Errno;

use crate::sandbox::memory::{GuestMemory, Protection};

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// In a table that could point to another one: maps memory itself.
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const DATA: u64 = PRESENT | WRITE | ACCESSED | DIRTY | GLOBAL | NO_EXECUTE;
const SMALL_BYTES: u64 = PAGE_SIZE;
const MIDDLE_BYTES: u64 = 2 << 20;
const LARGE_BYTES: u64 = 1 << 30;
const ENTRIES: usize = 512;

/// What is to be mapped.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kernel virtual address of guest physical address 0; 1 GiB aligned, in the upper half.
    pub base: u64,
    /// Bytes of RAM.
    pub ram_bytes: u64,
    /// Bytes of file windows, which follow RAM.
    pub window_bytes: u64,
    /// What lies below `free_start`, with its rights; what is not named there is not mapped.
    pub small: Vec<(Gpa, u64, Protection)>,
    /// Where memory begins that the kernel uses as it likes; 2 MiB aligned.
    pub free_start: Gpa,
    /// The CPU maps 1 GiB with one entry.
    pub has_large: bool,
}

/// The areas of `cpus` vCPUs from `first` on, without their guard pages.
pub fn cpu_areas(first: Gpa, cpus: u32) -> impl Iterator<Item = (Gpa, u64, Protection)> {
    (0..u64::from(cpus)).map(move |i| {
        let area = first + i * CPU_AREA_BYTES;
        (area + CPU_GUARD_BYTES, CPU_AREA_BYTES - CPU_GUARD_BYTES, Protection::ReadWrite)
    })
}

struct Builder {
    first: Gpa,
    tables: Vec<[u64; ENTRIES]>,
}

impl Builder {
    /// The table below an entry, made if there is none.
    fn below(&mut self, table: usize, index: usize) -> usize {
        let entry = self.tables[table][index];
        if entry & PRESENT != 0 {
            return ((entry & 0x000f_ffff_ffff_f000) - self.first.0) as usize / PAGE_SIZE as usize;
        }
        let new = self.tables.len();
        self.tables.push([0; ENTRIES]);
        let gpa = self.first + new as u64 * PAGE_SIZE;
        self.tables[table][index] = gpa.0 | PRESENT | WRITE | ACCESSED;
        new
    }

    fn map(&mut self, base: u64, gpa: u64, flags: u64, bytes: u64) {
        let va = base + gpa;
        let index = |level: u32| (va >> (12 + 9 * level)) as usize % ENTRIES;
        let third = self.below(0, index(3));
        if bytes == LARGE_BYTES {
            self.tables[third][index(2)] = gpa | flags | LARGE;
            return;
        }
        let second = self.below(third, index(2));
        if bytes == MIDDLE_BYTES {
            self.tables[second][index(1)] = gpa | flags | LARGE;
            return;
        }
        let first = self.below(second, index(1));
        self.tables[first][index(0)] = gpa | flags;
    }
}

/// The tables, root first, as they are to lie from `first` on.
pub fn build(plan: &Plan, first: Gpa) -> Vec<[u64; ENTRIES]> {
    let mut builder = Builder { first, tables: vec![[0; ENTRIES]] };
    for (gpa, len, protection) in &plan.small {
        let flags = match protection {
            Protection::Read => DATA & !WRITE & !DIRTY,
            Protection::ReadExec => DATA & !WRITE & !DIRTY & !NO_EXECUTE,
            Protection::ReadWrite => DATA,
        };
        for page in (gpa.0..gpa.0 + len).step_by(SMALL_BYTES as usize) {
            builder.map(plan.base, page, flags, SMALL_BYTES);
        }
    }
    let mut at = plan.free_start.0;
    let end = plan.ram_bytes + plan.window_bytes;
    while at < end {
        let in_hole = |bytes: u64| at < HOLE.end.0 && HOLE.start.0 < at + bytes;
        let large = plan.has_large && at.is_multiple_of(LARGE_BYTES) && end - at >= LARGE_BYTES;
        let bytes = if large && !in_hole(LARGE_BYTES) { LARGE_BYTES } else { MIDDLE_BYTES };
        if !in_hole(bytes) {
            builder.map(plan.base, at, DATA, bytes);
        }
        at += bytes;
    }
    builder.tables
}

/// Writes tables to where [`build`] was told they would lie.
pub fn write(memory: &GuestMemory, first: Gpa, tables: &[[u64; ENTRIES]]) -> Result<(), Errno> {
    for (i, table) in tables.iter().enumerate() {
        let bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        memory.write(first + i as u64 * PAGE_SIZE, &bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(has_large: bool) -> Plan {
        Plan {
            base: 0xffff_9000_4000_0000,
            ram_bytes: 3 << 30,
            window_bytes: 4 << 30,
            small: vec![
                (Gpa(0x20_0000), 0x3000, Protection::ReadExec),
                (Gpa(0x20_3000), 0x1000, Protection::Read),
                (Gpa(0x20_4000), 0x2000, Protection::ReadWrite),
            ],
            free_start: Gpa(8 << 20),
            has_large,
        }
    }

    /// What the tables say of a guest physical address: flags, if it is mapped, and to where.
    fn walk(tables: &[[u64; ENTRIES]], first: Gpa, va: u64) -> Option<(u64, u64)> {
        let mut table = 0;
        for level in (0..=3u32).rev() {
            let entry = tables[table][(va >> (12 + 9 * level)) as usize % ENTRIES];
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || entry & LARGE != 0 {
                let inside = va & ((1 << (12 + 9 * level)) - 1);
                return Some((
                    (entry & 0x000f_ffff_ffff_f000 & !((1u64 << (12 + 9 * level)) - 1)) + inside,
                    entry,
                ));
            }
            table = ((entry & 0x000f_ffff_ffff_f000) - first.0) as usize / 4096;
        }
        None
    }

    #[test]
    fn memory_lies_where_it_should_and_nothing_can_be_written_and_executed() {
        for has_large in [false, true] {
            let plan = plan(has_large);
            let first = Gpa(0x30_0000);
            let tables = build(&plan, first);
            for gpa in [
                0x20_0000u64,
                0x20_2fff,
                0x20_3000,
                0x20_5123,
                8 << 20,
                1 << 30,
                (3 << 30) - 1,
                0xfebf_ffff,
                0xff00_0000,
                (7 << 30) - 1,
            ] {
                let (to, entry) = walk(&tables, first, plan.base + gpa).expect("mapped");
                assert_eq!(to, gpa);
                assert!(entry & WRITE == 0 || entry & NO_EXECUTE != 0, "{gpa:#x}");
                assert_eq!(entry & WRITE != 0, gpa >= 0x20_4000, "{gpa:#x}");
                assert_eq!(entry & NO_EXECUTE == 0, gpa < 0x20_3000, "{gpa:#x}");
            }
            for gpa in [
                0u64,
                0x1000,
                0x20_6000,
                (8 << 20) - 1,
                0xfec0_0000,
                0xfee0_0000,
                0xfeff_ffff,
                7 << 30,
            ] {
                assert_eq!(walk(&tables, first, plan.base + gpa), None, "{gpa:#x}");
            }
            assert!(tables.len() < if has_large { 8 } else { 16 }, "{}", tables.len());
        }
    }
}
