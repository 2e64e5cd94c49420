//! Access to user memory by the kernel: always by walking the page table, never by dereferencing a
//! user address.

use alloc::vec::Vec;

use qlib::host::Segment;
use qlib::{PAGE_SIZE, Va};

use super::fault::{Spare, vdso_offset};
use super::{Access, AddressSpace};
use crate::abi::Pod;
use crate::account;
use crate::arch;
use crate::arch::upcalls::UPCALLS;
use crate::errno::{Errno, Result};

impl AddressSpace {
    /// True if `[va, va + len)` can be a user range at all.
    fn check_range(va: Va, len: usize) -> Result {
        match va.checked_add(len as u64) {
            Some(end) if end <= arch::boot().user_max => Ok(()),
            Some(_) if vdso_offset(va, len as u64).is_some() => Ok(()),
            _ => Err(Errno::EFAULT),
        }
    }

    /// Reads `out.len()` bytes; EFAULT if any is not readable. Of text it is what the program has
    /// there, not what call sites [have become](super::patch).
    pub fn read_bytes(&self, va: Va, out: &mut [u8]) -> Result {
        Self::check_range(va, out.len())?;
        let (mut at, mut out) = (va, out);
        while !out.is_empty() {
            let take = (PAGE_SIZE - at.page_offset()).min(out.len() as u64) as usize;
            let (now, rest) = out.split_at_mut(take);
            arch::copy_from_gpa(now, self.translate(at, Access::Read)?)?;
            self.lock().patches.restore(at, now);
            (at, out) = (at + take as u64, rest);
        }
        Ok(())
    }

    /// Writes `bytes`; EFAULT if any place is not writable (what lies before it has been written).
    pub fn write_bytes(&self, va: Va, bytes: &[u8]) -> Result {
        self.write_bytes_with(va, bytes, Spare::Some)
    }

    /// The same, where memory is used up with what `spare` says.
    pub fn write_bytes_with(&self, va: Va, bytes: &[u8], spare: Spare) -> Result {
        Self::check_range(va, bytes.len())?;
        let (mut at, mut bytes) = (va, bytes);
        while !bytes.is_empty() {
            let take = (PAGE_SIZE - at.page_offset()).min(bytes.len() as u64) as usize;
            let (now, rest) = bytes.split_at(take);
            match self.translate_with(at, Access::Write, spare) {
                Ok(gpa) => arch::copy_to_gpa(gpa, now)?,
                Err(Errno::ERESTARTNOMEM) if spare == Spare::Some && self.owe(at, now) => {}
                Err(error) => return Err(error),
            }
            (at, bytes) = (at + take as u64, rest);
        }
        Ok(())
    }

    /// True if the call writes `bytes` when it is over, for the page is a program's to see to
    /// first.
    #[cold]
    fn owe(&self, va: Va, bytes: &[u8]) -> bool {
        (UPCALLS.owe)(core::ptr::from_ref(self).addr(), va, bytes)
    }

    /// As [`AddressSpace::write_bytes`], also where the program itself may not write, if that is
    /// its own memory alone (ptrace(2), PTRACE_POKETEXT).
    pub fn force_bytes(&self, va: Va, bytes: &[u8]) -> Result {
        Self::check_range(va, bytes.len())?;
        let (mut at, mut bytes) = (va, bytes);
        while !bytes.is_empty() {
            let take = (PAGE_SIZE - at.page_offset()).min(bytes.len() as u64) as usize;
            let (now, rest) = bytes.split_at(take);
            arch::copy_to_gpa(self.translate_forced(at)?, now)?;
            (at, bytes) = (at + take as u64, rest);
        }
        Ok(())
    }

    /// Reads one value.
    pub fn read<T: Pod>(&self, va: Va) -> Result<T> {
        let mut value = T::new_zeroed();
        self.read_bytes(va, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Reads a structure of `size` bytes that may be shorter than the one we know, but not than
    /// `least`: the rest is 0; or longer: what we do not know must be 0. EINVAL, E2BIG.
    pub fn read_sized<T: Pod>(&self, va: Va, size: usize, least: usize) -> Result<T> {
        if size < least {
            return Err(Errno::EINVAL);
        }
        if size as u64 > PAGE_SIZE {
            return Err(Errno::E2BIG);
        }
        let mut bytes = alloc::vec![0; size];
        self.read_bytes(va, &mut bytes)?;
        let mut value = T::new_zeroed();
        let known = value.as_mut_bytes();
        let common = known.len().min(size);
        known[..common].copy_from_slice(&bytes[..common]);
        if bytes[common..].iter().any(|byte| *byte != 0) { Err(Errno::E2BIG) } else { Ok(value) }
    }

    /// Writes one value.
    pub fn write<T: Pod>(&self, va: Va, value: &T) -> Result {
        self.write_bytes(va, value.as_bytes())
    }

    /// Reads `count` values. `count` must have been bounded by the caller; ENOMEM when so many
    /// would bring memory low.
    pub fn read_array<T: Pod>(&self, va: Va, count: usize) -> Result<Vec<T>> {
        account::ask_for::<T>(count)?;
        let mut values = alloc::vec![T::new_zeroed(); count];
        self.read_bytes(va, zerocopy::IntoBytes::as_mut_bytes(values.as_mut_slice()))?;
        Ok(values)
    }

    /// Writes zeros.
    pub fn write_zeros(&self, va: Va, len: usize) -> Result {
        const ZEROS: [u8; 256] = [0; 256];
        let mut done = 0;
        while done < len {
            let take = ZEROS.len().min(len - done);
            self.write_bytes(va + done as u64, &ZEROS[..take])?;
            done += take;
        }
        Ok(())
    }

    /// As [`Self::read_cstr`], but EINVAL when it is longer.
    pub fn read_short_cstr(&self, va: Va, max: usize) -> Result<Vec<u8>> {
        self.read_cstr(va, max).map_err(|error| match error {
            Errno::ENAMETOOLONG => Errno::EINVAL,
            other => other,
        })
    }

    /// Reads a string up to its NUL (not included); ENAMETOOLONG when it has `max` bytes or more.
    pub fn read_cstr(&self, va: Va, max: usize) -> Result<Vec<u8>> {
        let mut string = Vec::new();
        let mut at = va;
        loop {
            Self::check_range(at, 1)?;
            let mut chunk = [0; 256];
            let take = ((PAGE_SIZE - at.page_offset()) as usize).min(chunk.len());
            arch::copy_from_gpa(&mut chunk[..take], self.translate(at, Access::Read)?)?;
            let end = chunk[..take].iter().position(|&b| b == 0);
            string.extend_from_slice(&chunk[..end.unwrap_or(take)]);
            if string.len() >= max {
                return Err(Errno::ENAMETOOLONG);
            }
            if end.is_some() {
                return Ok(string);
            }
            at = at + take as u64;
        }
    }

    /// Guest physical segments of a user range, faulted in for `access`, neighbours joined, at most
    /// `max_segments`. EFAULT if the first page is not accessible; a later one ends the list. The
    /// first `spared` bytes may be had from what is kept.
    pub fn segments(
        &self,
        va: Va,
        len: usize,
        access: Access,
        max_segments: usize,
        spared: usize,
    ) -> Result<Vec<Segment>> {
        Self::check_range(va, len)?;
        let mut segments: Vec<Segment> = Vec::new();
        let (mut at, mut left) = (va, len as u64);
        while left > 0 {
            let take = (PAGE_SIZE - at.page_offset()).min(left);
            let spare = if at - va < spared as u64 { Spare::Some } else { Spare::None };
            let gpa = match self.translate_with(at, access, spare) {
                Ok(gpa) => gpa,
                Err(error) if segments.is_empty() => return Err(error),
                Err(_) => break,
            };
            let full = segments.len() == max_segments;
            match segments.last_mut() {
                Some(last) if last.gpa + last.len == gpa => last.len += take,
                _ if full => break,
                _ => segments.push(Segment { gpa, len: take }),
            }
            (at, left) = (at + take, left - take);
        }
        Ok(segments)
    }

    /// Applies `change` to the 32-bit word at `va` (aligned), atomically towards user threads: the
    /// old value. For futexes.
    pub fn update_u32(&self, va: Va, mut change: impl FnMut(u32) -> u32) -> Result<u32> {
        use core::sync::atomic::Ordering::SeqCst;
        if !va.0.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        Self::check_range(va, 4)?;
        let gpa = self.translate(va, Access::Write)?;
        let word = arch::phys().atomic_u32(gpa).ok_or(Errno::EFAULT)?;
        word.fetch_update(SeqCst, SeqCst, |old| Some(change(old))).map_err(|_| Errno::EFAULT)
    }

    /// The shared object behind `va` (its identity) and the byte offset in it; `None` for private
    /// memory. For futex keys.
    pub fn shared_object(&self, va: Va) -> Result<Option<(usize, u64)>> {
        let inner = self.lock();
        let vma = inner.vmas.find(va).ok_or(Errno::EFAULT)?;
        Ok(match &vma.backing {
            Some(backing) if vma.is_shared() => Some((
                backing.mapping.identity(),
                (vma.object_page(va) << qlib::PAGE_SHIFT) + va.page_offset(),
            )),
            _ => None,
        })
    }
}
