//! Sums of squares, by threads.

/// The sum of the squares of `numbers`, by `threads` threads.
///
/// ```
/// assert_eq!(squares::sum(&[1, 2, 3], 2), 14);
/// ```
pub fn sum(numbers: &[u64], threads: usize) -> u64 {
    let (give, take) = crossbeam_channel::unbounded();
    std::thread::scope(|scope| {
        for part in numbers.chunks(numbers.len().div_euclid(threads).max(1)) {
            let give = give.clone();
            scope.spawn(move || give.send(part.iter().map(|n| n * n).sum::<u64>()).expect("somebody takes it"));
        }
        drop(give);
        take.iter().sum()
    })
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Row {
    pub n: u32,
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        for threads in 1..20 {
            assert_eq!(sum(&(0..1000).collect::<Vec<_>>(), threads), 332_833_500);
        }
    }

    #[test]
    fn rows_come_back() {
        let row = Row { n: 17, text: "row \u{1f980}".into() };
        assert_eq!(serde_json::from_str::<Row>(&serde_json::to_string(&row).unwrap()).unwrap(), row);
    }

    #[test]
    fn a_panic_is_caught() {
        assert!(std::panic::catch_unwind(|| sum(&[u64::MAX], 1)).is_err());
    }

    #[test]
    fn a_child_ends_by_a_signal() {
        use std::os::unix::process::ExitStatusExt;
        let status = std::process::Command::new("sh").args(["-c", "kill -SEGV $$"]).status().unwrap();
        assert_eq!(status.signal(), Some(11));
    }
}
