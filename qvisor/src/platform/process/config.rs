//! What can be chosen of the process platform.

use super::steps::Step;

/// Choices, for tests of the slower ways. The default is what this host can do best.
#[derive(Clone, Copy, Debug)]
pub struct ProcessConfig {
    /// Use SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP if there.
    pub sync_wake_up: bool,
    /// Use SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV if there.
    pub wait_killable: bool,
    /// Rely on the host to end a receive when all tasks are gone (Linux 6.11).
    pub receive_ends: bool,
    /// Virtual size of a receiver's stack, in bytes.
    pub stack_bytes: usize,
    /// Calls without entering the host.
    pub fast_calls: FastCalls,
    /// The container's memory limit in bytes, 0 for none: how many processes and threads there may
    /// be follows from it.
    pub memory_limit_bytes: u64,
    /// The limit of tasks (processes and threads) of the sandbox's cgroup, 0 for none.
    pub tasks_limit: u32,
    /// The most mappings that the host lets a process have; `None`: what it says
    /// (vm.max_map_count).
    pub max_map_count: Option<u64>,
    /// For tests.
    pub test: Test,
}

/// Faults to inject, for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Test {
    /// The step of the set-up that fails, with EIO.
    pub fail_step: Option<Step>,
    /// Stubs do not install their filter but try what they can do without.
    pub bare_stubs: bool,
}

/// Which call sites are patched, so that rows of system calls need not enter the host.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
pub enum FastCalls {
    /// Those that are used much, where the host has processors to spare.
    #[default]
    Auto,
    /// None.
    Off,
    /// All, at their first use, for tests.
    Eager,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            sync_wake_up: true,
            wait_killable: true,
            receive_ends: true,
            stack_bytes: 256 << 10,
            fast_calls: FastCalls::Auto,
            memory_limit_bytes: 0,
            tasks_limit: 0,
            test: Test { fail_step: None, bare_stubs: false },
            max_map_count: None,
        }
    }
}
