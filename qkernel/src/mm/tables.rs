//! Page tables of address spaces: their tables are pages of the kernel heap.

use qlib::Gpa;
use qlib::pagetable::{PageTable, TableAlloc};

use super::mmu;
use crate::arch::{self, heap};
use crate::errno::{Errno, Result};

/// The page table of an address space.
pub type Table = PageTable<Tables>;

/// Where page tables come from and go to.
#[derive(Clone, Copy, Debug)]
pub struct Tables;

impl TableAlloc for Tables {
    fn alloc_table(&self) -> Option<Gpa> {
        // Tables can be refused, other objects of the kernel cannot.
        if heap::is_very_low() { None } else { heap::HEAP.alloc_table() }
    }

    fn free_table(&self, table: Gpa) {
        mmu::free_table(table);
    }
}

/// An empty page table.
pub fn new_table() -> Result<Table> {
    let table = PageTable::new(arch::phys(), Tables).ok_or(Errno::ENOMEM)?;
    mmu::table_made(table.root());
    Ok(table)
}
