//! The host that an image is of: what of it programs rely on, and its clocks.
//!
//! An image may be restored when the host has been booted since, or on another one, if programs
//! find what they found. Clocks that count from a boot would go back then: those of the container
//! are shifted (time_namespaces(7)), so that for its programs the time has passed that has.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, bail};
use raw_cpuid::{CpuIdReader, CpuIdReaderNative};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::sys::procfs;

const SECOND_NS: i64 = 1_000_000_000;
/// The offsets of this process's clocks from those of the host.
const OFFSETS: &str = "/proc/self/timens_offsets";
/// The longest vDSO, in bytes.
const MAX_VDSO: u64 = 1 << 20;
/// What says which instructions there are, and how long the state is that they work on: leaf and
/// subleaf of CPUID, and which of EAX, EBX, ECX and EDX say so of all processors alike.
const FEATURES: [(u32, u32, [bool; 4]); 9] = [
    (0x1, 0, [true, false, true, true]),
    (0x7, 0, [true, true, true, true]),
    (0x7, 1, [true, true, true, true]),
    (0xd, 0, [true, false, true, true]),
    (0xd, 1, [true, false, true, true]),
    (0x14, 0, [true, true, true, true]),
    (0x8000_0001, 0, [false, false, true, true]),
    (0x8000_0008, 0, [false, true, false, false]),
    (0x8000_0021, 0, [true, false, false, false]),
];

/// What programs have learnt of the host, and rely on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// /proc/sys/kernel/random/boot_id: of the same boot all else is the same.
    pub boot_id: String,
    /// Its kernel: release and version of uname(2).
    pub kernel: String,
    /// A checksum of the vDSO, whose functions programs call where they found them.
    pub vdso: u64,
    /// What its processors can do, as they say by CPUID.
    pub processor: Vec<u32>,
}

impl Host {
    /// This one.
    ///
    /// # Errors
    /// When it does not tell.
    pub fn here() -> Result<Host> {
        let uname = rustix::system::uname();
        let kernel = [uname.release(), uname.version()].map(|part| part.to_string_lossy());
        Ok(Host { boot_id: boot_id()?, kernel: kernel.join(" "), vdso: vdso()?, processor: cpu() })
    }

    /// True if it is this one, and has not been booted since.
    ///
    /// # Errors
    /// When this one does not tell.
    pub fn is_of_this_boot(&self) -> Result<bool> {
        Ok(self.boot_id == boot_id()?)
    }

    /// Checks that programs find here what they found there.
    ///
    /// # Errors
    /// With what is another.
    pub fn check(&self) -> Result<()> {
        if self.is_of_this_boot()? {
            return Ok(());
        }
        let here = Host::here()?;
        if self.processor != here.processor {
            bail!("its programs ran on a processor that can do something else than this one");
        }
        if self.kernel != here.kernel {
            bail!(
                "its programs ran on Linux {}, and this is {}",
                self.kernel.escape_debug(),
                here.kernel
            );
        }
        if self.vdso != here.vdso {
            bail!("the vDSO that its programs know is not that of this host's kernel");
        }
        Ok(())
    }
}

/// What tells this boot of this host from others.
fn boot_id() -> Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    Ok(id.context("reading /proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// A checksum of this process's vDSO, which is that of all.
fn vdso() -> Result<u64> {
    let read = || -> Result<u64> {
        let mappings = procfs::special_mappings()?;
        let vdso = mappings.iter().find(|(.., name)| name == "[vdso]").context("there is none")?;
        let (start, end, _) = vdso;
        let mut bytes = vec![0; end.saturating_sub(*start).min(MAX_VDSO) as usize];
        File::open("/proc/self/mem")?.read_exact_at(&mut bytes, *start)?;
        Ok(XxHash3_64::oneshot(&bytes))
    };
    read().context("reading the vDSO")
}

fn cpu() -> Vec<u32> {
    const EXTENDED: u32 = 1 << 31;
    let [last, last_extended] = [0, EXTENDED].map(|first| CpuIdReaderNative.cpuid2(first, 0).eax);
    let leaf = |(leaf, subleaf, which): (u32, u32, [bool; 4])| {
        let last = if leaf < EXTENDED { last } else { last_extended };
        // Beyond the last, what is said is of another leaf.
        let said = (leaf <= last).then(|| CpuIdReaderNative.cpuid2(leaf, subleaf));
        let words = said.map_or([0; 4], |said| [said.eax, said.ebx, said.ecx, said.edx]);
        words.into_iter().zip(which).filter_map(|(word, is_said)| is_said.then_some(word))
    };
    FEATURES.into_iter().flat_map(leaf).collect()
}

/// By how much the clocks of a container are ahead of those of the commands that made it, in
/// nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockShift {
    /// CLOCK_MONOTONIC.
    pub monotonic_ns: i64,
    /// CLOCK_BOOTTIME.
    pub boottime_ns: i64,
}

impl ClockShift {
    /// For timens_offsets of a process of this one's (time_namespaces(7)); `None` if its clocks are
    /// those of this one.
    ///
    /// # Errors
    /// When the host has no time namespaces.
    pub fn offsets(self) -> Result<Option<CString>> {
        if self == ClockShift::default() {
            return Ok(None);
        }
        let own = fs::read_to_string(OFFSETS).with_context(|| {
            format!(
                "reading {OFFSETS}, as the clocks of the container have to go on from where they \
                 were before the host was booted"
            )
        })?;
        let line = |name: &str, ns: i64| {
            let ns = ns.saturating_add(offset_of(&own, name));
            format!("{name} {} {}\n", ns.div_euclid(SECOND_NS), ns.rem_euclid(SECOND_NS))
        };
        let text = line("monotonic", self.monotonic_ns) + &line("boottime", self.boottime_ns);
        Ok(Some(CString::new(text)?))
    }
}

/// What timens_offsets says of a clock, in nanoseconds.
fn offset_of(text: &str, clock: &str) -> i64 {
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ns = lines.find_map(|words| match *words {
        [name, seconds, ns] if name == clock => {
            let seconds: i64 = seconds.parse().ok()?;
            seconds.checked_mul(SECOND_NS)?.checked_add(ns.parse().ok()?)
        }
        _ => None,
    });
    ns.unwrap_or(0)
}

/// What clocks show at one moment, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// CLOCK_REALTIME.
    pub real_ns: i64,
    /// CLOCK_MONOTONIC of the container.
    pub monotonic_ns: i64,
    /// CLOCK_BOOTTIME of the container.
    pub boottime_ns: i64,
    /// How that comes of the host's.
    pub shift: ClockShift,
}

impl Clocks {
    /// Those of a container whose clocks are shifted so, now.
    pub fn now(shift: ClockShift) -> Clocks {
        let now = |clock| {
            let time = clock_gettime(clock);
            time.tv_sec.saturating_mul(SECOND_NS).saturating_add(time.tv_nsec)
        };
        Clocks {
            real_ns: now(ClockId::Realtime),
            monotonic_ns: now(ClockId::Monotonic).saturating_add(shift.monotonic_ns),
            boottime_ns: now(ClockId::Boottime).saturating_add(shift.boottime_ns),
            shift,
        }
    }

    /// How the clocks of a container have to be shifted that goes on from here, after a boot of the
    /// host: by the time that has passed by CLOCK_REALTIME.
    fn continued(&self, now: &Clocks) -> ClockShift {
        let passed = now.real_ns.saturating_sub(self.real_ns).max(0);
        let ahead = |then: i64, now: i64| then.saturating_add(passed).saturating_sub(now);
        ClockShift {
            monotonic_ns: ahead(self.monotonic_ns, now.monotonic_ns),
            boottime_ns: ahead(self.boottime_ns, now.boottime_ns),
        }
    }

    /// How the clocks of a container have to be shifted that goes on from here, of an image of
    /// `host`.
    ///
    /// # Errors
    /// When this host does not tell of its boot.
    pub fn shift_from(&self, host: &Host) -> Result<ClockShift> {
        Ok(match host.is_of_this_boot()? {
            true => self.shift,
            false => self.continued(&Clocks::now(ClockShift::default())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_on_after_a_boot() {
        let shift = ClockShift { monotonic_ns: 5, boottime_ns: 7 };
        let then = Clocks { real_ns: 1000, monotonic_ns: 400, boottime_ns: 500, shift };
        let now = Clocks { real_ns: 1100, monotonic_ns: 30, boottime_ns: 30, ..then };
        let shift = ClockShift { monotonic_ns: 470, boottime_ns: 570 };
        assert_eq!(then.continued(&now), shift);
        // The wall clock was set back meanwhile: they do not go back with it.
        let now = Clocks { real_ns: 900, ..now };
        assert_eq!(then.continued(&now).monotonic_ns, 370);
        let host = Host::here().unwrap();
        assert_eq!(then.shift_from(&host).unwrap(), then.shift);
        let mad = Clocks { monotonic_ns: i64::MAX, real_ns: i64::MIN, ..then };
        assert!(mad.continued(&now).monotonic_ns > 0);
    }

    #[test]
    fn offsets_are_as_linux_takes_them() {
        assert_eq!(ClockShift::default().offsets().unwrap(), None);
        let text = "monotonic         -2  500000000\nboottime           0          0\n";
        assert_eq!(offset_of(text, "monotonic"), -1_500_000_000);
        assert_eq!((offset_of(text, "boottime"), offset_of(text, "x")), (0, 0));
        let shift = ClockShift { monotonic_ns: -1, boottime_ns: 2 * SECOND_NS + 3 };
        let offsets = shift.offsets().unwrap().unwrap();
        // This process has the host's clocks, or another time namespace for tests.
        let own = fs::read_to_string(OFFSETS).unwrap();
        let offsets = offsets.to_str().unwrap();
        assert_eq!(offset_of(offsets, "monotonic"), offset_of(&own, "monotonic") - 1);
        let boottime = offset_of(&own, "boottime") + 2 * SECOND_NS + 3;
        assert_eq!(offset_of(offsets, "boottime"), boottime);
    }

    #[test]
    fn a_host_is_known_by_what_programs_see() {
        let here = Host::here().unwrap();
        assert_eq!(here, Host::here().unwrap());
        here.check().unwrap();
        let booted = Host { boot_id: "another".to_owned(), ..here };
        booted.check().unwrap();
        let refused = |host: &Host| host.check().unwrap_err().to_string();
        let other = Host { kernel: "6.0\n".to_owned(), ..booted.clone() };
        assert!(refused(&other).starts_with("its programs ran on Linux 6.0\\n, and"));
        let other = Host { vdso: booted.vdso + 1, ..booted.clone() };
        assert!(refused(&other).contains("vDSO"));
        let other = Host { processor: vec![1], ..booted };
        assert!(refused(&other).contains("processor"));
    }
}
