//! Control messages between the command line, qvisor and the guest kernel, encoded with postcard.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// A request to the guest kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Makes a container: its mounts and host name. The sandbox's own is the first; a further one
    /// of its pod shares its kernel, and ends with the connection that it was made on. Answer:
    /// [`Reply::Container`].
    Create(ContainerSpec),
    /// Starts a container's first process, on its streams unless others are given. Answer:
    /// [`Reply::Pid`] once its image is loaded, or [`Reply::Error`].
    Start(ProcessSpec),
    /// Starts a further process. Wakes a hibernated container. Answer: [`Reply::Pid`] or
    /// [`Reply::Error`].
    Exec(ProcessSpec),
    /// Answered with [`Reply::Exited`] when guest process `pid` (one made by Start or Exec) ends.
    Wait {
        /// Guest process id.
        pid: u32,
    },
    /// As Wait; and if the connection ends before the answer, the process is killed. qvisor makes a
    /// Wait of it for the kernel.
    Hold {
        /// Guest process id.
        pid: u32,
    },
    /// Answered with [`Reply::Ended`] when the first process of a further container has ended, and
    /// all others of it.
    Attend {
        /// The container.
        container: u32,
    },
    /// Kills what is left of a further container, which nobody attends any more, and forgets it.
    /// Answer: [`Reply::Done`], at once. For qvisor's own use.
    Remove {
        /// The container.
        container: u32,
    },
    /// Sends a signal; wakes a hibernated container. Answer: [`Reply::Done`] or ESRCH.
    Signal {
        /// Guest process id.
        pid: u32,
        /// To all processes of its container.
        all: bool,
        /// Signal number.
        signo: u32,
    },
    /// Deflates once the container is idle. Answer: [`Reply::Done`] when hibernated;
    /// [`Reply::Error`] when it was abandoned, and why.
    Hibernate {
        /// For how long it waits for that, in milliseconds.
        patience_ms: u64,
        /// Then it deflates in any case, and inflates at once if there is something left to do.
        force: bool,
        /// An image is made of it: it does not inflate then, but keeps its memory, and qvisor wakes
        /// it when the connection ends, or the image is there as far as the sandbox matters.
        stay: bool,
    },
    /// Inflates ahead of use. Answer: [`Reply::Done`] when awake.
    Wake,
    /// A container has another memory limit from now on. Answer: [`Reply::Done`], or EBUSY if it
    /// holds more. Does not wake.
    Limit {
        /// The container.
        container: u32,
        /// Its limit, which is one.
        limit: MemoryLimit,
    },
    /// Answer: [`Reply::Stats`]. Does not wake.
    Stats,
    /// Answer: [`Reply::Why`]. Does not wake.
    Why,
    /// Answer: [`Reply::Processes`]. Does not wake.
    Processes {
        /// Those of this container.
        container: u32,
    },
    /// Stops all processes without deflating. Answer: [`Reply::Done`].
    Pause,
    /// Undoes Pause.
    Resume,
    /// Sets the window size of the terminal of process `pid`.
    Resize {
        /// Guest process id.
        pid: u32,
        /// Rows.
        rows: u16,
        /// Columns.
        cols: u16,
    },
    /// Answer: [`Reply::Platform`], by qvisor itself. Does not wake.
    Platform,
    /// Asks whether guest memory and what the host knows of it are all that the sandbox is, which
    /// is so while it sleeps. Answer: [`Reply::Done`], or why not. qvisor answers a client with
    /// [`Reply::Image`] and descriptors, and does nothing else until it is told to go on.
    Checkpoint,
    /// Lets a sandbox go on, or end, that has answered a Checkpoint on this connection. Answer, by
    /// qvisor itself: [`Reply::Done`] if nothing has changed since.
    Release {
        /// It is to end.
        end: bool,
    },
    /// Looks for a text in the standard output of the sandbox's own container, as long as this
    /// connection lasts. Answer, by qvisor itself: [`Reply::Done`] at once.
    WatchOutput {
        /// The text.
        text: String,
    },
    /// Answered with [`Reply::Done`], by qvisor itself, when the text has been written that this
    /// connection has it look for.
    AwaitOutput,
    /// Answered with [`Reply::Done`] when somebody outside has been answered for the first time and
    /// the container is idle again.
    AwaitService,
    /// Has a sandbox that has answered a Checkpoint on this connection note in the file that comes
    /// with the request when it wakes next: 0 as its first byte. Answer, by qvisor itself:
    /// [`Reply::Done`].
    NoteWake,
    /// Has the store of a sandbox that has answered a Checkpoint on this connection go on with
    /// files that hold the same as its own, which it gives up: with the request come empty files
    /// for what it writes next, those files to read, and the REAP file, if there is one. Answer, by
    /// qvisor itself: [`Reply::Done`].
    Adopt {
        /// The slots that follow those in each of the files.
        layers: Vec<u64>,
    },
    /// Has a sandbox that has answered a Checkpoint on this connection become what it was when an
    /// image was made of it. With the request come what the image says, in a file, guest memory,
    /// the files of its store, and those of its handles that are not kept. Answer, by qvisor
    /// itself: [`Reply::Done`], or an error, and it ends if that came too late for it to go on.
    Become {
        /// The files of its store that hold slots.
        layers: u32,
        /// For each file of its handles, whether it comes with the request; else it is given.
        files: Vec<bool>,
    },
    /// The pages that a sandbox has kept which was put to sleep to stay so, are written: with the
    /// request comes a file that says what its store holds now. Answer, by qvisor itself:
    /// [`Reply::Done`].
    Written,
    /// They are written, or never will be. For qvisor's own use. Answer: [`Reply::Done`].
    Kept {
        /// They are.
        written: bool,
    },
    /// The sandbox has been made of the image of another, and is one of its own from now on; or of
    /// one of itself. For qvisor's own use. Answer: [`Reply::Done`].
    Restored {
        /// Its host name, if it is another one than the image is of.
        hostname: Option<String>,
        /// Its memory limit, if it has one.
        limit: MemoryLimit,
        /// When it sleeps.
        sleep: SleepSpec,
        /// A pause ([`Request::Pause`]) holds, whatever did when the image was made.
        paused: bool,
        /// What its programs do not ask for is read ahead of use once it is awake.
        background: bool,
    },
    /// The sandbox's cgroup lets it have so many tasks from now on. Answer, by qvisor itself:
    /// [`Reply::Done`]. Does not wake.
    Tasks {
        /// 0 for no limit.
        limit: u32,
    },
    /// Answer: [`Reply::Usage`]. Does not wake.
    Usage {
        /// Of this container.
        container: u32,
    },
}

/// Answers of the guest kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It is done.
    Done,
    /// The number of a new container; the sandbox's own is [`FIRST_CONTAINER`].
    Container(u32),
    /// The guest process id of a new process.
    Pid(u32),
    /// A process ended: its exit code, or 128 + signal.
    Exited(i32),
    /// A further container ended.
    Ended {
        /// The exit code of its first process, or 128 + signal.
        code: i32,
        /// That was killed because memory was used up.
        for_memory: bool,
    },
    /// Numbers.
    Stats(Box<Stats>),
    /// What keeps it awake.
    Why(Wakefulness),
    /// The processes of the container.
    Processes(Vec<ProcessInfo>),
    /// It failed.
    Error {
        /// Linux errno.
        errno: i32,
        /// One line that says what failed and what to do.
        message: String,
    },
    /// Numbers of the platform.
    Platform(PlatformStats),
    /// What the sandbox is besides its guest memory, in qvisor's own words.
    Image(#[serde(with = "serde_bytes")] Vec<u8>),
    /// What a container uses.
    Usage(Usage),
}

/// The number of the sandbox's own container, with which all others of its kernel end.
pub const FIRST_CONTAINER: u32 = 0;

/// Whose namespace of a kind a further container is in (namespaces(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Whose {
    /// That of the first container of its sandbox.
    #[default]
    First,
    /// One of its own.
    Own,
    /// That of the container of this number.
    Of(u32),
}

/// The namespaces of a further container; mounts are always its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherNamespaces {
    /// System V objects and message queues.
    pub ipc: Whose,
    /// Processes.
    pub pid: Whose,
    /// Host name.
    pub uts: Whose,
}

/// A layer over a root, which takes what is written to that and goes with the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootLayer {
    /// What is in its files lies in the swap store, and in guest memory as far as it was used last.
    /// Else it is all in guest memory.
    pub is_on_disk: bool,
    /// What its files may hold, in bytes; 0: half of memory, or on disk [`RootLayer::DISK_BYTES`],
    /// but not more than [`RootLayer::DISK_SHARE`] times memory.
    pub limit_bytes: u64,
}

impl RootLayer {
    /// In bytes.
    pub const DISK_BYTES: u64 = 10 << 30;
    /// What is known of pages of files takes some part of memory: a 400th of what they hold.
    pub const DISK_SHARE: u64 = 32;

    /// What its files may hold in a guest that has so much memory, in bytes.
    pub fn bytes(&self, memory_bytes: u64) -> u64 {
        match self.limit_bytes {
            0 if self.is_on_disk => {
                memory_bytes.saturating_mul(Self::DISK_SHARE).min(Self::DISK_BYTES)
            }
            0 => memory_bytes / 2,
            limit => limit,
        }
    }
}

/// What a container looks like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// If it is not the first one of its sandbox.
    pub namespaces: FurtherNamespaces,
    /// Host name.
    pub hostname: String,
    /// Host handle of the root directory.
    pub root: u32,
    /// Those of standard input, output and error of its first process.
    pub stdio: [u32; 3],
    /// Of the descriptors that come with the request for these, in their order: the open file
    /// description is shared with nobody, and does not block.
    pub own_stdio: [bool; 3],
    /// The root file system may not be written.
    pub root_readonly: bool,
    /// The layer that lies over the root, if there is one.
    pub root_layer: Option<RootLayer>,
    /// Mounts, in order.
    pub mounts: Vec<MountSpec>,
    /// Device nodes that its /dev has besides the standard ones.
    #[serde(default)]
    pub devices: Vec<DeviceSpec>,
    /// sysctl settings by name.
    pub sysctl: Vec<(String, String)>,
    /// Paths that read as empty (OCI maskedPaths).
    pub masked_paths: Vec<String>,
    /// Paths that may not be written (OCI readonlyPaths).
    pub readonly_paths: Vec<String>,
    /// Its memory limit, if it has one.
    pub memory_limit: MemoryLimit,
    /// When it sleeps.
    pub sleep: SleepSpec,
}

/// A memory limit in bytes; the default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// What the container's configuration says, and its programs see; 0: none.
    pub whole: u64,
    /// What of it is the guest's; the rest is what the VMM costs. 0: all of RAM.
    pub guest: u64,
}

/// When a container sleeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepSpec {
    /// By itself when it has been idle for so many milliseconds; 0: never.
    pub after_ms: u64,
    /// What timers of its programs do then.
    pub timers: Timers,
    /// Who comes from these networks does not count as use of it.
    pub ignore_from: Vec<Network>,
    /// Nor does an exec of one of these command lines, its arguments with a space between; a final
    /// "*" stands for anything.
    pub ignore_exec: Vec<String>,
    /// It does not sleep by itself, but is told of as if it did.
    pub dry_run: bool,
    /// It sleeps when the host is short of memory.
    pub on_pressure: bool,
    /// What of those networks it answers asleep.
    pub answer: AnswerSpec,
}

/// What is answered without a wake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerSpec {
    /// Connections that end without having said anything.
    pub tcp: bool,
    /// GET of one of these by HTTP, where the program has answered the same before.
    pub paths: Vec<String>,
}

/// Addresses of IPv6 that have the first bits in common. Those of IPv4 are "mapped" among them (RFC
/// 4291, 2.5.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// One of them, in network byte order.
    pub address: [u8; 16],
    /// How many bits, at most 128.
    pub prefix: u8,
}

impl Network {
    /// True if `address` is one of them.
    pub fn contains(&self, address: [u8; 16]) -> bool {
        let differ = u128::from_be_bytes(address) ^ u128::from_be_bytes(self.address);
        differ.leading_zeros() >= self.prefix.into()
    }
}

/// True if the command line `args` is what `pattern` stands for, see [`SleepSpec::ignore_exec`].
pub fn is_command(pattern: &str, args: &[String]) -> bool {
    let line = args.join(" ");
    match pattern.strip_suffix('*') {
        Some(begin) => line.starts_with(begin),
        None => line == pattern,
    }
}

/// What timers of programs do in a sleep. Where somebody outside waits for an answer they always
/// wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Timers {
    /// They wake the container from a sleep by itself, and rest in one that it was asked for.
    #[default]
    Usual,
    /// They wake it.
    Wake,
    /// They rest, and do not keep it awake.
    Rest,
}

/// What keeps a container awake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wakefulness {
    /// A line about it, if there is something.
    pub kept_by: Option<String>,
    /// It sleeps by itself after so many milliseconds; 0: never.
    pub after_ms: u64,
    /// For how many of these it had been idle at the last look; where it does not sleep by itself,
    /// how long ago something came from outside.
    pub idle_ms: u64,
    /// It sleeps when the host is short of memory.
    pub on_pressure: bool,
}

/// One mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSpec {
    /// Where, in the container.
    pub destination: String,
    /// "proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "mqueue", "cgroup" or "host".
    pub fstype: String,
    /// For "host": the handle of the directory or file.
    pub host: u32,
    /// For "host": it is a single file.
    pub is_file: bool,
    /// What /proc/mounts shows as the source.
    pub source: String,
    /// Options as in mount(8), without propagation flags ("ro", "nosuid", "size=64k", "mode=1777"
    /// …).
    pub options: Vec<String>,
}

/// A node of a character device, which a driver of the guest kernel serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// Where, in the container.
    pub path: String,
    /// Major and minor number.
    pub number: (u32, u32),
    /// Permissions.
    pub mode: u32,
    /// User and group id.
    pub owner: (u32, u32),
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// The container that it is in.
    #[serde(default)]
    pub container: u32,
    /// argv.
    pub args: Vec<String>,
    /// Environment, "NAME=value".
    pub env: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// umask.
    pub umask: u32,
    /// (RLIMIT_* number, soft, hard).
    pub rlimits: Vec<(u32, u64, u64)>,
    /// Bounding, effective, inheritable, permitted, ambient capability sets as bit masks.
    pub capabilities: [u64; 5],
    /// PR_SET_NO_NEW_PRIVS.
    pub no_new_privs: bool,
    /// oom_score_adj of proc(5); `None` is that of the container's first process.
    #[serde(default)]
    pub oom_score_adj: Option<i32>,
    /// Restricts its system calls.
    #[serde(default)]
    pub seccomp: Option<SeccompFilter>,
    /// Host handles of standard input, output and error (with a terminal all three are the same).
    pub stdio: [u32; 3],
    /// Of the descriptors that come with a request, in their order: the open file description is
    /// shared with nobody, and does not block.
    pub own_stdio: [bool; 3],
    /// Signals have their default actions even if it is the container's first process, which else
    /// gets only what it has handlers for.
    #[serde(default)]
    pub default_actions: bool,
    /// The standard handles are a terminal: it becomes the controlling one.
    pub terminal: bool,
    /// Initial window size (rows, columns) of the terminal.
    pub window: (u16, u16),
}

/// A filter of system calls (seccomp(2)).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompFilter {
    /// What it does to calls is logged.
    pub logs: bool,
    /// Its instructions: code, jt, jf, k.
    pub program: Vec<(u16, u8, u8, u32)>,
}

/// One process in [`Reply::Processes`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Guest process id.
    pub pid: u32,
    /// Of its parent.
    pub ppid: u32,
    /// User id.
    pub uid: u32,
    /// Threads.
    pub threads: u32,
    /// State letter as in /proc/PID/stat.
    pub state: char,
    /// Resident set in bytes.
    pub rss_bytes: u64,
    /// User time in microseconds.
    pub utime_us: u64,
    /// Start time, nanoseconds of CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Command line.
    pub cmdline: String,
}

/// What the programs of one container use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// What its processes have in memory, in bytes, of what several share each its part.
    pub memory_bytes: u64,
    /// CPU time of its processes in user mode, those that have ended included, in nanoseconds.
    pub user_ns: u64,
    /// The same in the guest kernel.
    pub system_ns: u64,
    /// Its threads.
    pub threads: u64,
    /// Its processes that were killed as memory was used up.
    pub oom_kills: u64,
}

/// The hibernation states of the paper's figure 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HibernationState {
    /// Serving, never hibernated since it last was cold.
    #[default]
    Running,
    /// Initialized and idle.
    Warm,
    /// Deflated.
    Hibernated,
    /// Inflating, or serving the request that woke it.
    HibernateRunning,
    /// Idle after having been hibernated.
    WokenUp,
}

/// Numbers about a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// State.
    pub state: HibernationState,
    /// Memory, in bytes.
    pub memory: MemoryStats,
    /// Counts.
    pub counts: CountStats,
    /// Sleeps and wakes.
    pub sleeps: SleepStats,
    /// Who has slept for the kernel lock.
    pub kernel_lock: Vec<LockWaits>,
    /// Sleeps that it would have had, where they are only told of.
    pub dry_run: Option<DryStats>,
}

/// How those who wanted the guest kernel for one thing slept until they had its lock. On `process`:
/// it is not measured on `kvm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWaits {
    /// What for: `call`, `fault`, `trap`, `outside`, `timer`, `control`, `space`.
    pub wanted_for: String,
    /// How long together.
    pub total_ns: u64,
    /// The longest time.
    pub longest_ns: u64,
    /// How often: less than 4 us, less than 16, 64 and so on by fours; the last for all longer
    /// ones.
    pub histogram: [u64; LockWaits::CLASSES],
}

impl LockWaits {
    /// Classes of the histogram.
    pub const CLASSES: usize = 8;

    /// The class of a time.
    pub fn class_of(ns: u64) -> usize {
        (0..Self::CLASSES - 1).find(|class| ns < 4_000 << (2 * class)).unwrap_or(Self::CLASSES - 1)
    }
}

/// What the platform that runs the guest counts. On `process` there is nothing to count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlatformStats {
    /// Its name, as in `--platform=`.
    pub name: String,
    /// On kvm: how often vCPUs came back to qvisor, by cause.
    pub exits: Vec<(String, u64)>,
    /// On kvm: the counters that the host's KVM keeps, summed over the vCPUs, by their names there.
    pub kvm: Vec<(String, u64)>,
}

/// Memory by kind, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MemoryStats {
    /// Frames of user memory in use (reserved but never touched ones included).
    pub frames_used: u64,
    /// Kernel heap handed out.
    pub kernel_heap: u64,
    /// Pages held by the kernel heap.
    pub kernel_heap_held: u64,
    /// Page tables.
    pub page_tables: u64,
    /// File windows mapped.
    pub file_windows: u64,
    /// Swapped out, as in the guest.
    pub swapped_raw: u64,
    /// Swapped out, as stored.
    pub swapped_stored: u64,
    /// Working set recorded.
    pub working_set: u64,
    /// Of an image, what is yet to be read ahead of use; 0 when that has ended.
    pub background_left: u64,
    /// Private copies of text pages with patched call sites.
    pub patched_text: u64,
    /// RAM the guest may use.
    pub ram: u64,
    /// Host memory behind it now.
    pub ram_held: u64,
    /// Host memory behind it when the last sleep began; 0 before the first.
    pub ram_held_before_sleep: u64,
    /// The same when all of it had been written out.
    pub ram_held_after_sleep: u64,
}

/// What woke a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeCause {
    /// A connection, data, a datagram: anything that one of its host files or sockets became ready
    /// for.
    Socket,
    /// The end of what a thread waited for the host's disk for.
    Disk,
    /// A signal other than SIGCONT.
    Signal,
    /// SIGCONT.
    Sigcont,
    /// A further process.
    Exec,
    /// A timer of a program.
    Timer,
    /// It was forced to sleep in the middle of something.
    Unfinished,
}

impl WakeCause {
    /// How many there are.
    pub const COUNT: usize = WakeCause::Unfinished as usize + 1;

    /// All of them, in order.
    pub const ALL: [WakeCause; WakeCause::COUNT] = [
        WakeCause::Socket,
        WakeCause::Disk,
        WakeCause::Signal,
        WakeCause::Sigcont,
        WakeCause::Exec,
        WakeCause::Timer,
        WakeCause::Unfinished,
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            WakeCause::Socket => "socket",
            WakeCause::Disk => "disk",
            WakeCause::Signal => "signal",
            WakeCause::Sigcont => "sigcont",
            WakeCause::Exec => "exec",
            WakeCause::Timer => "timer",
            WakeCause::Unfinished => "unfinished",
        }
    }
}

/// Why a sandbox went to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SleepCause {
    /// Somebody asked for it.
    Asked,
    /// It was idle for long enough.
    Idle,
    /// It was idle, and the host was short of memory.
    Pressure,
}

impl SleepCause {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            SleepCause::Asked => "asked",
            SleepCause::Idle => "idle",
            SleepCause::Pressure => "pressure",
        }
    }
}

/// When a sandbox slept and woke, and how long its wakes took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepStats {
    /// For how long it has been asleep, or awake: since its last wake or, before its first sleep,
    /// since its first process began. 0 before that.
    pub in_state_ns: u64,
    /// When it last fell asleep, in CLOCK_REALTIME.
    pub last_sleep_at_ns: Option<u64>,
    /// Why it did.
    pub last_sleep_cause: Option<SleepCause>,
    /// When it was last woken, in CLOCK_REALTIME.
    pub last_wake_at_ns: Option<u64>,
    /// What woke it then.
    pub last_wake_cause: Option<WakeCause>,
    /// How long it has slept in all, the sleep that lasts included.
    pub asleep_ns: u64,
    /// How long all wakes took together.
    pub wakes_ns: u64,
    /// How many took at most the first of [`SleepStats::BOUNDS_NS`], how many more than that and
    /// at most the second, and so on; the last for all longer ones.
    pub wake_histogram: [u64; SleepStats::BOUNDS_NS.len() + 1],
}

impl SleepStats {
    /// The bounds of the histogram.
    pub const BOUNDS_NS: [u64; 11] = [
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        500_000_000,
        1_000_000_000,
    ];

    /// The class of a time in the histogram.
    pub fn class_of(ns: u64) -> usize {
        Self::BOUNDS_NS.partition_point(|bound| *bound < ns)
    }
}

/// The sleeps that a container would have had by itself ([`SleepSpec::dry_run`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryStats {
    /// It would be asleep now.
    pub is_asleep: bool,
    /// How often it would have slept.
    pub sleeps: u64,
    /// How long it would have slept in all, the sleep that would last included.
    pub asleep_ns: u64,
    /// How often each [`WakeCause`] would have woken it.
    pub wakes: [u64; WakeCause::COUNT],
    /// What would have woken it last.
    pub last_wake_cause: Option<WakeCause>,
    /// What the last sleep would have given back to the host, in bytes: an estimate, of the moment
    /// when it would have begun.
    pub last_freed_bytes: u64,
    /// The same over all sleeps: bytes times seconds.
    pub freed_byte_seconds: u64,
}

impl DryStats {
    /// A sleep of the last kind has lasted for `ns`.
    pub fn add(&mut self, ns: u64) {
        let byte_seconds = u128::from(self.last_freed_bytes) * u128::from(ns) / 1_000_000_000;
        let byte_seconds = u64::try_from(byte_seconds).unwrap_or(u64::MAX);
        self.asleep_ns = self.asleep_ns.saturating_add(ns);
        self.freed_byte_seconds = self.freed_byte_seconds.saturating_add(byte_seconds);
    }

    /// This would have woken it.
    pub fn count(&mut self, cause: WakeCause) {
        self.wakes[cause as usize] += 1;
        self.last_wake_cause = Some(cause);
    }
}

/// Counts since the sandbox began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CountStats {
    pub syscalls: u64,
    pub faults: u64,
    pub swap_ins: u64,
    pub background_pages: u64,
    pub reap_pages: u64,
    pub reap_left: u64,
    /// Processes that were killed as memory was used up.
    pub oom_kills: u64,
    pub deflates: u64,
    pub deflates_failed: u64,
    /// Deflates that nobody asked for: the container was idle.
    pub deflates_idle: u64,
    /// Deflates for which the host was short of memory.
    pub deflates_pressure: u64,
    pub wakes_by_socket: u64,
    pub wakes_by_disk: u64,
    pub wakes_by_signal: u64,
    pub wakes_by_sigcont: u64,
    pub wakes_by_exec: u64,
    /// Wakes by a timer of a program.
    pub wakes_by_timer: u64,
    /// Wakes at once, of sleeps that were forced.
    pub wakes_by_unfinished: u64,
    /// Probes that were answered asleep.
    pub probes_answered: u64,
    pub last_deflate_ns: u64,
    pub last_wake_ns: u64,
    pub worst_wake_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_saved_is_memory_times_time() {
        let mut dry = DryStats { last_freed_bytes: 3 << 30, ..DryStats::default() };
        dry.add(1_500_000_000);
        dry.add(u64::MAX);
        assert_eq!(dry.asleep_ns, u64::MAX);
        assert!(dry.freed_byte_seconds > 9 << 29);
        for (at, cause) in WakeCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at);
            dry.count(cause);
        }
        assert_eq!(dry.wakes, [1; WakeCause::COUNT]);
    }

    #[test]
    fn a_wake_belongs_to_the_class_that_its_time_is_within() {
        let bounds = SleepStats::BOUNDS_NS;
        assert!(bounds.is_sorted());
        for (class, bound) in bounds.into_iter().enumerate() {
            assert_eq!(
                [bound - 1, bound, bound + 1].map(SleepStats::class_of),
                [class, class, class + 1]
            );
        }
        assert_eq!([0, u64::MAX].map(SleepStats::class_of), [0, bounds.len()]);
    }
}
