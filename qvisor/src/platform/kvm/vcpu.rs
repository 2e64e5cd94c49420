//! A vCPU: its first state, its thread, and what is done when it comes out of the guest.

use std::sync::Arc;

use anyhow::{Context, Result};
use kvm_bindings::{CpuId, kvm_regs, kvm_segment};
use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd};
use qlib::host::HostCall;
use qlib::kvm::{
    CPU_AREA_BYTES, CPU_DATA_BYTES, PORT_CALL, PORT_FAULT, PORT_LOCK_WAIT, PORT_LOCK_WAKE, PORT_PANIC, PORT_START,
};
use qlib::{Frames, Gpa};

use super::stats::{ExitCause, ExitStats, Exits};
use super::{KvmPlatform, Shared};
use crate::sandbox::memory::ops::PANIC_STATUS;
use crate::sandbox::{backtrace, memory::ops};

/// Where a vCPU begins: see [`qlib::kvm`].
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The image's entry point.
    pub entry: u64,
    /// Address of the boot information.
    pub info: u64,
    /// The kernel's page table.
    pub root: Gpa,
    /// Address of the first vCPU's area.
    pub areas: u64,
}

/// A vCPU that has not been started.
pub struct Vcpu {
    fd: VcpuFd,
    index: u32,
    stats: Arc<ExitStats>,
}

/// Stack of a vCPU's host thread, in bytes: host calls need little.
const THREAD_STACK_BYTES: usize = 256 << 10;

/// Whether one entry maps 1 GiB.
pub fn has_large_pages(cpuid: &CpuId) -> bool {
    cpuid.as_slice().iter().any(|leaf| leaf.function == 0x8000_0001 && leaf.edx >> 26 & 1 != 0)
}

/// What the guest sees of the CPU: all that KVM supports, less what asks for more than this platform gives.
fn cpuid_of(supported: &CpuId, index: u32) -> CpuId {
    let mut cpuid = supported.clone();
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
            _ => {}
        }
    }
    cpuid
}

impl Vcpu {
    /// vCPU `index` of a virtual machine.
    pub fn new(shared: &Shared, cpuid: &CpuId, index: u32, exits: &mut Exits) -> Result<Vcpu> {
        let fd = shared.vm.create_vcpu(u64::from(index)).with_context(|| format!("make vCPU {index}"))?;
        fd.set_cpuid2(&cpuid_of(cpuid, index)).context("set CPU features")?;
        let stats = exits.add(&fd);
        Ok(Vcpu { fd, index, stats })
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
        sregs.cs = flat(8, 0xb, 1);
        let data = flat(16, 3, 0);
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        sregs.tr = kvm_segment { type_: 0xb, present: 1, limit: 0x67, ..Default::default() };
        // Protection, write protection, alignment checks, paging.
        sregs.cr0 = 0x8005_0033;
        sregs.cr3 = start.root.0;
        // Physical address extension.
        sregs.cr4 = 0x20;
        // SYSCALL, long mode, no-execute.
        sregs.efer = 0xd01;
        sregs.apic_base = 0xfee0_0000 | 0xc00 | if self.index == 0 { 0x100 } else { 0 };
        self.fd.set_sregs(&sregs).context("enter long mode")?;
        let area_end = start.areas + u64::from(self.index + 1) * CPU_AREA_BYTES;
        let regs = kvm_regs {
            rip: start.entry,
            rdi: start.info,
            rsi: u64::from(self.index),
            // As after a call.
            rsp: area_end - CPU_DATA_BYTES - 8,
            rflags: 2,
            ..Default::default()
        };
        self.fd.set_regs(&regs).context("set registers")
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

/// A doorbell, with its words.
struct Ring {
    port: u16,
    first: u64,
    second: u64,
}

impl Runner {
    fn run(mut self) {
        self.fd.set_sync_valid_reg(SyncReg::Register);
        loop {
            let port = match self.fd.run() {
                Ok(VcpuExit::IoOut(port, _)) => {
                    let waits = matches!(port, PORT_LOCK_WAIT | PORT_LOCK_WAKE);
                    self.stats.count(if waits { ExitCause::LockWait } else { ExitCause::Doorbell });
                    port
                }
                Ok(exit) => {
                    let what = format!("{exit:?}");
                    self.fail(&what)
                }
                Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                    self.stats.count(ExitCause::Interrupted);
                    continue;
                }
                Err(error) if error.errno() == libc::EFAULT => {
                    self.stats.count(ExitCause::Other);
                    self.tell_of_missing_page();
                    continue;
                }
                Err(error) => self.fail(&format!("KVM_RUN: {error}")),
            };
            let regs = self.fd.sync_regs().regs;
            self.serve(&Ring { port, first: regs.rdi, second: regs.rsi });
        }
    }

    fn shared(&self) -> &Shared {
        &self.platform.shared
    }

    fn serve(&mut self, ring: &Ring) {
        match ring.port {
            PORT_CALL => self.call(ring.first),
            PORT_LOCK_WAIT | PORT_LOCK_WAKE => self.lock(ring),
            PORT_START => {
                if let Err(error) = self.platform.start_vcpu(ring.first as u32) {
                    self.fail(&format!("{error:#}"));
                }
            }
            PORT_PANIC => {
                let len = ring.second.min(4096);
                let mut text = vec![0; len as usize];
                if let Some(gpa) = self.shared().gpa_of(ring.first, len) {
                    self.shared().memory().read(gpa, &mut text).ok();
                }
                let regs = self.fd.sync_regs().regs;
                self.report("kernel panic", &String::from_utf8_lossy(&text), regs.rip, regs.rbp)
            }
            PORT_FAULT => {
                let mut words = [0u8; 22 * 8];
                if let Some(gpa) = self.shared().gpa_of(ring.first, words.len() as u64) {
                    self.shared().memory().read(gpa, &mut words).ok();
                }
                let word = |i: usize| u64::from_le_bytes(words[i * 8..i * 8 + 8].try_into().unwrap_or_default());
                let what = format!(
                    "exception {} (error code {:#x}) at {:#x}, address {:#x}; rsp {:#x} rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x} rsi {:#x} rdi {:#x} r8 {:#x} r9 {:#x}",
                    word(15),
                    word(16),
                    word(17),
                    ring.second,
                    word(20),
                    word(10),
                    word(5),
                    word(11),
                    word(12),
                    word(13),
                    word(14),
                    word(9),
                    word(8)
                );
                let mut outer = [0u8; 22 * 8];
                if let Some(gpa) = self.shared().gpa_of(word(14), 22 * 8) {
                    self.shared().memory().read(gpa, &mut outer).ok();
                }
                let o: Vec<String> =
                    outer.chunks(8).map(|b| format!("{:x}", u64::from_le_bytes(b.try_into().unwrap()))).collect();
                let sregs = self.fd.get_sregs().unwrap();
                let what = format!("{what} outer {o:?} gs {:x} cpu {}", sregs.gs.base, self.index);
                self.report("kernel fault", &what, word(17), word(4))
            }
            other => self.fail(&format!("a doorbell at port {other:#x}, where none is")),
        }
    }

    fn call(&mut self, address: u64) {
        let shared = self.shared();
        let size = size_of::<HostCall>();
        let Some(gpa) = shared.gpa_of(address, size as u64) else { return };
        let mut call = HostCall::default();
        // SAFETY: plain data of integers.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut call).cast::<u8>(), size) };
        shared.memory().read(gpa, bytes).ok();
        match call.op {
            0x1_0000 => {
                use rustix::time::{ClockId, clock_gettime};
                let id = match call.args[0] as i32 {
                    libc::CLOCK_REALTIME => ClockId::Realtime,
                    libc::CLOCK_BOOTTIME => ClockId::Boottime,
                    _ => ClockId::Monotonic,
                };
                let t = clock_gettime(id);
                call.args[0] = (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64);
            }
            0x1_0001 => {
                let count = call.args[1].min(1 << 20);
                let mut raw = vec![0u8; count as usize * size_of::<Frames>()];
                let gpa = shared.gpa_of(call.args[0], raw.len() as u64);
                let read = gpa.map(|gpa| shared.memory().read(gpa, &mut raw));
                let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default());
                let frames = raw.chunks_exact(16).map(|f| Frames { start: Gpa(word(&f[..8])), count: word(&f[8..]) });
                call.ret = match (read, shared.memory().release(frames)) {
                    (Some(Ok(())), Ok(())) => 0,
                    _ => -22,
                };
            }
            0x1_0002 => {
                let event = shared.events().pop_front().unwrap_or_default();
                (call.args[0], call.args[1], call.args[2]) = (u64::from(event.kind), event.a, event.b);
            }
            _ => shared.host.call(&mut call),
        }
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const call).cast::<u8>(), size) };
        shared.memory().write(gpa, bytes).ok();
    }

    fn lock(&self, ring: &Ring) {
        let Some(gpa) = self.shared().gpa_of(ring.first, 4) else { return };
        let word = (self.shared().memory().base() + gpa.0) as *const u32;
        match ring.port {
            PORT_LOCK_WAIT => ops::wait_on(word, ring.second as u32),
            _ => ops::wake_one(word),
        }
    }

    /// The host cannot supply a page that the guest touched (a file was cut short under a window): the guest gets a machine check.
    fn tell_of_missing_page(&mut self) {
        let events = self.fd.get_vcpu_events().and_then(|mut events| {
            events.exception.injected = 1;
            events.exception.nr = 18;
            events.exception.has_error_code = 0;
            events.flags = 0;
            self.fd.set_vcpu_events(&events)
        });
        if let Err(error) = events {
            self.fail(&format!("a page is missing, and the guest cannot be told: {error}"));
        }
    }

    /// The guest cannot go on: says why, with registers and the kernel functions on the stack, and ends the sandbox.
    fn fail(&mut self, what: &str) -> ! {
        let (regs, sregs) = (self.fd.get_regs().unwrap_or_default(), self.fd.get_sregs().unwrap_or_default());
        let message = format!(
            "vCPU {} stopped: {what}; rip {:#x} rsp {:#x} rflags {:#x} cs {:#x} rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x} rsi {:#x} rdi {:#x} rbp {:#x} cr0 {:#x} cr2 {:#x} cr3 {:#x} cr4 {:#x} efer {:#x}",
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
        ops::end_with_report(what, message, &trace, PANIC_STATUS)
    }
}
