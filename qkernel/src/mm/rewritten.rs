//! Which pages of an address space are written to after each fork; see [`super::fork`].

use alloc::collections::BTreeSet;

use qlib::Va;

/// Pages that are copied at each fork, at most (256 KiB).
const MOST_REWRITTEN: usize = 64;
/// Forks after which it is found out anew which they are.
const FORKS: u32 = 16;

/// Pages that were shared with a child and written to after the last forks.
#[derive(Clone, Debug, Default)]
pub struct Rewritten {
    pages: BTreeSet<Va>,
    forks: u32,
}

impl Rewritten {
    /// A page that was shared has been copied for being written to.
    pub fn note(&mut self, page: Va) {
        if self.pages.len() < MOST_REWRITTEN {
            self.pages.insert(page);
        }
    }

    /// The pages to be copied at this fork.
    pub fn at_fork(&mut self) -> BTreeSet<Va> {
        self.forks += 1;
        if self.forks < FORKS {
            return self.pages.clone();
        }
        self.forks = 0;
        core::mem::take(&mut self.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_few_and_found_out_anew() {
        let mut rewritten = Rewritten::default();
        (0..2 * MOST_REWRITTEN as u64).for_each(|n| rewritten.note(Va(n << 12)));
        for _ in 0..FORKS {
            assert_eq!(rewritten.at_fork().len(), MOST_REWRITTEN);
        }
        assert!(rewritten.at_fork().is_empty());
    }
}
