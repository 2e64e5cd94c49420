//! The steps of setting up zygote and stubs. Each is checked; one that fails ends what it was part of and is reported by name.

use std::fmt;
use std::io;

/// A step of the set-up, in the order in which they are made.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The zygote dies with the sandbox process (PR_SET_PDEATHSIG).
    Pdeathsig = 1,
    /// It has a session of its own.
    Session,
    /// It and its stubs gain no privilege.
    NoNewPrivs,
    /// Its name.
    Name,
    /// No core dumps (RLIMIT_CORE).
    NoCore,
    /// The vDSO goes to its place.
    MoveVdso,
    /// The sandbox's memory below the stub region goes.
    UnmapLow,
    /// The sandbox's memory above the stub region goes.
    UnmapHigh,
    /// What signals do.
    Signals,
    /// All signals blocked until guest code runs.
    SignalMask,
    /// The first thread's signal stack.
    SignalStack,
    /// A stub dies with the sandbox process.
    StubPdeathsig,
    /// The slots of its threads are mapped.
    StubSlots,
    /// The zygote's control page is unmapped.
    StubUnmap,
    /// The seccomp filter is installed.
    StubFilter,
}

impl Step {
    /// All, in their order.
    pub const ALL: [Step; 15] = [
        Step::Pdeathsig,
        Step::Session,
        Step::NoNewPrivs,
        Step::Name,
        Step::NoCore,
        Step::MoveVdso,
        Step::UnmapLow,
        Step::UnmapHigh,
        Step::Signals,
        Step::SignalMask,
        Step::SignalStack,
        Step::StubPdeathsig,
        Step::StubSlots,
        Step::StubUnmap,
        Step::StubFilter,
    ];

    /// Whether it belongs to the set-up of each stub, not of the zygote.
    pub fn is_of_stub(self) -> bool {
        self as u32 >= Step::StubPdeathsig as u32
    }

    fn what(self) -> &'static str {
        match self {
            Step::Pdeathsig => "die with the sandbox process",
            Step::Session => "start a session",
            Step::NoNewPrivs => "give up new privileges",
            Step::Name => "set its name",
            Step::NoCore => "forbid core dumps",
            Step::MoveVdso => "move the vDSO",
            Step::UnmapLow | Step::UnmapHigh => "unmap the sandbox's memory",
            Step::Signals => "set what signals do",
            Step::SignalMask => "block signals",
            Step::SignalStack => "set the signal stack",
            Step::StubPdeathsig => "die with the sandbox process",
            Step::StubSlots => "map the slots of its threads",
            Step::StubUnmap => "unmap the zygote's page",
            Step::StubFilter => "install the seccomp filter",
        }
    }
}

/// The step is in the bits above these of a failure, the errno in them.
pub const STEP_SHIFT: u32 = 12;

/// A step that failed, as stub code reports it: the negative of `step << STEP_SHIFT | errno`.
#[derive(Debug, thiserror::Error)]
pub struct Failure {
    step: Option<Step>,
    /// Linux errno.
    pub errno: i32,
}

impl Failure {
    /// Understands a negative report.
    pub fn of(report: i64) -> Self {
        let report = report.unsigned_abs();
        let step = Step::ALL.into_iter().find(|s| u64::from(*s as u32) == report >> STEP_SHIFT);
        Self { step, errno: (report & ((1 << STEP_SHIFT) - 1)) as i32 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.step.map_or("do an unknown step of its set-up", Step::what);
        write!(f, "it cannot {what}: {}", io::Error::from_raw_os_error(self.errno))
    }
}
