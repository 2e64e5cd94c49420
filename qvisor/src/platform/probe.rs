//! What this host offers to a platform, for `quark doctor`.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use qlib::platform::*;
use qlib::{Gpa, Va};

use super::kvm::probe::{CALL_LIMIT_NS, INSTRUCTION_LIMIT_NS, Report};
use super::process::{Missing, ProcessConfig, ProcessPlatform};
use crate::sandbox::memory::GuestPhys;
use crate::sys;

/// One thing a platform can use.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Short name.
    pub name: &'static str,
    /// True if it works here.
    pub available: bool,
    /// What was seen, and what follows from it.
    pub detail: String,
}

/// Looks at this host; `kvm` is what a probe of KVM found. Runs a tiny guest on the process
/// platform, so it takes some milliseconds; call it on a thread that lives on.
pub fn findings(kvm: &Report) -> Vec<Finding> {
    let mut out = Vec::new();
    let (major, minor) = sys::host_release();
    let mut add = |name, available, detail: String| out.push(Finding { name, available, detail });
    add("linux", (major, minor) >= (5, 15), format!("{major}.{minor}; 5.15 or later is needed"));
    let trial = try_process();
    match &trial {
        Ok(trial) => add(
            "process platform",
            true,
            format!(
                "a guest ran; a system call's round trip takes {:.1} us",
                trial.call_ns as f64 / 1000.0
            ),
        ),
        Err(e) => add("process platform", false, format!("{e:#}")),
    }
    if let Ok(trial) = &trial {
        let whole = trial.missing == Missing::default();
        let effect = match whole {
            true => {
                "stubs have namespaces, an empty root and an unprivileged user of their own".into()
            }
            false => format!("a stub cannot {}; {}", trial.missing, trial.missing.advice()),
        };
        add("stub isolation", whole, effect);
    }
    let landlock = crate::sandbox::confine::landlock::is_there();
    let effect = if landlock {
        "a sandbox opens no file but those of its root and volumes, by whatever descriptor"
    } else {
        "not in this kernel (Linux 5.19 or later, with landlock among its security modules): an \
        empty root has to do"
    };
    add("landlock", landlock, effect.into());
    let notify = sys::filter_flag_known(0);
    add("seccomp notify", notify, "user notification: how stubs reach the guest kernel".into());
    let killable = sys::filter_flag_known(sys::FILTER_WAIT_KILLABLE);
    let effect = if killable {
        "a stop leaves waiting calls whole"
    } else {
        "older than 5.19: stopped calls are made again"
    };
    add("seccomp killable wait", killable, effect.into());
    let sync = trial.as_ref().is_ok_and(|t| t.sync_wake_up);
    let effect = if sync {
        "a call and its answer stay on one core"
    } else {
        "older than 6.6: calls cost up to ten times more"
    };
    add("seccomp sync wake-up", sync, effect.into());
    let why_not = super::process::why_not_fast(sync);
    let effect =
        why_not.unwrap_or("rows of system calls from patched call sites need not enter the host");
    add("fast calls", why_not.is_none(), effect.into());
    let ends = sys::receive_ends();
    let effect = if ends {
        "receivers learn of a stub's end"
    } else {
        "older than 6.11: receivers poll before each call, with a descriptor more for each process"
    };
    add("seccomp listener end", ends, effect.into());
    add(
        "fsgsbase",
        sys::has_fsgsbase(),
        "user-mode segment bases; the process platform needs them".into(),
    );
    let xsave = std::is_x86_feature_detected!("xsave");
    add("xsave", xsave, "vector state in signal frames; the process platform needs it".into());
    out.extend(kvm_findings(kvm));
    out.push(match super::choose_with(kvm) {
        Ok(choice) => Finding {
            name: "auto",
            available: true,
            detail: format!("takes {}: {}", choice.kind, choice.why),
        },
        Err(e) => Finding { name: "auto", available: false, detail: format!("{e:#}") },
    });
    out
}

/// What a probe of KVM found, a line for each thing.
fn kvm_findings(report: &Report) -> Vec<Finding> {
    let mut out = Vec::new();
    let mut add = |name, available, detail: String| out.push(Finding { name, available, detail });
    let took = format!("the probe took {:.1} ms", report.took_us as f64 / 1000.0);
    match &report.refusal {
        None => add("kvm platform", true, format!("a guest ran in ring 0 and ring 3; {took}")),
        Some(reason) => add("kvm platform", false, format!("{reason}; {took}")),
    }
    if let Some(ps) = report.instruction_ps {
        let fast = ps <= INSTRUCTION_LIMIT_NS * 1000;
        let limit = format!("at most {INSTRUCTION_LIMIT_NS} ns are accepted");
        add("kvm ring 0", fast, format!("{:.2} ns an instruction; {limit}", ps as f64 / 1000.0));
    }
    if let Some(ns) = report.call_ns {
        let limit = format!("at most {CALL_LIMIT_NS} ns are accepted");
        add(
            "kvm system call",
            ns <= CALL_LIMIT_NS,
            format!("{ns} ns from ring 3 to ring 0 and back; {limit}"),
        );
    }
    if let Some(ns) = report.exit_ns {
        add("kvm exit", true, format!("{:.1} us to the host and back", ns as f64 / 1000.0));
    }
    for missing in &report.inventory.missing {
        add("kvm needs", false, missing.clone());
    }
    for (names, available, effect) in [
        (&report.inventory.present, true, "used where they help"),
        (&report.inventory.absent, false, "not needed"),
    ] {
        if !names.is_empty() {
            add("kvm features", available, format!("{}; {effect}", names.join(", ")));
        }
    }
    out
}

struct Trial {
    call_ns: u64,
    missing: Missing,
    sync_wake_up: bool,
}

struct OnePage(Arc<OwnedFd>);

impl GuestPhys for OnePage {
    fn host_backing(&self, gpa: Gpa, len: u64) -> Option<(Arc<OwnedFd>, u64)> {
        (gpa.0 == 0 && len == 0x1000).then(|| (self.0.clone(), 0))
    }

    fn is_for_users(&self, _gpa: Gpa, _len: u64) -> bool {
        true
    }
}

/// Runs `1: mov $0x123, %eax; syscall; jmp 1b` for a moment.
fn try_process() -> Result<Trial> {
    const CODE: [u8; 9] = [0xb8, 0x23, 0x01, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];
    const ROUNDS: u32 = 2000;
    const AT: Va = Va(0x40_0000);
    let page = std::fs::File::from(sys::memfd(c"quark-probe", 0x1000, true).context("memfd")?);
    page.write_all_at(&CODE, 0).context("write guest code")?;
    let platform =
        ProcessPlatform::new(Arc::new(OnePage(Arc::new(page.into()))), ProcessConfig::default())?;
    let platform = Arc::new(platform);
    let (sender, events) = channel();
    // The kernel of this guest answers at once, on the receiver's thread, and reports every so many
    // calls.
    let answerer = Arc::downgrade(&platform);
    let resume = |kind, regs| Resume {
        kind,
        op_count: 0,
        value: 0,
        ops: std::ptr::null(),
        root: Gpa(0),
        regs,
    };
    let (thread_sender, thread_receiver) = std::sync::mpsc::sync_channel(1);
    let state = std::sync::Mutex::new((thread_receiver, 0u64, 0u32));
    platform.set_dispatch(Box::new(move |event| {
        let Ok(mut state) = state.lock() else { return };
        if let Ok(thread) = state.0.try_recv() {
            state.1 = thread;
        }
        let call =
            event.kind == EVENT_TRAP && event.trap.kind == TRAP_SYSCALL && event.trap.nr == 0x123;
        state.2 += 1;
        if !call || state.2 % ROUNDS == 1 {
            let _ = sender.send((*event, Instant::now()));
        }
        if call && let Some(platform) = answerer.upgrade() {
            platform.thread_resume(state.1, &resume(RESUME_RETURN, UserRegs::default()), &[]);
        }
    }));
    let errno = std::io::Error::from_raw_os_error;
    let space = platform.space_new().map_err(errno).context("make an address space")?;
    let thread = platform.thread_new(space, 0, 1).map_err(errno).context("make a thread")?;
    thread_sender.send(thread)?;
    let regs = UserRegs { rip: AT.0, rflags: 0x202, ..UserRegs::default() };
    let op = DeferredOp { kind: OP_MAP, prot: 5, va: AT, len: 0x1000, gpa: Gpa(0) };
    platform.thread_resume(thread, &resume(RESUME_REGS, regs), &[op]);
    let patience = Duration::from_secs(10);
    let (first, begin) = events.recv_timeout(patience).context("the guest did not run")?;
    let (second, end) = events.recv_timeout(patience).context("the guest stopped running")?;
    for event in [first, second] {
        if event.trap.kind != TRAP_SYSCALL {
            bail!("the guest ended with trap {}, signal {}", event.trap.kind, event.trap.signo);
        }
    }
    let call_ns = end.duration_since(begin).as_nanos() as u64 / u64::from(ROUNDS);
    Ok(Trial { call_ns, missing: platform.missing(), sync_wake_up: platform.wakes_synchronously() })
}

#[cfg(test)]
mod tests {
    use super::super::kvm::probe::needs::Inventory;
    use super::*;

    #[test]
    fn every_missing_thing_of_kvm_has_a_line() {
        let inventory = Inventory {
            missing: vec!["KVM_CAP_A: for this".into(), "KVM_CAP_B: for that".into()],
            present: vec!["SMEP".into()],
            absent: vec![],
        };
        let report = Report {
            refusal: Some("slow".into()),
            exit_ns: Some(25_600),
            instruction_ps: Some(800_500),
            call_ns: None,
            took_us: 5300,
            inventory,
        };
        let lines: Vec<_> =
            kvm_findings(&report).into_iter().map(|f| (f.name, f.available, f.detail)).collect();
        let want = [
            ("kvm platform", false, "slow; the probe took 5.3 ms"),
            ("kvm ring 0", false, "800.50 ns an instruction; at most 150 ns are accepted"),
            ("kvm exit", true, "25.6 us to the host and back"),
            ("kvm needs", false, "KVM_CAP_A: for this"),
            ("kvm needs", false, "KVM_CAP_B: for that"),
            ("kvm features", true, "SMEP; used where they help"),
        ];
        assert_eq!(lines, want.map(|(n, a, d)| (n, a, d.to_owned())));
    }

    #[test]
    fn this_host_runs_the_process_platform() {
        let findings = findings(&crate::platform::kvm::probe::probe());
        let process = findings.iter().find(|f| f.name == "process platform").expect("a verdict");
        assert!(process.available, "{process:?}");
        for finding in findings {
            println!("{:24} {:5} {}", finding.name, finding.available, finding.detail);
        }
    }
}
