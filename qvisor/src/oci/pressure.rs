//! The trigger by which a container learns that the host is short of memory.
//!
//! It is the whole host's (/proc/pressure/memory), not that of a cgroup above the container: those
//! who sleep are idle, so it is others who wait for memory, wherever they are.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::sandbox::pressure::Pull;

/// Where the host tells how long its tasks wait for memory.
const FILE: &str = "/proc/pressure/memory";
/// A FIFO that stands for it in tests: each byte written to it is a pull.
const TEST_FILE: &str = "QUARK_TEST_PRESSURE";

/// The limits of the kernel for a window (kernel/sched/psi.c).
const WINDOW_US: [u64; 2] = [500_000, 10_000_000];

/// When memory counts as short: some task, or all that are not idle, waited for it so long in so
/// long a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    is_full: bool,
    stall_us: u64,
    window_us: u64,
}

impl Default for Trigger {
    /// What systemd warns services at (systemd.resource-control(5), MemoryPressureThresholdSec=).
    /// Ordinary users may only have windows that are multiples of 2 s.
    fn default() -> Trigger {
        Trigger { is_full: false, stall_us: 200_000, window_us: 2_000_000 }
    }
}

impl Trigger {
    /// What an option or annotation says: "true", "false", or a trigger as the kernel reads it.
    ///
    /// # Errors
    /// A line that says what it may be.
    pub fn parse(text: &str) -> Result<Option<Trigger>> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let trigger = match words[..] {
            ["true"] => return Ok(Some(Trigger::default())),
            ["false"] => return Ok(None),
            [kind @ ("some" | "full"), stall, window] => {
                let us = |word: &str| word.parse::<u64>().ok();
                us(stall).zip(us(window)).map(|(stall_us, window_us)| Trigger {
                    is_full: kind == "full",
                    stall_us,
                    window_us,
                })
            }
            _ => None,
        };
        let Some(trigger) = trigger else {
            bail!(
                "{text:?} is no trigger: write true, false or for example \"some 200000 2000000\" \
                 (microseconds of waiting for memory, and of the time in which)"
            );
        };
        let [least, most] = WINDOW_US;
        if !(least..=most).contains(&trigger.window_us) {
            bail!("{text:?}: the second time must be {least} to {most} microseconds");
        }
        if trigger.stall_us == 0 || trigger.stall_us > trigger.window_us {
            bail!("{text:?}: the first time must be above 0, and not above the second");
        }
        Ok(Some(trigger))
    }

    /// Sets it on this host.
    ///
    /// # Errors
    /// When the host has none, or not for this user.
    pub fn set(&self) -> Result<(OwnedFd, Pull)> {
        let test = std::env::var_os(TEST_FILE).map(PathBuf::from);
        let path = test.unwrap_or_else(|| FILE.into());
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let mut file = options.open(&path).with_context(|| path.display().to_string())?;
        if file.metadata().is_ok_and(|about| about.file_type().is_fifo()) {
            return Ok((file.into(), Pull::Data));
        }
        let text = self.to_string();
        // The kernel wants all of it in one call, with its NUL.
        let written = file.write(format!("{text}\0").as_bytes());
        let advice = match self.window_us % 2_000_000 {
            0 => "",
            _ => "; without CAP_SYS_RESOURCE the second time must be a multiple of 2000000",
        };
        written.with_context(|| format!("{}: setting {text:?}{advice}", path.display()))?;
        Ok((file.into(), Pull::Urgent))
    }
}

impl std::fmt::Display for Trigger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_full { "full" } else { "some" };
        write!(f, "{kind} {} {}", self.stall_us, self.window_us)
    }
}

/// When memory counts as short, or that it does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnPressure(pub Option<Trigger>);

/// The same for the command line.
///
/// # Errors
/// As [`Trigger::parse`].
pub fn parse_option(text: &str) -> std::result::Result<OnPressure, String> {
    Trigger::parse(text).map(OnPressure).map_err(|e| format!("{e:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_is_what_the_kernel_reads() {
        let parsed = |text: &str| Trigger::parse(text).unwrap().map(|t| t.to_string());
        assert_eq!(parsed("true").as_deref(), Some("some 200000 2000000"));
        assert_eq!(parsed("false"), None);
        assert_eq!(parsed(" full 1  500000").as_deref(), Some("full 1 500000"));
        for (text, expected) in [
            ("yes", "\"yes\" is no trigger: write true, false or for example"),
            ("", "is no trigger"),
            ("some 1", "is no trigger"),
            ("some -1 1000000", "is no trigger"),
            ("some 1 499999", "the second time must be 500000 to 10000000"),
            ("some 1 10000001", "the second time must be"),
            ("some 0 1000000", "the first time must be above 0"),
            ("some 1000001 1000000", "and not above the second"),
        ] {
            let error = Trigger::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
