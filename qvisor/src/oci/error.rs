//! Errors that have a name because callers (containerd, Docker, scripts) look for their words.

use std::fmt;

/// The most bytes of a container's ID.
pub const MAX_ID_BYTES: usize = 200;

/// What can be wrong with a container as the command line names it. The words are runc's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ContainerError {
    /// An ID with characters that are not allowed.
    #[error("invalid container ID format {0:?}: use letters, digits and _ + - . only")]
    InvalidId(String),
    /// An ID of so many bytes.
    #[error("invalid container ID format: it has {0} characters, and {MAX_ID_BYTES} are the most")]
    LongId(usize),
    /// An ID that is "", "." or "..".
    #[error(
        "invalid container ID format {0:?}: it is to name a directory of its own; use letters, \
        digits and _ + - ."
    )]
    NoId(String),
    /// `create` or `run` with an ID in use.
    #[error("container with given ID already exists: {0}")]
    Exists(String),
    /// No such container.
    #[error("container {0:?} does not exist")]
    NotExist(String),
    /// `delete --force` came while it was made.
    #[error("container {0} was deleted while it was being made")]
    Deleted(String),
    /// It has ended.
    #[error("container not running")]
    NotRunning,
    /// `delete` without --force.
    #[error("cannot delete container {0} that is not stopped: {1}; use --force to kill it")]
    NotStopped(String, String),
}

/// The sandbox closed its control connection instead of answering: it has ended, or does so within
/// moments.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the sandbox ended")]
pub struct SandboxEnded;

/// An error that ends the program with an exit code other than 1.
#[derive(Debug)]
pub struct WithCode {
    /// The exit code.
    pub code: u8,
    /// The error.
    pub error: anyhow::Error,
}

impl fmt::Display for WithCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl std::error::Error for WithCode {}
