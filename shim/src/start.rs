//! `start`: which server a container has; and a server for those that have none.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use containerd_shim_protos::TASK_API_VERSION;
use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult};
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::types::introspection::{RuntimeInfo, RuntimeVersion};
use twox_hash::XxHash3_64;

use crate::args::Args;
use crate::bundle::Config;
use crate::serve::TTRPC_ADDRESS;

/// Where the sockets of shims are, unless containerd says something else. Their names must be short
/// (unix(7)).
const SOCKETS: &str = "/run/containerd/s";

/// The file in a bundle by which its server is found again.
pub const ADDRESS_FILE: &str = "address";

/// No honest request is larger, in bytes.
const MAX_REQUEST: u64 = 10 << 20;

/// What the C library is told for the server: to keep no memory in reserve.
pub const TUNABLES: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.malloc.top_pad=0:glibc.malloc.trim_threshold=8192");

/// Answers with the address of the server for the container of the bundle in the working directory.
///
/// # Errors
/// With nothing left behind.
pub fn start(args: &Args) -> Result<()> {
    let mut input = Vec::new();
    if !std::io::stdin().is_terminal() {
        std::io::stdin().lock().take(MAX_REQUEST).read_to_end(&mut input)?;
    }
    // containerd 2.3 sends this; others nothing, or the runtime's options.
    let request = BootstrapParams::parse_from_bytes(&input)
        .ok()
        .filter(|r| r.instance_id == args.id && r.namespace == args.namespace);
    let bundle = std::env::current_dir().context("the bundle")?;
    let config = Config::read(&bundle)?;
    let group = config.pod().unwrap_or(&args.id);
    let dir = request.as_ref().and_then(|r| r.socket_dir.clone()).filter(|d| !d.is_empty());
    let socket = socket_path(dir.as_deref().unwrap_or(SOCKETS), args, group);
    let address = format!("unix://{}", socket.display());
    if let Some(listener) = listen(&socket)? {
        let events = match &request {
            Some(request) => request.containerd_ttrpc_address.clone(),
            None => std::env::var(TTRPC_ADDRESS).context(TTRPC_ADDRESS)?,
        };
        if let Err(e) = spawn(args, &socket, listener.into(), &events) {
            std::fs::remove_file(&socket).ok();
            return Err(e);
        }
    }
    std::fs::write(ADDRESS_FILE, &address).context(ADDRESS_FILE)?;
    let answer = match request {
        None => address.into_bytes(),
        Some(_) => {
            let (version, protocol) = (TASK_API_VERSION, "ttrpc".to_owned());
            BootstrapResult { version, address, protocol, ..BootstrapResult::new() }
                .write_to_bytes()?
        }
    };
    std::io::stdout().write_all(&answer)?;
    Ok(())
}

/// Describes the runtime to containerd 2.
///
/// # Errors
/// When it cannot be printed.
pub fn info() -> Result<()> {
    let version =
        RuntimeVersion { version: env!("CARGO_PKG_VERSION").to_owned(), ..RuntimeVersion::new() };
    let info = RuntimeInfo {
        name: crate::RUNTIME.to_owned(),
        version: MessageField::some(version),
        ..RuntimeInfo::new()
    };
    Ok(std::io::stdout().write_all(&info.write_to_bytes()?)?)
}

/// The same for all containers of a group, and for nobody else.
fn socket_path(dir: &str, args: &Args, group: &str) -> PathBuf {
    let of = |seed| {
        let name = format!("{}\0{}\0{group}", args.address, args.namespace);
        XxHash3_64::oneshot_with_seed(seed, name.as_bytes())
    };
    Path::new(dir).join(format!("quark-{:016x}{:016x}", of(0), of(1)))
}

/// Listens there, unless somebody serves it.
fn listen(socket: &Path) -> Result<Option<UnixListener>> {
    if UnixStream::connect(socket).is_ok() {
        return Ok(None);
    }
    // Of one that was killed.
    std::fs::remove_file(socket).ok();
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let listener = UnixListener::bind(socket);
    rustix::process::umask(mask);
    Ok(Some(listener.with_context(|| format!("listening at {}", socket.display()))?))
}

fn spawn(args: &Args, socket: &Path, listener: OwnedFd, events: &str) -> Result<()> {
    let mut command = Command::new(std::env::current_exe().context("the path of this program")?);
    command.args(["-namespace", &args.namespace, "-id", &args.id, "-address", &args.address]);
    command.arg("-socket").arg(socket);
    command.env(TTRPC_ADDRESS, events).env(TUNABLES.0, TUNABLES.1);
    command.stdin(Stdio::from(listener)).stdout(Stdio::null()).stderr(Stdio::null());
    // Away from signals for containerd's process group.
    command.process_group(0);
    let child = command.spawn().context("starting the shim's server")?;
    spare(child.id());
    Ok(())
}

/// Has the host choose the shim before containerd when memory runs out, and after everybody that
/// it would choose before containerd.
fn spare(pid: u32) {
    let Some(parent) = rustix::process::getppid() else { return };
    let path = format!("/proc/{}/oom_score_adj", parent.as_raw_nonzero());
    let score = std::fs::read_to_string(path).ok().and_then(|t| t.trim().parse::<i32>().ok());
    if let Some(score) = score {
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), (score + 1).min(1000).to_string())
            .ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_socket_of_its_own() {
        let args = Args { address: "/run/a.sock".into(), namespace: "n".into(), ..Args::default() };
        let other = Args {
            namespace: "m".into(),
            ..Args { address: args.address.clone(), ..Args::default() }
        };
        let path = socket_path("/s", &args, "pod");
        assert_eq!(path, socket_path("/s", &Args { id: "x".into(), ..args_like(&args) }, "pod"));
        assert_ne!(path, socket_path("/s", &args, "pod2"));
        assert_ne!(path, socket_path("/s", &other, "pod"));
        assert!(path.as_os_str().len() < 100);
    }

    fn args_like(args: &Args) -> Args {
        Args { address: args.address.clone(), namespace: args.namespace.clone(), ..Args::default() }
    }

    #[test]
    fn a_socket_that_nobody_serves_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("below").join("s");
        drop(listen(&socket).unwrap().unwrap());
        let listener = listen(&socket).unwrap().unwrap();
        assert!(listen(&socket).unwrap().is_none());
        drop(listener);
    }
}
