//! How guest code gets to run. A platform supplies the `space_*`, `thread_*` and `fpstate_*`
//! entries of [`qlib::platform::PlatformOps`] and calls the kernel's dispatch function with what
//! user threads do.
//!
//! `unsafe` is at home here: raw system calls, memory shared with stub processes, functions called
//! from the kernel image.

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::sandbox::platform::Platform;
use kvm::KvmConfig;
use kvm::probe::cache::{Cache, Key};
use process::ProcessConfig;

#[allow(unsafe_code)]
pub mod kvm;
pub mod probe;
#[allow(unsafe_code)]
pub mod process;

/// The platforms by name, as in `--platform=`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlatformKind {
    /// Stub processes of the host.
    #[default]
    Process,
    /// A KVM virtual machine.
    Kvm,
}

impl fmt::Display for PlatformKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Kvm => "kvm",
        })
    }
}

/// The platform of that name; `process` says how the process platform works, if it is that one.
pub fn make(kind: PlatformKind, process: ProcessConfig) -> Box<dyn Platform> {
    match kind {
        PlatformKind::Process => Box::new(process),
        PlatformKind::Kvm => Box::new(KvmConfig),
    }
}

/// The platform of a new sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub kind: PlatformKind,
    /// Why, in one line.
    pub why: String,
}

/// Chooses the platform of a new sandbox: the one that is wanted, or (`None`) the strongest one
/// that works on this host. What this host can do is found out once and kept in `dir` until host or
/// program change.
///
/// # Errors
/// When the kvm platform is wanted and does not work here. There is no other instead.
pub fn choose(wanted: Option<PlatformKind>, dir: &Path) -> Result<Choice> {
    decide(wanted, || kept_verdict(dir))
}

/// As [`choose`], for `auto`, with a fresh verdict on kvm.
pub fn choose_with(kvm: &kvm::probe::Report) -> Result<Choice> {
    decide(None, || kvm.refusal.clone())
}

/// `refusal` says why kvm does not work here, and may take a while.
fn decide(
    wanted: Option<PlatformKind>,
    refusal: impl FnOnce() -> Option<String>,
) -> Result<Choice> {
    let choice = |kind, why: String| Ok(Choice { kind, why });
    match wanted {
        Some(PlatformKind::Process) => choice(PlatformKind::Process, "it was asked for".into()),
        Some(PlatformKind::Kvm) => match refusal() {
            Some(reason) => bail!("--platform=kvm does not work on this host: {reason}"),
            None => choice(PlatformKind::Kvm, "it was asked for".into()),
        },
        None => match refusal() {
            Some(reason) => {
                choice(PlatformKind::Process, format!("kvm does not work here: {reason}"))
            }
            None => choice(PlatformKind::Kvm, "kvm works here".into()),
        },
    }
}

/// The verdict on kvm, kept in `dir`.
fn verdict_cache(dir: &Path) -> Cache {
    Cache::new(dir, rustix::process::geteuid().as_raw())
}

/// Why kvm does not work here, from the last probe of this boot if there was one.
fn kept_verdict(dir: &Path) -> Option<String> {
    let kept = Key::current().and_then(|key| verdict_cache(dir).get(&key));
    kept.unwrap_or_else(|| probe_kvm(dir)).refusal
}

/// Finds out what KVM can do here, and keeps the verdict in `dir`.
pub fn probe_kvm(dir: &Path) -> kvm::probe::Report {
    let report = kvm::probe::probe();
    // Without /dev/kvm there is no key, and nothing that would take time either.
    if let Some(Err(e)) = Key::current().map(|key| verdict_cache(dir).put(&key, &report)) {
        tracing::debug!("the verdict on kvm is not kept: {e}");
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_taken_or_refused() {
        let works = || None;
        let fails = || Some("no".to_owned());
        let kind = |choice: Result<Choice>| choice.map(|c| c.kind).map_err(|e| e.to_string());
        let never = || -> Option<String> { panic!("it takes no probe") };
        assert_eq!(kind(decide(Some(PlatformKind::Process), never)), Ok(PlatformKind::Process));
        assert_eq!(kind(decide(Some(PlatformKind::Kvm), works)), Ok(PlatformKind::Kvm));
        let refused = kind(decide(Some(PlatformKind::Kvm), fails));
        assert_eq!(refused, Err("--platform=kvm does not work on this host: no".into()));
        assert_eq!(kind(decide(None, works)), Ok(PlatformKind::Kvm));
        let fallback = decide(None, fails).unwrap();
        assert_eq!(
            (fallback.kind, fallback.why.as_str()),
            (PlatformKind::Process, "kvm does not work here: no")
        );
    }

    #[test]
    fn names_are_those_of_the_option() {
        for kind in [PlatformKind::Process, PlatformKind::Kvm] {
            assert_eq!(serde_json::to_value(kind).unwrap(), serde_json::json!(kind.to_string()));
        }
    }
}
