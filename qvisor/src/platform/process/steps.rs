//! The steps of setting up zygote and stubs. Each is checked; one that fails ends what it was part
//! of and is reported by name. Some are worth less than a container that runs: where the host
//! refuses them, the set-up goes on and says what is missing.

use std::fmt;
use std::io;

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident: $what:literal,)+) => {
        /// A step of the set-up, in the order in which they are made.
        #[repr(u32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            /// None.
            None = 0,
            $($(#[$doc])* $name,)+
        }

        impl Step {
            /// All, in their order.
            pub const ALL: &[Step] = &[$(Step::$name,)+];

            /// What it does, as in "it cannot …".
            pub fn what(self) -> &'static str {
                match self {
                    Step::None => "be set up",
                    $(Step::$name => $what,)+
                }
            }
        }
    };
}

steps! {
    /// No supplementary groups.
    Groups: "leave its groups",
    /// A user namespace.
    UserNamespace: "have a user namespace of its own",
    /// A mount namespace.
    MountNamespace: "have a mount namespace of its own",
    /// A network namespace.
    NetworkNamespace: "have a network namespace of its own",
    /// An IPC namespace.
    IpcNamespace: "have an IPC namespace of its own",
    /// A UTS namespace.
    UtsNamespace: "have a UTS namespace of its own",
    /// A cgroup namespace.
    CgroupNamespace: "have a cgroup namespace of its own",
    /// A PID namespace, in which the zygote is not init.
    PidNamespace: "have a PID namespace of its own",
    /// An empty, read-only root directory.
    Root: "have an empty root directory",
    /// The user namespace's ids are mapped.
    IdMap: "have its ids mapped",
    /// No capability in the bounding set.
    BoundingSet: "empty its bounding set",
    /// Locked securebits.
    Securebits: "lock its securebits",
    /// An unprivileged user and group.
    Ids: "become an unprivileged user",
    /// No capability in any other set.
    Capabilities: "drop its capabilities",
    /// It and its stubs gain no privilege.
    NoNewPrivs: "give up new privileges",
    /// No core dumps (RLIMIT_CORE).
    NoCore: "forbid core dumps",
    /// A session of its own.
    Session: "start a session",
    /// Its name.
    Name: "set its name",
    /// The sandbox process may look at it (PR_SET_DUMPABLE).
    Dumpable: "be looked at by the sandbox process",
    /// A descriptor table with guest RAM and the zygote's socket only.
    Descriptors: "have a descriptor table of its own",
    /// The vDSO goes to its place.
    MoveVdso: "move the vDSO",
    /// The sandbox's memory below the stub region goes.
    UnmapLow: "unmap the sandbox's memory",
    /// The sandbox's memory above the stub region goes.
    UnmapHigh: "unmap the sandbox's memory",
    /// What signals do.
    Signals: "set what signals do",
    /// All signals blocked until guest code runs.
    SignalMask: "block signals",
    /// The first thread's signal stack.
    SignalStack: "set the signal stack",
    /// The filter under which no stub does anything unless its own filter asks the sandbox process.
    StaticFilter: "install its seccomp filter",
    /// The init process of the PID namespace.
    Init: "make the init process of its PID namespace",
    /// The zygote itself.
    Clone: "make the zygote",
    /// The zygote dies with the sandbox process (PR_SET_PDEATHSIG).
    Pdeathsig: "die with the sandbox process",
    /// A stub dies with the sandbox process.
    StubPdeathsig: "die with the sandbox process",
    /// The slots of its threads are mapped.
    StubSlots: "map the slots of its threads",
    /// The zygote's control page is unmapped.
    StubUnmap: "unmap the zygote's page",
    /// The seccomp filter is installed.
    StubFilter: "install the seccomp filter",
}

impl Step {
    /// True if it belongs to the set-up of each stub, not of the zygote.
    pub fn is_of_stub(self) -> bool {
        self as u32 >= Step::StubPdeathsig as u32
    }

    /// True if a host may refuse it.
    pub fn may_be_missing(self) -> bool {
        self as u32 <= Step::Ids as u32
    }
}

/// Steps that the host refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing(pub u64);

impl Missing {
    /// Adds one.
    pub fn add(&mut self, step: Step) {
        self.0 |= 1 << step as u32;
    }

    /// True if `step` is one of them.
    pub fn has(self, step: Step) -> bool {
        self.0 >> step as u32 & 1 == 1
    }

    /// True of what every ordinary user's stubs lack who has no range of ids.
    pub fn is_usual(self) -> bool {
        self == Self(1 << Step::Groups as u32)
    }

    /// What would help.
    pub fn advice(self) -> &'static str {
        if self.is_usual() {
            "ranges in /etc/subuid and /etc/subgid, newuidmap and newgidmap (Debian: uidmap) let it"
        } else {
            "look at what quark itself is confined by: a seccomp profile, sysctls of namespaces"
        }
    }

    /// Which.
    pub fn steps(self) -> impl Iterator<Item = Step> {
        Step::ALL.iter().copied().filter(move |s| self.has(*s))
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { "; " }, step.what())?;
        }
        Ok(())
    }
}

/// The step is in the bits above these of a failure, the errno in them.
pub const STEP_SHIFT: u32 = 12;

/// A step that failed, as it is reported: the negative of `step << STEP_SHIFT | errno`.
#[derive(Debug, thiserror::Error)]
pub struct Failure {
    step: Step,
    /// Linux errno.
    pub errno: i32,
}

impl Failure {
    /// Understands a negative report.
    pub fn of(report: i64) -> Self {
        let report = report.unsigned_abs();
        let step = Step::ALL.iter().copied().find(|s| u64::from(*s as u32) == report >> STEP_SHIFT);
        Self { step: step.unwrap_or(Step::None), errno: (report & ((1 << STEP_SHIFT) - 1)) as i32 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it cannot {}: {}", self.step.what(), io::Error::from_raw_os_error(self.errno))
    }
}
