//! What a sandbox process has given up, as the host sees it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::shared::skip;
use super::support::{Place, place};

const CHOWN: u64 = 1;
const DAC_OVERRIDE: u64 = 1 << 1;
const FOWNER: u64 = 1 << 3;
const FSETID: u64 = 1 << 4;
const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_ADMIN: u64 = 1 << 12;
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
    tasks
        .filter_map(|t| fs::read_to_string(t.path().join("status")).ok())
        .map(|s| (field(&s, "Name"), s))
        .collect()
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
        c["process"]["capabilities"] =
            json!({"bounding": names, "effective": names, "permitted": names});
    });
    p.create(&[]);
    p.good(&["start", &p.id]);
    Some(p)
}

#[test]
fn every_thread_is_without_privileges() {
    for (given, kept) in [
        (&["KILL", "SYS_ADMIN", "SYS_PTRACE", "MKNOD", "DAC_READ_SEARCH"][..], FILES),
        // Of a network namespace of its own.
        (&["NET_ADMIN"], FILES | NET_ADMIN),
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
    let names: Vec<_> =
        fs::read_dir(process.join("root")).unwrap().flatten().map(|e| e.path()).collect();
    assert_eq!(names, [""; 0].map(PathBuf::from), "the root is empty");
    assert!(fs::write(process.join("root/new"), "").is_err(), "and stays so");
    let mounts = fs::read_to_string(process.join("mountinfo")).unwrap();
    let types: Vec<_> =
        mounts.lines().filter_map(|l| l.split_once(" - ")?.1.split(' ').next()).collect();
    assert_eq!(types, ["tmpfs"], "{mounts}");
    assert!(
        mounts
            .lines()
            .all(|l| l.split(' ').nth(5).is_some_and(|o| o.starts_with("ro,nosuid,nodev,noexec")))
    );
    // Its working directory is the /proc of its own processes, and of nothing else.
    for name in ["sys", "sysrq-trigger", "kcore", "mounts"] {
        assert!(!process.join("cwd").join(name).exists(), "{name}");
    }
    assert!(process.join("cwd/self").symlink_metadata().is_ok());
    // No descriptor leads further than the container's own directories.
    for entry in fs::read_dir(process.join("fd")).unwrap().flatten() {
        for up in [
            "sys/kernel",
            "../sys/kernel",
            "../../sys/kernel",
            "../../../etc/shadow",
            "../../../../etc/shadow",
        ] {
            let path = entry.path().join(up);
            assert!(!path.exists(), "{} by {}", path.display(), entry.path().display());
        }
    }
}

/// True if the files of this test's place can be id-mapped.
fn can_be_mapped(p: &Place) -> bool {
    let mapped = qvisor::sys::clone_mount(&p.dir, false, false).and_then(|mount| {
        qvisor::sys::map_mount(&mount, &qvisor::sys::user_namespace("0 100000 1000\n")?)
    });
    if let Err(e) = &mapped {
        skip(format!("files in {} cannot be id-mapped: {e}", p.dir.display()));
    }
    mapped.is_ok()
}

const IN_FILES: [&str; 7] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETUID", "SETGID", "NET_BIND_SERVICE"];

/// A container with a volume in which it does what only root may.
fn with_volume(p: &Place, source: &Path) {
    let script = "stat -c 'theirs %u:%g %a' /data/theirs; touch /data/mine; busybox chown 77:78 \
        /data/theirs; \
                  busybox chown 5:6 /data/mine; busybox chmod 4750 /data/theirs; stat -c 'now %u:%g %a' /data/theirs; sleep 1000";
    p.configure(&["sh", "-c", script], |c| {
        let names: Vec<String> = IN_FILES.iter().map(|n| format!("CAP_{n}")).collect();
        c["process"]["capabilities"] = json!({"bounding": names, "effective": names, "permitted": names});
        let mounts = c["mounts"].as_array_mut().unwrap();
        mounts.push(json!({"destination": "/data", "type": "bind", "source": source, "options": ["rbind", "rw"]}));
    });
}

fn owner_and_mode(path: PathBuf) -> (u32, u32, u32) {
    use std::os::unix::fs::MetadataExt;
    let m = fs::symlink_metadata(path).unwrap();
    (m.uid(), m.gid(), m.mode() & 0o7777)
}

#[test]
fn outside_of_its_user_namespace_it_is_nobody() {
    let Some(p) = place() else { return };
    if !can_be_mapped(&p) {
        return;
    }
    let volume = p.volume();
    fs::write(volume.join("theirs"), "").unwrap();
    std::os::unix::fs::chown(volume.join("theirs"), Some(1234), Some(2_000_000_000)).unwrap();
    with_volume(&p, &volume);
    p.create(&[]);
    p.good(&["start", &p.id]);
    p.wait_for("what it says", || p.log().contains("now"));
    assert_eq!(p.log(), "theirs 1234:2000000000 644\nnow 77:78 4750\n");
    assert_eq!(owner_and_mode(volume.join("theirs")), (77, 78, 0o4750));
    assert_eq!(owner_and_mode(volume.join("mine")), (5, 6, 0o644));
    for (name, status) in threads(&proc_of(&p)) {
        for ids in ["Uid", "Gid"] {
            let all: Vec<u32> =
                field(&status, ids).split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(all, [1 << 30; 4], "{ids} of {name}");
        }
        assert_eq!(field(&status, "Groups"), "", "{name}");
        assert_eq!(mask(&status, "CapEff"), FILES, "{name}");
    }
    // None of the host's users is there, for what CAP_FOWNER may do to a file asks for its user's
    // id only.
    let map = fs::read_to_string(proc_of(&p).join("uid_map")).unwrap();
    let outside: Vec<u64> =
        map.lines().map(|l| l.split_whitespace().nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!(outside, [1 << 30], "{map}");
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    assert_ne!(fs::read_link(proc_of(&p).join("ns/user")).unwrap(), own);
    // A port below 1024 is for who has the capability, as ever.
    let port = |more: &[&str]| {
        let args = [&["exec"], more, &[&p.id, "timeout", "1", "nc", "-l", "-p", "80"]].concat();
        p.output(&args).status.code()
    };
    assert_eq!(port(&[]), Some(143), "it listens until its time is over");
    assert_eq!(port(&["--user", "1000"]), Some(1), "Permission denied");
    p.good(&["kill", &p.id, "STOP"]);
    assert_eq!(p.good(&["exec", &p.id, "cat", "/data/mine"]), "");
}

/// Files that cannot be mapped are reached by the host's root, or nobody could.
#[test]
fn files_that_cannot_be_mapped_are_roots() {
    let Some(p) = place() else { return };
    let volume = p.volume();
    with_volume(&p, &volume);
    let (id, dir, quark) =
        (&p.id, volume.display(), p.quark(&["--debug", "--log", "log", "run", "--detach", &p.id]));
    let words: Vec<_> = std::iter::once(quark.get_program()).chain(quark.get_args()).collect();
    let quark = words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let script = format!(
        "mount -t tmpfs t {dir} && mkdir {dir}/u {dir}/w {dir}/m && \
         mount -t overlay o -o lowerdir=/usr/share,upperdir={dir}/u,workdir={dir}/w {dir}/m && \
         mount --move {dir}/m {dir} && touch {dir}/theirs && {quark} >output 2>&1 && sleep 2; \
         stat -c '%n %u:%g %a' {dir}/mine {dir}/theirs"
    );
    let mut unshare = std::process::Command::new("unshare");
    let output =
        unshare.args(["--mount", "sh", "-c", &script]).current_dir(&p.bundle).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("/mine 5:6 644") && text.contains("/theirs 77:78 4750"), "{text}");
    let log = fs::read_to_string(p.bundle.join("log")).unwrap();
    assert!(log.contains("stays the host's root"), "{log}");
    let status = fs::read_to_string(proc_of(&p).join("status")).unwrap();
    assert_eq!(field(&status, "Uid").split_whitespace().next(), Some("0"), "{id}");
}
