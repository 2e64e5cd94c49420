//! The command lines of `quark install` and `quark uninstall`.

use std::path::PathBuf;

use clap::{ArgAction, Args};

/// What `install` and `uninstall` have in common.
#[derive(Clone, Debug, Args)]
pub struct Target {
    /// Docker. Without this and --containerd: those that are found on this host.
    #[arg(long)]
    pub docker: bool,
    /// containerd, for Kubernetes (CRI).
    #[arg(long)]
    pub containerd: bool,
    /// The configuration file [default: /etc/docker/daemon.json, /etc/containerd/config.toml]; with
    /// one of --docker and --containerd.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The runtime's name.
    #[arg(long, default_value = "quark", value_parser = runtime_name)]
    pub name: String,
    /// The binary is DIR/bin/quark: install copies this one there, uninstall removes it. The one
    /// that is registered must lie where it stays.
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<PathBuf>,
    /// Have dockerd read its configuration again (SIGHUP); containers go on.
    #[arg(long)]
    pub reload: bool,
    /// Where dockerd's process ID is, for --reload.
    #[arg(long, value_name = "FILE", default_value = "/var/run/docker.pid")]
    pub docker_pid_file: PathBuf,
    /// Print what would be changed, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// `quark install`.
#[derive(Clone, Debug, Args)]
pub struct Install {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// An option that Docker gives to quark each time, such as --hibernate-after=30s; may be given
    /// more than once.
    #[arg(
        long = "runtime-arg",
        action = ArgAction::Append,
        allow_hyphen_values = true,
        value_name = "OPTION"
    )]
    pub runtime_args: Vec<String>,
    /// Write the Kubernetes RuntimeClass to this file ("-" for standard output); without --docker
    /// and --containerd nothing else is done.
    #[arg(long, value_name = "FILE")]
    pub kubernetes: Option<PathBuf>,
}

/// `quark uninstall`.
#[derive(Clone, Debug, Args)]
pub struct Uninstall {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// Every runtime that is this binary, whatever its name; refused while containers of quark run,
    /// or if one of them is an engine's default runtime.
    #[arg(long, conflicts_with_all = ["name", "prefix"])]
    pub all: bool,
}

/// What both engines, and Kubernetes for a RuntimeClass, take as a name.
fn runtime_name(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ends = |c: Option<char>| c.is_some_and(|c| c != '-');
    if text.len() <= 63
        && text.chars().all(allowed)
        && ends(text.chars().next())
        && ends(text.chars().last())
    {
        return Ok(text.to_owned());
    }
    Err("use lower-case letters, digits and '-' inside".to_owned())
}
