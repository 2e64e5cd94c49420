//! Restartable sequences (rseq(2), Linux's kernel/rseq.c): an area in a thread's memory says which
//! CPU it runs on, and which critical section it is in. A section in which the thread was
//! preempted, moved to another CPU or got a signal is aborted, so that one that comes to its end
//! has had the CPU for itself.
//!
//! The platform notifies of preemptions and moves before user code runs on
//! ([`qlib::platform::TRAP_PREEMPTED`]). A thread that waited in a system call and goes on where it
//! was is not notified: a section makes no system calls.

use alloc::sync::Arc;

use linux_raw_sys::auxvec::{AT_RSEQ_ALIGN, AT_RSEQ_FEATURE_SIZE};
use qlib::Va;
use qlib::platform::{Trap, UserRegs};

use super::{Rseq, Thread, oom, signal};
use crate::abi::{Pod, abi_struct};
use crate::errno::Errno;
use crate::mm::{self, Access, AddressSpace};
use crate::wait::Sleeper;
use crate::{arch, klog};

abi_struct! {
    /// struct rseq, as far as the kernel knows it. `reserved` may be anything.
    pub struct Area {
        pub cpu_id_start: u32,
        pub cpu_id: u32,
        pub rseq_cs: u64,
        pub flags: u32,
        pub node_id: u32,
        pub mm_cid: u32,
        pub reserved: u32,
    }
}

abi_struct! {
    /// struct rseq_cs: a critical section.
    pub struct Section {
        pub version: u32,
        pub flags: u32,
        pub start_ip: u64,
        pub post_commit_offset: u64,
        pub abort_ip: u64,
    }
}

/// Size of the first struct rseq with its padding: what the C library registers. As its alignment.
const ORIGINAL_BYTES: u32 = 32;
/// Bytes of struct rseq that have a meaning (AT_RSEQ_FEATURE_SIZE).
const FEATURE_BYTES: u32 = 28;
/// Where `rseq_cs` lies.
const SECTION_OFFSET: u64 = 8;
/// Where `node_id` and `mm_cid` lie.
const NODE_OFFSET: u64 = 20;
/// RSEQ_CPU_ID_UNINITIALIZED.
const NO_CPU: u32 = u32::MAX;

/// What the auxiliary vector says of it.
pub fn auxv() -> impl Iterator<Item = (u32, u64)> {
    let is_served = arch::cpu().is_some();
    let all = [
        (AT_RSEQ_FEATURE_SIZE, u64::from(FEATURE_BYTES)),
        (AT_RSEQ_ALIGN, u64::from(ORIGINAL_BYTES)),
    ];
    all.into_iter().filter(move |_| is_served)
}

/// Why an area or section is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The section is not valid.
    Section,
    /// This is not accessible.
    Memory(Va, Access),
}

fn read<T: Pod>(mm: &AddressSpace, va: Va) -> Result<T, Failure> {
    mm.read(va).map_err(|_| Failure::Memory(va, Access::Read))
}

/// Registers an area for a thread that runs on `cpu`. EINVAL, EPERM, EBUSY, EFAULT as Linux has
/// them.
pub fn register(thread: &Arc<Thread>, area: Va, len: u32, sig: u32, cpu: u32) -> Result<(), Errno> {
    if let Some(old) = thread.attrs.lock().rseq {
        return Err(match old {
            Rseq { area: a, len: l, .. } if (a, l) != (area, len) => Errno::EINVAL,
            Rseq { sig: s, .. } if s != sig => Errno::EPERM,
            _ => Errno::EBUSY,
        });
    }
    if len < ORIGINAL_BYTES || !area.0.is_multiple_of(u64::from(ORIGINAL_BYTES)) {
        return Err(Errno::EINVAL);
    }
    if area.checked_add(u64::from(len)).is_none_or(|end| end > arch::boot().user_max) {
        return Err(Errno::EFAULT);
    }
    let mm = thread.mm();
    // What is left there of another thread's life shall not end this one's.
    if mm.read::<u64>(area + SECTION_OFFSET)? != 0 {
        mm.write(area + SECTION_OFFSET, &0u64)?;
    }
    thread.user.watch(true)?;
    thread.attrs.lock().rseq = Some(Rseq { area, len, sig });
    if write_cpu(&mm, area, cpu, cpu).is_err() {
        // Linux notices at the return to user mode.
        signal::force_segv(thread, 0);
    }
    Ok(())
}

/// Ends a registration. EINVAL, EPERM, EFAULT as Linux has them.
pub fn unregister(thread: &Arc<Thread>, area: Va, len: u32, sig: u32) -> Result<(), Errno> {
    let old = thread.attrs.lock().rseq.ok_or(Errno::EINVAL)?;
    if (old.area, old.len) != (area, len) {
        return Err(Errno::EINVAL);
    }
    if old.sig != sig {
        return Err(Errno::EPERM);
    }
    write_cpu(&thread.mm(), area, 0, NO_CPU).map_err(|_| Errno::EFAULT)?;
    thread.attrs.lock().rseq = None;
    thread.user.watch(false)
}

/// execve(2): the new program has none.
pub fn on_exec(thread: &Arc<Thread>) {
    if thread.attrs.lock().rseq.take().is_some() {
        let _ = thread.user.watch(false);
    }
}

/// The threads of a process that run at once are on different CPUs, so a CPU's number is a
/// concurrency id (mm_cid) too.
fn write_cpu(mm: &AddressSpace, area: Va, start: u32, cpu: u32) -> Result<(), Failure> {
    let failure = |_| Failure::Memory(area, Access::Write);
    mm.write(area, &[start, cpu]).map_err(failure)?;
    mm.write(area + NODE_OFFSET, &[0, start]).map_err(failure)
}

/// The thread was preempted or has moved: its area is written, and the section it was in aborted.
/// True if the latter, so that the thread has other registers. A program whose area or section is
/// of no use gets SIGSEGV.
pub async fn on_preempted(thread: &Arc<Thread>, trap: &Trap) -> bool {
    while !thread.is_dying() {
        match update(thread, trap) {
            Ok(aborted) => return aborted,
            Err(Failure::Memory(va, access))
                if mm::fault::handle(
                    &thread.mm(),
                    thread.process.growth(),
                    (va, access),
                    false,
                ) == Err(mm::fault::Failure::NO_MEMORY) =>
            {
                if oom::relieve(thread, oom::Want::Frame).await.is_err() {
                    return false;
                }
            }
            Err(failure) => {
                klog!(Debug, "thread {}: rseq {failure:x?}, {:x?}", thread.tid(), trap.regs);
                signal::force_segv(thread, 0);
                return false;
            }
        }
    }
    false
}

/// Either everything is done, or nothing that keeps it from being done again.
fn update(thread: &Thread, trap: &Trap) -> Result<bool, Failure> {
    let Some(rseq) = thread.attrs.lock().rseq else { return Ok(false) };
    let mm = thread.mm();
    let (area, abort) = look(&mm, &rseq, trap.regs.rip)?;
    write_cpu(&mm, rseq.area, trap.cpu, trap.cpu)?;
    leave(&mm, &rseq, &area)?;
    if let Some(rip) = abort {
        thread.user.set_registers(&UserRegs { rip, ..trap.regs });
    }
    Ok(abort.is_some())
}

/// A handler is about to be set up that comes back to `regs`: a section is aborted, so it comes
/// back to where that leads.
pub fn on_signal(thread: &Thread, regs: &mut UserRegs) -> Result<(), Failure> {
    let Some(rseq) = thread.attrs.lock().rseq else { return Ok(()) };
    let mm = thread.mm();
    let (area, abort) = look(&mm, &rseq, regs.rip)?;
    leave(&mm, &rseq, &area)?;
    regs.rip = abort.unwrap_or(regs.rip);
    Ok(())
}

/// The area, and where the section that `ip` is in is aborted to, if it is in one.
fn look(mm: &AddressSpace, rseq: &Rseq, ip: u64) -> Result<(Area, Option<u64>), Failure> {
    let area: Area = read(mm, rseq.area)?;
    if area.rseq_cs == 0 {
        return Ok((area, None));
    }
    let user_max = arch::boot().user_max.0;
    if area.rseq_cs >= user_max {
        return Err(Failure::Section);
    }
    let section: Section = read(mm, Va(area.rseq_cs))?;
    section.check(user_max)?;
    let sig: u32 = read(mm, Va(section.abort_ip.wrapping_sub(4)))?;
    if sig != rseq.sig {
        return Err(Failure::Section);
    }
    if !section.contains(ip) {
        return Ok((area, None));
    }
    // Linux has taken no flag of either since 6.1.
    if section.flags != 0 || area.flags != 0 {
        return Err(Failure::Section);
    }
    Ok((area, Some(section.abort_ip)))
}

/// The thread is in no section any more.
fn leave(mm: &AddressSpace, rseq: &Rseq, area: &Area) -> Result<(), Failure> {
    if area.rseq_cs == 0 {
        return Ok(());
    }
    mm.write(rseq.area + SECTION_OFFSET, &0u64)
        .map_err(|_| Failure::Memory(rseq.area, Access::Write))
}

impl Section {
    fn contains(&self, ip: u64) -> bool {
        ip.wrapping_sub(self.start_ip) < self.post_commit_offset
    }

    /// It lies below `user_max`, and is not aborted to itself.
    fn check(&self, user_max: u64) -> Result<(), Failure> {
        let end = self.start_ip.checked_add(self.post_commit_offset);
        let is_valid = self.version == 0
            && self.start_ip < user_max
            && end.is_some_and(|end| end < user_max)
            && self.abort_ip < user_max
            && !self.contains(self.abort_ip);
        if is_valid { Ok(()) } else { Err(Failure::Section) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 0x7fff_ffff_f000;

    fn section() -> Section {
        Section {
            start_ip: 0x1000,
            post_commit_offset: 0x10,
            abort_ip: 0x2000,
            ..Section::default()
        }
    }

    #[test]
    fn layouts_are_those_of_linux() {
        assert_eq!(size_of::<Area>(), ORIGINAL_BYTES as usize);
        assert_eq!(core::mem::offset_of!(Area, rseq_cs) as u64, SECTION_OFFSET);
        assert_eq!(core::mem::offset_of!(Area, node_id) as u64, NODE_OFFSET);
        assert_eq!(core::mem::offset_of!(Area, reserved), FEATURE_BYTES as usize);
        assert_eq!(size_of::<Section>(), 32);
    }

    #[test]
    fn a_section_ends_before_its_commit_is_over() {
        assert!(section().contains(0x1000) && section().contains(0x100f));
        assert!(!section().contains(0xfff) && !section().contains(0x1010));
    }

    #[test]
    fn sections_are_checked() {
        assert_eq!(section().check(MAX), Ok(()));
        let bad = [
            Section { version: 1, ..section() },
            Section { start_ip: MAX, ..section() },
            Section { post_commit_offset: MAX, ..section() },
            Section { post_commit_offset: u64::MAX, ..section() },
            Section { abort_ip: MAX, ..section() },
            Section { abort_ip: 0x1008, ..section() },
            Section { abort_ip: 0x1000, ..section() },
        ];
        for section in bad {
            assert_eq!(section.check(MAX), Err(Failure::Section), "{section:x?}");
        }
        // As on Linux, the first instruction behind a section may be where it is aborted to.
        assert_eq!(Section { abort_ip: 0x1010, ..section() }.check(MAX), Ok(()));
    }
}
