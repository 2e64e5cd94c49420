//! Processes: OCI's `process` object, and `exec`'s options, to a [`ProcessSpec`].

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use oci_spec::runtime::{Capabilities, PosixRlimitType, Process};
use qlib::control::{FIRST_CONTAINER, ProcessSpec};
use serde_json::{Value, json};

/// The capabilities by number (capability(7)).
const CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The names of all capabilities, as OCI has them.
pub fn capability_names() -> impl Iterator<Item = String> {
    CAPABILITIES.iter().map(|c| format!("CAP_{c}"))
}

/// The most bytes of a guest's /etc/passwd that are looked at.
const MAX_PASSWD: u64 = 1 << 20;

/// Makes of a process what the library that reads it takes, as runc does: without a user it is
/// root's, and capabilities that nobody knows are left out with a warning.
pub fn complete(process: &mut Value) {
    let Some(process) = process.as_object_mut() else { return };
    let user = process.entry("user").or_insert_with(|| json!({}));
    if let Some(user) = user.as_object_mut() {
        for id in ["uid", "gid"] {
            user.entry(id).or_insert(json!(0));
        }
    }
    let sets = process.get_mut("capabilities").and_then(Value::as_object_mut);
    for (name, set) in sets.into_iter().flatten() {
        if let Some(set) = set.as_array_mut() {
            set.retain(|c| {
                let is_known = c.as_str().is_none_or(|c| capability_bit(c).is_ok());
                if !is_known {
                    tracing::warn!("process.capabilities.{name}: {c} is not known, and left out");
                }
                is_known
            });
        }
    }
}

/// Checks and converts. `rootfs` is where the user's home directory is looked up. The handles of
/// the standard streams are left for the sandbox to fill in.
///
/// # Errors
/// When a required field is missing or malformed.
pub fn convert(process: &Process, rootfs: &Path) -> Result<ProcessSpec> {
    let args = process.args().clone().unwrap_or_default();
    if args.first().is_none_or(String::is_empty) {
        bail!("process.args must not be empty");
    }
    if !process.cwd().is_absolute() {
        bail!("process.cwd must be an absolute path");
    }
    let user = process.user();
    let mut env = process.env().clone().unwrap_or_default();
    for text in args.iter().chain(&env) {
        if text.contains('\0') {
            bail!("process.args and process.env must not contain NUL");
        }
    }
    if let Some(bad) = env.iter().find(|e| !e.contains('=')) {
        bail!("process.env: {bad:?} has no \"=\"");
    }
    if !env.iter().any(|e| e.starts_with("HOME=")) {
        env.push(format!("HOME={}", home_of(user.uid(), rootfs)));
    }
    let terminal = process.terminal().unwrap_or(false);
    if terminal && !env.iter().any(|e| e.starts_with("TERM=")) {
        env.push("TERM=xterm".to_owned());
    }
    let mut capabilities = [0; 5];
    if let Some(sets) = process.capabilities() {
        let sets = [
            sets.bounding(),
            sets.effective(),
            sets.inheritable(),
            sets.permitted(),
            sets.ambient(),
        ];
        for (mask, set) in capabilities.iter_mut().zip(sets) {
            *mask = set.as_ref().map_or(Ok(0), mask_of)?;
        }
    }
    let rlimits =
        process.rlimits().iter().flatten().map(|l| (rlimit_number(l.typ()), l.soft(), l.hard()));
    let rlimits: Vec<_> = rlimits.collect();
    if let Some((_, soft, hard)) = rlimits.iter().find(|(_, soft, hard)| soft > hard) {
        bail!("process.rlimits: soft limit {soft} is above hard limit {hard}");
    }
    let rlimits = with_inherited(rlimits);
    let size = |v: u64| u16::try_from(v).unwrap_or(u16::MAX);
    Ok(ProcessSpec {
        container: FIRST_CONTAINER,
        args,
        env,
        cwd: process.cwd().display().to_string(),
        uid: user.uid(),
        gid: user.gid(),
        groups: user.additional_gids().clone().unwrap_or_default(),
        umask: user.umask().unwrap_or(0o022),
        rlimits,
        capabilities,
        no_new_privs: process.no_new_privileges().unwrap_or(false),
        oom_score_adj: process.oom_score_adj(),
        seccomp: None,
        stdio: [qlib::host::NO_HANDLE; 3],
        own_stdio: [false; 3],
        default_actions: false,
        terminal,
        window: process.console_size().map_or((0, 0), |s| (size(s.height()), size(s.width()))),
    })
}

/// Adds this process's own limits on the size and on the number of files where `rlimits` do not
/// say, as a program inherits them from its caller. (The others are about what the guest's kernel
/// has of its own: it has defaults.)
fn with_inherited(mut rlimits: Vec<(u32, u64, u64)>) -> Vec<(u32, u64, u64)> {
    use rustix::process::{Resource, getrlimit};
    let inherited =
        [(libc::RLIMIT_FSIZE, Resource::Fsize), (libc::RLIMIT_NOFILE, Resource::Nofile)];
    for (number, resource) in inherited {
        if !rlimits.iter().any(|(given, _, _)| *given == number) {
            let own = getrlimit(resource);
            let value = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
            rlimits.push((number, value(own.current), value(own.maximum)));
        }
    }
    rlimits
}

fn mask_of(set: &Capabilities) -> Result<u64> {
    let mut mask = 0;
    for capability in set {
        mask |= capability_bit(&capability.to_string())?;
    }
    Ok(mask)
}

/// The bit of a capability, named with or without "CAP_".
///
/// # Errors
/// When there is none of that name.
pub fn capability_bit(name: &str) -> Result<u64> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    let number = CAPABILITIES
        .iter()
        .position(|c| *c == short)
        .with_context(|| format!("unknown capability {name}"))?;
    Ok(1 << number)
}

/// RLIMIT_* numbers of x86-64 (getrlimit(2), asm-generic/resource.h).
fn rlimit_number(kind: PosixRlimitType) -> u32 {
    match kind {
        PosixRlimitType::RlimitCpu => 0,
        PosixRlimitType::RlimitFsize => 1,
        PosixRlimitType::RlimitData => 2,
        PosixRlimitType::RlimitStack => 3,
        PosixRlimitType::RlimitCore => 4,
        PosixRlimitType::RlimitRss => 5,
        PosixRlimitType::RlimitNproc => 6,
        PosixRlimitType::RlimitNofile => 7,
        PosixRlimitType::RlimitMemlock => 8,
        PosixRlimitType::RlimitAs => 9,
        PosixRlimitType::RlimitLocks => 10,
        PosixRlimitType::RlimitSigpending => 11,
        PosixRlimitType::RlimitMsgqueue => 12,
        PosixRlimitType::RlimitNice => 13,
        PosixRlimitType::RlimitRtprio => 14,
        PosixRlimitType::RlimitRttime => 15,
    }
}

/// The home directory that the image's /etc/passwd gives `uid`, or "/". The image is not trusted:
/// the file is opened beneath its root, and only its beginning is read.
fn home_of(uid: u32, rootfs: &Path) -> String {
    let text = passwd(rootfs).unwrap_or_default();
    let line = text
        .lines()
        .map(|l| l.split(':').collect::<Vec<_>>())
        .find(|f| f.get(2) == Some(&&*uid.to_string()));
    line.and_then(|f| f.get(5).map(|h| (*h).to_owned()))
        .filter(|h| h.starts_with('/'))
        .unwrap_or("/".to_owned())
}

fn passwd(rootfs: &Path) -> Option<String> {
    use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
    let root =
        open(rootfs, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Non-blocking, for the image may have put a FIFO there.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat2(
        root,
        "etc/passwd",
        flags,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    );
    let file = std::fs::File::from(file.ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_PASSWD).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Reads the option `--user UID[:GID]`.
///
/// # Errors
/// When it is not numeric.
pub fn parse_user(text: &str) -> Result<(u32, Option<u32>)> {
    let number = |s: &str| {
        s.parse::<u32>().ok().with_context(|| {
            format!("--user {text:?}: use UID or UID:GID, in numbers; names are not looked up")
        })
    };
    match text.split_once(':') {
        Some((uid, gid)) => Ok((number(uid)?, Some(number(gid)?))),
        None => Ok((number(text)?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert_json(json: &str) -> Result<ProcessSpec> {
        convert(&serde_json::from_str::<Process>(json).unwrap(), Path::new("/nonexistent"))
    }

    #[test]
    fn a_process_is_converted_field_by_field() {
        let spec = convert_json(
            r#"{"user":{"uid":7,"gid":8,"additionalGids":[9],"umask":63},"args":["sh"],"cwd":"/tmp","env":["A=b"],
                "capabilities":{"bounding":["CAP_CHOWN","CAP_CHECKPOINT_RESTORE"],"effective":["CAP_KILL"]},
                "rlimits":[{"type":"RLIMIT_NOFILE","soft":10,"hard":20}],"noNewPrivileges":true,
                "terminal":true,"consoleSize":{"height":24,"width":80}}"#,
        )
        .unwrap();
        assert_eq!((spec.uid, spec.gid, spec.umask), (7, 8, 0o77));
        assert_eq!(spec.groups, [9]);
        assert_eq!(spec.capabilities, [1 | 1 << 40, 1 << 5, 0, 0, 0]);
        assert_eq!(spec.rlimits.iter().filter(|l| l.0 == 7).collect::<Vec<_>>(), [&(7, 10, 20)]);
        assert_eq!(spec.window, (24, 80));
        assert_eq!(spec.env, ["A=b", "HOME=/", "TERM=xterm"]);
        assert!(spec.no_new_privs && spec.terminal);
    }

    #[test]
    fn malformed_processes_are_refused() {
        for json in [
            r#"{"user":{"uid":0,"gid":0},"cwd":"/"}"#,
            r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":[]}"#,
            r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":[""]}"#,
            r#"{"user":{"uid":0,"gid":0},"cwd":"tmp","args":["sh"]}"#,
            r#"{"user":{"uid":0,"gid":0},"cwd":"/","args":["a\u0000b"]}"#,
        ] {
            assert!(convert_json(json).is_err(), "{json}");
        }
    }

    #[test]
    fn capabilities_have_their_numbers() {
        assert_eq!(capability_bit("CAP_CHOWN").unwrap(), 1);
        assert_eq!(capability_bit("sys_admin").unwrap(), 1 << 21);
        assert_eq!(capability_bit("CAP_BPF").unwrap(), 1 << 39);
        assert!(capability_bit("CAP_FLY").is_err());
    }

    #[test]
    fn users_are_numbers() {
        assert_eq!(parse_user("5").unwrap(), (5, None));
        assert_eq!(parse_user("5:6").unwrap(), (5, Some(6)));
        let error = parse_user("root").unwrap_err().to_string();
        assert!(error.contains("names are not looked up"), "{error}");
        assert!(parse_user("1:").is_err());
    }
}
