//! `containerd-shim-quark-v1`: between containerd and the `quark` command.
//!
//! containerd starts the program with `start` for each container; the first container of a pod
//! leaves a server behind, which all containers of that pod share. The server speaks the task API
//! (versions 2 and 3, which have the same messages) over ttrpc, drives containers by the `quark`
//! command as containerd's own shim drives `runc`, and reaps what that leaves behind. It is a
//! single thread, and holds next to nothing while its containers are idle.
#![deny(unsafe_code)]

mod args;
mod bundle;
mod cgroup;
mod cleanup;
mod container;
mod events;
mod fault;
mod log;
mod metrics;
mod mounts;
mod options;
mod process;
mod quark;
mod reaper;
mod serve;
mod service;
mod start;
mod stdio;
mod terminal;

use std::process::ExitCode;

use anyhow::Result;

use args::Args;

/// The name by which containerd's configuration calls this runtime.
const RUNTIME: &str = "io.containerd.quark.v1";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // containerd shows what `start` and `delete` say here.
            eprintln!("containerd-shim-quark-v1: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args = Args::parse(std::env::args().skip(1))?;
    if args.version {
        println!("containerd-shim-quark-v1 version {}", env!("CARGO_PKG_VERSION"));
        return Ok(());
    }
    if args.info {
        return start::info();
    }
    match args.action.as_deref() {
        Some("start") => start::start(&args),
        Some("delete") => cleanup::delete(&args),
        None => serve::serve(&args),
        Some(other) => anyhow::bail!(
            "{other:?}: containerd starts this program itself, with start or delete; see \
            runtime_type in its configuration"
        ),
    }
}
