//! What is shown of a container, and in which order containers are.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use qlib::control::WakeCause;

use super::super::info::printable;
use super::super::state::Status;
use super::super::watch::{Answer, Look, Sample};

/// The columns.
pub const HEAD: [&str; 10] =
    ["ID", "STATE", "FOR", "HELD", "AWAKE", "ASLEEP", "SAVED", "LAST WAKE", "CAUSE", "ROOT"];

/// A container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The ID.
    pub id: String,
    /// The state directory, without control characters.
    pub root: String,
    /// Status, or hibernation state.
    pub state: String,
    /// It sleeps.
    pub is_asleep: bool,
    /// For how long it has been asleep, or awake.
    pub since: Option<Duration>,
    /// What its cgroup holds, in bytes.
    pub held: Option<u64>,
    /// Host memory behind its RAM in bytes: when its last sleep began or, if there was none, now.
    pub awake: Option<u64>,
    /// The same at the end of that.
    pub asleep: Option<u64>,
    /// How long ago it was woken, and what by.
    pub wake: Option<(Duration, WakeCause)>,
}

impl Row {
    /// All of what was seen.
    pub fn of(look: &Look) -> Vec<Row> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        look.samples.iter().map(|sample| Row::new(sample, now)).collect()
    }

    fn new(sample: &Sample, now: Duration) -> Row {
        let stats = sample.answer.stats();
        let dry = stats.and_then(|s| s.dry_run.as_ref()).filter(|dry| dry.is_asleep);
        let state = match (&sample.answer, sample.status) {
            (Answer::Silence, _) => "no answer".to_owned(),
            (Answer::Stats(stats), Status::Running) if dry.is_some() => {
                format!("{:?}, dry sleep", stats.state)
            }
            (Answer::Stats(stats), Status::Running) => format!("{:?}", stats.state),
            (_, status) => status.name().to_owned(),
        };
        let slept = stats.filter(|s| s.sleeps.last_sleep_at_ns.is_some());
        let wake = stats.and_then(|s| {
            let at = Duration::from_nanos(s.sleeps.last_wake_at_ns?);
            Some((now.saturating_sub(at), s.sleeps.last_wake_cause?))
        });
        Row {
            id: printable(&sample.id),
            root: printable(&sample.root.to_string_lossy()),
            state,
            is_asleep: stats
                .is_some_and(|s| s.state == qlib::control::HibernationState::Hibernated),
            since: stats.map(|s| Duration::from_nanos(s.sleeps.in_state_ns)),
            held: sample.held_bytes,
            awake: slept
                .map(|s| s.memory.ram_held_before_sleep)
                .or(stats.map(|s| s.memory.ram_held)),
            asleep: slept.map(|s| s.memory.ram_held_after_sleep),
            wake,
        }
    }

    /// What its last sleep gave back to the host, in bytes.
    pub fn saved(&self) -> Option<u64> {
        Some(self.awake?.saturating_sub(self.asleep?))
    }

    /// The columns' text.
    pub fn cells(&self) -> [String; HEAD.len()] {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(dash, size);
        [
            self.id.clone(),
            self.state.clone(),
            self.since.map_or_else(dash, age),
            bytes(self.held),
            bytes(self.awake),
            bytes(self.asleep),
            bytes(self.saved()),
            self.wake.map_or_else(dash, |(ago, _)| format!("{} ago", age(ago))),
            self.wake.map_or_else(dash, |(_, cause)| cause.name().to_owned()),
            self.root.clone(),
        ]
    }
}

fn dash() -> String {
    "-".to_owned()
}

/// Bytes in few characters, by powers of 1024.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "K", "M", "G", "T"] {
        if value < 1000.0 {
            return match unit {
                "B" => format!("{bytes}B"),
                _ => format!("{value:.1}{unit}"),
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1}P")
}

/// A time in few characters, rounded down.
pub fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// What containers are ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Those that hold most first.
    #[default]
    Held,
    /// Those that gave back most first.
    Saved,
    /// Those that were woken last first.
    Wake,
    /// By ID.
    Id,
}

impl Sort {
    /// The next one.
    pub fn next(self) -> Sort {
        match self {
            Sort::Held => Sort::Saved,
            Sort::Saved => Sort::Wake,
            Sort::Wake => Sort::Id,
            Sort::Id => Sort::Held,
        }
    }

    /// The column.
    pub fn column(self) -> &'static str {
        match self {
            Sort::Held => "HELD",
            Sort::Saved => "SAVED",
            Sort::Wake => "LAST WAKE",
            Sort::Id => "ID",
        }
    }

    /// Puts rows in order; of equals by ID.
    pub fn order(self, rows: &mut [Row]) {
        rows.sort_by(|a, b| {
            let by = match self {
                Sort::Held => b.held.cmp(&a.held),
                Sort::Saved => b.saved().cmp(&a.saved()),
                Sort::Wake => {
                    let key = |row: &Row| (row.wake.is_none(), row.wake.map(|(ago, _)| ago));
                    key(a).cmp(&key(b))
                }
                Sort::Id => std::cmp::Ordering::Equal,
            };
            by.then_with(|| (&a.id, &a.root).cmp(&(&b.id, &b.root)))
        });
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::oci::watch::Answer;
    use qlib::control::{HibernationState, Stats};

    /// A container that slept once, or never.
    pub fn sample(id: &str, held: u64, slept: Option<(u64, u64)>) -> Sample {
        let mut stats = Stats::default();
        stats.memory.ram_held = 5 << 20;
        if let Some((before, after)) = slept {
            stats.state = HibernationState::Hibernated;
            stats.memory.ram_held_before_sleep = before;
            stats.memory.ram_held_after_sleep = after;
            stats.sleeps.last_sleep_at_ns = Some(1);
        }
        Sample {
            root: "/run/quark".into(),
            id: id.to_owned(),
            status: Status::Running,
            platform: Default::default(),
            held_bytes: Some(held),
            answer: Answer::Stats(Box::new(stats)),
        }
    }

    fn ids(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.id.as_str()).collect()
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000, 1 << 20].map(size), ["0B", "999B", "1.0K", "1.0M"]);
        assert_eq!([1023 << 20, u64::MAX].map(size), ["1.0G", "16384.0P"]);
        let ages = [0, 119, 120, 7199, 7200, 172_800].map(|s| age(Duration::from_secs(s)));
        assert_eq!(ages, ["0s", "119s", "2m", "119m", "2h", "2d"]);
    }

    #[test]
    fn orders() {
        let look = Look {
            samples: vec![
                sample("b", 10, Some((9 << 20, 1 << 20))),
                sample("c", 30, Some((4 << 20, 1 << 20))),
                sample("a", 10, None),
            ],
            ..Look::default()
        };
        let mut rows = Row::of(&look);
        Sort::Held.order(&mut rows);
        assert_eq!(ids(&rows), ["c", "a", "b"]);
        Sort::Saved.order(&mut rows);
        assert_eq!(ids(&rows), ["b", "c", "a"]);
        rows[2].wake = Some((Duration::from_secs(5), WakeCause::Timer));
        Sort::Wake.order(&mut rows);
        assert_eq!(ids(&rows), ["a", "b", "c"]);
        Sort::Id.order(&mut rows);
        assert_eq!(ids(&rows), ["a", "b", "c"]);
        assert_eq!((0..4).fold(Sort::Held, |sort, _| sort.next()), Sort::Held);
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        let mut silent = sample("a", 1, None);
        silent.answer = Answer::Silence;
        silent.held_bytes = None;
        silent.root = "/run/\x1b[2Jroot".into();
        let row = Row::new(&silent, Duration::ZERO);
        let cells = row.cells();
        assert_eq!(cells[1], "no answer");
        assert_eq!(cells[2..9], ["-"; 7]);
        assert_eq!(cells[9], "/run/?[2Jroot");
        let row = Row::new(&sample("a", 1, Some((3 << 20, 1 << 20))), Duration::ZERO);
        assert_eq!(row.cells()[1..7], ["Hibernated", "0s", "1B", "3.0M", "1.0M", "2.0M"]);
    }
}
