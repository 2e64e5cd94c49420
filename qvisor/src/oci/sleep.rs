//! When a container sleeps, as its annotations and the command line say.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, Args};
use ipnet::IpNet;
use qlib::control::{AnswerSpec, Network, SleepSpec, Timers};

use super::annotation;
use super::pressure::{self, OnPressure, Trigger};

/// All annotations about it begin so.
const PREFIX: &str = "io.quark.hibernate.";
/// How long it is idle before it sleeps by itself ("30s", "5m", "never").
const AFTER: &str = "io.quark.hibernate.after";
/// What timers do in a sleep: "wake" the container or "rest"; else they do the first where it
/// sleeps by itself, and the second where it was asked to.
const TIMERS: &str = "io.quark.hibernate.timers";
/// Who comes from these addresses or networks does not count as use of the container: addresses
/// with commas between.
const IGNORE_FROM: &str = "io.quark.hibernate.ignore-from";
/// An exec with this command line does not either; a line each, "*" at the end stands for anything.
const IGNORE_EXEC: &str = "io.quark.hibernate.ignore-exec";
/// What of them is answered asleep, without a wake: "tcp" (connections that say nothing), paths of
/// HTTP, with commas between.
const ANSWER_PROBES: &str = "io.quark.hibernate.answer-probes";
/// It does not sleep by itself, but is told of as if it did: "true" or "false".
const DRY_RUN: &str = "io.quark.hibernate.dry-run";

/// It goes to sleep when the host is short of memory: "true", "false", or a trigger as the kernel
/// has them ("some 200000 2000000").
const ON_PRESSURE: &str = "io.quark.hibernate.on-pressure";

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

/// What the command line says of sleep, in the annotations' words: Docker before 24 can give none.
#[derive(Clone, Debug, Args)]
pub struct SleepOptions {
    /// Put the container that is made to sleep each time it has been idle for so long ("500ms",
    /// "30s", "5m"); its annotation io.quark.hibernate.after goes before this.
    #[arg(long, value_parser = parse_option, value_name = "TIME", default_value = "never")]
    pub hibernate_after: SleepAfter,
    /// Do not put it to sleep by itself, but tell when and for how long it would have slept, what
    /// would have woken it, and what that would have saved; its annotation
    /// io.quark.hibernate.dry-run goes before this.
    #[arg(long)]
    pub hibernate_dry_run: bool,
    /// Put it to sleep when the host is short of memory and it is idle, those first that were used
    /// longest ago. What counts as short may be given as a trigger of PSI ("some 200000 2000000");
    /// its annotation io.quark.hibernate.on-pressure goes before this.
    #[arg(
        long,
        value_parser = pressure::parse_option,
        value_name = "TRIGGER",
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        hide_default_value = true
    )]
    pub hibernate_on_pressure: OnPressure,
    /// What timers do in a sleep: they "wake" the container, or "rest"; its annotation
    /// io.quark.hibernate.timers goes before this.
    #[arg(long, value_parser = PossibleValuesParser::new(["wake", "rest"]), value_name = "WHAT")]
    pub hibernate_timers: Option<String>,
    /// Addresses and networks with commas between: who comes from there does not count as use of
    /// the container; its annotation io.quark.hibernate.ignore-from goes before this.
    #[arg(long, value_parser = checked_networks, value_name = "ADDRESSES")]
    pub hibernate_ignore_from: Option<String>,
    /// Answer these probes of theirs asleep, without waking it: "tcp" for connections that say
    /// nothing, and paths of HTTP ("/healthz") that it has answered while it was awake, with commas
    /// between; its annotation io.quark.hibernate.answer-probes goes before this.
    #[arg(long, value_parser = checked_answers, value_name = "PROBES")]
    pub hibernate_answer_probes: Option<String>,
    /// An exec with this command line ("*" at the end stands for anything) does not count as use
    /// either; may be given more than once; its annotation io.quark.hibernate.ignore-exec goes
    /// before this.
    #[arg(long, action = ArgAction::Append, value_name = "COMMAND")]
    pub hibernate_ignore_exec: Vec<String>,
}

fn checked_networks(text: &str) -> std::result::Result<String, String> {
    networks(text).map(|_| text.to_owned()).map_err(|e| format!("{e:#}"))
}

fn checked_answers(text: &str) -> std::result::Result<String, String> {
    answers(text).map(|_| text.to_owned()).map_err(|e| format!("{e:#}"))
}

impl SleepOptions {
    /// The annotations that say the same, but for the time.
    fn annotations(&self) -> BTreeMap<String, String> {
        let exec = &self.hibernate_ignore_exec;
        let exec = (!exec.is_empty()).then(|| exec.join("\n"));
        let given = [
            (TIMERS, self.hibernate_timers.clone()),
            (IGNORE_FROM, self.hibernate_ignore_from.clone()),
            (ANSWER_PROBES, self.hibernate_answer_probes.clone()),
            (IGNORE_EXEC, exec),
        ];
        given.into_iter().filter_map(|(name, v)| Some((name.to_owned(), v?))).collect()
    }
}

/// What `annotations` say, else the options; and when memory counts as short, for those that sleep
/// then.
///
/// # Errors
/// Names the annotation.
pub fn spec(
    annotations: &BTreeMap<String, String>,
    options: &SleepOptions,
) -> Result<(SleepSpec, Option<Trigger>)> {
    let mut after = options.hibernate_after.0;
    let mut trigger = options.hibernate_on_pressure.0;
    let mut spec = SleepSpec { dry_run: options.hibernate_dry_run, ..SleepSpec::default() };
    let mut all = options.annotations();
    all.extend(annotations.iter().map(|(name, value)| (name.clone(), value.clone())));
    let annotations = all;
    for (name, value) in annotations.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        let about = || format!("annotation {name}");
        match (name.as_str(), value.as_str()) {
            (AFTER, value) => after = parse_after(value).with_context(about)?,
            (ON_PRESSURE, value) => trigger = Trigger::parse(value).with_context(about)?,
            (TIMERS, "wake") => spec.timers = Timers::Wake,
            (TIMERS, "rest") => spec.timers = Timers::Rest,
            (TIMERS, value) => bail!("annotation {name} is {value:?}: write \"wake\" or \"rest\""),
            (IGNORE_FROM, value) => spec.ignore_from = networks(value).with_context(about)?,
            (ANSWER_PROBES, value) => spec.answer = answers(value).with_context(about)?,
            (IGNORE_EXEC, value) => {
                let lines = value.lines().filter(|line| !line.is_empty());
                spec.ignore_exec = lines.map(str::to_owned).collect();
            }
            (DRY_RUN, value) => spec.dry_run = annotation::switch(name, value)?,
            _ => bail!(
                "annotation {name}: there is none of this name; there are {AFTER}, \
                 {ON_PRESSURE}, {TIMERS}, {DRY_RUN}, {IGNORE_FROM}, {ANSWER_PROBES} and \
                 {IGNORE_EXEC}"
            ),
        }
    }
    let never = after.is_none() && trigger.is_none();
    if never && annotations.get(DRY_RUN).is_some_and(|value| value == "true") {
        bail!(
            "annotation {DRY_RUN}: the container does not sleep by itself: add {AFTER}, or \
             --hibernate-after, with the time that is to be tried"
        );
    }
    spec.after_ms = after.map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    if spec.answer != AnswerSpec::default() && spec.ignore_from.is_empty() {
        bail!(
            "annotation {ANSWER_PROBES}, or --hibernate-answer-probes: it is not known whose probes \
             these are: add {IGNORE_FROM}, or --hibernate-ignore-from, with their addresses"
        );
    }
    spec.on_pressure = trigger.is_some();
    Ok((spec, trigger))
}

/// What is answered asleep.
fn answers(text: &str) -> Result<AnswerSpec> {
    /// Paths, and the bytes of each.
    const MOST: [usize; 2] = [4, 256];
    let mut spec = AnswerSpec::default();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let is_path = word.starts_with('/') && word.bytes().all(|byte| byte.is_ascii_graphic());
        match word {
            "tcp" => spec.tcp = true,
            path if is_path && path.len() <= MOST[1] => spec.paths.push(path.to_owned()),
            _ => bail!("{word:?} is no probe: write tcp, or a path of HTTP such as /healthz"),
        }
    }
    if spec.paths.len() > MOST[0] {
        bail!("{text:?} has more than {} paths", MOST[0]);
    }
    Ok(spec)
}

/// Networks ("10.0.0.0/8") and addresses, with commas between.
fn networks(text: &str) -> Result<Vec<Network>> {
    let parse = |word: &str| {
        let network = word.parse().or_else(|_| word.parse::<IpAddr>().map(IpNet::from));
        let network = network.map_err(|_| {
            anyhow!("{word:?} is no address or network: write for example 10.0.0.1 or fd00::/8")
        })?;
        Ok(match network {
            IpNet::V4(net) => {
                let address = net.addr().to_ipv6_mapped().octets();
                Network { address, prefix: 96 + net.prefix_len() }
            }
            IpNet::V6(net) => Network { address: net.addr().octets(), prefix: net.prefix_len() },
        })
    };
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(annotations: &[(&str, &str)], option: Option<Duration>) -> Result<SleepSpec> {
        let own = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let options = SleepOptions { hibernate_after: SleepAfter(option), ..none() };
        spec(&own.collect(), &options).map(|(spec, _)| spec)
    }

    fn none() -> SleepOptions {
        SleepOptions {
            hibernate_after: SleepAfter(None),
            hibernate_dry_run: false,
            hibernate_on_pressure: OnPressure(None),
            hibernate_timers: None,
            hibernate_ignore_from: None,
            hibernate_answer_probes: None,
            hibernate_ignore_exec: Vec::new(),
        }
    }

    #[test]
    fn options_stand_for_annotations_that_are_not_given() {
        let options = SleepOptions {
            hibernate_timers: Some("rest".to_owned()),
            hibernate_ignore_from: Some("10.0.0.1".to_owned()),
            hibernate_ignore_exec: vec!["a b".to_owned(), "c*".to_owned()],
            ..none()
        };
        let said = spec(&BTreeMap::new(), &options).unwrap().0;
        assert_eq!(said.timers, Timers::Rest);
        assert_eq!((said.ignore_from.len(), said.ignore_exec.len()), (1, 2));
        let own = [(TIMERS, "wake"), (IGNORE_FROM, ""), (IGNORE_EXEC, "x")];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let said = spec(&own, &options).unwrap().0;
        assert_eq!(said.timers, Timers::Wake);
        assert_eq!((said.ignore_from.len(), said.ignore_exec), (0, vec!["x".to_owned()]));
        assert!(checked_networks("10.0.0.1,nowhere").is_err());
    }

    #[test]
    fn a_containers_annotation_goes_before_the_option() {
        let minute = Some(Duration::from_secs(60));
        let sleeps = |after_ms, timers| SleepSpec { after_ms, timers, ..SleepSpec::default() };
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
    fn a_dry_run_needs_something_to_try() {
        let no_annotations = BTreeMap::new();
        let minute = SleepAfter(Some(Duration::from_secs(60)));
        let dry = SleepOptions { hibernate_dry_run: true, ..none() };
        let dry_minute = SleepOptions { hibernate_after: minute, ..dry.clone() };
        assert!(spec(&no_annotations, &dry_minute).unwrap().0.dry_run);
        // The option stands for containers that do not sleep, too.
        assert!(spec(&no_annotations, &dry).is_ok());
        assert!(of(&[(DRY_RUN, "true")], minute.0).unwrap().dry_run);
        let off = BTreeMap::from([(DRY_RUN.to_owned(), "false".to_owned())]);
        assert!(!spec(&off, &dry_minute).unwrap().0.dry_run);
        let error = of(&[(DRY_RUN, "true")], None).unwrap_err().to_string();
        assert!(error.contains("does not sleep by itself: add"), "{error}");
    }

    #[test]
    fn pressure_is_the_annotations_or_the_options() {
        let full = Trigger::parse("full 1 2000000").unwrap();
        let options = SleepOptions { hibernate_on_pressure: OnPressure(full), ..none() };
        let said = |value: Option<&str>| {
            let own = value.map(|value| (ON_PRESSURE.to_owned(), value.to_owned()));
            let (spec, trigger) = spec(&own.into_iter().collect(), &options).unwrap();
            assert_eq!(spec.on_pressure, trigger.is_some());
            trigger
        };
        assert_eq!(said(None), full);
        assert_eq!(said(Some("true")), Some(Trigger::default()));
        assert_eq!(said(Some("false")), None);
        assert!(of(&[(ON_PRESSURE, "true"), (DRY_RUN, "true")], None).unwrap().dry_run);
    }

    #[test]
    fn probes_are_told_by_address_and_command_line() {
        let spec = of(
            &[(IGNORE_FROM, "10.1.0.0/16, fd00::1"), (IGNORE_EXEC, "a b\n/bin/sh -c curl*\n")],
            None,
        );
        let spec = spec.unwrap();
        let prefixes: Vec<u8> = spec.ignore_from.iter().map(|network| network.prefix).collect();
        assert_eq!(prefixes, [96 + 16, 128]);
        let four =
            |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped().octets();
        assert!(spec.ignore_from[0].contains(four("10.1.255.3")));
        assert!(!spec.ignore_from[0].contains(four("10.2.0.1")));
        let is_check = |line: &[&str]| {
            let words: Vec<String> = line.iter().map(|&word| word.to_owned()).collect();
            spec.ignore_exec.iter().any(|pattern| qlib::control::is_command(pattern, &words))
        };
        assert!(is_check(&["a", "b"]) && is_check(&["/bin/sh", "-c", "curl -f http://localhost/"]));
        assert!(!is_check(&["a"]) && !is_check(&["/bin/sh", "-c", "rm"]));
    }

    #[test]
    fn what_is_answered_asleep_is_the_known_probes() {
        let from = (IGNORE_FROM, "10.0.0.1");
        let said = of(&[from, (ANSWER_PROBES, "tcp, /healthz,/ready?full")], None).unwrap().answer;
        assert!(said.tcp);
        assert_eq!(said.paths, ["/healthz", "/ready?full"]);
        let error = of(&[(ANSWER_PROBES, "tcp")], None).unwrap_err().to_string();
        assert!(error.contains("it is not known whose probes these are: add"), "{error}");
        let error =
            format!("{:#}", of(&[from, (ANSWER_PROBES, "/,/1,/2,/3,/4")], None).unwrap_err());
        assert!(error.contains("has more than 4 paths"), "{error}");
        let options = SleepOptions { hibernate_answer_probes: Some("tcp".to_owned()), ..none() };
        let own = BTreeMap::from([(from.0.to_owned(), from.1.to_owned())]);
        assert!(spec(&own, &options).unwrap().0.answer.tcp);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (name, value, expected) in [
            (AFTER, "soon", "annotation io.quark.hibernate.after: \"soon\" is no time"),
            (AFTER, "1ms", "1ms is too short: the shortest is 100ms"),
            (DRY_RUN, "yes", "is \"yes\": write \"true\" or \"false\""),
            (ON_PRESSURE, "on", "on-pressure: \"on\" is no trigger: write true, false or"),
            (ANSWER_PROBES, "http", "\"http\" is no probe: write tcp, or a path of HTTP such as"),
            (ANSWER_PROBES, "/a b", "\"/a b\" is no probe"),
            (TIMERS, "", "is \"\": write \"wake\" or \"rest\""),
            (IGNORE_FROM, "10.0.0.1, nowhere", "\"nowhere\" is no address or network"),
            ("io.quark.hibernate.aftr", "30s", "there is none of this name"),
        ] {
            let error = format!("{:#}", of(&[(name, value)], None).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(parse_option("never"), Ok(SleepAfter(None)));
        assert!(parse_option("0s").is_err());
    }
}
