//! Mount options and the types of file systems by name (mount(8), proc_filesystems(5)).

use alloc::vec::Vec;

use super::mount::MountFlags;
use crate::account;
use crate::errno::{Errno, Result};

/// The types of file systems that mount(2) can make, for /proc/filesystems.
pub const TYPE_NAMES: [&str; 8] =
    ["cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "proc", "sysfs", "tmpfs"];

/// Mount options as mount(8) writes them, split into flags of the mount and options of the file
/// system.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// Flags of the mount.
    pub flags: MountFlags,
    /// "name=value" and other options, for the file system.
    pub rest: Vec<&'a str>,
}

impl<'a> Options<'a> {
    /// Takes options apart. Those about propagation and binding have been dealt with before.
    pub fn parse(options: impl Iterator<Item = &'a str>) -> Self {
        let mut parsed = Options::default();
        for option in options {
            let (flag, on) = match option {
                "ro" => (MountFlags::RDONLY, true),
                "rw" => (MountFlags::RDONLY, false),
                "nosuid" => (MountFlags::NOSUID, true),
                "suid" => (MountFlags::NOSUID, false),
                "nodev" => (MountFlags::NODEV, true),
                "dev" => (MountFlags::NODEV, false),
                "noexec" => (MountFlags::NOEXEC, true),
                "exec" => (MountFlags::NOEXEC, false),
                "nosymfollow" => (MountFlags::NOSYMFOLLOW, true),
                "symfollow" => (MountFlags::NOSYMFOLLOW, false),
                "noatime" => (MountFlags::NOATIME, true),
                "nodiratime" => (MountFlags::NODIRATIME, true),
                "relatime" => (MountFlags::RELATIME, true),
                "strictatime" => (MountFlags::STRICTATIME, true),
                "" | "defaults" | "bind" | "rbind" | "atime" | "diratime" | "async" | "sync" => {
                    continue;
                }
                other => {
                    parsed.rest.push(other);
                    continue;
                }
            };
            parsed.flags.set(flag, on);
        }
        parsed
    }

    /// The value of `name=value`.
    pub fn value(&self, name: &str) -> Option<&'a str> {
        self.rest.iter().rev().find_map(|o| o.strip_prefix(name)?.strip_prefix('='))
    }

    /// A value in octal.
    pub fn octal(&self, name: &str, default: u32) -> Result<u32> {
        self.value(name)
            .map_or(Ok(default), |v| u32::from_str_radix(v, 8).map_err(|_| Errno::EINVAL))
    }

    /// A value in decimal.
    pub fn number(&self, name: &str, default: u32) -> Result<u32> {
        self.value(name).map_or(Ok(default), |v| v.parse().map_err(|_| Errno::EINVAL))
    }

    /// A number with a suffix k, m or g (of 1024).
    pub fn size_of_whole(&self, name: &str, default: u64) -> Result<u64> {
        let parse = |v: &str| if v.ends_with('%') { None } else { parse_size(v, 0) };
        self.value(name).map_or(Ok(default), |v| parse(v).ok_or(Errno::EINVAL))
    }

    /// A size in bytes with a suffix k, m, g, or % of RAM.
    pub fn size(&self, name: &str, default: u64) -> Result<u64> {
        self.value(name)
            .map_or(Ok(default), |v| parse_size(v, account::memory_bytes()).ok_or(Errno::EINVAL))
    }
}

fn parse_size(text: &str, whole: u64) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().ok()?;
    match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => Some(number),
        "k" => number.checked_mul(1 << 10),
        "m" => number.checked_mul(1 << 20),
        "g" => number.checked_mul(1 << 30),
        "%" => Some((u128::from(whole) * u128::from(number) / 100).try_into().ok()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(parse_size("64k", 0), Some(65536));
        assert_eq!(parse_size("2M", 0), Some(2 << 20));
        assert_eq!(parse_size("10%", 1000), Some(100));
        assert_eq!(parse_size("123", 0), Some(123));
        for bad in ["", "k", "1x", "99999999999999999999", "18446744073709551615g"] {
            assert_eq!(parse_size(bad, 0), None, "{bad}");
        }
    }

    #[test]
    fn options_are_split_into_flags_and_values() {
        let options = Options::parse("nosuid,ro,mode=755,rw,noexec,size=1k".split(','));
        assert_eq!(options.flags, MountFlags::NOSUID | MountFlags::NOEXEC);
        assert_eq!(options.octal("mode", 0), Ok(0o755));
        assert_eq!(options.value("size"), Some("1k"));
        assert_eq!(options.number("uid", 7), Ok(7));
    }
}
