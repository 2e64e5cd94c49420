//! Whether somebody outside waits for an answer, as far as a socket shows it.
//!
//! Who has asked is seen from who spoke first and who spoke last: what a server has received and
//! has not said anything after is a question. What it has just said may be the first part of an
//! answer. No look at protocols is better at that, and one kind of error is harmless: where nobody
//! waits for an answer (a stream in one direction), it is only believed that somebody does.

/// For how long after a part of an answer the next one is waited for, in nanoseconds.
const BETWEEN_PARTS_NS: u64 = 2_000_000_000;

/// How a conversation stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Talk {
    /// Nobody has said anything. It is not known yet who will ask.
    #[default]
    Silent,
    /// This side spoke first, or made the connection: it asks, and owes nothing.
    Asks,
    /// Connections are accepted here.
    Listens,
    /// The other side asks, and has all of its answers.
    Serves,
    /// The other side has asked, at this time of CLOCK_MONOTONIC, in nanoseconds.
    IsAsked(u64),
    /// It has been given an answer, or a part of one, at this time.
    Answers(u64),
}

impl Talk {
    /// Something was received at `now_ns`.
    pub fn receive(&mut self, now_ns: u64) {
        if !matches!(self, Talk::Asks | Talk::Listens) {
            *self = Talk::IsAsked(now_ns);
        }
    }

    /// Something is sent at the time that `now_ns` tells, which is asked only where it matters.
    pub fn send(&mut self, now_ns: impl FnOnce() -> u64) {
        *self = match *self {
            Talk::Silent => Talk::Asks,
            Talk::Serves | Talk::IsAsked(_) | Talk::Answers(_) => Talk::Answers(now_ns()),
            Talk::Asks | Talk::Listens => return,
        };
    }

    /// Since when somebody waits for an answer, or for more of it, at `now_ns`.
    pub fn asked_ns(self, now_ns: u64) -> Option<u64> {
        match self {
            Talk::IsAsked(asked_ns) => Some(asked_ns),
            Talk::Answers(ns) => Some(ns).filter(|ns| now_ns < ns.saturating_add(BETWEEN_PARTS_NS)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_owes_an_answer_until_it_has_said_all() {
        for begin in [Talk::Serves, Talk::Silent] {
            let mut talk = begin;
            assert_eq!(talk.asked_ns(4), None);
            talk.receive(5);
            talk.receive(7);
            assert_eq!(talk.asked_ns(u64::MAX), Some(7));
            talk.send(|| 8);
            assert_eq!(talk.asked_ns(7 + BETWEEN_PARTS_NS), Some(8), "more may come");
            talk.send(|| 9);
            assert_eq!(talk.asked_ns(8 + BETWEEN_PARTS_NS), Some(9));
            assert_eq!(talk.asked_ns(9 + BETWEEN_PARTS_NS), None);
            talk.receive(10);
            assert_eq!(talk.asked_ns(u64::MAX), Some(10));
        }
    }

    #[test]
    fn who_asks_owes_nothing() {
        let mut talk = Talk::Silent;
        talk.send(|| unreachable!("nobody needs the time"));
        talk.receive(5);
        talk.send(|| unreachable!("nor when it asks again"));
        assert_eq!(talk, Talk::Asks);
        let mut listener = Talk::Listens;
        listener.receive(5);
        listener.send(|| unreachable!("nobody needs the time"));
        assert_eq!(listener, Talk::Listens);
    }
}
