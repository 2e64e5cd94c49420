//! Device nodes (`linux.devices`, Docker's `--device`): those that the guest kernel has a driver
//! for are made in its /dev; a device of the host is out of its reach.

use std::path::{Component, Path, PathBuf};

use anyhow::{Result, bail};
use oci_spec::runtime::{LinuxDevice, LinuxDeviceType, Spec};
use qlib::control::DeviceSpec;

/// Those that every guest has: name in /dev, major and minor number (Linux,
/// admin-guide/devices.txt).
const STANDARD: [(&str, (i64, i64)); 8] = [
    ("null", (1, 3)),
    ("zero", (1, 5)),
    ("full", (1, 7)),
    ("random", (1, 8)),
    ("urandom", (1, 9)),
    ("tty", (5, 0)),
    ("console", (5, 1)),
    ("ptmx", (5, 2)),
];

/// The nodes to make besides the standard ones. Where a configuration allows all devices there are
/// (`docker run --privileged`), it lists those of the host, and the others are left out with a
/// warning.
///
/// # Errors
/// When one is a device of the host, or does not lie in /dev.
pub fn convert(spec: &Spec) -> Result<Vec<DeviceSpec>> {
    let devices = spec.linux().as_ref().and_then(|l| l.devices().as_deref()).unwrap_or_default();
    let (known, others): (Vec<_>, Vec<_>) = devices.iter().partition(|d| standard_of(d).is_some());
    let others: Vec<String> = others.iter().filter(|d| !is_own(d)).map(|d| describe(d)).collect();
    if !others.is_empty() && !allows_all(spec) {
        bail!(
            "linux.devices: a guest reaches no device of the host, as {} would be; take it out \
            (null, zero, full, random, urandom, tty are there, under other names too)",
            others.join(", ")
        );
    }
    if !others.is_empty() {
        tracing::warn!("a guest reaches no device of the host, and {} are left out", others.len());
    }
    let nodes = known.into_iter().filter(|d| !is_own(d)).map(one).collect::<Result<Vec<_>>>()?;
    if let Some(node) = nodes.first().filter(|_| !has_own_dev(spec)) {
        bail!(
            "linux.devices: {} needs a /dev of the container's own: add a mount of type tmpfs there",
            node.path
        );
    }
    Ok(nodes)
}

/// True if device nodes do not come into the image.
fn has_own_dev(spec: &Spec) -> bool {
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    let dev = mounts.iter().rev().find(|m| m.destination() == Path::new("/dev"));
    dev.is_some_and(|m| m.typ().as_deref() == Some("tmpfs"))
}

fn one(device: &LinuxDevice) -> Result<DeviceSpec> {
    // Without what a path may have and need not: "/dev//x/".
    let path = device.path().components().collect::<PathBuf>();
    let is_in_dev = path.strip_prefix("/dev").is_ok_and(|rest| {
        rest.components().count() > 0
            && rest.components().all(|c| matches!(c, Component::Normal(_)))
    });
    let path = path.display().to_string();
    if !is_in_dev {
        bail!("linux.devices: {path} does not lie in /dev, where a guest has its devices");
    }
    let number = |n: i64| u32::try_from(n).unwrap_or(0);
    Ok(DeviceSpec {
        path,
        number: (number(device.major()), number(device.minor())),
        mode: device.file_mode().unwrap_or(0o666) & 0o777,
        owner: (device.uid().unwrap_or(0), device.gid().unwrap_or(0)),
    })
}

/// The name of the standard device that has these numbers.
fn standard_of(device: &LinuxDevice) -> Option<&'static str> {
    // "u" is the older name of "c", an unbuffered one.
    if !matches!(device.typ(), LinuxDeviceType::C | LinuxDeviceType::U) {
        return None;
    }
    let numbers = (device.major(), device.minor());
    STANDARD.iter().find(|(_, of)| *of == numbers).map(|(name, _)| *name)
}

/// True for the path of what every guest has, whatever the host has there.
fn is_own(device: &LinuxDevice) -> bool {
    let name = device.path().strip_prefix("/dev").ok().and_then(|n| n.to_str());
    STANDARD.iter().any(|(of, _)| Some(*of) == name)
}

fn allows_all(spec: &Spec) -> bool {
    let resources = spec.linux().as_ref().and_then(|l| l.resources().as_ref());
    let rules = resources.and_then(|r| r.devices().as_deref()).unwrap_or_default();
    // The last rule of that kind counts.
    let whole = rules.iter().rev().find(|rule| {
        rule.major().is_none()
            && rule.minor().is_none()
            && matches!(rule.typ(), None | Some(LinuxDeviceType::A))
    });
    whole.is_some_and(|rule| rule.allow())
}

fn describe(device: &LinuxDevice) -> String {
    let (path, kind) = (device.path().display(), device.typ());
    format!("{path} ({} {}:{})", kind.as_str(), device.major(), device.minor())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(devices: &str, allow: bool) -> Result<Vec<DeviceSpec>> {
        let text = format!(
            r#"{{"ociVersion": "1.0.2", "mounts": [{{"destination": "/dev", "type": "tmpfs"}}],
                "linux": {{"devices": {devices},
                "resources": {{"devices": [{{"allow": {allow}, "access": "rwm"}},
                    {{"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"}}]}}}}}}"#
        );
        convert(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn what_the_guest_has_a_driver_for_gets_another_name() {
        let made = of(
            r#"[{"path": "/dev/null", "type": "c", "major": 1, "minor": 3},
                {"path": "/dev//sub/./mine/", "type": "c", "major": 1, "minor": 9, "fileMode": 384, "uid": 7, "gid": 8}]"#,
            false,
        )
        .unwrap();
        let mine =
            DeviceSpec { path: "/dev/sub/mine".into(), number: (1, 9), mode: 0o600, owner: (7, 8) };
        assert_eq!(made, [mine]);
    }

    #[test]
    fn devices_of_the_host_are_refused_but_where_all_are_listed() {
        let fuse = r#"[{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229}]"#;
        let error = of(fuse, false).unwrap_err().to_string();
        assert!(error.contains("/dev/fuse (c 10:229)"), "{error}");
        assert_eq!(of(fuse, true).unwrap(), []);
        let disk = r#"[{"path": "/dev/null2", "type": "b", "major": 1, "minor": 3}]"#;
        assert!(of(disk, false).is_err());
        for path in ["/tmp/null", "/dev/../etc/x", "/dev", "dev/x"] {
            let outside = format!(r#"[{{"path": "{path}", "type": "c", "major": 1, "minor": 3}}]"#);
            assert!(of(&outside, false).is_err(), "{path}");
        }
    }
}
