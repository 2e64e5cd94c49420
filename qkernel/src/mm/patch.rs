//! Patched call sites: a system-call site that is used much is made to jump to the platform's code
//! for fast calls ([`qlib::platform::BootInfo::fast_entry`]), which need not stop the thread.
//!
//! Only the instruction before `syscall` changes, into a jump to a *pad*: a few instructions in a
//! page of the program's own address space, near enough for a jump. `syscall` itself stays where it
//! was, so that signals, restarted calls and jumps to it find everything as it should be. (read(2)
//! has the number 0, which compilers load with an instruction too short for such a jump; there a
//! short jump leads to one in the filling behind the function's end.) A patched page is a private
//! copy of a page of text. It goes away as soon as the program makes it writable or touches the
//! pads, so a program that changes itself finds what it put there.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use qlib::platform::may_be_fast;
use qlib::{PAGE_SIZE, Va};

use super::fault::{Growth, entry_flags};
use super::frames;
use super::freeze::EVERYTHING;
use super::layout::PADS_BYTES;
use super::mapped::MappedPage;
use super::space::Inner;
use super::vma::{Prot, Vma, VmaFlags};
use super::{Access, AddressSpace, UserThread};
use crate::arch;
use qlib::pagetable::{Pte, PteFlags};

/// Patched pages of one address space.
const MAX_PAGES: usize = (PADS_BYTES / PAGE_SIZE) as usize;
/// Patched sites of one address space.
const MAX_SITES: usize = 64;
/// Call sites that are counted at a time.
const COUNTED: usize = 32;
/// How many of them share a place. A further one comes instead of the one that was used longest
/// ago: were there room for one alone, two that a program uses in turns would never be patched.
const WAYS: usize = 4;
/// Calls of one site further apart than this are not counted.
const ROW_NS: u64 = 1_000_000;
/// How far from a call site its pad may be: what a jump reaches, less some slack.
const REACH: u64 = 0x7000_0000;
/// Bytes of a pad: the displaced instruction, two more, and padding.
const PAD_BYTES: u64 = 32;
/// The pads of a page; the last place holds the address that they jump to.
const PADS: u64 = PAGE_SIZE / PAD_BYTES - 1;
/// Bytes of the displaced instruction, and of the jump in its place.
const DISPLACED: usize = 5;

/// The patched call sites of an address space.
#[derive(Clone, Default)]
pub(super) struct Patches {
    counts: Option<Box<[Count; COUNTED]>>,
    /// Patched sites, by the address after `syscall`. A site whose page was taken away since stays
    /// here: once is enough.
    sites: Vec<Va>,
    /// The pages they are on.
    pages: Vec<Va>,
    /// What was there before.
    originals: Vec<Original>,
    pads: Vec<PadPage>,
    /// The program has taken a page of pads away.
    off: bool,
}

#[derive(Clone, Copy, Default)]
struct Count {
    ip: Va,
    calls: u32,
    last_ns: u64,
}

/// The program's own bytes where a patch begins.
#[derive(Clone, Copy)]
struct Original {
    at: Va,
    bytes: [u8; DISPLACED],
    len: usize,
}

#[derive(Clone, Copy)]
struct PadPage {
    page: Va,
    used: u64,
}

impl Patches {
    /// Counts a call of the site that ends at `ip`; whether it is to be patched now.
    fn count(&mut self, ip: Va, now_ns: u64, enough: u32) -> bool {
        if self.off || self.pages.len() >= MAX_PAGES || self.sites.len() >= MAX_SITES {
            return false;
        }
        let counts = self.counts.get_or_insert_with(|| Box::new([Count::default(); COUNTED]));
        let (places, _) = counts.as_chunks_mut::<WAYS>();
        let place = &mut places[(ip.0 >> 1) as usize % (COUNTED / WAYS)];
        let known = place.iter().position(|count| count.ip == ip);
        let oldest = || (0..WAYS).min_by_key(|i| place[*i].last_ns).unwrap_or(0);
        let count = &mut place[known.unwrap_or_else(oldest)];
        // Once: what cannot be patched is not tried at each call.
        let tried = count.ip == ip && count.calls >= enough;
        if tried || self.sites.contains(&ip) {
            return false;
        }
        if count.ip != ip || now_ns.saturating_sub(count.last_ns) > ROW_NS {
            *count = Count { ip, calls: 0, last_ns: now_ns };
        }
        count.last_ns = now_ns;
        count.calls = count.calls.saturating_add(1);
        count.calls == enough
    }

    /// Pages of `range` go. Patched pages elsewhere that must go with them, for their pads do.
    pub(super) fn leave(&mut self, range: &Range<Va>) -> Vec<Va> {
        self.pages.retain(|page| !range.contains(page));
        self.originals.retain(|original| !range.contains(&original.at));
        if !self.pads.iter().any(|pad| range.contains(&pad.page)) {
            return Vec::new();
        }
        self.off = true;
        self.pads.clear();
        self.originals.clear();
        core::mem::take(&mut self.pages)
    }

    /// Has `read`, the bytes from `at` on as they are in memory, be the program's own.
    pub(super) fn restore(&self, at: Va, read: &mut [u8]) {
        for original in &self.originals {
            // Where they begin in each other: one of both is 0.
            let before = original.at.0.saturating_sub(at.0) as usize;
            let skipped = at.0.saturating_sub(original.at.0) as usize;
            let own = original.bytes[..original.len].get(skipped..).unwrap_or_default();
            let place = read.get_mut(before..).unwrap_or_default();
            place.iter_mut().zip(own).for_each(|(place, own)| *place = *own);
        }
    }

    /// True if pads are in `range`: patched pages elsewhere go with them.
    pub(super) fn has_pads_in(&self, range: &Range<Va>) -> bool {
        self.pads.iter().any(|pad| range.contains(&pad.page))
    }

    /// Patched pages in `range`.
    pub(super) fn inside(&self, range: &Range<Va>) -> Vec<Va> {
        self.pages.iter().copied().filter(|page| range.contains(page)).collect()
    }

    /// True if there is nothing to think of.
    pub(super) fn is_empty(&self) -> bool {
        self.pads.is_empty()
    }
}

/// Counts a system call with number `nr` that was made by the `syscall` instruction before `ip`:
/// true, once, when its site pays for being patched.
pub fn pays(mm: &AddressSpace, nr: u64, ip: Va) -> bool {
    let boot = arch::boot();
    if boot.fast_entry.0 == 0 || !may_be_fast(nr) {
        return false;
    }
    let now = arch::now_ns(linux_raw_sys::general::CLOCK_MONOTONIC);
    mm.lock().patches.count(ip, now, boot.fast_after)
}

/// Patches the site of a system call [that pays for it](pays) and that `thread` has just made.
pub async fn patch(mm: &Arc<AddressSpace>, thread: &UserThread, nr: u64, ip: Va) {
    let frozen = mm.freeze(thread, EVERYTHING).await;
    let patched = mm.lock().patch(ip, nr as u32).is_some();
    drop(frozen);
    thread.claim_ops(mm);
    crate::klog!(
        Debug,
        "thread {:#x}: call site before {ip:?} of call {nr}: patched: {patched}",
        thread.token
    );
}

impl AddressSpace {
    /// True if there are patched call sites.
    pub fn is_patched(&self) -> bool {
        !self.lock().patches.pages.is_empty()
    }

    /// Takes all patches back; the space is [halted](AddressSpace::halt) or
    /// [frozen](AddressSpace::freeze). Call sites may be patched again later.
    pub fn undo_patches(&self) {
        let mut inner = self.lock();
        for page in core::mem::take(&mut inner.patches.pages) {
            inner.zap(page..page + PAGE_SIZE);
        }
        inner.patches.originals.clear();
        inner.patches.sites.clear();
        inner.patches.counts = None;
    }
}

/// Patched pages of all address spaces.
pub fn patched_pages() -> u64 {
    AddressSpace::all().iter().map(|mm| mm.lock().patches.pages.len() as u64).sum()
}

/// How a site can be patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The five bytes before `syscall` become a jump to a pad.
    Near,
    /// The two bytes before it become a short jump to filling this many bytes behind the end of
    /// `syscall`, which becomes that jump.
    Short(usize),
}

/// Looks at the code around a `syscall` for call `nr`: `before` ends there, `after` begins behind
/// it, its first byte at `ip`.
fn kind_of(before: &[u8], after: &[u8], ip: Va, nr: u32) -> Option<Kind> {
    // mov 8(%rsp), %r9: the end of libc's syscall(3).
    const LOAD_SIXTH: [u8; DISPLACED] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];
    // xor %eax, %eax
    const CLEAR: [u8; 2] = [0x31, 0xc0];
    let number = nr.to_le_bytes();
    match before {
        // mov $nr, %eax; behind a REX prefix it would be another register.
        [.., prefix, 0xb8, a, b, c, d] if [*a, *b, *c, *d] == number && prefix & 0xf0 != 0x40 => {
            Some(Kind::Near)
        }
        [.., a, b, c, d, e] if [*a, *b, *c, *d, *e] == LOAD_SIXTH => Some(Kind::Near),
        [.., a, b] if nr == 0 && [*a, *b] == CLEAR => {
            let end = function_end(after)?;
            let filling = after.get(end..)?;
            let to_boundary = (ip + end as u64).0.wrapping_neg() as usize % 16;
            (to_boundary >= DISPLACED && is_filling(filling, to_boundary))
                .then_some(Kind::Short(end))
        }
        _ => None,
    }
}

/// Where the function ends that goes on with `after` behind its system call, if it is one of the
/// shapes that libc's have.
fn function_end(after: &[u8]) -> Option<usize> {
    // -1: any byte. cmp $-4096, %rax; ja ...; ret
    const ALONE: [i16; 9] = [0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, -1, 0xc3];
    // The same, but before ret: mov %r8d, %edi; mov %rax, 8(%rsp); call ...; mov 8(%rsp), %rax; add
    // $40, %rsp
    const WITH_THREADS: [i16; 31] = [
        0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, -1, 0x44, 0x89, 0xc7, 0x48, 0x89, 0x44, 0x24,
        0x08, 0xe8, -1, -1, -1, -1, 0x48, 0x8b, 0x44, 0x24, 0x08, 0x48, 0x83, 0xc4, 0x28, 0xc3,
    ];
    let is = |shape: &[i16]| {
        after.len() >= shape.len()
            && shape.iter().zip(after).all(|(want, have)| *want < 0 || *want == i16::from(*have))
    };
    [&ALONE[..], &WITH_THREADS[..]].into_iter().find(|shape| is(shape)).map(<[i16]>::len)
}

/// True if `code` begins with instructions that do nothing, `length` bytes of them.
fn is_filling(code: &[u8], length: usize) -> bool {
    const NOTHING: [&[u8]; 6] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0f, 0x1f, 0x00],
        &[0x0f, 0x1f, 0x40, 0x00],
        &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    ];
    // nopw with any number of operand size prefixes.
    const LONG: [u8; 8] = [0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00];
    if length == 0 {
        return true;
    }
    let Some(code) = code.get(..length) else { return false };
    let prefixes = code.iter().take_while(|b| **b == 0x66).count();
    let rest = &code[prefixes..];
    let rest = rest.strip_prefix(&[0x2e]).unwrap_or(rest);
    if let Some(rest) = rest.strip_prefix(&LONG) {
        return is_filling(rest, rest.len());
    }
    let step =
        NOTHING.iter().find(|nothing| code.starts_with(nothing)).map(|nothing| nothing.len());
    let short = rest.strip_prefix(&[0x0f, 0x1f, 0x44, 0x00, 0x00]).filter(|_| prefixes == 1);
    match (step, short) {
        (_, Some(rest)) => is_filling(rest, rest.len()),
        (Some(step), _) => is_filling(&code[step..], length - step),
        _ => false,
    }
}

/// The instructions of a pad at `pad` for the `syscall` at `site`; `pointer` is where the address
/// to jump to is.
fn pad_code(
    displaced: [u8; DISPLACED],
    site: Va,
    pad: Va,
    pointer: Va,
) -> Option<[u8; PAD_BYTES as usize]> {
    let relative =
        |to: u64, from: u64| i32::try_from(to.wrapping_sub(from) as i64).ok().map(i32::to_le_bytes);
    let mut code = [0xcc; PAD_BYTES as usize];
    code[..5].copy_from_slice(&displaced);
    // lea SYSCALL(%rip), %r11
    code[5..8].copy_from_slice(&[0x4c, 0x8d, 0x1d]);
    code[8..12].copy_from_slice(&relative(site.0, pad.0 + 12)?);
    // jmp *POINTER(%rip)
    code[12..14].copy_from_slice(&[0xff, 0x25]);
    code[14..18].copy_from_slice(&relative(pointer.0, pad.0 + 18)?);
    Some(code)
}

impl Inner {
    /// Patches the call site whose `syscall` ends at `ip`. `None` if it is not one that can be, or
    /// memory is short.
    fn patch(&mut self, ip: Va, nr: u32) -> Option<()> {
        let syscall = Va(ip.0.checked_sub(2)?);
        let page = syscall.page_floor();
        // All of it on one page, with the byte before.
        if syscall.page_offset() <= DISPLACED as u64 || Va(ip.0 - 1).page_floor() != page {
            return None;
        }
        let vma = self.vmas.find(syscall)?.clone();
        let text = vma.backing.is_some() && !vma.is_shared() && vma.prot == Prot::READ | Prot::EXEC;
        if !text {
            return None;
        }
        let old = self.resolve(page, Access::Execute, Growth::NONE).ok()?;
        let mut text = alloc::vec![0; PAGE_SIZE as usize];
        arch::copy_from_gpa(&mut text, old.gpa()).ok()?;
        let at = syscall.page_offset() as usize;
        let (before, rest) = text.split_at(at);
        let after = rest.strip_prefix(&[0x0f, 0x05])?;
        let kind = kind_of(before, after, ip, nr)?;
        let (displaced, jump_at) = match kind {
            Kind::Near => (*before.last_chunk()?, at - DISPLACED),
            // xor %eax, %eax; nopl (%rax)
            Kind::Short(end) => ([0x31, 0xc0, 0x0f, 0x1f, 0x00], at + 2 + end),
        };
        let pad = self.new_pad(syscall, displaced)?;
        let distance =
            i32::try_from(pad.0.wrapping_sub(page.0 + (jump_at + DISPLACED) as u64) as i64).ok()?;
        let [a, b, c, d] = distance.to_le_bytes();
        let original = |at: usize, len: usize| {
            let mut bytes = [0; DISPLACED];
            bytes[..len].copy_from_slice(&text[at..at + len]);
            Original { at: page + at as u64, bytes, len }
        };
        let mut originals = alloc::vec![original(jump_at, DISPLACED)];
        if let Kind::Short(_) = kind {
            originals.push(original(at - 2, 2));
        }
        text[jump_at..jump_at + DISPLACED].copy_from_slice(&[0xe9, a, b, c, d]);
        if let Kind::Short(end) = kind {
            text[at - 2..at].copy_from_slice(&[0xeb, u8::try_from(end + 2).ok()?]);
        }
        let old = self.table().get(page);
        if !self.is_of_file(&vma, page, old) {
            return None;
        }
        let frame = frames::alloc().ok()?;
        if arch::copy_to_gpa(frame, &text).is_err() {
            frames::user().ref_dec(frame);
            return None;
        }
        // Threads that run there see the old page or the new one.
        self.replace(page, old, Pte::new(frame, entry_flags(&vma, true))).ok()?;
        self.patches.sites.push(ip);
        self.patches.originals.extend(originals);
        if !self.patches.pages.contains(&page) {
            self.patches.pages.push(page);
        }
        Some(())
    }

    /// True if the page is as the file has it but for patches: else what is its own would be lost
    /// with them.
    fn is_of_file(&self, vma: &Vma, page: Va, pte: Pte) -> bool {
        if self.patches.pages.contains(&page) {
            return true;
        }
        let Some(backing) = &vma.backing else { return false };
        match backing.mapping.page(vma.object_page(page), false) {
            Ok(MappedPage::Window(gpa)) => gpa == pte.gpa(),
            Ok(MappedPage::Frame(gpa)) => {
                frames::user().ref_dec(gpa);
                gpa == pte.gpa()
            }
            Err(_) => false,
        }
    }

    /// Writes a pad for the instruction before the `syscall` at `site`; where it is.
    fn new_pad(&mut self, site: Va, displaced: [u8; DISPLACED]) -> Option<Va> {
        let near = |pad: PadPage| pad.used < PADS && pad.page.0.abs_diff(site.0) < REACH;
        // A page that is shared since a fork stays as it is: other threads could see a changed call
        // site before a changed copy.
        let fits = |pad: PadPage, inner: &mut Self| near(pad) && inner.owns(pad.page);
        let index = match (0..self.patches.pads.len()).find(|i| fits(self.patches.pads[*i], self)) {
            Some(index) => index,
            None => self.new_pad_page(site)?,
        };
        let PadPage { page, used } = self.patches.pads[index];
        let pad = page + used * PAD_BYTES;
        let code = pad_code(displaced, site, pad, page + PADS * PAD_BYTES)?;
        arch::copy_to_gpa(self.table().get(page).gpa() + used * PAD_BYTES, &code).ok()?;
        self.patches.pads[index].used += 1;
        Some(pad)
    }

    /// True if a page is there and nobody else has it.
    fn owns(&mut self, page: Va) -> bool {
        let pte = self.table().get(page);
        pte.is_present() && !pte.has(PteFlags::WINDOW) && frames::user().ref_count(pte.gpa()) == 1
    }

    /// Where a page for pads near `site` can lie: where no program looks for room, so that none
    /// finds a place taken that it has just unmapped. That is above what mmap(2) hands out, and for
    /// the executable itself below it.
    fn room_for_pads(&mut self, site: Va) -> Option<Va> {
        let (heap, top) = (self.brk.0, self.mmap_top);
        let place = if site < heap && heap - site < REACH {
            let low = Va(site.0.saturating_sub(REACH)).max(arch::boot().user_min).page_ceil()?;
            self.vmas.find_gap(PAGE_SIZE, low, site.page_floor(), PAGE_SIZE)?
        } else {
            self.vmas.find_gap(PAGE_SIZE, top, top + PADS_BYTES, PAGE_SIZE)?
        };
        (place.0.abs_diff(site.0) < REACH).then_some(place)
    }

    /// Maps a page for pads near `site`.
    fn new_pad_page(&mut self, site: Va) -> Option<usize> {
        let boot = arch::boot();
        let page = self.room_for_pads(site)?;
        let frame = frames::alloc_zeroed().ok()?;
        let mut vma = Vma::anonymous(Prot::READ | Prot::EXEC, VmaFlags::PADS);
        (vma.start, vma.end) = (page, page + PAGE_SIZE);
        let target = frame + PADS * PAD_BYTES;
        if arch::copy_to_gpa(target, &boot.fast_entry.0.to_le_bytes()).is_err()
            || self.table().set(page, Pte::new(frame, entry_flags(&vma, true))).is_err()
        {
            frames::user().ref_dec(frame);
            return None;
        }
        self.mmu.reuse(vma.start..vma.end);
        self.vmas.insert(vma);
        self.show(page);
        self.patches.pads.push(PadPage { page, used: 0 });
        Some(self.patches.pads.len() - 1)
    }

    /// The program is about to write to `range`, or to have it elsewhere: patched pages in it
    /// become the file's again.
    pub(super) fn unpatch(&mut self, range: Range<Va>) {
        if self.patches.is_empty() {
            return;
        }
        for page in self.patches.inside(&range) {
            self.zap(page..page + PAGE_SIZE);
        }
        self.forget_patches(&range);
    }

    /// The pages of `range` go: what is known of patches there goes with them, and patched pages
    /// elsewhere whose pads are among them.
    pub(super) fn forget_patches(&mut self, range: &Range<Va>) {
        if self.patches.is_empty() {
            return;
        }
        for page in self.patches.leave(range) {
            self.zap(page..page + PAGE_SIZE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_instructions_that_are_known_move() {
        let kind = |before: &[u8], nr| kind_of(before, &[], Va(0x1000), nr);
        assert_eq!(kind(&[0x90, 0xb8, 39, 0, 0, 0], 39), Some(Kind::Near), "mov $39, %eax");
        assert_eq!(
            kind(&[0x90, 0xb8, 39, 0, 0, 0], 40),
            None,
            "another call's number: these bytes belong to something else"
        );
        assert_eq!(kind(&[0x41, 0xb8, 39, 0, 0, 0], 39), None, "mov $39, %r8d");
        assert_eq!(
            kind(&[0xc0, 0x4c, 0x8b, 0x4c, 0x24, 0x08], 39),
            Some(Kind::Near),
            "the end of syscall(3)"
        );
        assert_eq!(kind(&[0x90, 0x0f, 0x1f, 0x44, 0, 0], 39), None, "nop");
    }

    #[test]
    fn read_jumps_by_way_of_the_filling_behind_it() {
        let mut after = alloc::vec![0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x5b, 0xc3];
        let before = [0x90, 0x90, 0x90, 0x90, 0x31, 0xc0];
        after.extend([0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]);
        assert_eq!(kind_of(&before, &after, Va(0x43a0bd), 0), Some(Kind::Short(9)));
        assert_eq!(kind_of(&before, &after, Va(0x43a0bd), 1), None, "not read(2)");
        assert_eq!(
            kind_of(&before, &after, Va(0x43a0bc), 0),
            None,
            "the filling does not end at a boundary"
        );
        after[8] = 0x90;
        assert_eq!(kind_of(&before, &after, Va(0x43a0bd), 0), None, "the function goes on there");
        assert!(
            is_filling(&[0x0f, 0x1f, 0x44, 0, 0], 5)
                && is_filling(&[0x66, 0x0f, 0x1f, 0x44, 0, 0], 6)
        );
        assert!(
            !is_filling(&[0x0f, 0x1f, 0x44, 0, 0], 6)
                && !is_filling(&[0x0f, 0x1f, 0x44, 0, 0, 0xc3], 6)
        );
    }

    #[test]
    fn a_pad_leads_to_the_call_and_knows_its_site() {
        let (site, pad, pointer) = (Va(0x7000_1000), Va(0x7000_0040), Va(0x7000_0fe0));
        let code = pad_code([0xb8, 1, 0, 0, 0], site, pad, pointer).expect("near enough");
        assert_eq!(code[..5], [0xb8, 1, 0, 0, 0]);
        let lea = i32::from_le_bytes([code[8], code[9], code[10], code[11]]);
        assert_eq!(pad.0 as i64 + 12 + i64::from(lea), site.0 as i64, "the syscall instruction");
        let jump = i32::from_le_bytes([code[14], code[15], code[16], code[17]]);
        assert_eq!(pad.0 as i64 + 18 + i64::from(jump), pointer.0 as i64);
        assert!(pad_code([0; 5], Va(0x7fff_0000_0000), pad, pointer).is_none(), "too far");
    }

    #[test]
    fn sites_count_in_rows_and_patches_go_with_their_pads() {
        let mut patches = Patches::default();
        let ip = Va(0x1000);
        assert!(!patches.count(ip, 0, 3));
        assert!(!patches.count(ip, 2 * ROW_NS, 3), "too late: a new row");
        assert!(!patches.count(ip, 2 * ROW_NS + 1, 3));
        assert!(patches.count(ip, 2 * ROW_NS + 2, 3));
        assert!(!patches.count(ip, 2 * ROW_NS + 3, 3), "once");
        patches.originals = [0x1ff0, 0x5010]
            .map(|at| Original { at: Va(at), bytes: [1, 2, 3, 4, 5], len: DISPLACED })
            .to_vec();
        let read = |patches: &Patches, at, len| {
            let mut read = alloc::vec![9; len];
            patches.restore(Va(at), &mut read);
            read
        };
        assert_eq!(read(&patches, 0x1fee, 8), [9, 9, 1, 2, 3, 4, 5, 9]);
        assert_eq!(read(&patches, 0x1ff2, 2), [3, 4]);
        assert_eq!(read(&patches, 0x1ff4, 3), [5, 9, 9]);
        assert_eq!(read(&patches, 0x1ff5, 2), [9, 9]);
        assert_eq!(read(&patches, 0x1fee, 2), [9, 9]);
        patches.pages = alloc::vec![Va(0x1000), Va(0x5000)];
        patches.pads = alloc::vec![PadPage { page: Va(0x8000), used: 2 }];
        assert!(patches.leave(&(Va(0x1000)..Va(0x2000))).is_empty());
        assert_eq!(patches.pages, [Va(0x5000)]);
        assert_eq!(read(&patches, 0x1ff0, 1), [9], "the file's own again");
        assert_eq!(read(&patches, 0x5010, 1), [1]);
        assert_eq!(patches.leave(&(Va(0x8000)..Va(0x9000))), [Va(0x5000)]);
        assert!(patches.off && !patches.count(ip, 3 * ROW_NS, 1));
    }

    #[test]
    fn sites_that_are_used_in_turns_are_all_counted() {
        let mut patches = Patches::default();
        let sites = [0x1000, 0x1040, 0x2000, 0x2080].map(Va);
        let round = |patches: &mut Patches, n| sites.map(|ip| patches.count(ip, n, 3));
        assert_eq!(round(&mut patches, 1), [false; 4]);
        assert_eq!(round(&mut patches, 2), [false; 4]);
        assert_eq!(round(&mut patches, 3), [true; 4]);
        // One that was used once does not last.
        assert!(!patches.count(Va(0x3000), 4, 3));
        assert!(!patches.count(sites[1], 5, 3), "once");
    }
}
