//! Sleep that is asked for, and what keeps a container from it: `hibernate`, `wake`, `why`.

use std::time::Duration;

use anyhow::Result;
use qlib::control::{
    DryStats, HibernationState, Reply, Request, SleepCause, WakeCause, Wakefulness,
};

use super::client::{ANSWER_TIMEOUT, Connection, Refused, unexpected};
use super::info::{self, print};
use super::life;
use super::state::{Entry, Store};
use super::top::size;
use crate::store::STORE_DIR;

/// How long a container may take to become idle.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long hibernating or waking may take then: writing or reading a whole guest.
pub const SWAP_TIMEOUT: Duration = Duration::from_secs(600);

/// Puts a container to sleep once it is idle, for which it waits as long as `patience`. Then it
/// refuses and says why, or, with `force`, sleeps and is woken at once for what is left to do.
///
/// # Errors
/// When the container does not run, is not idle in time, or its pages cannot be stored.
pub fn hibernate(store: &Store, id: &str, patience: Option<Duration>, force: bool) -> Result<()> {
    let mut sleeper = None;
    life::signal(store, id, libc::SIGSTOP, |entry, _| {
        ask_to_sleep(entry, patience, force)?;
        sleeper = force.then(|| info::stats(entry, Some(ANSWER_TIMEOUT))).transpose()?;
        Ok(())
    })?;
    if sleeper.is_some_and(|stats| stats.state != HibernationState::Hibernated) {
        print(&format!("{id} was busy: it has given back what it does not use, and goes on\n"))?;
    }
    Ok(())
}

/// The same, of a container that runs.
pub(super) fn ask_to_sleep(entry: &Entry, patience: Option<Duration>, force: bool) -> Result<()> {
    // One that does not answer at all is found out sooner.
    let mut connection = Connection::open(entry, ANSWER_TIMEOUT)?;
    connection.call(&Request::Platform, &[])?;
    let request = request(&mut connection, patience.unwrap_or(PATIENCE), force, false);
    connection.order(&request).map_err(|e| {
        match e.downcast_ref::<Refused>().map(|refused| refused.errno) {
            Some(libc::EBUSY) if !force => e.context(format!(
                "container {id} was not hibernated (--timeout gives it longer, quark hibernate \
             --force gives back what memory it does not use)",
                id = entry.id
            )),
            _ => explained(e),
        }
    })
}

/// The request for a sleep, for which the connection will have the time that it may take; see
/// [`Request::Hibernate`].
pub(super) fn request(
    connection: &mut Connection,
    patience: Duration,
    force: bool,
    stay: bool,
) -> Request {
    let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    connection.set_timeout(Some(patience.saturating_add(SWAP_TIMEOUT)));
    Request::Hibernate { patience_ms, force, stay }
}

/// An error of a sleep that was asked for.
pub(super) fn explained(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<Refused>().map(|refused| refused.errno) {
        Some(libc::ENOSPC | libc::EROFS | libc::EIO) => {
            error.context(format!("hibernating, with the swap store in {STORE_DIR}"))
        }
        _ => error,
    }
}

/// Wakes a container ahead of use.
///
/// # Errors
/// When it does not run, or does not answer in time.
pub fn wake(store: &Store, id: &str, timeout: Option<Duration>) -> Result<()> {
    life::kill(store, id, libc::SIGCONT, false, timeout)
}

/// `quark why`: what keeps a container awake. Does not wake it.
///
/// # Errors
/// When it does not run, or does not answer in time.
pub fn why(store: &Store, id: &str, timeout: Option<Duration>) -> Result<()> {
    let (entry, _) = info::running(store, id)?;
    let timeout = timeout.or(Some(ANSWER_TIMEOUT));
    let stats = info::stats(&entry, timeout)?;
    let why = match info::ask(&entry, &Request::Why, timeout)? {
        Reply::Why(why) => why,
        other => return Err(unexpected(&other)),
    };
    let woken = stats.sleeps.last_wake_cause.map(|cause| (cause, stats.sleeps.in_state_ns));
    let dry = stats.dry_run.as_ref().map(told_of).unwrap_or_default();
    let explained = explain(stats.state, stats.sleeps.last_sleep_cause, &why);
    print(&format!("{explained}{}{dry}\n", last_wake(stats.state, woken)))
}

/// What a dry run has found.
fn told_of(dry: &DryStats) -> String {
    if dry.sleeps == 0 {
        return "; dry run: it would not have slept yet".to_owned();
    }
    let asleep = humantime::format_duration(Duration::from_secs(dry.asleep_ns / 1_000_000_000));
    let now = match (dry.is_asleep, dry.last_wake_cause) {
        (true, _) => "would be asleep now".to_owned(),
        (false, None) => "would be awake".to_owned(),
        (false, Some(cause)) => format!("would have been woken last by: {}", cause.name()),
    };
    let freed = size(dry.last_freed_bytes);
    let sleeps = dry.sleeps;
    format!(
        "; dry run: it would have slept {sleeps} times, for {asleep} in all, and given back \
         {freed} at the last; it {now}"
    )
}

/// What woke it last, and how long ago if it is awake.
fn last_wake(state: HibernationState, woken: Option<(WakeCause, u64)>) -> String {
    match (state, woken) {
        (_, None) => String::new(),
        (HibernationState::Hibernated, Some((cause, _))) => {
            format!("; last woken by: {}", cause.name())
        }
        (_, Some((cause, ago_ns))) => {
            let ago = humantime::format_duration(Duration::from_secs(ago_ns / 1_000_000_000));
            format!("; last woken {ago} ago by: {}", cause.name())
        }
    }
}

/// One line about a container in this state, which went to sleep last for `cause`.
fn explain(state: HibernationState, cause: Option<SleepCause>, why: &Wakefulness) -> String {
    let short = if why.on_pressure { ", or when the host is short of memory" } else { "" };
    let sleeps = match why.after_ms {
        0 => format!(
            "the last input was {} ago, and it sleeps when it is asked to (quark hibernate){short}",
            humantime::format_duration(Duration::from_millis(why.idle_ms)),
        ),
        after => format!(
            "it sleeps when it has been idle for {}{short}, and was for {}",
            humantime::format_duration(Duration::from_millis(after)),
            humantime::format_duration(Duration::from_millis(why.idle_ms)),
        ),
    };
    match (state, &why.kept_by) {
        (HibernationState::Hibernated, _) => match cause {
            Some(SleepCause::Pressure) => "asleep, as the host was short of memory".to_owned(),
            Some(SleepCause::Idle) => "asleep, as it was idle".to_owned(),
            Some(SleepCause::Asked) => "asleep, as it was asked to".to_owned(),
            None => "asleep".to_owned(),
        },
        (_, Some(reason)) => format!("awake: {reason}"),
        (_, None) => format!("awake, and idle: {sleeps}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_tells_why() {
        let why = |kept_by: Option<&str>, after_ms| Wakefulness {
            kept_by: kept_by.map(str::to_owned),
            after_ms,
            idle_ms: 1500,
            on_pressure: after_ms == 30_000,
        };
        let explain = |state, why: &Wakefulness| explain(state, Some(SleepCause::Pressure), why);
        let runs = why(Some("process 7 (python3) runs"), 0);
        assert_eq!(explain(HibernationState::Running, &runs), "awake: process 7 (python3) runs");
        let asleep = explain(HibernationState::Hibernated, &why(None, 0));
        assert_eq!(asleep, "asleep, as the host was short of memory");
        let idle = explain(HibernationState::WokenUp, &why(None, 30_000));
        let expected = "idle for 30s, or when the host is short of memory, and was for 1s 500ms";
        assert!(idle.ends_with(expected), "{idle}");
        let woken = Some((WakeCause::Socket, 90_500_000_000));
        let told = last_wake(HibernationState::WokenUp, woken);
        assert_eq!(told, "; last woken 1m 30s ago by: socket");
        assert_eq!(last_wake(HibernationState::Hibernated, woken), "; last woken by: socket");
        let mut dry = DryStats::default();
        assert!(told_of(&dry).ends_with("would not have slept yet"));
        dry = DryStats { is_asleep: true, sleeps: 2, last_freed_bytes: 3 << 20, ..dry };
        dry.asleep_ns = 61_000_000_000;
        assert!(told_of(&dry).contains("slept 2 times, for 1m 1s in all, and given back 3.0M"));
        assert!(told_of(&dry).ends_with("would be asleep now"));
        dry.is_asleep = false;
        dry.count(WakeCause::Timer);
        assert!(told_of(&dry).ends_with("woken last by: timer"));
        let told = explain(HibernationState::Warm, &why(None, 0));
        assert!(told.contains("quark hibernate"), "{told}");
    }
}
