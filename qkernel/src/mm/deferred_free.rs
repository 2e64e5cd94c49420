//! Frames on their way to be free. There may be as many as a process has pages, when memory is
//! short: so they are kept in pieces of a page, which need no contiguous memory and no copying to
//! grow, and take a 512th of what they will give back at most.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use qlib::{Gpa, PAGE_SIZE};

/// Frames of a piece: a page of them.
const PIECE: usize = PAGE_SIZE as usize / size_of::<Gpa>();

/// Frames that are free once something is carried out.
#[derive(Debug, Default)]
pub struct DeferredFree {
    pieces: Vec<Vec<Gpa>>,
    /// Dropped when they are about to be freed.
    underway: Vec<Arc<()>>,
}

impl DeferredFree {
    /// Adds one.
    pub fn push(&mut self, frame: Gpa) {
        match self.pieces.last_mut() {
            // A short one grows as vectors do, up to a page.
            Some(piece) if piece.len() < PIECE => piece.push(frame),
            _ => self.pieces.push(alloc::vec![frame]),
        }
    }

    /// Adds all of `other`.
    pub fn append(&mut self, other: DeferredFree) {
        match other.pieces.as_slice() {
            [] => {}
            // What comes in small numbers does not become many small pieces.
            [piece] if piece.len() < PIECE / 2 => self.extend(piece.iter().copied()),
            _ => self.pieces.extend(other.pieces),
        }
        self.underway.extend(other.underway);
    }

    /// A sign that lives as long as what is to be carried out has not been: nobody frees these
    /// before. One for all that leave together, however many ask.
    pub fn watch(&mut self) -> Weak<()> {
        if let Some(sign) = self.underway.last() {
            return Arc::downgrade(sign);
        }
        let sign = Arc::new(());
        let watched = Arc::downgrade(&sign);
        self.underway.push(sign);
        watched
    }

    /// True if there is none, and nobody who waits for that.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.underway.is_empty()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum()
    }
}

impl Extend<Gpa> for DeferredFree {
    fn extend<I: IntoIterator<Item = Gpa>>(&mut self, frames: I) {
        frames.into_iter().for_each(|frame| self.push(frame));
    }
}

impl IntoIterator for DeferredFree {
    type Item = Gpa;
    type IntoIter = core::iter::Flatten<alloc::vec::IntoIter<Vec<Gpa>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_lives_until_they_are_free() {
        let (mut one, mut all) = (DeferredFree::default(), DeferredFree::default());
        let sign = one.watch();
        assert!(!one.is_empty());
        assert!(sign.ptr_eq(&one.watch()), "one for all");
        one.push(Gpa(0));
        all.append(one);
        assert_eq!(sign.strong_count(), 1);
        assert_eq!(all.into_iter().count(), 1);
        assert_eq!(sign.strong_count(), 0);
    }

    #[test]
    fn nothing_is_lost_and_pieces_are_pages() {
        let frames = |from: u64, to: u64| (from..to).map(|i| Gpa(i * PAGE_SIZE));
        let mut deferred = DeferredFree::default();
        assert!(deferred.is_empty());
        deferred.extend(frames(0, 1200));
        let (mut few, mut many) = (DeferredFree::default(), DeferredFree::default());
        few.extend(frames(1200, 1203));
        many.extend(frames(1203, 3000));
        deferred.append(few);
        deferred.append(many);
        deferred.append(DeferredFree::default());
        assert_eq!(deferred.len(), 3000);
        assert!(deferred.pieces.iter().all(|piece| piece.len() <= PIECE));
        assert!(deferred.into_iter().eq(frames(0, 3000)));
    }
}
