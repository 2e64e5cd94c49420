//! The command line, with runc's names and options.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use super::install::options::{Install, Uninstall};
use super::log::Format as LogFormat;
use super::pod::Pod;
use super::sleep::SleepOptions;
use super::upper::Upper;
use crate::platform::{PlatformKind, process::FastCalls};
use crate::sandbox::hostcall::uds::HostUds;

/// An OCI container runtime in which every container has its own guest kernel, and idle ones
/// hibernate.
#[derive(Debug, Parser)]
#[command(name = "quark", version, args_override_self = true)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Directory for the state of containers.
    #[arg(long, default_value_os_t = super::state::default_root())]
    pub root: PathBuf,
    /// Somebody chose it.
    #[arg(skip)]
    pub root_given: bool,
    /// File to which the log is appended.
    #[arg(long)]
    pub log: Option<PathBuf>,
    /// Format of the log.
    #[arg(long, value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Log more.
    #[arg(long)]
    pub debug: bool,
    /// Use systemd to manage cgroups (not supported).
    #[arg(long)]
    pub systemd_cgroup: bool,
    /// Accepted for runc's callers; it has no effect.
    #[arg(long, hide = true)]
    pub rootless: Option<String>,
    /// How long to wait for a sandbox to answer, in seconds ("5s" is accepted) [default: 10, 30 for
    /// exec, 60 for start, 600 for waking]; for hibernating, how long to wait until the container
    /// is idle [default: 10].
    #[arg(long, global = true, value_parser = super::info::parse_seconds, value_name = "SECONDS")]
    pub timeout: Option<Duration>,
    /// How guest code runs in the container that is made.
    #[arg(long, value_enum, default_value = "auto")]
    pub platform: Platform,
    /// When the container that is made sleeps.
    #[command(flatten)]
    pub sleep: SleepOptions,
    /// Let at most so many containers with this option and the same --root read their working sets
    /// back at once, first come first served [default: 0, no limit].
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    pub wake_concurrency: u16,
    /// AF_UNIX sockets in volumes: connect to those of others ("open"), make some for others
    /// ("create"), or both ("all"); its annotation io.quark.host-uds goes before this.
    #[arg(long, value_enum, default_value = "none")]
    pub host_uds: HostUds,
    /// Where what a container writes to its root goes: to the host, or to a layer in its guest
    /// memory ("memory") or in its store on disk ("disk") that goes with it and is part of its
    /// images; its annotation io.quark.rootfs.upper goes before this.
    #[arg(long, value_enum, default_value = "host")]
    pub rootfs_upper: Upper,
    /// What such a layer may hold in bytes, or with a suffix: 512M, 20g [default: half of memory,
    /// on disk 10g or 32 times memory]; its annotation io.quark.rootfs.size goes before this.
    #[arg(long, value_name = "BYTES", value_parser = super::upper::size)]
    pub rootfs_size: Option<u64>,
    /// Whether further containers of the pod that the container begins (CRI) have kernels of their
    /// own ("separate") or share its one ("shared"); its annotation io.quark.pod goes before this.
    #[arg(long, value_enum, default_value = "separate")]
    pub pod: Pod,
    /// Patch call sites of guest programs, so that rows of system calls need not enter the host.
    #[arg(long, value_enum, default_value = "auto")]
    pub fast_calls: FastCalls,
}

/// How guest code runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Platform {
    /// The strongest one that works on this host.
    #[default]
    Auto,
    /// In processes of the host.
    Process,
    /// In a KVM virtual machine.
    Kvm,
}

impl From<Platform> for Option<PlatformKind> {
    /// `None` is the choice of this host.
    fn from(platform: Platform) -> Self {
        match platform {
            Platform::Auto => None,
            Platform::Process => Some(PlatformKind::Process),
            Platform::Kvm => Some(PlatformKind::Kvm),
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a sandbox over this host's files, with a throw-away writable layer, and
    /// without its network.
    Do(Do),
    /// Create and start a container, and wait for it.
    Run(RunAny),
    /// Create a container.
    Create(Create),
    /// Start the program of a created container.
    Start(Id),
    /// Print the state of a container.
    State(Id),
    /// Send a signal to a container: STOP hibernates it, CONT wakes it.
    Kill(Kill),
    /// Hibernate a container once it is idle; --timeout says how long to wait for that (10 s).
    Hibernate(Hibernate),
    /// Wake a hibernated container ahead of use.
    Wake(Id),
    /// Tell what keeps a container awake.
    Why(Id),
    /// Wait until a container has ended, and print its exit status.
    Wait(Wait),
    /// Delete a container.
    Delete(Delete),
    /// List the containers.
    List(List),
    /// List the processes of a container.
    Ps(Ps),
    /// Run a further process in a container.
    Exec(Exec),
    /// Print statistics of a container.
    Events(Events),
    /// Print statistics of all containers for Prometheus, or serve them.
    Metrics(Metrics),
    /// Show all containers, those that hold most memory first.
    Top(Top),
    /// Save a container in an image, and end it; --timeout says how long it may take to become idle
    /// (1 s) before it is stopped in the middle of what it does.
    Checkpoint(Checkpoint),
    /// Make a container of an image, and wait for it.
    Restore(Restore),
    /// Branch a running container: others begin as what it is, and it goes on.
    Fork(Fork),
    /// Take a running container back to a snapshot (checkpoint --name).
    Rollback(Rollback),
    /// List the snapshots of a container, or remove one.
    Snapshots(Snapshots),
    /// Keep images under names, of which run --template makes containers.
    #[command(subcommand)]
    Template(Template),
    /// Keep containers of a template ready, for run --template --pool, until SIGTERM.
    Pool(Pool),
    /// Suspend all processes of a container.
    Pause(Id),
    /// Let the processes of a paused container go on.
    Resume(Id),
    /// Change the resource limits of a container.
    Update(Update),
    /// Print what this runtime supports, as JSON.
    Features,
    /// Write a config.json to start from.
    Spec(Spec),
    /// Tell which platforms this host can use.
    Doctor,
    /// Make quark a runtime of Docker and containerd.
    Install(Install),
    /// Take back what install did.
    Uninstall(Uninstall),
    /// Print what makes a shell complete quark's words; see its manual where that goes.
    Completions(Completions),
}

/// A command about one container.
#[derive(Debug, Args)]
pub struct Id {
    /// The container's ID.
    pub id: String,
}

/// The network of `quark do`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// A loopback device of its own, and nothing else.
    #[default]
    #[value(alias = "new")]
    None,
    /// The host's.
    Host,
}

/// `quark do`.
#[derive(Debug, Args)]
pub struct Do {
    /// The network that the command has.
    #[arg(long, value_enum, default_value = "none")]
    pub network: Network,
    /// Show a directory or file of the host, HOST:GUEST[:ro|:rw]; may be given more than once.
    #[arg(short, long = "volume", action = ArgAction::Append, value_name = "HOST:GUEST[:ro]")]
    pub volumes: Vec<String>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// What `create` and `run` have in common.
#[derive(Debug, Args)]
pub struct Create {
    /// The container's ID.
    pub id: String,
    /// The bundle's directory.
    #[arg(short, long, default_value = ".")]
    pub bundle: PathBuf,
    /// UNIX socket to which the terminal's master end is sent.
    #[arg(long)]
    pub console_socket: Option<PathBuf>,
    /// Write the sandbox's process ID to this file.
    #[arg(long)]
    pub pid_file: Option<PathBuf>,
    /// Accepted for runc's callers; a guest has its own root in any case.
    #[arg(long)]
    pub no_pivot: bool,
    /// Accepted for runc's callers; a guest has its own keyrings in any case.
    #[arg(long)]
    pub no_new_keyring: bool,
    /// Descriptors to pass on besides the standard ones (only 0 is supported).
    #[arg(long, default_value_t = 0)]
    pub preserve_fds: u32,
}

/// `quark run`.
#[derive(Debug, Args)]
pub struct Run {
    /// As for create.
    #[command(flatten)]
    pub create: Create,
    /// Do not wait for the container.
    #[arg(short, long)]
    pub detach: bool,
    /// Do not delete the container when it has ended.
    #[arg(long)]
    pub keep: bool,
    /// Accepted for runc's callers; it has no effect.
    #[arg(long)]
    pub no_subreaper: bool,
}

/// `quark run`, with what a container can be made of besides its configuration.
#[derive(Debug, Args)]
pub struct RunAny {
    /// As for restore.
    #[command(flatten)]
    pub run: Run,
    /// Make the container of this template; its bundle is that of the template, unless another is
    /// given.
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// Make so many, with the IDs ID-1, ID-2 ...
    #[arg(long, value_name = "NUMBER", requires = "template", requires = "detach",
        conflicts_with_all = ["pid_file", "console_socket"],
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub count: Option<u32>,
    /// Once it is up, read in the background what its programs have not asked for of the template's
    /// memory; its annotation io.quark.restore.background goes before this.
    #[arg(long, requires = "template", conflicts_with = "pool")]
    pub background: bool,
    /// Give it a network namespace of its own, whatever the configuration says.
    #[arg(long, requires = "template", conflicts_with = "pool")]
    pub new_network: bool,
    /// Take it from the pool of the template (that listens on SOCKET), if there is one.
    #[arg(long, value_name = "SOCKET", requires = "template", num_args = 0..=1,
        require_equals = true, conflicts_with = "count")]
    pub pool: Option<Option<PathBuf>>,
    /// Somebody chose the bundle.
    #[arg(skip)]
    pub bundle_given: bool,
    /// When the container is saved, if it is.
    #[command(flatten)]
    pub moment: MomentOptions,
}

/// When a container is saved in an image.
#[derive(Debug, Args)]
pub struct MomentOptions {
    /// Save the container in an image, and end it, when it has written this to its standard output;
    /// its annotation io.quark.checkpoint-when says the same.
    #[arg(long, value_name = "PHRASE",
        conflicts_with_all = ["checkpoint_after_first_request", "template"])]
    pub checkpoint_when: Option<String>,
    /// Save it, and end it, when it has answered a first request and is idle again; its annotation
    /// io.quark.checkpoint-after-first-request says the same.
    #[arg(long, conflicts_with = "template")]
    pub checkpoint_after_first_request: bool,
    /// The directory of that image, which is made if there is none.
    #[arg(long, default_value = "checkpoint", value_name = "DIR", conflicts_with = "template")]
    pub image_path: PathBuf,
    /// It goes on after it was saved.
    #[arg(long, conflicts_with = "template")]
    pub leave_running: bool,
    /// The image has a copy of this volume, and each container that is made of it a copy of its
    /// own; may be given more than once. The annotation io.quark.rw-dirs names others.
    #[arg(long, value_name = "DIR", conflicts_with = "template")]
    pub rw_dir: Vec<String>,
}

/// `quark template`.
#[derive(Debug, Subcommand)]
pub enum Template {
    /// Make a template of a container, which ends, or of an image.
    Create(TemplateCreate),
    /// List the templates.
    List(TemplateList),
    /// Delete a template. Containers that were made of it go on.
    Delete(TemplateName),
}

/// `quark template create`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["from", "image_path"])))]
pub struct TemplateCreate {
    /// The template's name.
    pub name: String,
    /// Of this container.
    #[arg(long, value_name = "ID")]
    pub from: Option<String>,
    /// The container goes on.
    #[arg(long, requires = "from")]
    pub leave_running: bool,
    /// The template has a copy of this volume, and each container that is made of it a copy of its
    /// own; may be given more than once. The annotation io.quark.rw-dirs names others.
    #[arg(long, value_name = "DIR", requires = "from")]
    pub rw_dir: Vec<String>,
    /// Of the image in this directory, which it becomes: the directory has none afterwards.
    #[arg(long, value_name = "DIR")]
    pub image_path: Option<PathBuf>,
    /// That image is encrypted, with the key in this file; the template is not.
    #[arg(long, value_name = "FILE", requires = "image_path")]
    pub key_file: Option<PathBuf>,
    /// The bundle of containers that are made of it [default: the container's].
    #[arg(short, long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
}

/// `quark template list`.
#[derive(Debug, Args)]
pub struct TemplateList {
    /// Format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub format: Format,
}

/// A command about one template.
#[derive(Debug, Args)]
pub struct TemplateName {
    /// The template's name.
    pub name: String,
}

/// `quark pool`.
#[derive(Debug, Args)]
pub struct Pool {
    /// The template.
    #[arg(long, value_name = "NAME")]
    pub template: String,
    /// How many containers are kept ready.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub size: u32,
    /// Once one is up that was taken, read in the background what its programs have not asked for
    /// of the template's memory.
    #[arg(long)]
    pub background: bool,
    /// Give each a network namespace of its own, whatever the configuration says.
    #[arg(long)]
    pub new_network: bool,
    /// Where to listen [default: in the state directory].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The bundle [default: the template's].
    #[arg(short, long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
}

/// `quark checkpoint`.
#[derive(Debug, Args)]
pub struct Checkpoint {
    /// The container's ID.
    pub id: String,
    /// The directory of the image, which is made if there is none.
    #[arg(long, default_value = "checkpoint", value_name = "DIR", conflicts_with = "name")]
    pub image_path: PathBuf,
    /// Make it a snapshot of this name, to which `quark rollback` takes the container back; it goes
    /// on.
    #[arg(long)]
    pub name: Option<String>,
    /// Then remove its oldest snapshots, so that so many are left.
    #[arg(long, value_name = "NUMBER", requires = "name",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
    /// The container goes on.
    #[arg(long)]
    pub leave_running: bool,
    /// The image has a copy of this volume, and each container that is made of it a copy of its
    /// own; may be given more than once. The annotation io.quark.rw-dirs names others.
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    pub rw_dir: Vec<String>,
    /// How the image is packed.
    #[command(flatten)]
    pub packing: Packing,
    /// When the sandbox says so by the connection that standard input is: for quark's own use.
    #[arg(long, hide = true)]
    pub when_told: bool,
    /// What runc's callers say to CRIU.
    #[command(flatten)]
    pub criu: Criu,
}

/// An image in one file.
#[derive(Debug, Default, Args)]
pub struct Packing {
    /// The image is one file, compressed; what is made of it is unpacked first.
    #[arg(long, conflicts_with_all = ["name", "rw_dir"])]
    pub compress: bool,
    /// The image is one file, encrypted with the key in this file (64 hexadecimal digits).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "rw_dir"])]
    pub key_file: Option<PathBuf>,
}

/// `quark fork`.
#[derive(Debug, Args)]
pub struct Fork {
    /// The container's ID.
    pub id: String,
    /// The ID of the new container, or what the IDs begin with of several.
    pub new: String,
    /// Make so many, NEW-1, NEW-2 and so on.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub count: Option<u32>,
    /// The bundle of the new container, by default that of the old.
    #[arg(short, long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,
    /// Give it a network namespace of its own, whatever the configuration says.
    #[arg(long)]
    pub new_network: bool,
}

/// `quark rollback`.
#[derive(Debug, Args)]
pub struct Rollback {
    /// The container's ID.
    pub id: String,
    /// The name of the snapshot.
    pub name: String,
}

/// `quark snapshots`.
#[derive(Debug, Args)]
pub struct Snapshots {
    /// The container's ID.
    pub id: String,
    /// Remove this one.
    #[arg(long, value_name = "NAME")]
    pub remove: Option<String>,
    /// Format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub format: Format,
}

/// `quark restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// As for run.
    #[command(flatten)]
    pub run: Run,
    /// The directory of the image.
    #[arg(long, default_value = "checkpoint", value_name = "DIR")]
    pub image_path: PathBuf,
    /// Have the container go on that was hibernated with --durable; its bundle is its own, unless
    /// another is given.
    #[arg(long, conflicts_with_all = ["image_path", "key_file"])]
    pub durable: bool,
    /// The image is encrypted, with the key in this file.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Somebody chose the bundle.
    #[arg(skip)]
    pub bundle_given: bool,
    /// Once it is up, read in the background what its programs have not asked for of the image's
    /// memory; its annotation io.quark.restore.background goes before this.
    #[arg(long)]
    pub background: bool,
    /// Give it a network namespace of its own, whatever the configuration says.
    #[arg(long)]
    pub new_network: bool,
    /// What runc's callers say to CRIU.
    #[command(flatten)]
    pub criu: Criu,
}

/// Options of runc's that are CRIU's, and have no meaning here.
#[derive(Debug, Default, Args)]
pub struct Criu {
    /// Accepted for runc's callers; nothing is written but the image.
    #[arg(long, hide = true)]
    pub work_path: Option<PathBuf>,
    /// Accepted for runc's callers; connections of an image are reset.
    #[arg(long, hide = true)]
    pub tcp_established: bool,
    /// Accepted for runc's callers; AF_UNIX sockets are in the guest.
    #[arg(long, hide = true)]
    pub ext_unix_sk: bool,
    /// Accepted for runc's callers; streams are given anew.
    #[arg(long, hide = true)]
    pub shell_job: bool,
    /// Accepted for runc's callers; who holds locks of the host's files is not saved.
    #[arg(long, hide = true)]
    pub file_locks: bool,
    /// Accepted for runc's callers; the network is that of the new container.
    #[arg(long, hide = true)]
    pub empty_ns: Vec<String>,
    /// Accepted for runc's callers; cgroups are those of the new container.
    #[arg(long, hide = true)]
    pub manage_cgroups_mode: Option<String>,
}

/// `quark kill`.
#[derive(Debug, Args)]
pub struct Kill {
    /// The container's ID.
    pub id: String,
    /// Name or number.
    #[arg(default_value = "TERM")]
    pub signal: String,
    /// To all its processes.
    #[arg(short, long)]
    pub all: bool,
}

/// `quark hibernate`.
#[derive(Debug, Args)]
pub struct Hibernate {
    /// The container's ID.
    pub id: String,
    /// If it is not idle in time, hibernate it and wake it at once for what is left to do: memory
    /// that it does not use is given back.
    #[arg(short, long)]
    pub force: bool,
    /// Keep it on the disk, from where quark restore --durable has it go on when the host has been
    /// booted, unless it has been woken before.
    #[arg(long, conflicts_with = "force")]
    pub durable: bool,
}

/// `quark wait`.
#[derive(Debug, Args)]
pub struct Wait {
    /// The container's ID.
    pub id: String,
    /// Of this process of the container, which `exec` has started, instead of the container.
    #[arg(long)]
    pub pid: Option<u32>,
    /// Format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub format: Format,
}

/// `quark delete`.
#[derive(Debug, Args)]
pub struct Delete {
    /// The container's ID.
    pub id: String,
    /// Kill it if it runs; it is no error that it does not exist.
    #[arg(short, long)]
    pub force: bool,
}

/// How lists are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For reading.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// `quark list`.
#[derive(Debug, Args)]
pub struct List {
    /// Format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub format: Format,
    /// IDs only.
    #[arg(short, long)]
    pub quiet: bool,
    /// Also those of every other state directory that quark was given on this host, as Docker and
    /// containerd do.
    #[arg(long)]
    pub all_roots: bool,
}

/// `quark metrics`. Of all state directories, unless one is given by --root.
#[derive(Debug, Args)]
pub struct Metrics {
    /// Serve them at http://HOST:PORT/metrics, or at a UNIX socket, instead of printing them once.
    #[arg(long, value_name = "HOST:PORT|unix:PATH")]
    pub listen: Option<super::metrics::Listen>,
}

/// `quark top`. Of all state directories, unless one is given by --root.
#[derive(Debug, Args)]
pub struct Top {
    /// Print a table once. So it is without a terminal.
    #[arg(long)]
    pub once: bool,
    /// Between looks, in seconds ("5s" is accepted).
    #[arg(long, value_parser = super::info::parse_seconds, default_value = "2s", value_name = "SECONDS")]
    pub interval: Duration,
}

/// `quark ps`.
#[derive(Debug, Args)]
pub struct Ps {
    /// The container's ID.
    pub id: String,
    /// Format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub format: Format,
    /// Accepted for runc's callers; the columns are fixed.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub ps_options: Vec<String>,
}

/// `quark exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// The container's ID.
    pub id: String,
    /// The command and its arguments, unless --process is given.
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
    /// File with an OCI process object.
    #[arg(short, long)]
    pub process: Option<PathBuf>,
    /// Do not wait for the process.
    #[arg(short, long)]
    pub detach: bool,
    /// Write the ID of a host process that stands for the new process to this file.
    #[arg(long)]
    pub pid_file: Option<PathBuf>,
    /// Write the ID that the new process has in the container to this file.
    #[arg(long)]
    pub internal_pid_file: Option<PathBuf>,
    /// Give it a terminal.
    #[arg(short, long)]
    pub tty: bool,
    /// UNIX socket to which the terminal's master end is sent.
    #[arg(long)]
    pub console_socket: Option<PathBuf>,
    /// Environment variables, NAME=value.
    #[arg(short, long, action = ArgAction::Append)]
    pub env: Vec<String>,
    /// Working directory.
    #[arg(long)]
    pub cwd: Option<String>,
    /// UID or UID:GID.
    #[arg(short, long)]
    pub user: Option<String>,
    /// Further groups.
    #[arg(short = 'g', long, action = ArgAction::Append)]
    pub additional_gids: Vec<u32>,
    /// Capabilities to add.
    #[arg(short, long, action = ArgAction::Append)]
    pub cap: Vec<String>,
    /// Set no_new_privs.
    #[arg(long)]
    pub no_new_privs: bool,
    /// Also in a paused container.
    #[arg(long)]
    pub ignore_paused: bool,
    /// Descriptors to pass on besides the standard ones (only 0 is supported).
    #[arg(long, default_value_t = 0)]
    pub preserve_fds: u32,
}

/// `quark events`.
#[derive(Debug, Args)]
pub struct Events {
    /// The container's ID.
    pub id: String,
    /// Print once instead of at every interval.
    #[arg(long)]
    pub stats: bool,
    /// Between prints, in seconds ("5s" is accepted).
    #[arg(long, default_value = "5s")]
    pub interval: String,
}

/// A number of bytes as Docker writes it: with a suffix b, k, m, g, t or p, in powers of 1024.
pub fn bytes(text: &str) -> Result<i64, String> {
    let lower = text.to_ascii_lowercase();
    let short = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let shift = short.chars().last().and_then(|c| "kmgtp".find(c)).map(|at| 10 * (at + 1));
    let digits =
        if shift.is_some() { short.get(..short.len() - 1).unwrap_or_default() } else { short };
    let number = digits.parse::<i64>().ok().and_then(|n| n.checked_mul(1 << shift.unwrap_or(0)));
    number.ok_or_else(|| "use bytes, or a number with k, m, g, t or p".to_owned())
}

/// `quark update`.
#[derive(Debug, Args)]
pub struct Update {
    /// The container's ID.
    pub id: String,
    /// File with an OCI resources object ("-" for standard input); the other options are then
    /// ignored.
    #[arg(short, long)]
    pub resources: Option<PathBuf>,
    /// Memory limit in bytes, or with a suffix: 64M, 1g. -1 for none.
    #[arg(long, allow_hyphen_values = true, value_parser = bytes)]
    pub memory: Option<i64>,
    /// Memory reservation in bytes, or with a suffix.
    #[arg(long, allow_hyphen_values = true, value_parser = bytes)]
    pub memory_reservation: Option<i64>,
    /// Memory and swap together in bytes, or with a suffix.
    #[arg(long, allow_hyphen_values = true, value_parser = bytes)]
    pub memory_swap: Option<i64>,
    /// CPU period in microseconds.
    #[arg(long)]
    pub cpu_period: Option<u64>,
    /// CPU time in a period, in microseconds.
    #[arg(long, allow_hyphen_values = true)]
    pub cpu_quota: Option<i64>,
    /// CPU shares.
    #[arg(long)]
    pub cpu_share: Option<u64>,
    /// Refused: a guest's threads have no real-time priority on the host.
    #[arg(long, hide = true)]
    pub cpu_rt_period: Option<u64>,
    /// As there.
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub cpu_rt_runtime: Option<i64>,
    /// Refused: there is no support for Intel's RDT.
    #[arg(long, hide = true)]
    pub l3_cache_schema: Option<String>,
    /// As there.
    #[arg(long, hide = true)]
    pub mem_bw_schema: Option<String>,
    /// CPUs to use.
    #[arg(long)]
    pub cpuset_cpus: Option<String>,
    /// Memory nodes to use.
    #[arg(long)]
    pub cpuset_mems: Option<String>,
    /// Weight of block I/O.
    #[arg(long)]
    pub blkio_weight: Option<u16>,
    /// Most processes and threads of the host, those of the sandbox included. -1 for no limit.
    #[arg(long, allow_hyphen_values = true)]
    pub pids_limit: Option<i64>,
}

/// `quark completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `quark spec`.
#[derive(Debug, Args)]
pub struct Spec {
    /// The bundle's directory.
    #[arg(short, long, default_value = ".")]
    pub bundle: PathBuf,
}
