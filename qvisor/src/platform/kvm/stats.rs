//! How often vCPUs leave the guest, and why: what our own vCPU loop counts, and KVM's binary
//! statistics (Documentation/virt/kvm/api.rst, KVM_GET_STATS_FD; Linux 5.14).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::{KVM_STATS_TYPE_CUMULATIVE, KVM_STATS_TYPE_MASK, KVMIO};
use qlib::control::PlatformStats;
use vmm_sys_util::ioctl::ioctl;
use vmm_sys_util::ioctl_io_nr;

use crate::sys::ordered::{Mutex, MutexGuard, place};

ioctl_io_nr!(KVM_GET_STATS_FD, KVMIO, 0xce);

/// Why a vCPU came back to our loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    /// The guest kernel calls the host.
    Hypercall,
    /// It waits for the kernel lock.
    LockWait,
    /// It has nothing to do.
    Halt,
    /// Another port, or memory that is not there.
    Io,
    /// A signal of ours.
    Interrupted,
    /// The end of the guest.
    Shutdown,
    /// Everything else.
    Other,
}

impl ExitCause {
    /// All of them.
    pub const ALL: [ExitCause; 7] = [
        ExitCause::Hypercall,
        ExitCause::LockWait,
        ExitCause::Halt,
        ExitCause::Io,
        ExitCause::Interrupted,
        ExitCause::Shutdown,
        ExitCause::Other,
    ];

    /// The name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            ExitCause::Hypercall => "hypercall",
            ExitCause::LockWait => "lock_wait",
            ExitCause::Halt => "halt",
            ExitCause::Io => "io",
            ExitCause::Interrupted => "interrupted",
            ExitCause::Shutdown => "shutdown",
            ExitCause::Other => "other",
        }
    }
}

/// Counts of one vCPU; on cache lines of their own, as each exit adds to them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ExitStats {
    counts: [AtomicU64; ExitCause::ALL.len()],
}

impl ExitStats {
    /// One more. Only the vCPU's own thread counts.
    pub fn count(&self, cause: ExitCause) {
        if let Some(count) = self.counts.get(cause as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many there were.
    pub fn get(&self, cause: ExitCause) -> u64 {
        self.counts.get(cause as usize).map_or(0, |c| c.load(Ordering::Relaxed))
    }
}

/// The statistics of all vCPUs of a sandbox.
#[derive(Debug, Default)]
pub struct Exits {
    vcpus: Mutex<Vec<Counted>, place::VcpuStats>,
}

/// A vCPU's own counts, and KVM's.
type Counted = (Arc<ExitStats>, Option<File>);

impl Exits {
    /// No vCPU yet.
    pub fn new() -> Exits {
        Exits::default()
    }

    /// Adds a vCPU; its loop counts in the result. Call it before the vCPU runs for the first time:
    /// KVM answers no further ioctl of a vCPU that runs. Where KVM keeps no statistics, only our
    /// own are shown.
    pub fn add(&self, vcpu: &impl AsRawFd) -> Arc<ExitStats> {
        let own = Arc::new(ExitStats::default());
        let file = statistics_file(vcpu)
            .inspect_err(|e| tracing::debug!("no statistics of KVM: {e}"))
            .ok();
        self.lock().push((own.clone(), file));
        own
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Counted>> {
        self.vcpus.lock()
    }

    /// Sums over the vCPUs. Does not stop them.
    pub fn read(&self) -> PlatformStats {
        let vcpus = self.lock();
        let sum = |cause| vcpus.iter().map(|(own, _)| own.get(cause)).sum();
        let exits = ExitCause::ALL.map(|cause| (cause.name().to_owned(), sum(cause))).to_vec();
        let mut kvm: Vec<(String, u64)> = Vec::new();
        for file in vcpus.iter().filter_map(|(_, file)| file.as_ref()) {
            for (name, value) in
                read_whole(file).ok().and_then(|image| counters(&image)).unwrap_or_default()
            {
                match kvm.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, total)) => *total = total.wrapping_add(value),
                    None => kvm.push((name, value)),
                }
            }
        }
        PlatformStats { name: "kvm".into(), exits, kvm }
    }
}

/// The statistics of a vCPU as a file, each read of which has the numbers of the moment.
///
/// # Errors
/// ENOTTY before Linux 5.14.
fn statistics_file(vcpu: &impl AsRawFd) -> io::Result<File> {
    // SAFETY: the call has no argument and changes nothing; the wrapper passes only the
    // descriptor's number on.
    let fd = unsafe { ioctl(&vcpu.as_raw_fd(), KVM_GET_STATS_FD()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// All of a statistics file. It is some kilobytes; more than 64 KiB are not read.
fn read_whole(file: &File) -> io::Result<Vec<u8>> {
    let mut image = vec![0; 64 << 10];
    let mut len = 0;
    loop {
        let rest = image.get_mut(len..).unwrap_or_default();
        match file.read_at(rest, len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    image.truncate(len);
    Ok(image)
}

/// The counters in a statistics file's bytes: what only grows and is one number (no histograms, no
/// values of the moment). `None` when it is not of the form that struct kvm_stats_header and
/// kvm_stats_desc have.
pub fn counters(image: &[u8]) -> Option<Vec<(String, u64)>> {
    const DESCRIPTOR_BYTES: usize = 16;
    let [_flags, name_bytes, descriptors, _id, descriptors_at, data_at] =
        [0, 4, 8, 12, 16, 20].map(|at| u32_at(image, at));
    let (name_bytes, descriptors) = (name_bytes? as usize, descriptors? as usize);
    let (descriptors_at, data_at) = (descriptors_at? as usize, data_at? as usize);
    let step = DESCRIPTOR_BYTES.checked_add(name_bytes)?;
    let all =
        image.get(descriptors_at..descriptors_at.checked_add(step.checked_mul(descriptors)?)?)?;
    let mut found = Vec::new();
    for descriptor in all.chunks_exact(step) {
        let flags = u32_at(descriptor, 0)?;
        let size = u16::from_le_bytes(*descriptor.get(6..)?.first_chunk()?);
        let offset = u32_at(descriptor, 8)? as usize;
        if flags & KVM_STATS_TYPE_MASK != KVM_STATS_TYPE_CUMULATIVE || size != 1 {
            continue;
        }
        let name = descriptor.get(DESCRIPTOR_BYTES..)?;
        let name = name.split(|b| *b == 0).next()?;
        let value = u64::from_le_bytes(*image.get(data_at.checked_add(offset)?..)?.first_chunk()?);
        found.push((String::from_utf8_lossy(name).into_owned(), value));
    }
    Some(found)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;

    #[test]
    fn causes_are_counted_apart_and_summed_over_vcpus() {
        let exits = Exits::new();
        // Not vCPUs: KVM has no statistics of them.
        let null = File::open("/dev/null").unwrap();
        let (one, two) = (exits.add(&null), exits.add(&null));
        one.count(ExitCause::Hypercall);
        one.count(ExitCause::Hypercall);
        two.count(ExitCause::Hypercall);
        two.count(ExitCause::Shutdown);
        let stats = exits.read();
        assert_eq!((stats.name.as_str(), stats.kvm.len()), ("kvm", 0));
        let value = |name: &str| stats.exits.iter().find(|(n, _)| n == name).unwrap().1;
        assert_eq!((value("hypercall"), value("shutdown"), value("halt")), (3, 1, 0));
        for (i, cause) in ExitCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, i, "{cause:?}");
        }
    }

    #[test]
    fn kvm_counts_the_exits_of_a_guest() {
        use super::super::probe::{Trial, guest};
        let trial = kvm_ioctls::Kvm::new().map_err(anyhow::Error::from).and_then(|kvm| {
            let cpuid = kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES)?;
            Trial::new(&kvm, &cpuid)
        });
        let mut trial = match trial {
            Ok(trial) => trial,
            Err(e) => return skip(format!("{e:#}")),
        };
        let exits = Exits::new();
        exits.add(&trial.vcpu);
        let before = exits.read().kvm;
        if before.is_empty() {
            return skip("KVM keeps no statistics here");
        }
        trial.enter("start").unwrap();
        for _ in 0..20 {
            trial.order(guest::ORDER_NOTHING, 0, 0, "exits").unwrap();
        }
        let after = exits.read().kvm;
        let value = |all: &[(String, u64)]| all.iter().find(|(name, _)| name == "exits").unwrap().1;
        assert!(value(&after) >= value(&before) + 21, "{before:?} {after:?}");
        // The file for the test below comes from here.
        if std::env::var_os("QUARK_PRINT_STATISTICS").is_some() {
            let image = read_whole(exits.lock()[0].1.as_ref().unwrap()).unwrap();
            println!("{}", image.iter().map(|b| format!("{b:02x}")).collect::<String>());
        }
    }

    /// The statistics of a vCPU on Linux 6.1 with AMD's virtualization.
    /// `kvm_counts_the_exits_of_a_guest` prints them.
    const RECORDED: &[u8] = include_bytes!("vcpu-stats-6.1.bin");

    #[test]
    fn a_recorded_image_is_understood() {
        let counters = counters(RECORDED).unwrap();
        let value = |name: &str| counters.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        for name in [
            "exits",
            "halt_exits",
            "irq_exits",
            "io_exits",
            "pf_taken",
            "pf_fixed",
            "signal_exits",
            "irq_injections",
        ] {
            assert!(value(name).is_some(), "{name} is not in {counters:?}");
        }
        assert!(
            value("exits").unwrap() >= value("io_exits").unwrap()
                && value("io_exits").unwrap() >= 16,
            "{counters:?}"
        );
        assert!(!counters.iter().any(|(n, _)| n.contains("hist")), "no histograms: {counters:?}");
        assert_eq!(value("guest_mode"), None, "a value of the moment");
    }

    #[test]
    fn a_cut_or_wrong_image_is_no_statistics() {
        let whole = counters(RECORDED).unwrap();
        for len in 0..RECORDED.len() {
            // The end of the data may be that of a histogram.
            if let Some(some) = counters(&RECORDED[..len]) {
                assert_eq!(some, whole, "{len} bytes");
            }
        }
        assert_eq!(counters(&RECORDED[..1000]), None);
        for at in [4, 8, 16, 20] {
            let mut image = RECORDED.to_vec();
            image[at..at + 4].fill(0xff);
            assert_eq!(counters(&image), None, "a head that is wrong at {at}");
        }
    }
}
