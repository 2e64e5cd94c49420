//! What comes of a system call.

use core::fmt;

use crate::errno::Result;

/// What a thread goes back to user mode with when its system call is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call returns this.
    Returns(Result<usize>),
    /// The call does not return: all registers of the thread are others, set with
    /// [`super::UserThread::set_registers`] (execve(2), rt_sigreturn(2)).
    RegistersReplaced,
}

/// The success of a call that does not return.
#[derive(Clone, Copy, Debug)]
pub struct RegistersReplaced;

impl From<Result<usize>> for Outcome {
    fn from(result: Result<usize>) -> Self {
        Outcome::Returns(result)
    }
}

impl From<Result<RegistersReplaced>> for Outcome {
    fn from(result: Result<RegistersReplaced>) -> Self {
        match result {
            Ok(RegistersReplaced) => Outcome::RegistersReplaced,
            Err(error) => Outcome::Returns(Err(error)),
        }
    }
}

/// As the trace of system calls shows it.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Returns(result) => result.fmt(f),
            Outcome::RegistersReplaced => f.write_str("RegistersReplaced"),
        }
    }
}

// It takes no more than what nearly all calls return, with or without a call.
const _: () = assert!(size_of::<Option<Outcome>>() == size_of::<Result<usize>>());
