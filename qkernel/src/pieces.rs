//! Long lists in pieces of a few pages. One that grows as a vector does needs a place in one piece
//! that is twice as long, and when memory is in pieces itself there may be none, though there is
//! plenty in all.

use alloc::vec::Vec;

use crate::errno::{Errno, Result};

/// What a piece takes at most, in bytes: less than what can be had in one piece if there is memory
/// at all.
const PIECE_BYTES: usize = 16 << 10;

/// A list that grows at its end.
#[derive(Debug)]
pub struct Pieces<T> {
    pieces: Vec<Vec<T>>,
    len: usize,
}

impl<T> Pieces<T> {
    /// Elements of a piece, a power of two, so that a piece which grows as vectors do ends at it.
    const PIECE: usize = {
        let most = PIECE_BYTES / if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
        if most < 2 { 1 } else { 1 << most.ilog2() }
    };

    /// An empty one. Takes no memory.
    pub const fn new() -> Self {
        Pieces { pieces: Vec::new(), len: 0 }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one. ENOMEM.
    pub fn push(&mut self, element: T) -> Result {
        if self.pieces.last().is_none_or(|piece| piece.len() == Self::PIECE) {
            self.pieces.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            self.pieces.push(Vec::new());
        }
        let piece = self.pieces.last_mut().ok_or(Errno::ENOMEM)?;
        if let Err(_full) = piece.try_reserve(1) {
            if piece.is_empty() {
                self.pieces.pop();
            }
            return Err(Errno::ENOMEM);
        }
        piece.push(element);
        self.len += 1;
        Ok(())
    }

    /// Takes the last one.
    pub fn pop(&mut self) -> Option<T> {
        let piece = self.pieces.last_mut()?;
        let element = piece.pop();
        if piece.is_empty() {
            self.pieces.pop();
        }
        self.len -= usize::from(element.is_some());
        element
    }

    /// The one at `index`.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.pieces.get(index / Self::PIECE)?.get(index % Self::PIECE)
    }

    /// The one at `index`.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.pieces.get_mut(index / Self::PIECE)?.get_mut(index % Self::PIECE)
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.pieces.iter().flatten()
    }

    /// All, in order, in slices of at most `most`.
    pub fn chunks(&self, most: usize) -> impl Iterator<Item = &[T]> {
        self.pieces.iter().flat_map(move |piece| piece.chunks(most))
    }
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> IntoIterator for Pieces<T> {
    type Item = T;
    type IntoIter = core::iter::Flatten<alloc::vec::IntoIter<Vec<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list_and_no_piece_is_long() {
        let mut list = Pieces::new();
        assert!(list.is_empty() && list.pop().is_none());
        for i in 0..10_000u64 {
            list.push(i).expect("memory");
        }
        assert_eq!((list.len(), list.get(9_999), list.get(10_000)), (10_000, Some(&9_999), None));
        assert!(list.pieces.iter().all(|piece| piece.capacity() * 8 <= PIECE_BYTES));
        *list.get_mut(5000).expect("it is there") = 7;
        assert!(list.iter().enumerate().all(|(i, n)| *n == if i == 5000 { 7 } else { i as u64 }));
        assert_eq!(list.chunks(1000).map(<[u64]>::len).sum::<usize>(), 10_000);
        assert!(list.chunks(1000).all(|chunk| chunk.len() <= 1000));
        for i in (5001..10_000).rev() {
            assert_eq!(list.pop(), Some(i));
        }
        assert_eq!((list.len(), list.into_iter().last()), (5001, Some(7)));
    }

    #[test]
    fn large_elements_have_pieces_of_their_own() {
        let mut list = Pieces::new();
        for i in 0..3u8 {
            list.push([i; PIECE_BYTES]).expect("memory");
        }
        assert_eq!(list.chunks(8).count(), 3);
    }
}
