//! Random bytes, the log, control answers, the end.

use rustix::io::Errno;

use super::super::memory::sys;
use super::{Call, Outcome};

/// The longest line for the log, in bytes; the rest is cut off.
const MAX_LOG: usize = 4096;
/// The longest answer to a control request, in bytes.
const MAX_REPLY: usize = 128 << 10;

impl Call<'_> {
    pub(super) fn random(&mut self) -> Outcome {
        let to = self.range(0)?;
        sys::getrandom(to.truncated(1 << 20)).map(|n| n as u64)
    }

    pub(super) fn log(&mut self) -> Outcome {
        let line = self.range(0)?.truncated(MAX_LOG).to_vec(MAX_LOG)?;
        // The guest must not write terminal escapes into somebody's log.
        let line: String =
            String::from_utf8_lossy(&line).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = line.trim_end();
        match self.args[0] {
            1 => tracing::error!(target: "kernel", "{line}"),
            2 => tracing::warn!(target: "kernel", "{line}"),
            3 => tracing::info!(target: "kernel", "{line}"),
            4 => tracing::debug!(target: "kernel", "{line}"),
            5 => tracing::trace!(target: "kernel", "{line}"),
            _ => return Err(Errno::INVAL),
        }
        Ok(0)
    }

    pub(super) fn control_reply(&mut self) -> Outcome {
        let reply = self.range(0)?.to_vec(MAX_REPLY)?;
        self.host.replies.deliver(self.args[0], &reply).map(|()| 0)
    }

    pub(super) fn exit(&mut self) -> Outcome {
        // As a wait status knows it: the low eight bits.
        self.host.poller.request_exit((self.args[0] & 0xff) as i32);
        Ok(0)
    }
}
