//! The state machine of hibernation: the paper's figure 3, with the passages that take time made
//! explicit.
//!
//! ```text
//!        request          SIGSTOP           idle             written out
//! Warm ────────► Running   Warm ─────► Settling ───► Deflating ─────────► Hibernated
//!  ▲               │       WokenUp ──►     │             │                 │      │
//!  └──── idle ─────┘                       │ wake, busy  │ wake, failure   │      │ SIGCONT
//!                                          ▼             ▼                 │      ▼
//!                                       (the state before)         request │   Inflating ► WokenUp
//!                                                                          ▼                 │ ▲
//!                                             Inflating ──► HibernateRunning ───── idle ─────┼─┘
//!                                                                 ▲                          │
//!                                                                 └───────── request ────────┘
//! ```
//!
//! Idleness counts as SIGSTOP where a container sleeps by itself ([`super::idle`]), and a timer
//! that is due then as a request. SIGSTOP may also come while a request is being served (Running,
//! HibernateRunning). In Settling everything still runs until nothing keeps it awake
//! ([`super::quiesce`]); one that is not idle in time leaves it as it came.

use qlib::control::HibernationState;

/// Where the sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Awake. `woken`: it has been hibernated before; `busy`: some thread runs.
    Awake {
        /// It has been hibernated before.
        woken: bool,
        /// Some thread runs.
        busy: bool,
    },
    /// About to be written out, once what has just come from outside is served. `woken`: of the
    /// state before.
    Settling {
        /// It had been hibernated before.
        woken: bool,
    },
    /// Being written out. `woken`: of the state before.
    Deflating {
        /// It had been hibernated before.
        woken: bool,
    },
    /// Written out; nothing runs.
    Hibernated,
    /// Being read back.
    Inflating,
}

/// What can happen to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A thread began to run.
    Busy,
    /// The last running thread blocked.
    Idle,
    /// SIGSTOP to the container.
    Stop,
    /// Nothing new is left to serve.
    Settled,
    /// All memory is in the store.
    Deflated,
    /// The deflate was given up: the store failed, or something woke the sandbox meanwhile.
    Abandoned,
    /// A request, signal, exec or SIGCONT.
    Wake,
    /// The working set is back.
    Inflated,
}

impl State {
    /// A sandbox that has just started.
    pub const START: State = State::Awake { woken: false, busy: true };

    /// The state after `input`; `None` where it makes no sense.
    pub fn after(self, input: Input) -> Option<State> {
        use Input::*;
        use State::*;
        Some(match (self, input) {
            (Awake { woken, .. }, Busy) => Awake { woken, busy: true },
            (Awake { woken, .. }, Idle) => Awake { woken, busy: false },
            (Awake { woken, .. }, Stop) => Settling { woken },
            (Awake { .. }, Wake) => self,
            (Settling { woken }, Settled) => Deflating { woken },
            (Settling { woken }, Abandoned) => Awake { woken, busy: true },
            // As below; what comes by a socket is served.
            (Settling { .. }, Wake | Busy | Idle) => self,
            (Deflating { .. }, Deflated) => Hibernated,
            (Deflating { woken }, Abandoned) => Awake { woken, busy: false },
            // A wake during a deflate abandons it; the deflating task sees it and says `Abandoned`.
            (Deflating { .. }, Wake | Busy | Idle) => self,
            (Hibernated, Wake) => Inflating,
            (Hibernated, Stop) => Hibernated,
            (Inflating, Inflated) => Awake { woken: true, busy: false },
            (Inflating, Wake) => Inflating,
            _ => return None,
        })
    }

    /// The name that users see.
    pub fn shown(self) -> HibernationState {
        match self {
            State::Awake { woken: false, busy: true } | State::Settling { woken: false } => {
                HibernationState::Running
            }
            State::Awake { woken: false, busy: false } => HibernationState::Warm,
            State::Awake { woken: true, busy: true }
            | State::Settling { woken: true }
            | State::Inflating => HibernationState::HibernateRunning,
            State::Awake { woken: true, busy: false } => HibernationState::WokenUp,
            State::Deflating { woken: false } => HibernationState::Warm,
            State::Deflating { woken: true } => HibernationState::WokenUp,
            State::Hibernated => HibernationState::Hibernated,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Input::*;
    use super::*;

    fn run(inputs: &[Input]) -> Option<State> {
        inputs.iter().try_fold(State::START, |state, input| state.after(*input))
    }

    #[test]
    fn follows_the_papers_figure() {
        let shown = |inputs: &[Input]| run(inputs).map(State::shown);
        assert_eq!(shown(&[]), Some(HibernationState::Running));
        assert_eq!(shown(&[Idle]), Some(HibernationState::Warm));
        assert_eq!(shown(&[Idle, Busy]), Some(HibernationState::Running));
        assert_eq!(shown(&[Idle, Stop, Settled, Deflated]), Some(HibernationState::Hibernated));
        assert_eq!(
            shown(&[Idle, Stop, Settled, Deflated, Wake]),
            Some(HibernationState::HibernateRunning)
        );
        assert_eq!(
            shown(&[Idle, Stop, Settled, Deflated, Wake, Inflated]),
            Some(HibernationState::WokenUp)
        );
        assert_eq!(
            shown(&[Idle, Stop, Settled, Deflated, Wake, Inflated, Busy]),
            Some(HibernationState::HibernateRunning)
        );
        assert_eq!(
            shown(&[Idle, Stop, Settled, Deflated, Wake, Inflated, Busy, Idle]),
            Some(HibernationState::WokenUp)
        );
        assert_eq!(
            shown(&[Idle, Stop, Settled, Deflated, Wake, Inflated, Stop, Settled, Deflated]),
            Some(HibernationState::Hibernated)
        );
    }

    #[test]
    fn an_abandoned_deflate_leaves_the_state_before() {
        assert_eq!(run(&[Idle, Stop, Abandoned]), Some(State::Awake { woken: false, busy: true }));
        assert_eq!(
            run(&[Idle, Stop, Settled, Abandoned]),
            Some(State::Awake { woken: false, busy: false })
        );
        assert_eq!(run(&[Idle, Stop, Deflated]), None);
        assert_eq!(run(&[Idle, Stop, Settled, Deflated, Deflated]), None);
        assert_eq!(run(&[Stop, Stop]), None);
    }

    proptest! {
        /// Whatever happens, only `Deflated` leads to sleep, only after `Stop`, and a sleeper runs
        /// nothing before `Inflated`.
        #[test]
        fn sleep_begins_and_ends_explicitly(inputs in proptest::collection::vec(prop_oneof![
            Just(Busy), Just(Idle), Just(Stop), Just(Settled), Just(Deflated), Just(Abandoned),
            Just(Wake), Just(Inflated)], 0..60)) {
            let mut state = State::START;
            for input in inputs {
                let Some(next) = state.after(input) else { continue };
                if next == State::Hibernated && state != State::Hibernated {
                    let was_deflating = matches!(state, State::Deflating { .. });
                    prop_assert!(was_deflating && input == Deflated);
                }
                if matches!(state, State::Hibernated) {
                    let stays = matches!(next, State::Hibernated | State::Inflating);
                    prop_assert!(stays);
                }
                if matches!(next, State::Awake { woken: true, .. }) && state == State::Inflating {
                    prop_assert_eq!(input, Inflated);
                }
                state = next;
            }
        }
    }
}
