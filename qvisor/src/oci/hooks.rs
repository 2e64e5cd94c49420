//! Hooks: programs of the host that are called at steps of a container's life, with its state on
//! standard input.

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use oci_spec::runtime::{Hook, Hooks};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::AsFd;

/// Refuses malformed hooks before anything is made.
///
/// # Errors
/// When a path is not absolute or a timeout not positive.
pub fn check(hooks: &Hooks) -> Result<()> {
    #[allow(deprecated)]
    let all = [
        hooks.prestart(),
        hooks.create_runtime(),
        hooks.create_container(),
        hooks.poststart(),
        hooks.poststop(),
    ];
    for hook in all.into_iter().flatten().flatten() {
        if !hook.path().is_absolute() {
            bail!("hook {} must have an absolute path", hook.path().display());
        }
        if hook.timeout().is_some_and(|t| t <= 0) {
            bail!("hook {}: its timeout must be positive", hook.path().display());
        }
    }
    Ok(())
}

/// The directory in which hooks run: the bundle's.
fn bundle(state: &serde_json::Value) -> Option<&Path> {
    state["bundle"].as_str().map(Path::new)
}

/// Calls `hooks` one after another with `state` on their standard input, in the bundle's directory.
/// `step` is their name in messages.
///
/// # Errors
/// With the first that fails, and what it wrote to standard error.
pub fn run(step: &str, hooks: Option<&Vec<Hook>>, state: &serde_json::Value) -> Result<()> {
    run_in(bundle(state), step, hooks, state)
}

/// As [`run`], in the directory `dir`.
///
/// # Errors
/// As there.
pub fn run_in(
    dir: Option<&Path>,
    step: &str,
    hooks: Option<&Vec<Hook>>,
    state: &serde_json::Value,
) -> Result<()> {
    for hook in hooks.into_iter().flatten() {
        one(hook, dir, state).with_context(|| format!("{step} hook {}", hook.path().display()))?;
    }
    Ok(())
}

/// As [`run`], for steps whose failure must not stop anything: it is logged, and the next one is
/// called.
pub fn run_and_log(step: &str, hooks: Option<&Vec<Hook>>, state: &serde_json::Value) {
    for hook in hooks.into_iter().flatten() {
        if let Err(e) = one(hook, bundle(state), state) {
            tracing::warn!("{step} hook {}: {e:#}", hook.path().display());
        }
    }
}

fn one(hook: &Hook, dir: Option<&Path>, state: &serde_json::Value) -> Result<()> {
    let mut command = Command::new(hook.path());
    if let Some((name, args)) = hook.args().as_deref().and_then(<[String]>::split_first) {
        command.arg0(name).args(args);
    }
    // As runc: it inherits the caller's when there is none.
    if let Some(env) = hook.env() {
        command.env_clear();
        command.envs(env.iter().filter_map(|e| e.split_once('=')));
    }
    // A bundle may be gone when the container is.
    if let Some(dir) = dir.filter(|d| d.is_dir()) {
        command.current_dir(dir);
    }
    // Its standard error goes to a file without a name: a pipe would have to be read while it runs.
    let mut errors = tempfile()?;
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(errors.try_clone()?);
    let mut child = command.spawn().context("starting it")?;
    if let Some(mut input) = child.stdin.take() {
        // A hook need not read its input.
        input.write_all(state.to_string().as_bytes()).ok();
    }
    let timeout = hook.timeout().and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs);
    let status = wait(&mut child, timeout)?;
    if status.success() {
        return Ok(());
    }
    use std::io::{Read, Seek};
    let mut text = String::new();
    errors.rewind()?;
    errors.take(4096).read_to_string(&mut text).ok();
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    };
    match text.trim() {
        "" => bail!("failed with {how}, and wrote nothing to standard error"),
        said => bail!("failed with {how}: {}", said.replace('\n', "; ")),
    }
}

/// Waits for `child`, and kills it when it takes longer than `timeout`.
fn wait(child: &mut Child, timeout: Option<Duration>) -> Result<ExitStatus> {
    let Some(timeout) = timeout else { return Ok(child.wait()?) };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process id")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
    if poll(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], limit)? == 0 {
        child.kill()?;
        child.wait()?;
        bail!("did not end within {} s and was killed", timeout.as_secs());
    }
    Ok(child.wait()?)
}

fn tempfile() -> Result<std::fs::File> {
    Ok(crate::sys::memfd(c"hook-stderr", 0, false)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(json: &str) -> Vec<Hook> {
        vec![serde_json::from_str(json).unwrap()]
    }

    #[test]
    fn a_hook_reads_the_state_and_its_failure_is_told() {
        let state = serde_json::json!({"id": "abc"});
        let good = hook(
            r#"{"path":"/bin/sh","args":["sh","-c","grep -q abc && test \"$A\" = b"],"env":["A=b"]}"#,
        );
        run("prestart", Some(&good), &state).unwrap();
        let bad = hook(r#"{"path":"/bin/sh","args":["sh","-c","echo no luck >&2; exit 3"]}"#);
        let error = format!("{:#}", run("prestart", Some(&bad), &state).unwrap_err());
        assert!(
            error.contains("prestart hook /bin/sh")
                && error.contains("no luck")
                && error.contains('3'),
            "{error}"
        );
    }

    #[test]
    fn a_hook_that_hangs_is_killed() {
        let slow = hook(r#"{"path":"/bin/sleep","args":["sleep","60"],"timeout":1}"#);
        let error =
            format!("{:#}", run("poststop", Some(&slow), &serde_json::Value::Null).unwrap_err());
        assert!(error.contains("within 1 s"), "{error}");
    }

    #[test]
    fn a_hook_that_fails_without_a_word_is_told() {
        let silent = hook(r#"{"path":"/bin/false"}"#);
        let error = run("poststart", Some(&silent), &serde_json::Value::Null).unwrap_err();
        assert!(format!("{error:#}").ends_with("exit code 1, and wrote nothing to standard error"));
    }
}
