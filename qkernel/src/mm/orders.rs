//! Orders: how the platform learns of changes of a page table. They are collected here and carried out before a thread
//! of the address space goes on.
//!
//! The ACCESSED bit of an entry says that the platform may show the page; only such pages need an order when they
//! change or go, and their frames are not free until it is carried out. Where the hardware walks the page table it sets the bit
//! itself, before it uses an entry: "may show" is then "may have cached". There is nothing to be shown, and what is not shown any more is
//! forgotten at once ([`Inner::carry_out`]).

use core::ops::Range;

use qlib::pagetable::{Action, Pte, PteFlags};
use qlib::platform::{ORDER_MAP, ORDER_PROTECT, ORDER_UNMAP, Order};
use qlib::{Gpa, PAGE_SIZE, Va};

use super::fault::prot_of;
use super::frames::{self, Table, counted_frame};
use super::space::Inner;
use super::swap::Usage;
use crate::arch;

/// More runs than this are not changed one by one but unmapped together, to fault in again.
const MAX_PROTECT_RUNS: usize = 8;

/// More ranges than this on their way out are joined.
const MAX_UNMAPPING: usize = 32;

/// Makes an order to map something one to unmap what is there: the page faults in again, if it may.
pub fn void_map(order: &mut Order) {
    if order.op == ORDER_MAP {
        order.op = ORDER_UNMAP;
    }
}

/// Whether a CPU may see the page as the entry says, so that it must be told when that changes. Where the hardware sets ACCESSED it may
/// do so at any time.
pub(super) fn may_be_shown(pte: Pte) -> bool {
    pte.is_present() && (pte.has(PteFlags::ACCESSED) || arch::walks_tables())
}

/// Marks entries as shown by the platform.
pub(super) trait MarkAccessed {
    /// All present entries of `range`.
    fn mark_accessed(&mut self, range: Range<Va>);
}

impl MarkAccessed for Table {
    fn mark_accessed(&mut self, range: Range<Va>) {
        self.for_each(range, &mut |_, pte| {
            if pte.is_present() { Action::Replace(pte.with(PteFlags::ACCESSED)) } else { Action::Keep }
        });
    }
}

impl Inner {
    /// Whether some CPU may see what the entry names, or will before the orders that have been given are carried out: its frame may
    /// not be used for anything else before an unmapping that is ordered from now on. Where several threads share the space, an entry
    /// that is hidden already counts too: the order that hides it may be another thread's to carry out, and it may not have done so.
    pub(super) fn may_be_seen(&self, pte: Pte) -> bool {
        may_be_shown(pte) || self.shared && pte.is_present()
    }

    /// Shows `[va, va + len)`, joined with the last order where it continues it.
    pub(super) fn order_map(&mut self, va: Va, len: u64, gpa: Gpa, prot: u32) {
        if let Some(last) = self.orders.last_mut()
            && last.op == ORDER_MAP
            && last.prot == prot
            && last.va + last.len == va
            && last.gpa + last.len == gpa
        {
            last.len += len;
            return;
        }
        self.orders.push(Order { op: ORDER_MAP, prot, va, len, gpa });
    }

    /// Hides `[va, va + len)`.
    pub(super) fn order_unmap(&mut self, va: Va, len: u64) {
        self.orders.push(Order { op: ORDER_UNMAP, va, len, ..Order::default() });
        if self.shared {
            self.note_unmapping(va, va + len);
        }
    }

    fn note_unmapping(&mut self, start: Va, end: Va) {
        if self.unmapping.len() < MAX_UNMAPPING {
            self.unmapping.push((start, end));
        } else if let Some(first) = self.unmapping.first_mut() {
            // One range that covers too much only costs an order too many.
            *first = (first.0.min(start), first.1.max(end));
        }
    }

    /// `[start, end)` is mapped anew: has it unmapped first if an unmapping of it may still be under way.
    pub(super) fn settle_unmapping(&mut self, start: Va, end: Va) {
        if !self.unmapping.iter().any(|(from, to)| *from < end && start < *to) {
            return;
        }
        self.unmapping.retain(|(from, to)| !(start <= *from && *to <= end));
        self.orders.push(Order { op: ORDER_UNMAP, va: start, len: end - start, ..Order::default() });
    }

    /// Clears all entries of `range` and drops what they hold.
    pub(super) fn zap(&mut self, range: Range<Va>) {
        self.forget_patches(&range);
        let mut shown = false;
        let shared = self.shared;
        let mut deferred = core::mem::take(&mut self.deferred);
        self.table().for_each(range.clone(), &mut |_, pte| {
            // As in `may_be_seen`.
            if may_be_shown(pte) || shared && pte.is_present() {
                shown = true;
                deferred.extend(counted_frame(pte));
            } else {
                frames::free_entry(pte);
            }
            Action::Replace(Pte::EMPTY)
        });
        self.deferred = deferred;
        if shown {
            self.order_unmap(range.start, range.end - range.start);
        }
    }

    /// Changes present entries of `range` by `change`, and has the platform follow.
    pub(super) fn change(&mut self, range: Range<Va>, change: impl Fn(Pte) -> Pte) {
        if arch::walks_tables() {
            return self.change_and_forget(range, change);
        }
        // Runs of shown pages whose new protection is the same: (start, end, prot).
        let mut runs: alloc::vec::Vec<(Va, Va, u32)> = alloc::vec::Vec::new();
        // Where threads share the space, an unmapping of another one may still make a hole, which no protection can change.
        let mut too_many = false;
        let shared = self.shared;
        let limit = if shared { 0 } else { MAX_PROTECT_RUNS };
        self.table().for_each(range.clone(), &mut |va, pte| {
            if !pte.is_present() {
                return Action::Keep;
            }
            let new = change(pte);
            // As in `may_be_seen`: a page that is hidden already may still be seen with its old protection.
            if (may_be_shown(pte) || shared) && prot_of(pte) != prot_of(new) {
                let prot = prot_of(new);
                let full = runs.len() >= limit;
                match runs.last_mut() {
                    Some((_, end, last)) if *end == va && *last == prot => *end = va + PAGE_SIZE,
                    _ if full => too_many = true,
                    _ => runs.push((va, va + PAGE_SIZE, prot)),
                }
            }
            Action::Replace(new)
        });
        if too_many {
            // What the platform knows of its use is lost with the mapping.
            self.table().for_each(range.clone(), &mut |_, pte| match pte.has(PteFlags::PRESENT | PteFlags::ACCESSED) {
                true => Action::Replace(Usage::of(pte).seen().put(pte)),
                false => Action::Keep,
            });
            self.hide(range);
            return;
        }
        for (start, end, prot) in runs {
            self.orders.push(Order { op: ORDER_PROTECT, prot, va: start, len: end - start, gpa: Gpa(0) });
        }
    }

    /// The same where the hardware walks the page table.
    fn change_and_forget(&mut self, range: Range<Va>, change: impl Fn(Pte) -> Pte) {
        let mut changed: Option<(Va, Va)> = None;
        self.table().for_each(range, &mut |va, pte| {
            if !pte.is_present() {
                return Action::Keep;
            }
            let new = change(pte);
            if prot_of(pte) != prot_of(new) {
                let start = changed.map_or(va, |(start, _)| start);
                changed = Some((start, va + PAGE_SIZE));
            }
            Action::Replace(new)
        });
        if let Some((start, end)) = changed {
            self.order_unmap(start, end - start);
        }
    }

    /// Hides all pages of `range` without touching what they hold; they fault in again.
    pub(super) fn hide(&mut self, range: Range<Va>) {
        let mut shown = false;
        let shared = self.shared;
        self.table().for_each(range.clone(), &mut |_, pte| {
            shown |= shared && pte.is_present();
            if !pte.is_present() || !pte.has(PteFlags::ACCESSED) {
                return Action::Keep;
            }
            shown = true;
            Action::Replace(pte.without(PteFlags::ACCESSED))
        });
        if shown {
            self.order_unmap(range.start, range.end - range.start);
        }
    }
}
