//! A sandbox that is copied: it gives away what it is, and does nothing until the copy is made.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use qlib::control::{Reply, Request};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{AsMade, ControlServer, Dispatch};
use crate::sandbox::image::Image;
use crate::store::{FILES, Store, Stored};
use crate::sys;

/// How long whoever makes the copy may take.
const HOLD: Duration = Duration::from_secs(600);
/// How long it may take to receive what it is to copy.
const SEND: Duration = Duration::from_secs(10);
/// The longest description of what a store holds that is received, in bytes.
const MAX_SUMS: u64 = 1 << 30;
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
        let host = self.host.clone();
        let refuse = |message: &str| {
            let message = message.to_owned();
            host.replies.answer(socket, &Reply::Error { errno: libc::EBUSY, message });
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
        self.given = Some(key);
        let (parts, files) = match self.host.parts() {
            Ok(parts) => parts,
            Err(message) => {
                // Whoever tries again has it sleep again, which it does when it keeps nothing.
                self.settle(None, dispatch)?;
                return refuse(message);
            }
        };
        let kept = self.host.store().map(Store::kept).unwrap_or_default();
        let body = postcard::to_allocvec(&(parts, kept)).map_err(|_| Errno::NOMEM)?;
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
    pub(super) fn release(
        &mut self,
        key: u64,
        socket: &OwnedFd,
        end: bool,
        dispatch: Dispatch<'_>,
    ) {
        let is_held = self.held.take() == Some(key);
        match is_held && end {
            true => self.host.poller.request_exit(ENDED),
            false => self.wake_for(key, dispatch),
        }
        self.answer(socket, is_held, Ok(()));
    }

    /// Wakes the sandbox if it sleeps for this connection, which needs that no more.
    pub(super) fn wake_for(&mut self, key: u64, dispatch: Dispatch<'_>) {
        if self.stays.take_if(|stays| *stays == key).is_some()
            && let Err(e) = self.mailbox.local(&self.host, &Request::Wake, dispatch)
        {
            tracing::warn!("the sandbox sleeps on after its copy was made: {e}");
        }
    }

    /// Has the sandbox keep its memory for nobody any more: it is written, and `stored` says what
    /// the store holds then, or it never will be. What the kernel says to that.
    pub(super) fn settle(
        &mut self,
        stored: Option<&Stored>,
        dispatch: Dispatch<'_>,
    ) -> Result<Reply, Errno> {
        self.given = None;
        let store = self.host.store().ok_or(Errno::NOSYS)?;
        if let Some(stored) = stored {
            store.written(stored);
        }
        let request = Request::Kept { written: stored.is_some() };
        let asked = self.mailbox.local(&self.host, &request, dispatch)?;
        store.not_written();
        asked.try_recv().map_err(|_| Errno::AGAIN)
    }

    /// Answers [`Request::Written`].
    pub(super) fn written(
        &mut self,
        key: u64,
        socket: &OwnedFd,
        fds: Vec<OwnedFd>,
        dispatch: Dispatch<'_>,
    ) -> Result<(), Errno> {
        if self.given != Some(key) {
            let message = "it keeps nothing for the image any more: make it anew".to_owned();
            self.host.replies.answer(socket, &Reply::Error { errno: libc::ECANCELED, message });
            return Ok(());
        }
        let file = fds.into_iter().next().map(File::from).ok_or(Errno::BADF)?;
        let stored: Stored = read_sums(&file).ok_or(Errno::BADMSG)?;
        let reply = self.settle(Some(&stored), dispatch)?;
        self.host.replies.answer(socket, &reply);
        Ok(())
    }

    /// Answers [`Request::NoteWake`].
    pub(super) fn note_wake(&self, key: u64, socket: &OwnedFd, fds: Vec<OwnedFd>) {
        let is_held = self.held == Some(key);
        let noted = match fds.into_iter().next().filter(|_| is_held) {
            Some(file) => self.host.wake_note.keep(file),
            None => Err(Errno::BADF),
        };
        self.answer(socket, is_held, noted.map_err(|e| e.to_string()));
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
        // What it is now it has not been at its last sleep.
        host.wake_note.write();
        let last = image.parts.last_request;
        let go_back = || -> anyhow::Result<Reply> {
            host.go_back(image)?;
            let AsMade { limit, sleep, is_paused: paused } = self.as_made.clone();
            let request =
                Request::Restored { hostname: None, limit, sleep, paused, background: false };
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

/// What a file says that a store holds.
fn read_sums(file: &File) -> Option<Stored> {
    let mut bytes = vec![0; file.metadata().ok()?.len().min(MAX_SUMS) as usize];
    file.read_exact_at(&mut bytes, 0).ok()?;
    postcard::from_bytes(&bytes).ok()
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
