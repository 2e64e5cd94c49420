//! Whether somebody outside waits for an answer, as far as a socket shows it.
//!
//! Who has asked is seen from who spoke first and who spoke last: what a server has received and
//! has not said anything after is a question. No look at protocols is better at that, and one
//! kind of error is harmless: where nobody waits for an answer (a stream in one direction), it is
//! only believed that somebody does.

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
    /// The other side asks. Since when it waits, CLOCK_MONOTONIC in nanoseconds.
    Serves {
        /// `None` when it has its answer.
        asked_ns: Option<u64>,
    },
}

impl Talk {
    /// Of a connection that was accepted.
    pub const ACCEPTED: Talk = Talk::Serves { asked_ns: None };

    /// Something was received at `now_ns`.
    pub fn receive(&mut self, now_ns: u64) {
        match self {
            Talk::Silent => *self = Talk::Serves { asked_ns: Some(now_ns) },
            Talk::Serves { asked_ns } => *asked_ns = Some(now_ns),
            Talk::Asks | Talk::Listens => {}
        }
    }

    /// Something was sent.
    pub fn send(&mut self) {
        match self {
            Talk::Silent => *self = Talk::Asks,
            Talk::Serves { asked_ns } => *asked_ns = None,
            Talk::Asks | Talk::Listens => {}
        }
    }

    /// Since when somebody waits for an answer.
    pub fn asked_ns(self) -> Option<u64> {
        match self {
            Talk::Serves { asked_ns } => asked_ns,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_owes_an_answer_until_it_says_something() {
        for begin in [Talk::ACCEPTED, Talk::Silent] {
            let mut talk = begin;
            assert_eq!(talk.asked_ns(), None);
            talk.receive(5);
            talk.receive(7);
            assert_eq!(talk.asked_ns(), Some(7));
            talk.send();
            assert_eq!(talk.asked_ns(), None);
            talk.receive(9);
            assert_eq!(talk.asked_ns(), Some(9));
        }
    }

    #[test]
    fn who_asks_owes_nothing() {
        let mut talk = Talk::Silent;
        talk.send();
        talk.receive(5);
        assert_eq!(talk, Talk::Asks);
        let mut listener = Talk::Listens;
        listener.receive(5);
        listener.send();
        assert_eq!(listener, Talk::Listens);
    }
}
