//! `delete`: what is left to do when a server has gone without having been asked.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context, Result};
use containerd_shim_protos::api::DeleteResponse;
use containerd_shim_protos::protobuf::{Message, MessageField};

use crate::args::Args;
use crate::events;
use crate::mounts;
use crate::options::Options;
use crate::quark::Quark;
use crate::reaper::Reaper;
use crate::start::ADDRESS_FILE;

/// Removes a container and its root file system's mounts. Its exit code is told as 137, for it is
/// killed if it still runs.
///
/// # Errors
/// When `quark` fails. It is no error that there is no such container.
pub fn delete(args: &Args) -> Result<()> {
    let bundle = if args.bundle.is_empty() {
        std::env::current_dir().context("the bundle")?
    } else {
        PathBuf::from(&args.bundle)
    };
    // Without these it was never made.
    let removed = match Options::load(&bundle) {
        Ok(options) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let quark = Quark::new(options, Reaper::start()?);
                quark.run(&["delete", "--force", &args.id]).await.map(drop)
            })
        }
        Err(_) => Ok(()),
    };
    mounts::remove(&bundle.join("rootfs"));
    remove_socket(&bundle);
    removed?;
    let pid = std::fs::read_to_string(bundle.join("init.pid")).unwrap_or_default();
    let response = DeleteResponse {
        pid: pid.trim().parse().unwrap_or(0),
        exit_status: 128 + 9,
        exited_at: MessageField::some(events::now()),
        ..DeleteResponse::new()
    };
    Ok(std::io::stdout().write_all(&response.write_to_bytes()?)?)
}

/// Removes the server's socket, unless somebody serves it: other containers of the pod.
fn remove_socket(bundle: &std::path::Path) {
    let address = std::fs::read_to_string(bundle.join(ADDRESS_FILE)).unwrap_or_default();
    let Some(path) = address.strip_prefix("unix://") else { return };
    if UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).ok();
    }
}
