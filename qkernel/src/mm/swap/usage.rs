//! When a page was last used, counted in sleeps: what decides whether it is prefetched at the next
//! wake. Lives in the spare bits of the page's entry, or beside the frame of a memory object.
//!
//! A page that a wake prefetched is *unseen* until something uses it. One that stays unseen for
//! [`PATIENCE`] sleeps in a row leaves the working set for the swap file. Keeping a page costs a
//! prefetch a wake (under 1 µs) and its memory; missing it costs a fault (20 µs and a random read).
//! So one use in two wakes must not send it to and fro: the patience is more than one sleep, and a
//! page that came back after it had left has proved that it is used now and then, and is waited for
//! much longer.

use qlib::pagetable::Pte;

/// Sleeps without use after which a page leaves the working set.
const PATIENCE: u8 = 2;
/// The same for one that left before and came back.
const PATIENCE_RETURNED: u8 = 7;

/// What is known about the use of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage(u8);

impl Usage {
    /// In use: what every page is that was made, or was brought in because somebody needed it.
    pub const USED: Usage = Usage(0);
    /// Brought in without need.
    pub const GUESSED: Usage = Usage(Self::UNSEEN);

    /// The low bits: sleeps in a row without use; [`Self::AHEAD`] for a page that was
    /// [brought ahead](Self::ahead).
    const IDLE: u8 = 0b111;
    const AHEAD: u8 = Self::IDLE;
    const UNSEEN: u8 = 1 << 3;
    const RETURNED: u8 = 1 << 4;
    /// Nothing of what was there is any more (see [`crate::mm::discard`]).
    const EMPTIED: u8 = 1 << 5;

    /// That of a present entry.
    pub fn of(pte: Pte) -> Usage {
        Usage(pte.spare())
    }

    /// `pte` with this usage.
    #[must_use]
    pub fn put(self, pte: Pte) -> Pte {
        pte.with_spare(self.0)
    }

    /// As six bits.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// That of [`Self::bits`], the low six.
    pub fn from_bits(bits: u8) -> Usage {
        Usage(bits & 0x3f)
    }

    /// True if nobody is known to have used it since it was brought in, or emptied.
    pub fn is_unseen(self) -> bool {
        self.0 & (Self::UNSEEN | Self::EMPTIED) != 0
    }

    /// After a use.
    #[must_use]
    pub fn seen(self) -> Usage {
        Usage(self.0 & Self::RETURNED)
    }

    /// Of a page in a slot: brought in when nobody needed it, and no part of the working set unless
    /// somebody does.
    #[must_use]
    pub fn ahead(self) -> Usage {
        Usage(self.seen().0 | Self::UNSEEN | Self::AHEAD)
    }

    /// In the swap file after it was in memory as `self`, and was not in use for long enough.
    #[must_use]
    pub fn left(self) -> Usage {
        let is_as_it_came = self.is_unseen() && self.0 & Self::IDLE == Self::AHEAD;
        if is_as_it_came { self.seen() } else { Self::LEFT }
    }

    /// After its program gave back what it held.
    #[must_use]
    pub fn emptied(self) -> Usage {
        Usage(self.seen().0 | Self::EMPTIED)
    }

    /// True if it was emptied, and nobody is known to have used it since.
    pub fn is_emptied(self) -> bool {
        self.0 & Self::EMPTIED != 0
    }

    /// Of a page with two holders: the use by either counts.
    #[must_use]
    pub fn join(self, other: Usage) -> Usage {
        let returned = (self.0 | other.0) & Self::RETURNED;
        if !self.is_unseen() || !other.is_unseen() {
            return Usage(returned);
        }
        Usage((self.0 & Self::IDLE).min(other.0 & Self::IDLE) | Self::UNSEEN | returned)
    }

    /// At a sleep, after a life that `counts` (whether anything was asked of the container in it):
    /// what it is when the next wake has prefetched it; `None` when it is to leave the working set.
    pub fn after_sleep(self, counts: bool) -> Option<Usage> {
        let returned = self.0 & Self::RETURNED;
        let idle = match self.is_unseen() {
            true => (self.0 & Self::IDLE) + u8::from(counts),
            false => 0,
        };
        let patience = if returned != 0 { PATIENCE_RETURNED } else { PATIENCE };
        (idle < patience).then_some(Usage(idle | Self::UNSEEN | returned))
    }

    /// In the swap file after it has left the working set: what is to be known when it comes back.
    pub const LEFT: Usage = Usage(Self::RETURNED);
}

#[cfg(test)]
mod tests {
    use qlib::Gpa;
    use qlib::pagetable::PteFlags;

    use super::*;

    /// How many sleeps a page survives in the set when it is used in the lives that `used` names,
    /// up to `most`.
    fn survives(first: Usage, most: u32, used: impl Fn(u32) -> bool) -> u32 {
        let mut usage = first;
        for life in 1..=most {
            match usage.after_sleep(true) {
                Some(next) => usage = next,
                None => return life - 1,
            }
            if used(life) {
                usage = usage.seen();
            }
        }
        most
    }

    #[test]
    fn what_is_used_stays_and_what_is_not_leaves() {
        assert_eq!(survives(Usage::USED, 100, |_| true), 100);
        assert_eq!(survives(Usage::USED, 100, |_| false), u32::from(PATIENCE));
        assert_eq!(survives(Usage::USED, 100, |life| life <= 10), 10 + u32::from(PATIENCE));
        assert_eq!(
            survives(Usage::GUESSED, 100, |_| false),
            u32::from(PATIENCE) - 1,
            "a wrong guess goes sooner"
        );
    }

    #[test]
    fn every_second_life_is_enough() {
        assert_eq!(survives(Usage::USED, 100, |life| life % 2 == 0), 100);
        assert_eq!(survives(Usage::LEFT, 100, |life| life % 2 == 1), 100);
    }

    #[test]
    fn who_comes_back_is_waited_for_longer() {
        assert!(survives(Usage::USED, 100, |life| life % 5 == 0) < 5);
        assert_eq!(
            survives(Usage::LEFT, 100, |life| life % 5 == 0),
            100,
            "one bounce, not one each time"
        );
        assert_eq!(survives(Usage::LEFT, 100, |_| false), u32::from(PATIENCE_RETURNED));
    }

    #[test]
    fn what_comes_ahead_goes_as_it_came_unless_it_is_used() {
        for slot in [Usage::USED, Usage::LEFT] {
            let ahead = slot.ahead();
            assert!(ahead.is_unseen());
            for counts in [false, true] {
                assert_eq!(ahead.after_sleep(counts), None, "no sleep finds it in the set");
            }
            assert_eq!(ahead.left(), slot);
            assert_eq!(ahead.seen(), slot.seen());
            assert!(ahead.seen().after_sleep(true).is_some(), "used");
            assert_eq!(ahead.join(Usage::USED).left(), Usage::LEFT);
        }
        let patient = Usage(Usage::UNSEEN | Usage::RETURNED | (PATIENCE_RETURNED - 1));
        assert_eq!((patient.after_sleep(true), patient.left()), (None, Usage::LEFT));
    }

    #[test]
    fn a_life_without_a_request_says_nothing() {
        let mut usage = Usage::USED;
        for _ in 0..50 {
            usage = usage.after_sleep(false).expect("it stays");
        }
        assert!(usage.is_unseen());
        assert_eq!(
            usage.after_sleep(true),
            Usage::USED.after_sleep(true).and_then(|u| u.after_sleep(true))
        );
    }

    #[test]
    fn one_holder_that_uses_it_is_enough() {
        let idle = Usage::USED.after_sleep(true).expect("it stays");
        let idler = idle.after_sleep(true);
        assert_eq!(idle.join(Usage::USED), Usage::USED);
        assert_eq!(Usage::USED.join(idle), Usage::USED);
        assert_eq!(idle.join(idle), idle);
        assert_eq!(idler.map_or(idle, |i| i.join(idle)), idle, "the shorter time counts");
        assert_eq!(idle.join(Usage::LEFT), Usage::LEFT);
        assert!(!idle.seen().is_unseen());
    }

    #[test]
    fn an_entry_keeps_it_whether_present_or_swapped() {
        let flags = PteFlags::PRESENT | PteFlags::WRITE | PteFlags::NX;
        let pte = Pte::new(Gpa(0x1234_5000), flags);
        let unseen = Usage::USED.after_sleep(true).expect("it stays");
        let marked = unseen.put(pte);
        assert_eq!((Usage::of(marked), marked.gpa(), marked.flags()), (unseen, pte.gpa(), flags));
        assert_eq!(Usage::USED.put(marked), pte);
        assert_eq!(Usage::of(marked.with_gpa(Gpa(0x7000))), unseen);
        let swapped = Usage::LEFT.put(Pte::swapped(77, PteFlags::COW));
        assert_eq!((swapped.slot(), Usage::of(swapped)), (Some(77), Usage::LEFT));
    }
}
