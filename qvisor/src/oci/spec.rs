//! Configurations made here: the one of `quark do`, and the one that `quark spec` writes.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use anyhow::{Context, Result, bail};
use oci_spec::runtime::Spec;
use serde_json::{Value, json};

/// Version of the OCI runtime specification that is written.
const OCI_VERSION: &str = "1.2.0";

/// What `docker` gives a container by default.
const DEFAULT_CAPABILITIES: &[&str] = &["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"];

/// Where programs are looked for when the caller does not say.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn guest_mounts() -> Value {
    json!([
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
         "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
         "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
         "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
    ])
}

/// One `--volume`, as a mount of a configuration: HOST:GUEST, HOST:GUEST:ro or HOST:GUEST:rw.
///
/// # Errors
/// When it is something else.
pub fn volume(text: &str) -> Result<Value> {
    let parts: Vec<&str> = text.split(':').collect();
    let (host, guest, access) = match parts[..] {
        [host, guest] => (host, guest, "rw"),
        [host, guest, access @ ("ro" | "rw")] => (host, guest, access),
        _ => bail!("--volume {text:?}: use HOST:GUEST or HOST:GUEST:ro"),
    };
    if host.is_empty() || !guest.starts_with('/') {
        bail!("--volume {text:?}: GUEST must be an absolute path, and HOST must not be empty");
    }
    if !may_be_covered(Path::new(guest)) {
        bail!(
            "--volume {text:?}: GUEST must not be /, /proc, /sys, /dev, /dev/pts or /dev/mqueue, nor \
            lie in /proc or /sys, nor contain \"..\": show it elsewhere"
        );
    }
    let host = std::path::absolute(host).with_context(|| format!("--volume {text:?}"))?;
    Ok(json!({"destination": guest, "source": host, "options": ["rbind", access]}))
}

/// True if a volume may be shown at this absolute path: what the guest itself mounts stays seen.
fn may_be_covered(guest: &Path) -> bool {
    // Paths are compared by their parts: neither "//" nor "/." makes another one.
    !guest.components().any(|part| part == Component::ParentDir)
        && !["/", "/dev", "/dev/pts", "/dev/mqueue"].iter().any(|own| guest == Path::new(own))
        && !["/proc", "/sys"].iter().any(|own| guest.starts_with(own))
}

/// The configuration of `quark do`: this host's root with `volumes`, the caller's environment, all
/// capabilities that a guest knows (they reach no further than the guest).
///
/// # Errors
/// When something is not UTF-8.
pub fn host(command: &[String], terminal: bool, cwd: &Path, volumes: &[Value]) -> Result<Spec> {
    let mut env = Vec::new();
    for (name, value) in std::env::vars_os() {
        // What is not UTF-8 cannot be said in a configuration.
        if let (Ok(name), Ok(value)) =
            (std::str::from_utf8(name.as_bytes()), std::str::from_utf8(value.as_bytes()))
        {
            env.push(format!("{name}={value}"));
        }
    }
    // The C library looks for a program there too when nothing is said.
    if !env.iter().any(|e| e.starts_with("PATH=")) {
        env.push(format!("PATH={DEFAULT_PATH}"));
    }
    // An ordinary user is root inside, as in a user namespace: their files are root's there.
    let (gid, groups) = if super::rootless::is_needed() {
        (0, Vec::new())
    } else {
        let groups = nix::unistd::getgroups()?;
        (nix::unistd::getgid().as_raw(), groups.iter().map(|g| g.as_raw()).collect())
    };
    let all: Vec<String> = super::process::capability_names().collect();
    let mut mounts = guest_mounts();
    if let Some(mounts) = mounts.as_array_mut() {
        mounts.extend_from_slice(volumes);
    }
    let spec = json!({
        "ociVersion": OCI_VERSION,
        "root": {"path": "/", "readonly": false},
        "process": {
            "terminal": terminal,
            "user": {"uid": 0, "gid": gid, "additionalGids": groups},
            "args": command,
            "env": env,
            "cwd": cwd.to_str().context("the current directory's name is not UTF-8")?,
            "capabilities": {"bounding": all, "effective": all, "permitted": all},
        },
        "hostname": nix::unistd::gethostname()?.to_string_lossy(),
        "mounts": mounts,
        "linux": {},
    });
    serde_json::from_value(spec).context("making the configuration")
}

/// `quark spec`.
///
/// # Errors
/// When there is a config.json already.
pub fn write(bundle: &Path) -> Result<()> {
    let spec = json!({
        "ociVersion": OCI_VERSION,
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "terminal": true,
            "user": {"uid": 0, "gid": 0},
            "args": ["sh"],
            "env": [format!("PATH={DEFAULT_PATH}"), "TERM=xterm".to_owned()],
            "cwd": "/",
            "capabilities": {"bounding": DEFAULT_CAPABILITIES, "effective": DEFAULT_CAPABILITIES,
                             "permitted": DEFAULT_CAPABILITIES},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": true,
        },
        "hostname": "quark",
        "mounts": guest_mounts(),
        "linux": {"namespaces": [{"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"},
                                 {"type": "mount"}]},
    });
    let path = bundle.join("config.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&spec)?);
    let mut file = match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            bail!("file {} exists; remove it first", path.display())
        }
        Err(e) => return Err(e).with_context(|| format!("creating {}", path.display())),
    };
    file.write_all(text.as_bytes()).with_context(|| format!("writing {}", path.display()))
}
