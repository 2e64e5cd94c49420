//! The kvm platform: the guest kernel runs in ring 0 of a KVM virtual machine, user code in its
//! ring 3.
//!
//! The virtual machine has RAM, file windows, vCPUs with their local interrupt controllers, and
//! nothing else: no firmware, no bus, no device. A vCPU is a thread of the sandbox process that is
//! in KVM_RUN, enters straight in long mode ([`vcpu`]) with page tables made here ([`tables`]), and
//! comes out for a hypercall.

mod boot;
pub mod channel;
pub mod probe;
mod slots;
pub mod stats;
pub mod tables;
pub mod vcpu;

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, anyhow, bail};
use kvm_bindings::{
    CpuId, KVM_CAP_SPLIT_IRQCHIP, KVM_CAP_X2APIC_API, KVM_CAP_X86_DISABLE_EXITS,
    KVM_MAX_CPUID_ENTRIES, KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK, KVM_X2APIC_API_USE_32BIT_IDS,
    KVM_X86_DISABLE_EXITS_HLT, kvm_enable_cap, kvm_msi,
};
use kvm_ioctls::{Kvm, VmFd};
use qlib::channel::{CHANNEL_BYTES, ChannelLayout};
use qlib::kvm::{CPU_IDLE_OFFSET, CPU_WAKE_OFFSET, HOLE, KvmInfo, MAX_CPUS, VECTOR_KICK};
use qlib::platform::BootInfo;
use qlib::{Frames, Gpa};
use rustix::io::Errno;

use crate::sandbox::hostcall::HostSide;
use crate::sandbox::loader::LoadedKernel;
use crate::sandbox::memory::{GuestMemory, Protection, RAM_UNIT};
use crate::sandbox::panic;
use crate::sys;
use crate::sys::ordered::{Mutex, MutexGuard, place};
pub use boot::KvmConfig;
use channel::{Channel, ChannelError};
use probe::needs;
use slots::Slots;
use stats::Exits;
use vcpu::Vcpu;

/// Where kernel memory may begin: a place of the upper half that is random, in steps of 1 GiB.
const BASE_LOW: u64 = 0xffff_8000_0000_0000;
const BASE_STEP: u64 = 1 << 30;
const BASE_STEPS: u64 = 1 << 16;

/// The longest list of ranges to be given back, in bytes.
const MAX_RELEASE_BYTES: u64 = 16 << 20;

/// What is fixed before the kernel is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Kernel virtual address of guest physical address 0.
    pub base: u64,
    /// vCPUs.
    pub cpus: u32,
}

impl Shape {
    /// A random base for `cpus` vCPUs.
    pub fn new(cpus: u32) -> Result<Shape> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .context("get random bytes")?;
        let step = u64::from_le_bytes(random) % BASE_STEPS;
        Ok(Shape { base: BASE_LOW + step * BASE_STEP, cpus: cpus.clamp(1, MAX_CPUS) })
    }
}

fn enable(vm: &VmFd, cap: u32, value: u32) -> Result<(), kvm_ioctls::Error> {
    vm.enable_cap(&kvm_enable_cap { cap, args: [value.into(), 0, 0, 0], ..Default::default() })
}

/// A virtual machine with the interrupt controllers of its vCPUs, and no other.
fn make_vm(kvm: &Kvm) -> Result<VmFd> {
    let vm = kvm.create_vm().context("KVM_CREATE_VM")?;
    enable(&vm, KVM_CAP_SPLIT_IRQCHIP, 24).context("KVM_CAP_SPLIT_IRQCHIP")?;
    let format = KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK;
    enable(&vm, KVM_CAP_X2APIC_API, format).context("KVM_CAP_X2APIC_API")?;
    Ok(vm)
}

/// One virtual machine.
pub struct KvmPlatform {
    shared: Arc<Shared>,
    cpuid: CpuId,
    /// How many vCPUs have been started.
    started: Mutex<u32, place::Vcpus>,
    start: OnceLock<vcpu::Start>,
    exits: Arc<Exits>,
}

/// What vCPU threads and the event loop share.
pub struct Shared {
    vm: VmFd,
    host: Arc<HostSide>,
    shape: Shape,
    slots: Slots,
    laid_out: OnceLock<LaidOut>,
}

/// What there is once the kernel has been loaded.
struct LaidOut {
    channel: Channel,
    info: KvmInfo,
}

impl Shared {
    fn laid_out(&self) -> &LaidOut {
        self.laid_out.get().expect("vCPUs run, and events come, only afterwards")
    }

    fn channel(&self) -> &Channel {
        &self.laid_out().channel
    }

    /// Has a vCPU look around, if `wanted`, for an event: one that idles, or the first.
    fn notify(&self, wanted: Result<bool, ChannelError>) {
        match wanted {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => panic::end_with_report("virtual machine error", &error.to_string(), ""),
        }
        let idle = || (0..self.shape.cpus).find(|cpu| self.idles(*cpu));
        if let Some(cpu) = idle() {
            return self.wake_idle(cpu);
        }
        self.interrupt(0);
        // It may have begun to idle before the interrupt, and not have looked since.
        fence(Ordering::SeqCst);
        if let Some(cpu) = idle() {
            self.wake_idle(cpu);
        }
    }

    /// Where the data of vCPU `cpu` lies.
    fn cpu_data(&self, cpu: u32) -> Gpa {
        self.laid_out().info.cpu_data(cpu)
    }

    /// True if vCPU `cpu` says that it idles.
    fn idles(&self, cpu: u32) -> bool {
        let mut byte = [0];
        self.memory().read(self.cpu_data(cpu) + CPU_IDLE_OFFSET, &mut byte).is_ok() && byte != [0]
    }

    /// The wake word of vCPU `cpu`.
    fn wake_word(&self, cpu: u32) -> &AtomicU32 {
        let word = self.memory().word(self.cpu_data(cpu) + CPU_WAKE_OFFSET);
        word.expect("the data of vCPUs are RAM that was laid out here")
    }

    /// Ends the wait of vCPU `cpu`, or the next one.
    fn wake_idle(&self, cpu: u32) {
        // The area is RAM of ours.
        self.memory().write(self.cpu_data(cpu) + CPU_WAKE_OFFSET, &1u32.to_le_bytes()).ok();
        sys::futex_wake_private(self.wake_word(cpu));
    }

    fn interrupt(&self, index: u32) {
        let msi = kvm_msi {
            address_lo: 0xfee0_0000 | index << 12,
            data: u32::from(VECTOR_KICK),
            ..Default::default()
        };
        if let Err(error) = self.vm.signal_msi(msi) {
            tracing::error!("cannot interrupt vCPU {index}: {error}");
        }
    }

    fn memory(&self) -> &GuestMemory {
        &self.host.memory
    }

    /// Makes guest memory below `end` known to KVM; up to where it is then.
    fn reach(&self, end: Gpa) -> Result<Gpa, Errno> {
        self.slots.reach(&self.vm, self.memory(), end)
    }

    /// Gives back the ranges that the array at `list` names.
    fn release(&self, list: Gpa, count: u64) -> Result<(), Errno> {
        const SIZE: usize = size_of::<Frames>();
        let bytes = count
            .checked_mul(SIZE as u64)
            .filter(|bytes| *bytes <= MAX_RELEASE_BYTES)
            .ok_or(Errno::INVAL)?;
        let mut raw = vec![0u8; bytes as usize];
        self.memory().ram_slice(list, bytes).ok_or(Errno::FAULT)?.read(&mut raw)?;
        let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default());
        let frames = raw
            .chunks_exact(SIZE)
            .map(|f| Frames { start: Gpa(word(&f[..8])), count: word(&f[8..]) });
        self.memory().release(frames)
    }

    /// The guest physical address of `len` bytes of RAM at a kernel address.
    fn gpa_of(&self, address: u64, len: u64) -> Option<Gpa> {
        let gpa = Gpa(address.checked_sub(self.shape.base)?);
        self.memory().ram_slice(gpa, len).map(|_| gpa)
    }
}

impl KvmPlatform {
    /// A virtual machine over the memory of `host`.
    pub fn new(host: Arc<HostSide>, shape: Shape) -> Result<Arc<KvmPlatform>> {
        let kvm = Kvm::new().context("open /dev/kvm")?;
        let cpuid =
            kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("ask KVM for CPU features")?;
        if let Some(missing) = needs::inventory(&kvm, &cpuid).missing.first() {
            bail!("this host's KVM lacks {missing}; use --platform=process");
        }
        let vm = make_vm(&kvm)?;
        // vCPUs idle in a hypercall and never halt. KVM knows it because it otherwise halts one
        // that touches a page which the host must fetch first, and tries again without end when
        // there is none (a window whose file was cut short).
        let halts = vm.check_extension_raw(KVM_CAP_X86_DISABLE_EXITS.into()) as u32
            & KVM_X86_DISABLE_EXITS_HLT;
        if halts != 0 {
            enable(&vm, KVM_CAP_X86_DISABLE_EXITS, halts).context("KVM_CAP_X86_DISABLE_EXITS")?;
        }
        let memory = &host.memory;
        memory.exclude_windows(HOLE);
        let slots = Slots::new(memory);
        let shared =
            Arc::new(Shared { vm, host: host.clone(), shape, slots, laid_out: OnceLock::new() });
        let weak = Arc::downgrade(&shared);
        memory.set_reach(move |end| {
            weak.upgrade().map_or(Err(Errno::NODEV), |shared| shared.reach(end).map(|_| ()))
        });
        Ok(Arc::new(KvmPlatform {
            shared,
            cpuid,
            started: Mutex::new(0),
            start: OnceLock::new(),
            exits: Arc::new(Exits::new()),
        }))
    }

    /// Lays out what ring 0 needs behind the loaded image, starts the first vCPU.
    pub fn start(self: &Arc<Self>, loaded: &LoadedKernel, info: BootInfo) -> Result<()> {
        let Shape { base, cpus } = self.shared.shape;
        let memory = self.shared.memory();
        let tables_at = loaded.extra;
        let channel = ChannelLayout { start: tables_at + TABLES_BYTES };
        let areas = channel.start + CHANNEL_BYTES;
        let mut small = loaded.protections.clone();
        small.push((loaded.boot_info, qlib::PAGE_SIZE, Protection::Read));
        small.push((loaded.mailbox, crate::sandbox::loader::MAILBOX_BYTES, Protection::Read));
        small.push((tables_at, TABLES_BYTES, Protection::Read));
        small.push((channel.start, CHANNEL_BYTES, Protection::ReadWrite));
        small.extend(tables::cpu_areas(areas, cpus));
        let plan = tables::Plan {
            base,
            ram_bytes: memory.ram_bytes(),
            window_bytes: memory.window_bytes(),
            small,
            free_start: loaded.free_start,
            has_large: needs::has(&self.cpuid, "1 GiB pages"),
        };
        let built = tables::build(&plan, tables_at);
        if built.len() as u64 * qlib::PAGE_SIZE > TABLES_BYTES {
            bail!("the kernel's page tables do not fit: {} pages", built.len());
        }
        tables::write(memory, tables_at, &built).context("write the kernel's page tables")?;
        let first = Vcpu::new(&self.shared, &self.cpuid, 0, &self.exits)?;
        let ready = self
            .shared
            .reach(loaded.free_start + RAM_UNIT)
            .context("give the virtual machine its memory")?;
        let tsc_khz = first.tsc_khz();
        let kvm = KvmInfo { kernel_root: tables_at, tsc_khz, channel, ready, cpu_areas: areas };
        let info = BootInfo { phys_base: base, kvm, ..info };
        memory.write_boot_info(loaded.boot_info, &info).context("write the boot information")?;
        let start = vcpu::Start {
            entry: base + loaded.entry.0,
            info: base + loaded.boot_info.0,
            base,
            kvm,
        };
        let laid_out =
            LaidOut { channel: Channel::new(self.shared.host.memory.clone(), channel)?, info: kvm };
        self.shared.laid_out.set(laid_out).map_err(|_| anyhow!("started twice"))?;
        self.start.set(start).map_err(|_| anyhow!("started twice"))?;
        *self.started() = 1;
        first.spawn(self.clone(), self.begin()?)
    }

    fn started(&self) -> MutexGuard<'_, u32> {
        self.started.lock()
    }

    fn begin(&self) -> Result<&vcpu::Start> {
        self.start.get().context("the kernel has not been laid out")
    }

    /// Makes vCPU `index` and starts it: the one that comes next.
    fn start_vcpu(self: &Arc<Self>, index: u32) -> Result<()> {
        let mut started = self.started();
        if index != *started || index >= self.shared.shape.cpus {
            bail!("vCPU {index} cannot be started: {} of {} are", *started, self.shared.shape.cpus);
        }
        Vcpu::new(&self.shared, &self.cpuid, index, &self.exits)?
            .spawn(self.clone(), self.begin()?)?;
        *started += 1;
        Ok(())
    }

    /// What was fixed before the kernel was loaded.
    fn shape(&self) -> Shape {
        self.shared.shape
    }
}

/// Room for the kernel's page tables: enough for RAM of 256 GiB and windows in pages of 2 MiB.
pub const TABLES_BYTES: u64 = 2 << 20;
