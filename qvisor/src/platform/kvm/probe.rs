//! Finds out if this host's KVM is good enough for a guest kernel in ring 0.
//!
//! That /dev/kvm opens proves little: there are hosts without virtualization in their CPU whose KVM
//! module emulates ring 0, at about a microsecond an instruction. So a tiny guest runs ([`guest`])
//! and is timed and checked. All times are CPU times of its thread, the least of some tries, so
//! that a busy host does not change the verdict; a host that is a virtual machine itself, or one
//! whose virtualization is emulated, is good enough as long as ring 0 is run and not interpreted by
//! the host's kernel.

pub mod cache;
pub mod guest;
pub mod needs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, kvm_msi, kvm_regs, kvm_userspace_memory_region, kvm_xcr, kvm_xcrs,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use guest::word;
use needs::Inventory;

/// The most that an instruction of ring 0 may cost, in nanoseconds. Hardware needs less than one,
/// QEMU's translation some ten, a host kernel that emulates ring 0 six to eight hundred.
pub const INSTRUCTION_LIMIT_NS: u64 = 150;
/// The most that a system call from ring 3 to ring 0 and back may cost, in nanoseconds; on the
/// process platform it is about 4,500.
pub const CALL_LIMIT_NS: u64 = 3_000;
/// How often something is timed at most, when it takes too long, and at least; the least time
/// counts.
const TRIES: u32 = 6;
const GOOD_TRIES: u32 = 3;
/// How long the guest may take from one exit to the next: at first, and when that was not enough,
/// as the host may have been busy.
const PATIENCE: [Duration; 2] = [Duration::from_millis(40), Duration::from_secs(1)];
/// How long it may take to come out of the guest after that.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Why the kvm platform cannot be used; `None` when it can.
    pub refusal: Option<String>,
    /// Time of an exit to the host and back, in nanoseconds.
    pub exit_ns: Option<u64>,
    /// Time of an instruction in ring 0, in picoseconds.
    pub instruction_ps: Option<u64>,
    /// Time of a system call from ring 3 to ring 0 and back, in nanoseconds.
    pub call_ns: Option<u64>,
    /// How long all of it took, in microseconds.
    pub took_us: u64,
    /// Capabilities and features.
    pub inventory: Inventory,
}

/// Why a guest did not get to its end.
#[derive(Debug, thiserror::Error)]
#[error("the guest did not end in time ({0})")]
struct Late(&'static str);

/// Runs the probe. Takes some milliseconds, most of them for making and unmaking a virtual machine.
pub fn probe() -> Report {
    let begin = Instant::now();
    let mut report = Report::default();
    for patience in PATIENCE {
        report = Report::default();
        match attempt(&mut report, patience) {
            Err(e) if e.downcast_ref::<Late>().is_some() => report.refusal = Some(format!("{e:#}")),
            result => {
                report.refusal = refusal(&report.inventory.missing, result.err());
                break;
            }
        }
    }
    report.took_us = begin.elapsed().as_micros().try_into().unwrap_or(u64::MAX);
    report
}

/// All reasons against the platform in one line: what the guest met with, which says most, and what
/// is missing.
fn refusal(missing: &[String], error: Option<anyhow::Error>) -> Option<String> {
    let error = error.map(|e| format!("{e:#}"));
    let reasons: Vec<String> =
        error.into_iter().chain(missing.iter().map(|m| format!("missing {m}"))).collect();
    (!reasons.is_empty()).then(|| reasons.join("; ").replace('\n', " "))
}

extern "C" fn do_nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Runs the guest on a thread of its own, and gets it out of there when `patience` is used up.
fn attempt(report: &mut Report, patience: Duration) -> Result<()> {
    let kvm = Kvm::new().context("/dev/kvm")?;
    ensure!(kvm.get_api_version() == 12, "KVM API version {} is not 12", kvm.get_api_version());
    let cpuid =
        kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("KVM_GET_SUPPORTED_CPUID")?;
    report.inventory = needs::inventory(&kvm, &cpuid);
    let mut trial = Trial::new(&kvm, &cpuid)?;
    // The handler stays; it has no effect but that a system call of the thread that gets the signal
    // returns.
    let kick = SIGRTMIN() + 7;
    register_signal_handler(kick, do_nothing).context("a signal handler for kicks")?;
    let (late, exits) = (trial.late.clone(), trial.exits.clone());
    let (sender, results) = channel();
    let runner =
        std::thread::Builder::new().name("kvm-probe".into()).spawn(move || trial.run(&sender));
    let runner = runner.context("a thread for the vCPU")?;
    let (mut wait, mut seen, mut begin) = (patience, 0, Instant::now());
    loop {
        match results.recv_timeout(wait) {
            Ok(Finding::ExitNs(ns)) => report.exit_ns = Some(ns),
            Ok(Finding::InstructionPs(ps)) => report.instruction_ps = Some(ps),
            Ok(Finding::CallNs(ns)) => report.call_ns = Some(ns),
            // Who asked goes on with one thread.
            Ok(Finding::End(result)) => {
                runner.join().ok();
                return result;
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the vCPU's thread ended by itself"),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now_seen = exits.load(Ordering::Relaxed);
        if now_seen != seen && !late.load(Ordering::SeqCst) {
            (seen, begin) = (now_seen, Instant::now());
        }
        wait = patience.saturating_sub(begin.elapsed());
        if wait.is_zero() {
            if begin.elapsed() > patience + LAST_PATIENCE {
                bail!("a vCPU does not come out of the guest when it is told to");
            }
            // A signal that comes just before the guest is entered has no effect, so they are sent
            // again.
            late.store(true, Ordering::SeqCst);
            runner.kill(kick).ok();
            wait = Duration::from_millis(1);
        }
    }
}

/// From the vCPU's thread.
enum Finding {
    ExitNs(u64),
    InstructionPs(u64),
    CallNs(u64),
    End(Result<()>),
}

/// The virtual machine.
pub(super) struct Trial {
    pub(super) vcpu: VcpuFd,
    vm: VmFd,
    // Behind `vm`, so that it is unmapped after that has gone.
    memory: GuestMemoryMmap<()>,
    late: Arc<AtomicBool>,
    /// Those that the guest made.
    exits: Arc<AtomicU64>,
}

/// CPU time of this thread in nanoseconds.
fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Trial {
    pub(super) fn new(kvm: &Kvm, cpuid: &CpuId) -> Result<Trial> {
        let vm = super::make_vm(kvm)?;
        // Intel's first virtualizing CPUs need three pages for it; there is nothing else at that
        // address.
        vm.set_tss_address(0xfffb_d000).context("KVM_SET_TSS_ADDR")?;
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), guest::MEMORY_BYTES)])?;
        memory.write_slice(&guest::image(), GuestAddress(0))?;
        let region = kvm_userspace_memory_region {
            memory_size: guest::MEMORY_BYTES as u64,
            userspace_addr: memory.get_host_address(GuestAddress(0))? as u64,
            ..Default::default()
        };
        // SAFETY: the range is a mapping of its own that nothing but this guest uses, and it lives
        // longer than the virtual machine: it comes after `vm` in the structure, and after it here.
        unsafe { vm.set_user_memory_region(region) }.context("KVM_SET_USER_MEMORY_REGION")?;
        let vcpu = vm.create_vcpu(0).context("KVM_CREATE_VCPU")?;
        vcpu.set_cpuid2(cpuid).context("KVM_SET_CPUID2")?;
        let mut sregs = vcpu.get_sregs().context("KVM_GET_SREGS")?;
        let has_xsave = needs::has(cpuid, "XSAVE");
        guest::enter_long_mode(&mut sregs, has_xsave);
        vcpu.set_sregs(&sregs).context("KVM_SET_SREGS")?;
        vcpu.set_regs(&kvm_regs { rip: guest::ENTRY, rflags: 2, ..Default::default() })
            .context("KVM_SET_REGS")?;
        if has_xsave {
            // x87, SSE and, where it exists, AVX.
            let offered = cpuid
                .as_slice()
                .iter()
                .find(|e| e.function == 0xd && e.index == 0)
                .map_or(3, |e| e.eax & 7);
            let mut xcrs = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
            xcrs.xcrs[0] = kvm_xcr { xcr: 0, value: u64::from(offered), ..Default::default() };
            vcpu.set_xcrs(&xcrs).context("KVM_SET_XCRS")?;
        }
        Ok(Trial { vcpu, vm, memory, late: Arc::default(), exits: Arc::default() })
    }

    /// The main function of the vCPU's thread.
    fn run(&mut self, sender: &Sender<Finding>) {
        let result = self.stages(sender);
        sender.send(Finding::End(result)).ok();
    }

    fn stages(&mut self, sender: &Sender<Finding>) -> Result<()> {
        let tell = |finding| sender.send(finding).context("nobody waits any more");
        self.enter("start")?;
        const EXITS: u64 = 16;
        let mut exit_ns = u64::MAX;
        for _ in 0..EXITS {
            let begin = cpu_ns();
            self.order(guest::ORDER_NOTHING, 0, 0, "exits")?;
            exit_ns = exit_ns.min(cpu_ns() - begin);
        }
        tell(Finding::ExitNs(exit_ns))?;

        // A few at first: where each costs a microsecond that is enough. So few that such a host
        // ends the loop, so many that what is wrong with the time of an exit does not count.
        for rounds in [300, 50_000] {
            let instructions = rounds * guest::LOOP_INSTRUCTIONS;
            let most = instructions * INSTRUCTION_LIMIT_NS;
            let ns = self.timed(guest::ORDER_LOOP, rounds, 0, most, exit_ns, "a loop in ring 0")?;
            ensure!(
                self.word(word::RESULT)? == guest::loop_result(rounds),
                "ring 0 computes wrongly: {:#x}",
                self.word(word::RESULT)?
            );
            tell(Finding::InstructionPs(ns * 1000 / instructions))?;
            if ns > most {
                bail!(
                    "ring 0 takes {} ns an instruction (at most {INSTRUCTION_LIMIT_NS}): this KVM \
                    emulates it, the CPU has no virtualization here",
                    ns / instructions
                );
            }
        }
        for calls in [100, 2_000] {
            let most = calls * CALL_LIMIT_NS;
            let user = guest::user_calls();
            let ns = self.timed(
                guest::ORDER_SYSRET,
                user,
                calls,
                most,
                exit_ns,
                "system calls from ring 3",
            )?;
            let (served, returned) = (self.word(word::CALLS)?, self.word(word::RETURNS)?);
            ensure!(
                served == calls && returned == calls,
                "of {calls} system calls {served} arrived and {returned} returned"
            );
            tell(Finding::CallNs(ns / calls))?;
            ensure!(ns <= most, "a system call takes {} ns (at most {CALL_LIMIT_NS})", ns / calls);
        }
        self.fault(guest::user_read(), guest::UNMAPPED, 4, "a read of nothing from ring 3")?;
        self.fault(
            guest::user_write(),
            guest::FORBIDDEN,
            7,
            "a write to ring 0's memory from ring 3",
        )?;
        self.order(guest::ORDER_VECTOR, 0, 0, "XSAVE and XRSTOR")?;
        ensure!(self.word(word::RESULT)? == guest::PATTERN, "XSAVE and XRSTOR lose vector state");
        let msi = kvm_msi {
            address_lo: 0xfee0_0000,
            data: guest::IRQ_VECTOR.into(),
            ..Default::default()
        };
        ensure!(
            self.vm.signal_msi(msi).context("KVM_SIGNAL_MSI")? > 0,
            "KVM_SIGNAL_MSI: the vCPU does not take it"
        );
        self.order(guest::ORDER_INTERRUPT, 0, 0, "an interrupt of a halted vCPU")?;
        ensure!(
            self.word(word::INTERRUPTS)? == 1,
            "{} interrupts came instead of one",
            self.word(word::INTERRUPTS)?
        );
        Ok(())
    }

    /// The least CPU time of an order in nanoseconds, without that of its exit. More than `most` is
    /// tried more often.
    fn timed(
        &mut self,
        order: u64,
        count: u64,
        arg: u64,
        most: u64,
        exit_ns: u64,
        stage: &'static str,
    ) -> Result<u64> {
        let mut least = u64::MAX;
        for i in 0..TRIES {
            if i >= GOOD_TRIES && least <= most {
                break;
            }
            let begin = cpu_ns();
            self.order(order, count, arg, stage)?;
            least = least.min((cpu_ns() - begin).saturating_sub(exit_ns));
        }
        Ok(least)
    }

    /// Lets ring 3 run at `entry` and checks the page fault that comes of it.
    fn fault(&mut self, entry: u64, address: u64, code: u64, stage: &'static str) -> Result<()> {
        for at in word::FAULT {
            self.memory.write_obj(0u64, GuestAddress(at))?;
        }
        self.order(guest::ORDER_IRET, entry, 0, stage)?;
        let mut seen = [0; 5];
        for (to, at) in seen.iter_mut().zip(word::FAULT) {
            *to = self.word(at)?;
        }
        let [got_code, got_address, rip, cs, rsi] = seen;
        ensure!(
            got_code == code
                && got_address == address
                && guest::is_user(cs)
                && rsi == guest::PATTERN
                && rip > entry,
            "{stage}: a fault with code {got_code} at {got_address:#x} (code {code} at \
            {address:#x} is right), rip {rip:#x}, cs {cs:#x}, rsi {rsi:#x}"
        );
        Ok(())
    }

    fn word(&self, at: u64) -> Result<u64> {
        Ok(self.memory.read_obj(GuestAddress(at))?)
    }

    pub(super) fn order(
        &mut self,
        order: u64,
        count: u64,
        arg: u64,
        stage: &'static str,
    ) -> Result<()> {
        for (at, value) in [(word::ORDER, order), (word::COUNT, count), (word::ARG, arg)] {
            self.memory.write_obj(value, GuestAddress(at))?;
        }
        self.enter(stage)
    }

    /// Runs the guest until it says that it is done.
    pub(super) fn enter(&mut self, stage: &'static str) -> Result<()> {
        loop {
            if self.late.load(Ordering::SeqCst) {
                return Err(Late(stage).into());
            }
            let exit = self.vcpu.run();
            self.exits.fetch_add(1, Ordering::Relaxed);
            match exit {
                Ok(VcpuExit::IoOut(guest::PORT_DONE, _)) => return Ok(()),
                Ok(VcpuExit::IoOut(guest::PORT_TRAP, _)) => {
                    let [vector, cr2, top, next] = word::TRAP.map(|at| self.word(at).unwrap_or(0));
                    bail!(
                        "{stage}: exception {vector} in the guest, CR2 {cr2:#x}, frame {top:#x} \
                        {next:#x}"
                    );
                }
                Ok(VcpuExit::Intr) => {}
                Ok(VcpuExit::InternalError) => bail!("{stage}: KVM cannot emulate an instruction"),
                Ok(VcpuExit::Shutdown) => {
                    bail!("{stage}: the guest's exceptions do not reach it (triple fault)")
                }
                Ok(other) => bail!("{stage}: the guest ended with {other:?}"),
                Err(e) if e.errno() == libc::EINTR || e.errno() == libc::EAGAIN => {}
                Err(e) => bail!("{stage}: KVM_RUN: {e}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;

    /// Whatever this host has: an answer comes in time, and it is a whole one.
    #[test]
    fn every_host_gets_a_verdict() {
        let report = probe();
        println!("{report:#?}");
        assert!(report.took_us < 5_000_000, "{report:?}");
        match &report.refusal {
            None => {
                assert!(report.inventory.missing.is_empty());
                assert!(report.instruction_ps.unwrap() <= INSTRUCTION_LIMIT_NS * 1000);
                assert!(report.call_ns.unwrap() <= CALL_LIMIT_NS && report.exit_ns.unwrap() > 0);
            }
            Some(reason) => assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}"),
        }
    }

    #[test]
    fn a_guest_that_does_not_end_is_taken_out() {
        let Ok(kvm) = Kvm::new() else { return skip("no /dev/kvm") };
        let Ok(cpuid) = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES) else {
            return skip("no CPUID");
        };
        if let Err(e) = Trial::new(&kvm, &cpuid) {
            return skip(format!("{e:#}"));
        }
        let mut report = Report::default();
        let begin = Instant::now();
        // No host makes an exit in no time at all.
        let error = attempt(&mut report, Duration::ZERO).unwrap_err();
        assert!(error.downcast_ref::<Late>().is_some(), "{error:#}");
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    }
}
