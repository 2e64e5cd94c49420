//! A vCPU: its first state, its thread, and what is done when it comes out of the guest.

use std::sync::Arc;

use anyhow::{Context, Result};
use kvm_bindings::{CpuId, KVM_MP_STATE_RUNNABLE, kvm_mp_state, kvm_regs, kvm_segment};
use kvm_ioctls::{VcpuExit, VcpuFd};
use qlib::Gpa;
use qlib::channel::Port;
use qlib::kvm::KvmInfo;

use super::channel::ChannelError;
use super::stats::{ExitCause, ExitStats, Exits};
use super::{KvmPlatform, Shared};
use crate::sandbox::confine::{self, profiles::Profile};
use crate::sandbox::{backtrace, panic};
use crate::sys;

/// Where a vCPU begins: see [`qlib::kvm`].
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The image's entry point.
    pub entry: u64,
    /// Address of the boot information.
    pub info: u64,
    /// Kernel virtual address of guest physical address 0.
    pub base: u64,
    /// What ring 0 learns at its start.
    pub kvm: KvmInfo,
}

/// A vCPU that has not been started.
pub struct Vcpu {
    fd: VcpuFd,
    index: u32,
    stats: Arc<ExitStats>,
}

/// No message of a panic is longer, in bytes.
const MAX_MESSAGE: u64 = 4096;
/// Stack of a vCPU's host thread, in bytes: host calls need little.
const THREAD_STACK_BYTES: usize = 256 << 10;

/// Leaf of what KVM does for its guests, and the bit of its %eax that says that an interrupt may
/// need no end (KVM_FEATURE_PV_EOI, Linux's Documentation/virt/kvm/x86/cpuid.rst).
const KVM_FEATURES: u32 = 0x4000_0001;
const PV_EOI: u32 = 1 << 6;

/// True if this host's processor is one that QEMU emulates. It may deliver an interrupt that KVM
/// has injected twice, the second time at any instruction before the next exit, even with
/// interrupts off and a program's stack in use. The end of an interrupt is an exit.
fn repeats_interrupts() -> bool {
    let by = raw_cpuid::CpuId::new().get_hypervisor_info().map(|info| info.identify());
    by == Some(raw_cpuid::Hypervisor::QEMU)
}

/// What the guest sees of the CPU: all that KVM supports, less what asks for more than this
/// platform gives.
fn cpuid_of(supported: &CpuId, index: u32) -> CpuId {
    let mut cpuid = supported.clone();
    let not_offered = if repeats_interrupts() { PV_EOI } else { 0 };
    for leaf in cpuid.as_mut_slice() {
        match (leaf.function, leaf.index) {
            (1, _) => {
                leaf.ebx = leaf.ebx & 0x00ff_ffff | index << 24;
                // x2APIC, hypervisor; not MONITOR.
                leaf.ecx = (leaf.ecx | 1 << 21 | 1 << 31) & !(1 << 3);
            }
            // Tile registers must be asked for.
            (7, 0) => leaf.edx &= !(1 << 22 | 1 << 24 | 1 << 25),
            (0xb | 0x1f, _) => leaf.edx = index,
            (KVM_FEATURES, _) => leaf.eax &= !not_offered,
            _ => {}
        }
    }
    cpuid
}

impl Vcpu {
    /// vCPU `index` of a virtual machine.
    pub fn new(shared: &Shared, cpuid: &CpuId, index: u32, exits: &Exits) -> Result<Vcpu> {
        let fd = shared
            .vm
            .create_vcpu(u64::from(index))
            .with_context(|| format!("make vCPU {index}"))?;
        fd.set_cpuid2(&cpuid_of(cpuid, index)).context("set CPU features")?;
        let stats = exits.add(&fd);
        Ok(Vcpu { fd, index, stats })
    }

    /// Thousands of ticks that its time stamp counter makes in a second; 0 if KVM does not say.
    pub fn tsc_khz(&self) -> u64 {
        self.fd.get_tsc_khz().map_or(0, u64::from)
    }

    fn set_first_state(&self, start: &Start) -> Result<()> {
        let flat = |selector: u16, type_: u8, long: u8| kvm_segment {
            base: 0,
            limit: 0xffff_ffff,
            selector,
            type_,
            present: 1,
            dpl: 0,
            db: 1 - long,
            s: 1,
            l: long,
            g: 1,
            ..Default::default()
        };
        let mut sregs = self.fd.get_sregs().context("read segment registers")?;
        // Until the kernel has descriptors of its own.
        sregs.cs = flat(0x10, 0xb, 1);
        let data = flat(0x18, 3, 0);
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        sregs.tr = kvm_segment { type_: 0xb, present: 1, limit: 0x67, ..Default::default() };
        // Protection, write protection, alignment checks, paging.
        sregs.cr0 = 0x8005_0033;
        sregs.cr3 = start.kvm.kernel_root.0;
        // Physical address extension.
        sregs.cr4 = 0x20;
        // SYSCALL, long mode, no-execute.
        sregs.efer = 0xd01;
        sregs.apic_base = 0xfee0_0000 | 0xc00 | if self.index == 0 { 0x100 } else { 0 };
        self.fd.set_sregs(&sregs).context("enter long mode")?;
        let regs = kvm_regs {
            rip: start.entry,
            rdi: start.info,
            rsi: u64::from(self.index),
            // As after a call.
            rsp: start.base + start.kvm.cpu_data(self.index).0 - 8,
            rflags: 2,
            ..Default::default()
        };
        self.fd.set_regs(&regs).context("set registers")?;
        // All but the first would wait for another to start them by interrupts.
        let runnable = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
        self.fd.set_mp_state(runnable).context("make it runnable")
    }

    /// Lets it run, on a thread of its own.
    pub fn spawn(self, platform: Arc<KvmPlatform>, start: &Start) -> Result<()> {
        self.set_first_state(start)?;
        let name = format!("vcpu{}", self.index);
        let runner = Runner { fd: self.fd, index: self.index, stats: self.stats, platform };
        let builder = std::thread::Builder::new().name(name).stack_size(THREAD_STACK_BYTES);
        builder.spawn(move || runner.run()).context("start a vCPU's thread")?;
        Ok(())
    }
}

/// A vCPU that runs.
struct Runner {
    fd: VcpuFd,
    index: u32,
    stats: Arc<ExitStats>,
    platform: Arc<KvmPlatform>,
}

impl Runner {
    fn run(mut self) {
        if let Err(error) = confine::narrow(Profile::Vcpu) {
            self.fail(&error.to_string());
        }
        loop {
            let port = match self.fd.run() {
                Ok(VcpuExit::IoOut(port, _)) => port,
                Ok(exit) => {
                    let ends = matches!(exit, VcpuExit::Shutdown);
                    self.stats.count(if ends { ExitCause::Shutdown } else { ExitCause::Other });
                    let what = format!("{exit:?}");
                    self.fail(&what)
                }
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                    self.stats.count(ExitCause::Interrupted);
                    continue;
                }
                Err(error) if error.errno() == libc::EFAULT => {
                    self.stats.count(ExitCause::Other);
                    self.inject_machine_check();
                    continue;
                }
                Err(error) => self.fail(&format!("KVM_RUN: {error}")),
            };
            let Some(port) = Port::from_u16(port) else {
                self.stats.count(ExitCause::Io);
                self.fail(&format!("a hypercall at port {port:#x}, where none is"))
            };
            self.stats.count(match port {
                Port::LockWait | Port::LockWake => ExitCause::LockWait,
                Port::Idle => ExitCause::Halt,
                _ => ExitCause::Hypercall,
            });
            if let Err(error) = self.serve(port) {
                self.fail(&error.to_string());
            }
        }
    }

    fn shared(&self) -> &Shared {
        &self.platform.shared
    }

    fn serve(&self, port: Port) -> Result<(), ChannelError> {
        let shared = self.shared();
        let channel = shared.channel();
        match port {
            Port::Call => {
                channel.serve(&|call| shared.host.call(call))?;
            }
            Port::Event => shared.notify(channel.flush_events()),
            Port::LockWait | Port::LockWake => {
                let [word, expected, ..] = channel.params(self.index)?;
                let Some(word) = shared.memory().word(Gpa(word)) else {
                    self.fail("a lock that is no word of RAM");
                };
                match port {
                    Port::LockWait => sys::futex_wait_private(word, expected as u32),
                    _ => sys::futex_wake_private(word),
                }
            }
            Port::Idle => {
                let [deadline_ns, ..] = channel.params(self.index)?;
                let word = shared.wake_word(self.index);
                let is_over = sys::futex_wait_private_until(word, 0, deadline_ns);
                channel.set_result(self.index, is_over.into())?;
            }
            Port::Wake => {
                let [index, ..] = channel.params(self.index)?;
                match u32::try_from(index).ok().filter(|index| *index < shared.shape.cpus) {
                    Some(index) => sys::futex_wake_private(shared.wake_word(index)),
                    None => self.fail(&format!("vCPU {index} cannot be woken: there is none")),
                }
            }
            Port::Start => {
                let [index, ..] = channel.params(self.index)?;
                if let Err(error) =
                    self.platform.start_vcpu(u32::try_from(index).unwrap_or(u32::MAX))
                {
                    self.fail(&format!("{error:#}"));
                }
            }
            Port::Release => {
                let [list, count, ..] = channel.params(self.index)?;
                let result = match shared.release(Gpa(list), count) {
                    Ok(()) => 0,
                    Err(errno) => -i64::from(errno.raw_os_error()),
                };
                channel.set_result(self.index, result as u64)?;
            }
            Port::Grow => {
                let [end, ..] = channel.params(self.index)?;
                // RAM: windows are reached when they are made.
                let ready = shared.memory().ram_slice(Gpa(0), end).map(|_| shared.reach(Gpa(end)));
                channel.set_result(
                    self.index,
                    ready.and_then(Result::ok).map_or(0, |ready| ready.0),
                )?;
            }
            Port::Panic => self.report_panic(),
            Port::Fault => self.report_exception(),
        }
        Ok(())
    }

    /// The kernel has found a bug in itself.
    fn report_panic(&self) -> ! {
        let regs = self.fd.get_regs().unwrap_or_default();
        let mut text = vec![0; regs.rsi.min(MAX_MESSAGE) as usize];
        if let Some(gpa) = self.shared().gpa_of(regs.rdi, text.len() as u64) {
            self.shared().memory().read(gpa, &mut text).ok();
        }
        self.report("kernel panic", &String::from_utf8_lossy(&text), regs.rip, regs.rbp)
    }

    /// The kernel has made an exception that has no fixup.
    fn report_exception(&self) -> ! {
        let regs = self.fd.get_regs().unwrap_or_default();
        let mut saved = [[0u8; 8]; 22];
        if let Some(gpa) = self.shared().gpa_of(regs.rdi, 22 * 8) {
            self.shared().memory().read(gpa, saved.as_flattened_mut()).ok();
        }
        let names = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi vector error rip \
            cs rflags rsp ss";
        let saved = saved.map(u64::from_le_bytes);
        let list: Vec<String> =
            names.split(' ').zip(saved).map(|(name, value)| format!("{name} {value:#x}")).collect();
        let (vector, rip, rbp) = (saved[15], saved[17], saved[4]);
        let what = format!("exception {vector}, address {:#x}; {}", regs.rsi, list.join(" "));
        self.report("kernel fault", &what, rip, rbp)
    }

    /// The host cannot supply a page that the guest touched (a file was cut short under a window):
    /// the guest gets a machine check.
    fn inject_machine_check(&self) {
        let events = self.fd.get_vcpu_events().and_then(|mut events| {
            events.exception.injected = 1;
            events.exception.nr = 18;
            events.exception.has_error_code = 0;
            events.flags = 0;
            self.fd.set_vcpu_events(&events)
        });
        if let Err(error) = events {
            self.fail(&format!("a page is missing, and the guest cannot be notified: {error}"));
        }
    }

    /// The guest cannot go on: says why, with registers and the kernel functions on the stack, and
    /// ends the sandbox.
    fn fail(&self, what: &str) -> ! {
        let (regs, sregs) =
            (self.fd.get_regs().unwrap_or_default(), self.fd.get_sregs().unwrap_or_default());
        let message = format!(
            "vCPU {} stopped: {what}; rip {:#x} rsp {:#x} rflags {:#x} cs {:#x} rax {:#x} rbx \
            {:#x} rcx {:#x} rdx {:#x} rsi {:#x} rdi {:#x} rbp {:#x} cr0 {:#x} cr2 {:#x} cr3 {:#x} \
            cr4 {:#x} efer {:#x}",
            self.index,
            regs.rip,
            regs.rsp,
            regs.rflags,
            sregs.cs.selector,
            regs.rax,
            regs.rbx,
            regs.rcx,
            regs.rdx,
            regs.rsi,
            regs.rdi,
            regs.rbp,
            sregs.cr0,
            sregs.cr2,
            sregs.cr3,
            sregs.cr4,
            sregs.efer
        );
        self.report("virtual machine error", &message, regs.rip, regs.rbp)
    }

    fn report(&self, what: &str, message: &str, rip: u64, frame: u64) -> ! {
        let shared = self.shared();
        let base = shared.shape.base + crate::sandbox::loader::IMAGE_START.0;
        let read = |address: u64| {
            let mut pair = [0u8; 16];
            shared.memory().read(shared.gpa_of(address, 16)?, &mut pair).ok()?;
            let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default());
            Some((word(&pair[..8]), word(&pair[8..])))
        };
        let trace = backtrace::describe(base, &backtrace::walk(base, rip, frame, &read));
        panic::end_with_report(what, message, &trace)
    }
}
