//! Where the pages of a memory object are: a sparse list of one word each.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use qlib::{Gpa, PAGE_SHIFT};

use super::Page;
use crate::account::Lasting;
use crate::errno::Result;
use crate::mm::swap::Usage;

/// Pages in one piece of the list. A file of one page takes some 300 bytes, a large one 10 bytes
/// for each page.
const PIECE: u64 = 16;

/// What a piece takes, in bytes, with its place among the others.
const PIECE_BYTES: u64 = 160;

/// What a word holds: the number of a frame or slot from bit 8 on, below it the usage, and these.
const NUMBER_SHIFT: u32 = 8;
const USAGE_SHIFT: u32 = 2;
const IS_THERE: u64 = 1;
const IS_SWAPPED: u64 = 2;

type Words = Box<[u64; PIECE as usize]>;

/// The pages, by their index.
#[derive(Default)]
pub struct PageList {
    /// By the number of the piece. None is empty.
    pieces: BTreeMap<u64, Words>,
    len: u64,
    /// What pieces of files on disk take, which are not bounded by memory.
    books: Lasting,
}

/// The word of a page.
fn word_of(page: Page) -> u64 {
    let (number, usage, kind) = match page {
        Page::Frame(gpa, usage) => (gpa.0 >> PAGE_SHIFT, usage, IS_THERE),
        Page::Swapped(slot, usage) => (slot, usage, IS_THERE | IS_SWAPPED),
    };
    number << NUMBER_SHIFT | u64::from(usage.bits()) << USAGE_SHIFT | kind
}

/// The page that a word tells of.
fn page_of(word: u64) -> Option<Page> {
    let (number, usage) = (word >> NUMBER_SHIFT, Usage::from_bits((word >> USAGE_SHIFT) as u8));
    match word & (IS_THERE | IS_SWAPPED) {
        IS_THERE => Some(Page::Frame(Gpa(number << PAGE_SHIFT), usage)),
        0 => None,
        _ => Some(Page::Swapped(number, usage)),
    }
}

/// The index of page `at` in piece `piece`.
fn index_of(piece: u64, at: usize) -> u64 {
    piece * PIECE + at as u64
}

impl PageList {
    /// How many there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The page at `index`.
    pub fn get(&self, index: u64) -> Option<Page> {
        page_of(self.pieces.get(&(index / PIECE))?[(index % PIECE) as usize])
    }

    /// Pays for the piece of the page at `index`, if that is to be made. ENOSPC.
    pub fn pay(&mut self, index: u64) -> Result {
        if !self.pieces.contains_key(&(index / PIECE)) {
            let paid = Lasting::take(PIECE_BYTES)?;
            self.books = core::mem::take(&mut self.books).and(paid);
        }
        Ok(())
    }

    /// Puts a page at `index`.
    pub fn insert(&mut self, index: u64, page: Page) {
        let piece = self.pieces.entry(index / PIECE).or_insert_with(|| Box::new([0; _]));
        let word = &mut piece[(index % PIECE) as usize];
        self.len += u64::from(*word == 0);
        *word = word_of(page);
    }

    /// Takes the page at `index` out.
    pub fn remove(&mut self, index: u64) {
        let Some(piece) = self.pieces.get_mut(&(index / PIECE)) else { return };
        let word = &mut piece[(index % PIECE) as usize];
        self.len -= u64::from(*word != 0);
        *word = 0;
        if piece.iter().all(|word| *word == 0) {
            self.pieces.remove(&(index / PIECE));
            self.books.give(PIECE_BYTES);
        }
    }

    /// Those from page `first` on, in their order.
    pub fn from(&self, first: u64) -> impl Iterator<Item = (u64, Page)> {
        let pieces = self.pieces.range(first / PIECE..);
        let words = pieces.flat_map(|(piece, words)| {
            words.iter().enumerate().map(move |(at, word)| (index_of(*piece, at), *word))
        });
        words
            .skip_while(move |(index, _)| *index < first)
            .filter_map(|(index, word)| Some((index, page_of(word)?)))
    }

    /// Puts others in the place of those for which `other` says one.
    pub fn replace(&mut self, other: &mut dyn FnMut(Page) -> Option<Page>) {
        for word in self.pieces.values_mut().flat_map(|piece| piece.iter_mut()) {
            if let Some(new) = page_of(*word).and_then(&mut *other) {
                *word = word_of(new);
            }
        }
    }

    /// Takes them all out.
    pub fn drain(&mut self) -> impl Iterator<Item = Page> + use<> {
        self.len = 0;
        self.books = Lasting::default();
        let pieces = core::mem::take(&mut self.pieces);
        pieces.into_values().flat_map(|piece| *piece).filter_map(page_of)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn page() -> impl Strategy<Value = Page> {
        let usage = prop_oneof![Just(Usage::USED), Just(Usage::LEFT), Just(Usage::GUESSED)];
        (any::<bool>(), 0..1u64 << 40, usage).prop_map(|(is_frame, number, usage)| match is_frame {
            true => Page::Frame(Gpa(number << PAGE_SHIFT), usage),
            false => Page::Swapped(number, usage),
        })
    }

    proptest! {
        #[test]
        fn it_is_as_a_map(
            steps in prop::collection::vec((0..200u64, prop::option::of(page())), 0..300),
            from in 0..220u64,
        ) {
            let (mut list, mut map) = (PageList::default(), BTreeMap::new());
            for (index, page) in steps {
                match page {
                    Some(page) => {
                        list.insert(index, page);
                        map.insert(index, page);
                    }
                    None => {
                        list.remove(index);
                        map.remove(&index);
                    }
                }
                prop_assert_eq!((list.len(), list.get(index)), (map.len() as u64, page));
            }
            let after: Vec<(u64, Page)> = map.range(from..).map(|(i, p)| (*i, *p)).collect();
            prop_assert_eq!(list.from(from).collect::<Vec<_>>(), after);
            let other = |page| matches!(page, Page::Frame(..)).then_some(Page::Swapped(7, Usage::USED));
            list.replace(&mut |page| other(page));
            map.values_mut().for_each(|page| *page = other(*page).unwrap_or(*page));
            let all: Vec<Page> = list.drain().collect();
            prop_assert_eq!(all, map.into_values().collect::<Vec<_>>());
            prop_assert_eq!((list.len(), list.from(0).next(), list.pieces.len()), (0, None, 0));
        }
    }
}
