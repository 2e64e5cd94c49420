//! Page tables as the hardware walks them: the kernel's half in each, and forgetting what CPUs have
//! cached.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use qlib::kvm::VECTOR_FLUSH;
use qlib::pagetable::USER_END;
use qlib::platform::{EVENT_SPACE_GONE, Event};
use qlib::{Gpa, PAGE_SIZE, Va};

use super::{apic, cpu, msr, sched};
use crate::arch::{boot, phys};
use crate::errno::Errno;

/// More pages than this are forgotten by forgetting everything.
const MAX_SINGLE: u64 = 16;

static NEXT_SPACE: AtomicU64 = AtomicU64::new(1);

/// A handle. An address space is its page table: nothing else is to be made.
pub(super) unsafe extern "C" fn space_new(_: u32) -> i64 {
    NEXT_SPACE.fetch_add(1, Ordering::Relaxed) as i64
}

/// No thread is left in it.
pub(super) unsafe extern "C" fn space_drop(space: u64) {
    sched::post(Event { kind: EVENT_SPACE_GONE, a: space, ..Event::default() });
}

/// The hardware's ACCESSED bits are the answer, and the caller looks at them itself.
pub(super) unsafe extern "C" fn space_touched(_: u64, _: Va, pages: u64, bitmap: *mut u64) -> i64 {
    let words = pages.div_ceil(64) as usize;
    // SAFETY: the kernel's bitmap has a bit for each page, in whole words.
    unsafe { core::slice::from_raw_parts_mut(bitmap, words) }.fill(u64::MAX);
    0
}

/// The host knows of CPUs only.
pub(super) unsafe extern "C" fn space_time(_: u64) -> i64 {
    -i64::from(Errno::ENOSYS.0)
}

/// Nobody but the guest itself follows its page tables.
pub(super) unsafe extern "C" fn user_block(_: qlib::Gpa, _: u32) -> i64 {
    0
}

/// Puts the kernel's half into a new root table.
pub fn enter_kernel_half(root: Gpa) {
    let phys = phys();
    let kernel = phys.page_table(boot().kvm.kernel_root);
    let table = phys.page_table(root);
    for index in kernel.len() / 2..kernel.len() {
        table[index].store(kernel[index].load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Uses the page table at `root`.
pub fn load(root: Gpa) {
    if msr::cr3() != root.0 {
        // SAFETY: a root that has the kernel's half (every user table, and the kernel's own).
        unsafe { msr::set_cr3(root.0) }
    }
}

/// Leaves user page tables. Before the kernel lock is given up, unless user mode is entered: a
/// table may be freed by whoever has it.
pub fn leave() {
    load(boot().kvm.kernel_root);
}

/// What CPUs have cached of the pages of `ranges`, in the address space with page table `root`, is
/// forgotten when this returns.
pub fn flush(root: Gpa, ranges: &[Range<Va>]) {
    let here = msr::cr3() == root.0;
    let mut whole = false;
    for range in ranges {
        let pages = (range.end - range.start) / PAGE_SIZE;
        if pages > MAX_SINGLE || range.start >= USER_END {
            whole = true;
        } else if here {
            (0..pages).for_each(|page| msr::invlpg(range.start.0 + page * PAGE_SIZE));
        }
    }
    if here && whole {
        // SAFETY: the table in use.
        unsafe { msr::set_cr3(root.0) }
    }
    others(Some(root));
}

/// All CPUs forget everything about user pages; this one leaves the page table in use if `gone` has
/// it.
pub fn flush_everything(gone: &[Gpa]) {
    let root = Gpa(msr::cr3());
    let next = if gone.contains(&root) { boot().kvm.kernel_root } else { root };
    // SAFETY: the kernel's own table, or the one in use.
    unsafe { msr::set_cr3(next.0) }
    others(None);
}

/// Has the other vCPUs forget what they have cached, if they run user code (of `root`); those that
/// do not, do so before they will.
fn others(root: Option<Gpa>) {
    let this = cpu::this().index;
    let running = |cpu: &cpu::PerCpu| {
        let user = cpu.in_user.load(Ordering::SeqCst);
        user != 0 && root.is_none_or(|root| user & !1 == root.0)
    };
    let online = sched::online();
    for index in (0..online).filter(|i| *i != this) {
        let cpu = cpu::of(index);
        cpu.flush.store(true, Ordering::SeqCst);
        if running(cpu) {
            apic::interrupt(index, VECTOR_FLUSH);
        }
    }
    for index in (0..online).filter(|i| *i != this) {
        let cpu = cpu::of(index);
        // The interrupt takes it out of user mode; it needs no lock for that.
        while running(cpu) && cpu.flush.load(Ordering::SeqCst) {
            core::hint::spin_loop();
        }
    }
}
