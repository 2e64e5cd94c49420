//! When a container sleeps, as its annotations and the command line say.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use qlib::control::{SleepSpec, Timers};

/// All annotations about it begin so.
const PREFIX: &str = "io.quark.hibernate.";
/// How long it is idle before it sleeps by itself ("30s", "5m", "never").
const AFTER: &str = "io.quark.hibernate.after";
/// What timers do in a sleep: "wake" the container or "rest"; else they do the first where it
/// sleeps by itself, and the second where it was asked to.
const TIMERS: &str = "io.quark.hibernate.timers";

/// Sleep is work too: it is not worth it for less.
const SHORTEST: Duration = Duration::from_millis(100);

/// How long a container is idle before it sleeps by itself.
///
/// # Errors
/// A line that says what it may be.
pub fn parse_after(text: &str) -> Result<Option<Duration>> {
    if text == "never" {
        return Ok(None);
    }
    let after = humantime::parse_duration(text).with_context(|| {
        format!("{text:?} is no time: write for example 500ms, 30s, 5m or never")
    })?;
    if after < SHORTEST {
        bail!("{text} is too short: the shortest is {}", humantime::format_duration(SHORTEST));
    }
    Ok(Some(after))
}

/// The same for the command line.
///
/// # Errors
/// As [`parse_after`].
pub fn parse_option(text: &str) -> std::result::Result<SleepAfter, String> {
    parse_after(text).map(SleepAfter).map_err(|e| format!("{e:#}"))
}

/// A time, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepAfter(pub Option<Duration>);

/// What `annotations` say, else the option.
///
/// # Errors
/// Names the annotation.
pub fn spec(annotations: &BTreeMap<String, String>, option: SleepAfter) -> Result<SleepSpec> {
    let (mut after, mut timers) = (option.0, Timers::Usual);
    for (name, value) in annotations.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        match (name.as_str(), value.as_str()) {
            (AFTER, value) => {
                after = parse_after(value).with_context(|| format!("annotation {name}"))?;
            }
            (TIMERS, "wake") => timers = Timers::Wake,
            (TIMERS, "rest") => timers = Timers::Rest,
            (TIMERS, value) => bail!("annotation {name} is {value:?}: write \"wake\" or \"rest\""),
            _ => bail!(
                "annotation {name}: there is none of this name; there are {AFTER} and {TIMERS}"
            ),
        }
    }
    let after_ms = after.map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    Ok(SleepSpec { after_ms, timers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(annotations: &[(&str, &str)], option: Option<Duration>) -> Result<SleepSpec> {
        let own = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        spec(&own.collect(), SleepAfter(option))
    }

    #[test]
    fn a_containers_annotation_goes_before_the_option() {
        let minute = Some(Duration::from_secs(60));
        let sleeps = |after_ms, timers_wake| SleepSpec { after_ms, timers };
        assert_eq!(of(&[], None).unwrap(), sleeps(0, Timers::Usual));
        assert_eq!(
            of(&[("io.kubernetes.x", "never")], minute).unwrap(),
            sleeps(60_000, Timers::Usual)
        );
        assert_eq!(of(&[(AFTER, "1s 500ms")], minute).unwrap(), sleeps(1500, Timers::Usual));
        for (word, timers) in [("wake", Timers::Wake), ("rest", Timers::Rest)] {
            let spec = of(&[(AFTER, "never"), (TIMERS, word)], minute).unwrap();
            assert_eq!(spec, sleeps(0, timers));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (name, value, expected) in [
            (AFTER, "soon", "annotation io.quark.hibernate.after: \"soon\" is no time"),
            (AFTER, "1ms", "1ms is too short: the shortest is 100ms"),
            (TIMERS, "", "is \"\": write \"wake\" or \"rest\""),
            ("io.quark.hibernate.aftr", "30s", "there is none of this name"),
        ] {
            let error = format!("{:#}", of(&[(name, value)], None).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(parse_option("never"), Ok(SleepAfter(None)));
        assert!(parse_option("0s").is_err());
    }
}
