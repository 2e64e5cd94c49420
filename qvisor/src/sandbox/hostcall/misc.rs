//! Random bytes, the log, control answers, clocks, the end.

use std::sync::atomic::Ordering;

use qlib::host::EXIT_MEMORY_LOST;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::super::ended;
use super::{Call, Outcome};
use crate::sys;

/// The longest line for the log, in bytes; the rest is cut off.
const MAX_LOG: usize = 4096;
/// About what the log adds to a line, in bytes.
const LOG_HEAD: usize = 64;
/// The longest answer to a control request, in bytes.
const MAX_REPLY: usize = 128 << 10;

/// Four readings of clocks that took longer than this were interrupted. They take 0.1 us with the
/// host's vDSO, 1 us without.
const CLOCK_QUIET_NS: u64 = 5_000;
const CLOCK_TRIES: u32 = 3;

fn clock_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

impl Call<'_> {
    pub(super) fn random(&mut self) -> Outcome {
        let to = self.range(0)?;
        sys::getrandom(to.truncated(1 << 20)).map(|n| n as u64)
    }

    pub(super) fn log(&mut self) -> Outcome {
        let line = self.range(0)?.truncated(MAX_LOG).to_vec(MAX_LOG)?;
        if !self.host.log.take(line.len() + LOG_HEAD) {
            return Ok(0);
        }
        // The guest must not write terminal escapes into somebody's log.
        let line: String = String::from_utf8_lossy(&line)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
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

    pub(super) fn clocks(&mut self) -> Outcome {
        // A program that is interrupted in here says so by two readings of CLOCK_MONOTONIC that lie
        // far apart: once more then.
        for _ in 0..CLOCK_TRIES {
            let clocks =
                [ClockId::Monotonic, ClockId::Realtime, ClockId::Boottime, ClockId::Monotonic]
                    .map(clock_ns);
            self.args[..4].copy_from_slice(&clocks);
            if clocks[3].saturating_sub(clocks[0]) < CLOCK_QUIET_NS {
                break;
            }
        }
        Ok(0)
    }

    /// The guest runs out of memory before its cgroup does, and what it then kills the host knows
    /// nothing of. Engines look at the cgroup alone: whether the host has killed somebody there. So
    /// when the container ends for it, this process takes what is left up to the limit, which is
    /// the container's own, and the host's killer comes. Should it not (there is swap), all is
    /// given back.
    pub(super) fn memory_used_up(&mut self) -> Outcome {
        const PIECE_BYTES: usize = 1 << 20;
        // Once.
        let most = self.host.to_the_limit.swap(0, Ordering::Relaxed);
        if most > 0 {
            let reason = "memory was used up, by its first process at last";
            ended::out_of_memory(128 + libc::SIGKILL, reason);
        }
        let mut taken: Vec<Vec<u8>> = Vec::new();
        while (taken.len() * PIECE_BYTES) as u64 <= most {
            let mut piece = Vec::new();
            if piece.try_reserve_exact(PIECE_BYTES).is_err() {
                break;
            }
            // Not zero: each page is to be there.
            piece.resize(PIECE_BYTES, 1u8);
            taken.push(std::hint::black_box(piece));
        }
        Ok(0)
    }

    pub(super) fn exit(&mut self) -> Outcome {
        // As a wait status knows it: the low eight bits.
        let status = ended::ended_by_kernel((self.args[0] & 0xff) as i32, self.args[1]);
        if self.args[1] == EXIT_MEMORY_LOST {
            // Not when the event loop comes to it: user code would run until then.
            sys::exit_now(status);
        }
        self.host.poller.request_exit(status);
        Ok(0)
    }
}
