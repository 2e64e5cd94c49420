//! The metrics: their names, and how a look becomes their text.
//!
//! Names follow Prometheus' guidelines: base units, which the name says; `_total` for what only
//! grows. `doc/operations.md` has the list.

use std::time::Duration;

use anyhow::{Context, Result};
use prometheus::TextEncoder;
use prometheus::proto::MetricType;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily};
use qlib::control::{
    CountStats, DryStats, HibernationState, MemoryStats, SleepStats, Stats, WakeCause,
};

use super::super::state::Status;
use super::super::watch::{Answer, Look, Sample};

const STATUSES: [Status; 5] =
    [Status::Creating, Status::Created, Status::Running, Status::Paused, Status::Stopped];
const STATES: [HibernationState; 5] = [
    HibernationState::Running,
    HibernationState::Warm,
    HibernationState::Hibernated,
    HibernationState::HibernateRunning,
    HibernationState::WokenUp,
];

type Labels<'a> = &'a [(&'a str, &'a str)];

/// One metric of all containers.
struct Family(MetricFamily);

impl Family {
    fn new(name: &str, kind: MetricType, help: &str) -> Family {
        let mut family = MetricFamily::default();
        family.set_name(format!("quark_{name}"));
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        Family(family)
    }

    fn add(&mut self, labels: Labels<'_>, fill: impl FnOnce(&mut Metric)) {
        let pair = |(name, value): &(&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        let mut metric = Metric::default();
        metric.set_label(labels.iter().map(pair).collect());
        fill(&mut metric);
        self.0.mut_metric().push(metric);
    }

    fn set(&mut self, labels: Labels<'_>, value: f64) {
        let is_counter = self.0.get_field_type() == MetricType::COUNTER;
        self.add(labels, |metric| {
            if is_counter {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            } else {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
        });
    }
}

/// The families that are made, in the order of the text.
#[derive(Default)]
struct Families(Vec<MetricFamily>);

impl Families {
    /// A family with one value for each container that has one.
    fn of_each(
        &mut self,
        look: &Look,
        name: &str,
        kind: MetricType,
        help: &str,
        value: impl Fn(&Sample) -> Option<f64>,
    ) {
        self.of_all(look, name, kind, help, |sample, family, labels| {
            if let Some(value) = value(sample) {
                family.set(labels, value);
            }
        });
    }

    /// A family to which each container adds what it has.
    fn of_all(
        &mut self,
        look: &Look,
        name: &str,
        kind: MetricType,
        help: &str,
        add: impl Fn(&Sample, &mut Family, Labels<'_>),
    ) {
        let mut family = Family::new(name, kind, help);
        for sample in &look.samples {
            let root = sample.root.to_string_lossy();
            add(sample, &mut family, &[("id", &sample.id), ("root", &root)]);
        }
        self.push(family);
    }

    /// One without a metric is no family: the encoder takes it for an error.
    fn push(&mut self, family: Family) {
        if !family.0.get_metric().is_empty() {
            self.0.push(family.0);
        }
    }
}

/// Labels of a container and one more.
fn with<'a>(labels: Labels<'a>, name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    labels.iter().copied().chain([(name, value)]).collect()
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

/// The text of all metrics.
///
/// # Errors
/// When the encoder does not take them, which would be a bug.
pub fn text(look: &Look) -> Result<String> {
    let mut all = Families::default();
    about_the_look(&mut all, look);
    states(&mut all, look);
    memory(&mut all, look);
    sleeps(&mut all, look);
    dry_runs(&mut all, look);
    TextEncoder::new().encode_to_string(&all.0).context("writing metrics")
}

fn about_the_look(all: &mut Families, look: &Look) {
    let mut family = Family::new(
        "root_readable",
        MetricType::GAUGE,
        "Whether the containers of a state directory could be listed.",
    );
    let read = look.read.iter().map(|root| (root, 1.0));
    for (root, value) in read.chain(look.unreadable.iter().map(|(root, _)| (root, 0.0))) {
        family.set(&[("root", &root.to_string_lossy())], value);
    }
    all.push(family);
    let mut family = Family::new(
        "look_duration_seconds",
        MetricType::GAUGE,
        "How long it took to ask all containers.",
    );
    family.set(&[], look.took.as_secs_f64());
    all.push(family);
}

fn states(all: &mut Families, look: &Look) {
    use MetricType::GAUGE;
    all.of_each(
        look,
        "container_up",
        GAUGE,
        "Whether the container's sandbox answered in time. Not there for one without a sandbox.",
        |sample| match sample.answer {
            Answer::Stats(_) => Some(1.0),
            Answer::Silence => Some(0.0),
            Answer::Nobody => None,
        },
    );
    let help = "The container and its platform; the value is 1.";
    all.of_all(look, "container_info", GAUGE, help, |sample, family, labels| {
        family.set(&with(labels, "platform", &sample.platform.to_string()), 1.0);
    });
    let help = "1 for the status that the container has, 0 for the others.";
    all.of_all(look, "container_status", GAUGE, help, |sample, family, labels| {
        for status in STATUSES {
            let value = f64::from(status == sample.status);
            family.set(&with(labels, "status", status.name()), value);
        }
    });
    let help = "1 for the hibernation state that the container has, 0 for the others.";
    all.of_all(look, "container_hibernation_state", GAUGE, help, |sample, family, labels| {
        let Some(stats) = sample.answer.stats() else { return };
        for state in STATES {
            let value = f64::from(state == stats.state);
            family.set(&with(labels, "state", &format!("{state:?}")), value);
        }
    });
}

fn memory(all: &mut Families, look: &Look) {
    use MetricType::{COUNTER, GAUGE};
    all.of_each(
        look,
        "container_memory_held_bytes",
        GAUGE,
        "What the container's cgroup holds, kernel memory included, without clean page cache.",
        |sample| sample.held_bytes.map(|bytes| bytes as f64),
    );
    type Get = fn(&MemoryStats) -> u64;
    let gauges: [(&str, &str, Get); 6] = [
        ("ram_bytes", "RAM that the guest may use.", |m| m.ram),
        ("ram_held_bytes", "Host memory behind the guest's RAM.", |m| m.ram_held),
        ("ram_held_before_sleep_bytes", "The same when the last sleep began.", |m| {
            m.ram_held_before_sleep
        }),
        ("ram_held_after_sleep_bytes", "The same when all had been written out.", |m| {
            m.ram_held_after_sleep
        }),
        ("swapped_bytes", "Pages of the guest in the swap store.", |m| m.swapped_raw),
        ("working_set_bytes", "The working set that the last sleep recorded.", |m| m.working_set),
    ];
    for (name, help, get) in gauges {
        // Before the first sleep there is none to tell of.
        let of_sleep = name.contains("_sleep_");
        all.of_each(look, &format!("container_{name}"), GAUGE, help, |sample| {
            let stats = sample.answer.stats()?;
            let has_slept = stats.sleeps.last_sleep_at_ns.is_some();
            (has_slept || !of_sleep).then(|| get(&stats.memory) as f64)
        });
    }
    let help = "What the swap store takes of the host's disk.";
    let store = |sample: &Sample| sample.answer.stats().map(|s| s.memory.swapped_stored as f64);
    all.of_each(look, "container_store_bytes", GAUGE, help, store);
    type Count = fn(&CountStats) -> u64;
    let counters: [(&str, &str, Count); 4] = [
        ("page_faults", "Page faults of the guest.", |c| c.faults),
        ("swap_in_pages", "Pages that page faults read from the swap file.", |c| c.swap_ins),
        ("probes_answered", "Probes that were answered asleep.", |c| c.probes_answered),
        ("prefetched_pages", "Pages of working sets that wakes read.", |c| c.reap_pages),
    ];
    for (name, help, get) in counters {
        all.of_each(look, &format!("container_{name}_total"), COUNTER, help, |sample| {
            sample.answer.stats().map(|s| get(&s.counts) as f64)
        });
    }
}

fn sleeps(all: &mut Families, look: &Look) {
    use MetricType::{COUNTER, GAUGE};
    let help = "Sleeps, by why: asked for, the container was idle, or the host short of memory.";
    all.of_all(look, "container_sleeps_total", COUNTER, help, |sample, family, labels| {
        let Some(Stats { counts, .. }) = sample.answer.stats() else { return };
        let (idle, pressure) = (counts.deflates_idle, counts.deflates_pressure);
        let asked = counts.deflates.saturating_sub(idle.saturating_add(pressure));
        for (cause, count) in [("asked", asked), ("idle", idle), ("pressure", pressure)] {
            family.set(&with(labels, "cause", cause), count as f64);
        }
    });
    let help = "Sleeps that were given up on the way.";
    all.of_each(look, "container_sleeps_failed_total", COUNTER, help, |sample| {
        sample.answer.stats().map(|s| s.counts.deflates_failed as f64)
    });
    let help = "Wakes, by what woke the container.";
    all.of_all(look, "container_wakes_total", COUNTER, help, |sample, family, labels| {
        let Some(Stats { counts, .. }) = sample.answer.stats() else { return };
        let causes = [
            ("socket", counts.wakes_by_socket),
            ("disk", counts.wakes_by_disk),
            ("signal", counts.wakes_by_signal),
            ("sigcont", counts.wakes_by_sigcont),
            ("exec", counts.wakes_by_exec),
            ("timer", counts.wakes_by_timer),
            ("unfinished", counts.wakes_by_unfinished),
        ];
        for (cause, count) in causes {
            family.set(&with(labels, "cause", cause), count as f64);
        }
    });
    let help = "How long wakes took, up to the moment when the guest's threads may go on.";
    let kind = MetricType::HISTOGRAM;
    all.of_all(look, "container_wake_duration_seconds", kind, help, |sample, family, labels| {
        if let Some(stats) = sample.answer.stats() {
            family.add(labels, |metric| metric.set_histogram(histogram(&stats.sleeps)));
        }
    });
    let help = "How long the container has slept in all.";
    all.of_each(look, "container_asleep_seconds_total", COUNTER, help, |sample| {
        sample.answer.stats().map(|s| seconds(s.sleeps.asleep_ns))
    });
    let help = "For how long it has been asleep, or awake.";
    all.of_each(look, "container_in_state_seconds", GAUGE, help, |sample| {
        sample.answer.stats().map(|s| seconds(s.sleeps.in_state_ns))
    });
    let help = "When it fell asleep last, since the epoch.";
    all.of_each(look, "container_last_sleep_timestamp_seconds", GAUGE, help, |sample| {
        sample.answer.stats()?.sleeps.last_sleep_at_ns.map(seconds)
    });
    let help = "When it was woken last, since the epoch.";
    all.of_each(look, "container_last_wake_timestamp_seconds", GAUGE, help, |sample| {
        sample.answer.stats()?.sleeps.last_wake_at_ns.map(seconds)
    });
}

/// Sleeps that there would have been, of containers that only tell of them.
fn dry_runs(all: &mut Families, look: &Look) {
    use MetricType::{COUNTER, GAUGE};
    type Get = fn(&DryStats) -> f64;
    let of_each: [(&str, MetricType, &str, Get); 5] = [
        ("asleep", GAUGE, "Whether the container would be asleep now.", |d| f64::from(d.is_asleep)),
        ("sleeps_total", COUNTER, "Sleeps that there would have been.", |d| d.sleeps as f64),
        ("asleep_seconds_total", COUNTER, "How long it would have slept in all.", |d| {
            seconds(d.asleep_ns)
        }),
        ("freed_bytes", GAUGE, "What the last sleep would have given back, an estimate.", |d| {
            d.last_freed_bytes as f64
        }),
        ("freed_byte_seconds_total", COUNTER, "The same over all, bytes times seconds.", |d| {
            d.freed_byte_seconds as f64
        }),
    ];
    for (name, kind, help, get) in of_each {
        all.of_each(look, &format!("container_dry_{name}"), kind, help, |sample| {
            sample.answer.stats()?.dry_run.as_ref().map(get)
        });
    }
    let help = "Wakes that there would have been, by cause.";
    all.of_all(look, "container_dry_wakes_total", COUNTER, help, |sample, family, labels| {
        let Some(dry) = sample.answer.stats().and_then(|s| s.dry_run.as_ref()) else { return };
        for (cause, count) in WakeCause::ALL.iter().zip(dry.wakes) {
            family.set(&with(labels, "cause", cause.name()), count as f64);
        }
    });
}

fn histogram(sleeps: &SleepStats) -> Histogram {
    let mut count = 0u64;
    // A guest's numbers may be anything.
    let mut up_to = |more: &u64| {
        count = count.saturating_add(*more);
        count
    };
    let counts: Vec<u64> = sleeps.wake_histogram.iter().map(&mut up_to).collect();
    let bucket = |(bound_ns, count): (&u64, &u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(seconds(*bound_ns));
        bucket.set_cumulative_count(*count);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_bucket(SleepStats::BOUNDS_NS.iter().zip(&counts).map(bucket).collect());
    histogram.set_sample_count(counts.last().copied().unwrap_or(0));
    histogram.set_sample_sum(seconds(sleeps.wakes_ns));
    histogram
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::platform::PlatformKind;

    fn look() -> Look {
        let mut stats = Stats::default();
        stats.sleeps.last_sleep_at_ns = Some(1_500_000_000);
        stats.sleeps.last_wake_at_ns = Some(2_500_000_000);
        stats.sleeps.wake_histogram[1] = 2;
        stats.sleeps.wake_histogram[11] = 3;
        stats.dry_run = Some(DryStats { sleeps: 4, ..DryStats::default() });
        let sample = Sample {
            root: "/run/a \"b\"\\c\n".into(),
            id: "one".into(),
            status: Status::Running,
            platform: PlatformKind::Kvm,
            held_bytes: Some(4096),
            answer: Answer::Stats(Box::new(stats)),
        };
        let unreadable = vec![("/run/other".into(), "it cannot be read".to_owned())];
        Look { samples: vec![sample], unreadable, ..Look::default() }
    }

    /// The names of metrics in a text: each word that begins so.
    fn names(text: &str) -> BTreeSet<String> {
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = text.split(|c: char| !is_part(c));
        words
            .filter(|word| {
                ["quark_container_", "quark_root_", "quark_look_"]
                    .iter()
                    .any(|begin| word.starts_with(begin) && word.len() > begin.len())
            })
            .map(str::to_owned)
            .collect()
    }

    fn families() -> BTreeSet<String> {
        let text = text(&look()).unwrap();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
    }

    #[test]
    fn labels_are_escaped_and_buckets_cumulative() {
        let text = text(&look()).unwrap();
        let labels = r#"id="one",root="/run/a \"b\"\\c\n""#;
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        has(&format!("quark_container_up{{{labels}}} 1"));
        let bucket = "quark_container_wake_duration_seconds_bucket";
        has(&format!("{bucket}{{{labels},le=\"0.0005\"}} 0"));
        has(&format!("{bucket}{{{labels},le=\"1\"}} 2"));
        has(&format!("{bucket}{{{labels},le=\"+Inf\"}} 5"));
        has(&format!("quark_container_wake_duration_seconds_count{{{labels}}} 5"));
        has(&format!("quark_container_last_wake_timestamp_seconds{{{labels}}} 2.5"));
        has("quark_root_readable{root=\"/run/other\"} 0");
    }

    #[test]
    fn without_containers_there_is_a_text() {
        let text = text(&Look::default()).unwrap();
        assert_eq!(names(&text), names("quark_look_duration_seconds"));
    }

    #[test]
    fn numbers_of_a_hostile_guest_are_numbers() {
        let mut look = look();
        let mut stats = Stats::default();
        stats.sleeps.wake_histogram = [u64::MAX; 12];
        stats.counts.deflates_idle = u64::MAX;
        look.samples[0].answer = Answer::Stats(Box::new(stats));
        let text = text(&look).unwrap();
        assert!(!text.contains("NaN") && !text.contains("-"), "{text}");
    }

    #[test]
    fn the_list_in_the_document_is_that_of_the_code() {
        let document = include_str!("../../../../doc/operations.md");
        let listed = document.lines().filter(|line| line.starts_with("| `quark_"));
        assert_eq!(names(&listed.collect::<Vec<_>>().join("\n")), families());
    }

    #[test]
    fn the_dashboard_asks_for_what_there_is() {
        let dashboard = include_str!("../../../../doc/grafana.json");
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
        let known = families();
        for name in names(dashboard) {
            let family = name.strip_suffix("_bucket").unwrap_or(&name);
            assert!(known.contains(family), "{name}");
        }
    }
}
