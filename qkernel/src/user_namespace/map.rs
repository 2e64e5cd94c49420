//! What a user namespace calls whom: lists of ranges.

use alloc::vec::Vec;

use crate::errno::{Errno, Result};

/// The most ranges of a map (user_namespaces(7)).
const MAX_EXTENTS: usize = 340;

/// A range: `count` ids from `first`, which are as many from `lower` elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first id in the namespace.
    pub first: u32,
    /// The first id outside: as it is written one of the parent's, in an [`IdMap`] a kernel id.
    pub lower: u32,
    /// How many they are.
    pub count: u32,
}

/// `id`, which lies in `count` ids from `from`, as it is in those from `to`.
fn shift(id: u32, from: u32, to: u32, count: u32) -> Option<u32> {
    let offset = id.checked_sub(from).filter(|offset| *offset < count)?;
    to.checked_add(offset)
}

impl Extent {
    /// True if an id is in both, in the namespace or outside.
    fn overlaps(&self, other: &Extent) -> bool {
        let overlap = |a: u32, b: u32| {
            let (a, b) = (u64::from(a), u64::from(b));
            a < b + u64::from(other.count) && b < a + u64::from(self.count)
        };
        overlap(self.first, other.first) || overlap(self.lower, other.lower)
    }

    /// Those that a program writes to /proc/PID/uid_map, a line each.
    ///
    /// # Errors
    /// EINVAL for none, too many, such as overlap, and what are no three numbers.
    pub fn parse(text: &[u8]) -> Result<Vec<Extent>> {
        let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        let mut all: Vec<Extent> = Vec::new();
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            let mut words = line.split_ascii_whitespace();
            let mut next = || {
                let word = words.next().ok_or(Errno::EINVAL)?;
                let is_plain = word.bytes().all(|byte| byte.is_ascii_digit());
                if is_plain {
                    word.parse::<u32>().map_err(|_| Errno::EINVAL)
                } else {
                    Err(Errno::EINVAL)
                }
            };
            let extent = Extent { first: next()?, lower: next()?, count: next()? };
            let ends = |start: u32| start.checked_add(extent.count).filter(|end| *end > start);
            if words.next().is_some()
                || ends(extent.first).is_none()
                || ends(extent.lower).is_none()
                || all.len() >= MAX_EXTENTS
                || all.iter().any(|other| other.overlaps(&extent))
            {
                return Err(Errno::EINVAL);
            }
            all.push(extent);
        }
        Ok(all)
    }
}

/// A map to kernel ids. Without a range it is not set yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap(Vec<Extent>);

impl IdMap {
    /// Each id is its own.
    pub fn whole() -> Self {
        IdMap(alloc::vec![Extent { first: 0, lower: 0, count: u32::MAX }])
    }

    /// The map of ranges that lead to numbers of a namespace with the map `outer`: `None` if a
    /// range does not lie within one of that.
    pub fn through(extents: Vec<Extent>, outer: &IdMap) -> Option<IdMap> {
        let lead = |extent: Extent| {
            let last = extent.lower.checked_add(extent.count.checked_sub(1)?)?;
            let around =
                outer.0.iter().find(|e| shift(last, e.first, e.lower, e.count).is_some())?;
            let lower = shift(extent.lower, around.first, around.lower, around.count)?;
            Some(Extent { lower, ..extent })
        };
        extents.into_iter().map(lead).collect::<Option<_>>().map(IdMap)
    }

    /// True if it is not set yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its ranges.
    pub fn extents(&self) -> &[Extent] {
        &self.0
    }

    /// The kernel id of one in the namespace.
    pub fn down(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|e| shift(id, e.first, e.lower, e.count))
    }

    /// The id in the namespace of a kernel id.
    pub fn up(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|e| shift(id, e.lower, e.first, e.count))
    }
}
