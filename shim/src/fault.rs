//! How a call of containerd fails: the codes that its clients tell apart.

use containerd_shim_protos::ttrpc::{Code, Error, get_status};

/// Why a call failed; each with one line for the user.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No such container or process, or it has ended.
    #[error("{0}: not found")]
    NotFound(String),
    /// A container or process of this name is there already.
    #[error("{0}: already exists")]
    AlreadyExists(String),
    /// Not in this state.
    #[error("{0}: failed precondition")]
    FailedPrecondition(String),
    /// The request makes no sense.
    #[error("{0}: invalid argument")]
    InvalidArgument(String),
    /// quark cannot do that.
    #[error("{0}: not implemented")]
    Unimplemented(String),
    /// Anything else.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        let code = match &fault {
            Fault::NotFound(_) => Code::NOT_FOUND,
            Fault::AlreadyExists(_) => Code::ALREADY_EXISTS,
            Fault::FailedPrecondition(_) => Code::FAILED_PRECONDITION,
            Fault::InvalidArgument(_) => Code::INVALID_ARGUMENT,
            Fault::Unimplemented(_) => Code::UNIMPLEMENTED,
            Fault::Other(_) => Code::UNKNOWN,
        };
        Error::RpcStatus(get_status(code, fault))
    }
}
