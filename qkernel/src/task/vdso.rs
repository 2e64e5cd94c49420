//! The vDSO and its data in user address spaces, where the platform has none of its own (vdso(7)).
//!
//! Both are pages of the kernel: the clock page that ring 0 keeps ([`crate::arch::kvm::clock`]),
//! and right behind it the ELF image built from `vdso/`. Their entries are like those of file
//! windows: not counted, so neither fork, munmap nor hibernation has anything to do with the pages
//! behind them.
//!
//! On `process` the vDSO is the host's, which the platform puts into each address space, above what
//! programs may map. The kernel has a copy of it, for its own accesses there
//! ([`BootInfo::vdso_copy`](qlib::platform::BootInfo)), and a [range](of_platform) for who lists
//! them.

use alloc::sync::Arc;

use qlib::platform::PLATFORM_KVM;
use qlib::{Frames, Gpa, PAGE_SHIFT, PAGE_SIZE, Va};

use crate::arch::{self, kvm};
use crate::errno::{Errno, Result};
use crate::mm::map::Placement;
use crate::mm::mapped::{MappedFile, MappedPage};
use crate::mm::vma::FileMapping;
use crate::mm::{AddressSpace, Prot, Vma, VmaFlags, frames};
use crate::sync::Once;

const BYTES: usize = include_bytes!(concat!(env!("OUT_DIR"), "/vdso.pages")).len();

/// Aligned as ELF headers are.
#[repr(C, align(16))]
struct Pages([u8; BYTES]);

static IMAGE: Pages = Pages(*include_bytes!(concat!(env!("OUT_DIR"), "/vdso.pages")));

/// Where the copy is that programs see.
static COPY: Once<Gpa> = Once::new();

/// What a page table of one level maps: Linux puts the vDSO no farther from the stack.
const NEAR_BYTES: u64 = 2 << 20;

/// The ELF image, in whole pages.
pub fn image() -> &'static [u8] {
    &IMAGE.0
}

/// The frames with the copy that programs see. Not the bytes of the kernel image itself: those are
/// constant, and the VMM may have put pages of its own binary in the place of RAM there. Made at
/// first use, and kept for ever.
fn copy() -> Result<Gpa> {
    if let Some(known) = COPY.try_get() {
        return Ok(*known);
    }
    let pages = BYTES >> PAGE_SHIFT;
    let start = frames::user().alloc_run(pages).ok_or(Errno::ENOMEM)?;
    if arch::phys().write_bytes(start, image()).is_none() {
        frames::user().free_run(Frames { start, count: pages as u64 });
        return Err(Errno::EFAULT);
    }
    Ok(*COPY.set(start))
}

/// Pages of the kernel as something to be mapped.
struct KernelPages {
    start: Gpa,
    pages: u64,
    name: &'static [u8],
}

impl MappedFile for KernelPages {
    fn page(&self, index: u64, _write: bool) -> Result<MappedPage> {
        // mremap(2) may have made the range longer than what lies behind it.
        (index < self.pages)
            .then(|| MappedPage::Window(self.start + (index << PAGE_SHIFT)))
            .ok_or(Errno::EFAULT)
    }

    fn run_pages(&self, index: u64) -> u64 {
        self.pages.saturating_sub(index).max(1)
    }

    fn name(&self) -> Option<&'static [u8]> {
        Some(self.name)
    }
}

/// The vDSO of a new program in `mm`, whose stack ends at `stack_top`: the address for
/// AT_SYSINFO_EHDR. `seed` says where above the stack it lies.
pub fn for_program(mm: &AddressSpace, stack_top: Va, seed: u64) -> Result<Va> {
    let boot = arch::boot();
    if boot.platform != PLATFORM_KVM || boot.vdso.0 != 0 {
        return Ok(boot.vdso);
    }
    let (data_bytes, code_bytes) = (PAGE_SIZE, BYTES as u64);
    let hint = place(stack_top, boot.user_max, data_bytes + code_bytes, seed);
    // All of it first, so that both lie side by side.
    let whole = Vma::anonymous(Prot::empty(), VmaFlags::empty());
    let start = mm.map(Placement::Hint(hint), data_bytes + code_bytes, whole, u64::MAX)?;

    let data =
        KernelPages { start: kvm::clock::page(), pages: data_bytes >> PAGE_SHIFT, name: b"[vvar]" };
    mm.map(Placement::Fixed(start), data_bytes, vma(Prot::READ, Prot::READ, data), u64::MAX)?;
    let code = KernelPages { start: copy()?, pages: code_bytes >> PAGE_SHIFT, name: b"[vdso]" };
    // A debugger may write its breakpoints: to a copy of the program's own.
    mm.map(
        Placement::Fixed(start + data_bytes),
        code_bytes,
        vma(Prot::READ | Prot::EXEC, Prot::all(), code),
        u64::MAX,
    )?;
    Ok(start + data_bytes)
}

/// The platform's own vDSO, if that is what programs have, as a range: it lies in every address
/// space, above all that programs may map, and is in the set of none.
pub fn of_platform() -> Option<Vma> {
    let boot = arch::boot();
    let pages = boot.vdso_bytes >> PAGE_SHIFT;
    let image = KernelPages { start: boot.vdso_copy, pages, name: b"[vdso]" };
    let (start, end) = (boot.vdso, boot.vdso + boot.vdso_bytes);
    (pages > 0).then(|| Vma { start, end, ..vma(Prot::READ | Prot::EXEC, Prot::all(), image) })
}

fn vma(prot: Prot, max_prot: Prot, pages: KernelPages) -> Vma {
    let backing = FileMapping { mapping: Arc::new(pages), file: None, first_page: 0 };
    Vma::of_file(prot, max_prot, VmaFlags::empty(), backing)
}

/// Where `bytes` shall lie: somewhere between the stack's end and the end of its 2 MiB, as on
/// Linux. 0, which is anywhere, when there is no room.
fn place(stack_top: Va, user_max: Va, bytes: u64, random: u64) -> Va {
    let end = Va((stack_top.0 | (NEAR_BYTES - 1)) + 1).min(user_max);
    match end.0.checked_sub(stack_top.0).and_then(|room| room.checked_sub(bytes)) {
        Some(room) => stack_top + random % ((room >> PAGE_SHIFT) + 1) * PAGE_SIZE,
        None => Va(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lies_behind_the_stack_if_there_is_room() {
        let max = Va(0x7ff0_0000_0000);
        for random in [0, 1, 510, 511, 0x1234_5678_9abc_def0, u64::MAX] {
            for top in [max - PAGE_SIZE * 3, max - PAGE_SIZE * 700, max - NEAR_BYTES * 9] {
                let at = place(top, max, 3 * PAGE_SIZE, random);
                assert!(
                    at >= top
                        && at + 3 * PAGE_SIZE <= max
                        && at - top < NEAR_BYTES
                        && at.is_page_aligned(),
                    "{at:?}"
                );
            }
            assert_eq!(place(max - 2 * PAGE_SIZE, max, 3 * PAGE_SIZE, random), Va(0));
        }
        let places: alloc::collections::BTreeSet<Va> =
            (0..1000).map(|n| place(max - NEAR_BYTES, max, PAGE_SIZE, n)).collect();
        assert_eq!(places.len(), 512, "every page is a place");
    }

    #[test]
    fn pages_behind_its_end_do_not_exist() {
        let pages = KernelPages { start: Gpa(0x20_0000), pages: 2, name: b"[vdso]" };
        assert_eq!(pages.page(1, false).unwrap(), MappedPage::Window(Gpa(0x20_1000)));
        assert_eq!(pages.page(2, false), Err(Errno::EFAULT));
        assert_eq!((pages.run_pages(0), pages.run_pages(1), pages.run_pages(9)), (2, 1, 1));
    }
}
