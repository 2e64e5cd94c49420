//! A sandbox that is copied: it gives away what it is, and does nothing until the copy is made.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use qlib::control::{Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{ControlServer, Dispatch};
use crate::sys;

/// How long whoever makes the copy may take.
const HOLD: Duration = Duration::from_secs(600);
/// How long it may take to receive what it is to copy.
const SEND: Duration = Duration::from_secs(10);
/// The exit status of a sandbox that ends as its copy lives on: as of a process killed by SIGKILL.
const ENDED: i32 = 128 + libc::SIGKILL;

impl ControlServer {
    /// Answers [`Request::Checkpoint`], which came on connection `key`, and waits until the next
    /// request is there: this is the thread that would wake the sandbox.
    pub(super) fn checkpoint(
        &mut self,
        key: u64,
        socket: &OwnedFd,
        dispatch: Dispatch<'_>,
    ) -> Result<(), Errno> {
        let refuse = |message: &str| {
            let message = message.to_owned();
            self.host.replies.answer(socket, &Reply::Error { errno: libc::EBUSY, message });
            Ok(())
        };
        if self.held.is_some() {
            return refuse("a copy of it is being made");
        }
        if self.is_shared {
            return refuse("the containers of a pod with one kernel are no image");
        }
        let asked = self.mailbox.local(&self.host, &Request::Checkpoint, dispatch)?;
        match asked.try_recv() {
            Ok(Reply::Done) => {}
            Ok(Reply::Error { message, .. }) => return refuse(&message),
            _ => return refuse("other requests come first: try again"),
        }
        let (parts, files) = match self.host.parts() {
            Ok(parts) => parts,
            Err(message) => return refuse(message),
        };
        let body = postcard::to_allocvec(&parts).map_err(|_| Errno::NOMEM)?;
        let reply = postcard::to_allocvec(&Reply::Image(body)).map_err(|_| Errno::NOMEM)?;
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(self.host.memory.memfd())
            .chain(files.store.iter().map(AsFd::as_fd))
            .chain(files.named.iter().map(AsFd::as_fd))
            .collect();
        let mut frame = (reply.len() as u32).to_le_bytes().to_vec();
        frame.extend(reply);
        let end = Instant::now() + SEND;
        sys::send_all(socket, &frame, &fds, || match wait(socket, PollFlags::OUT, end) {
            true => Ok(()),
            false => Err(Errno::AGAIN),
        })?;
        if !wait(socket, PollFlags::IN, Instant::now() + HOLD) {
            return Ok(());
        }
        self.held = Some(key);
        let served = self.serve(key, dispatch);
        self.held = None;
        served
    }

    /// Answers [`Request::Release`].
    pub(super) fn release(&mut self, key: u64, socket: &OwnedFd, end: bool) {
        let is_held = self.held == Some(key);
        let reply = match is_held {
            true => Reply::Done,
            false => Reply::Error {
                errno: libc::ETIMEDOUT,
                message: format!(
                    "the copy took longer than {} s, and the sandbox went on meanwhile",
                    HOLD.as_secs()
                ),
            },
        };
        if is_held && end {
            self.host.poller.request_exit(ENDED);
        }
        self.host.replies.answer(socket, &reply);
    }
}

/// Waits until a socket is ready, or its other side has gone, until `end` at most; whether it is.
fn wait(socket: &OwnedFd, flags: PollFlags, end: Instant) -> bool {
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
        match rustix::event::poll(&mut [PollFd::new(socket, flags)], left.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return ready.is_ok_and(|count| count > 0),
        }
    }
}
