//! What a sandbox process has given up, as the host sees it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::support::{Place, place};

const CHOWN: u64 = 1;
const DAC_OVERRIDE: u64 = 1 << 1;
const FOWNER: u64 = 1 << 3;
const FSETID: u64 = 1 << 4;
const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_RAW: u64 = 1 << 13;
const SETFCAP: u64 = 1 << 31;
const FILES: u64 = CHOWN | DAC_OVERRIDE | FOWNER | FSETID | SETFCAP;

/// /proc of the sandbox process.
fn proc_of(p: &Place) -> PathBuf {
    Path::new("/proc").join(p.state()["pid"].to_string())
}

/// The status of each thread, by its name.
fn threads(process: &Path) -> Vec<(String, String)> {
    let tasks = fs::read_dir(process.join("task")).unwrap().flatten();
    tasks.filter_map(|t| fs::read_to_string(t.path().join("status")).ok()).map(|s| (field(&s, "Name"), s)).collect()
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

fn mask(status: &str, name: &str) -> u64 {
    u64::from_str_radix(&field(status, name), 16).unwrap()
}

/// A container that runs, with these capabilities.
fn running(capabilities: &[&str]) -> Option<Place> {
    let p = place()?;
    p.configure(&["sleep", "1000"], |c| {
        let names: Vec<String> = capabilities.iter().map(|n| format!("CAP_{n}")).collect();
        c["process"]["capabilities"] = json!({"bounding": names, "effective": names, "permitted": names});
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    Some(p)
}

#[test]
fn every_thread_is_without_privileges() {
    for (given, kept) in [
        (&["KILL", "SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "MKNOD", "DAC_READ_SEARCH"][..], FILES),
        (&["NET_RAW"], FILES | NET_RAW),
        (&["NET_RAW", "NET_BIND_SERVICE", "CHOWN"], FILES | NET_RAW | NET_BIND_SERVICE),
    ] {
        let Some(p) = running(given) else { return };
        let threads = threads(&proc_of(&p));
        assert!(threads.len() > 1, "the event loop and another: {threads:?}");
        for (name, status) in &threads {
            for set in ["CapBnd", "CapPrm", "CapEff"] {
                assert_eq!(mask(status, set), kept, "{set} of {name} with {given:?}");
            }
            for set in ["CapInh", "CapAmb"] {
                assert_eq!(mask(status, set), 0, "{set} of {name} with {given:?}");
            }
            assert_eq!(field(status, "NoNewPrivs"), "1", "{name}");
            assert_eq!(field(status, "Seccomp"), "2", "{name}: a filter");
        }
    }
}

#[test]
fn nothing_of_the_host_is_reached_by_a_path() {
    let Some(p) = running(&["SYS_ADMIN"]) else { return };
    let process = proc_of(&p);
    let names: Vec<_> = fs::read_dir(process.join("root")).unwrap().flatten().map(|e| e.path()).collect();
    assert_eq!(names, [""; 0].map(PathBuf::from), "the root is empty");
    assert!(fs::write(process.join("root/new"), "").is_err(), "and stays so");
    let mounts = fs::read_to_string(process.join("mountinfo")).unwrap();
    let types: Vec<_> = mounts.lines().filter_map(|l| l.split_once(" - ")?.1.split(' ').next()).collect();
    assert_eq!(types, ["tmpfs"], "{mounts}");
    assert!(mounts.lines().all(|l| l.split(' ').nth(5).is_some_and(|o| o.starts_with("ro,nosuid,nodev,noexec"))));
    // Its working directory is the /proc of its own processes, and of nothing else.
    for name in ["sys", "sysrq-trigger", "kcore", "mounts"] {
        assert!(!process.join("cwd").join(name).exists(), "{name}");
    }
    assert!(process.join("cwd/self").symlink_metadata().is_ok());
    // No descriptor leads further than the container's own directories.
    for entry in fs::read_dir(process.join("fd")).unwrap().flatten() {
        for up in ["sys/kernel", "../sys/kernel", "../../sys/kernel", "../../../etc/shadow", "../../../../etc/shadow"] {
            let path = entry.path().join(up);
            assert!(!path.exists(), "{} by {}", path.display(), entry.path().display());
        }
    }
}
