//! The server.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use containerd_shim_protos::shim_async::create_task;
use containerd_shim_protos::ttrpc::r#async::Server;
use containerd_shim_protos::ttrpc::r#async::transport::Listener;
use rustix::process::set_child_subreaper;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::args::Args;
use crate::events::Events;
use crate::log;
use crate::reaper::Reaper;
use crate::service::Service;

/// The task API has two names, with the same messages: that of containerd 2, and the one before.
const NAMES: [&str; 2] = ["containerd.task.v3.Task", "containerd.task.v2.Task"];

/// How long the last events may take.
const FLUSH: Duration = Duration::from_secs(3);

/// Where `start` says what containerd's socket for events is.
pub const TTRPC_ADDRESS: &str = "TTRPC_ADDRESS";

/// Serves the containers of a pod, or a container alone, on a socket that is standard input.
///
/// # Errors
/// When it cannot begin.
pub fn serve(args: &Args) -> Result<()> {
    let address = std::env::var(TTRPC_ADDRESS).with_context(|| {
        format!("{TTRPC_ADDRESS} is not set; containerd starts this program itself")
    })?;
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true).context("standard input is no socket")?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    log::open();
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(run(args, address, listener));
    std::fs::remove_file(&args.socket).ok();
    result
}

async fn run(args: &Args, address: String, listener: UnixListener) -> Result<()> {
    let reaper = Reaper::start()?;
    let (events, published) = Events::new(address, &args.namespace);
    let shutdown = Arc::new(Notify::new());
    let service =
        Arc::new(Service::new(&args.namespace, reaper, Arc::new(events), shutdown.clone()));
    let mut server = Server::new().add_listener(Listener::try_from(listener)?);
    for name in NAMES {
        let methods = create_task(service.clone()).into_values();
        server = server.register_service(methods.map(|m| (name.to_owned(), m)).collect());
    }
    drop(service);
    server.start().await.context("serving")?;
    // Those who stop services send these to every process: containers outlive containerd.
    let mut ignored = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    tokio::spawn(async move {
        loop {
            let [terminate, interrupt] = &mut ignored;
            tokio::select! { _ = terminate.recv() => (), _ = interrupt.recv() => () }
        }
    });
    shutdown.notified().await;
    // The answer to who asked for this goes out with the connections.
    server.shutdown().await.ok();
    drop(server);
    tokio::time::timeout(FLUSH, published).await.ok();
    Ok(())
}
