//! A sandbox that is copied: it gives away what it is, and does nothing until the copy is made.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use qlib::control::{Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{AsMade, ControlServer, Dispatch};
use crate::sandbox::image::Image;
use crate::store::FILES;
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
        let end = Instant::now() + HOLD;
        self.held = Some(key);
        let mut served = Ok(());
        // Whoever has it may ask for more than one thing until it goes on.
        while self.held.is_some() && served.is_ok() && wait(socket, PollFlags::IN, end) {
            served = self.serve(key, dispatch);
        }
        self.held = None;
        served
    }

    /// Answers [`Request::Release`].
    pub(super) fn release(&mut self, key: u64, socket: &OwnedFd, end: bool) {
        let is_held = self.held.take() == Some(key);
        if is_held && end {
            self.host.poller.request_exit(ENDED);
        }
        self.answer(socket, is_held, Ok(()));
    }

    /// Answers [`Request::Adopt`].
    pub(super) fn adopt(&self, key: u64, socket: &OwnedFd, layers: &[u64], fds: Vec<OwnedFd>) {
        let is_held = self.held == Some(key);
        let adopt = || {
            let mut files = fds.into_iter().map(File::from);
            let fresh: Vec<File> = files.by_ref().take(FILES).collect();
            let fresh = <[File; FILES]>::try_from(fresh).map_err(|_| "files are missing")?;
            let layers = layers.iter().copied().zip(files.by_ref()).collect();
            self.host.adopt(layers, files.next(), fresh).map_err(|e| e.to_string())
        };
        let adopted = if is_held { adopt() } else { Ok(()) };
        self.answer(socket, is_held, adopted);
    }

    /// Says that something was done, or why not, to whoever held the sandbox at that time.
    fn answer(&self, socket: &OwnedFd, is_held: bool, done: Result<(), String>) {
        let reply = match done {
            Ok(()) if is_held => Reply::Done,
            Ok(()) => Reply::Error {
                errno: libc::ETIMEDOUT,
                message: format!(
                    "the copy took longer than {} s, and the sandbox went on meanwhile",
                    HOLD.as_secs()
                ),
            },
            Err(message) => Reply::Error { errno: libc::EIO, message },
        };
        self.host.replies.answer(socket, &reply);
    }

    /// Answers [`Request::Become`].
    pub(super) fn become_again(
        &mut self,
        key: u64,
        socket: &OwnedFd,
        (layers, given): (u32, &[bool]),
        fds: Vec<OwnedFd>,
        dispatch: Dispatch<'_>,
    ) -> Result<(), Errno> {
        let is_held = self.held == Some(key);
        if !is_held {
            self.answer(socket, false, Ok(()));
            return Ok(());
        }
        let done = match Image::received(layers as usize, given, fds) {
            Ok(image) if image.is_of(&self.host.memory) => self.go_back(image, dispatch),
            Ok(_) => Err("the image is of an earlier run of the container".to_owned()),
            Err(e) => Err(format!("the image does not fit together: {e}")),
        };
        self.answer(socket, true, done);
        Ok(())
    }

    /// Makes the sandbox, which sleeps, what it was when an image was made of it. It ends if that
    /// fails half way.
    fn go_back(&mut self, image: Image, dispatch: Dispatch<'_>) -> Result<(), String> {
        let host = self.host.clone();
        let last = image.parts.last_request;
        let go_back = || -> anyhow::Result<Reply> {
            host.go_back(image)?;
            let AsMade { limit, sleep, is_paused: paused } = self.as_made.clone();
            let request = Request::Restored { hostname: None, limit, sleep, paused };
            Ok(self.mailbox.local(&host, &request, dispatch)?.try_recv()?)
        };
        let gone_back = go_back();
        // The kernel knows nothing of what was asked for since, or was made for that.
        for key in host.replies.cut_after(last) {
            if self.held != Some(key)
                && let Some(connection) = self.connections.remove(&key)
            {
                host.poller.unwatch(connection.socket.as_fd());
            }
        }
        let reason = match gone_back {
            Ok(Reply::Done) => return Ok(()),
            Ok(Reply::Error { message, .. }) => message,
            Ok(other) => format!("{other:?}"),
            Err(e) => format!("{e:#}"),
        };
        tracing::error!("going back to an image failed: {reason}");
        host.poller.request_exit(ENDED);
        Err(format!("{reason}; the container has ended"))
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
