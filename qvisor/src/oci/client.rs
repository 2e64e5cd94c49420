//! The client side of a sandbox's control socket.
//!
//! A sandbox may be stopped, busy without end, or hostile, so nothing here waits without a limit of
//! time unless it was asked to: not connecting (the queue of a listener that accepts nothing fills
//! up), not sending, not receiving. Who catches signals gives them to the connection
//! ([`Connection::heed`]), and one that asks this program to end ends the waiting.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, socket,
};
use qlib::control::{Reply, Request, Wakefulness};
use rustix::fs::{Mode, OFlags};
use rustix::net::RecvFlags;

use super::error::SandboxEnded;
use super::state::{CONTROL_SOCKET, Entry};
use crate::sandbox::control_server::MAX_FRAME;
use crate::{console, sys};

/// The longest answer that is believed, in bytes.
const MAX_REPLY: u32 = 16 << 20;
/// How long a sandbox may take to answer a request that it answers from memory, unless `--timeout`
/// says otherwise.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait before trying again to connect to a sandbox that has too many waiting already.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// An answer that says the request failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// Linux errno.
    pub errno: i32,
    /// What failed and what to do.
    pub message: String,
}

/// The sandbox did not answer in time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the sandbox of container {id} does not answer (waited {waited:?}); end it with: quark delete \
    --force {id}"
)]
pub struct Unanswered {
    /// The container's ID.
    pub id: String,
    /// How long it had.
    pub waited: Duration,
}

/// A connection to a sandbox: one request at a time.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// The container's ID, for messages.
    id: String,
    /// How long one request may take; `None` is for ever.
    timeout: Option<Duration>,
    /// When the request that is under way is over.
    deadline: Option<Instant>,
    /// The caught signals, if one that asks this program to end is to end the waiting, and from
    /// when on.
    signals: Option<(SignalFd, Instant)>,
    /// Descriptors that came with the answer that is being received, and how many are taken.
    files: (Vec<OwnedFd>, usize),
}

/// Makes the socket of a container that is being created.
///
/// # Errors
/// Those of bind(2).
pub fn listen(entry: &Entry) -> Result<UnixListener> {
    let (_dir, path) = short_path(&entry.dir.join(CONTROL_SOCKET))?;
    UnixListener::bind(path)
        .with_context(|| format!("creating {}", entry.dir.join(CONTROL_SOCKET).display()))
}

/// Has commands for one container reach the sandbox of another, in the same state directory.
///
/// # Errors
/// Those of symlink(2).
pub fn refer(entry: &Entry, to: &Entry) -> Result<()> {
    let (path, target) = (entry.dir.join(CONTROL_SOCKET), format!("../{}/{CONTROL_SOCKET}", to.id));
    std::os::unix::fs::symlink(target, &path)
        .with_context(|| format!("creating {}", path.display()))
}

/// A socket by a path that fits into a socket address, however long its own is. It is good while
/// the descriptor lives.
///
/// # Errors
/// Those of opening its directory; ENOENT when that is no name of a file.
pub(super) fn short_path(socket: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let socket = std::path::absolute(socket)?;
    let (Some(dir), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir, how, Mode::empty())?;
    let path = Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string()).join(name);
    Ok((opened, path))
}

impl Connection {
    /// Connects to a container's sandbox, whose every answer may take as long as `timeout`.
    ///
    /// # Errors
    /// When nobody listens; [`Unanswered`] when nobody accepts.
    pub fn open(entry: &Entry, timeout: Duration) -> Result<Self> {
        Self::connect(entry, timeout, None)
    }

    /// As [`Connection::open`] for a program that has caught signals: when `deaf` is over, one that
    /// asks it to end ends the waiting, also one that came before. A waiting that is over sooner
    /// leaves them to be read.
    ///
    /// # Errors
    /// As there; with the signal's name.
    pub fn open_interruptible(entry: &Entry, timeout: Duration, deaf: Duration) -> Result<Self> {
        Self::connect(entry, timeout, Some((console::catch_signals()?, Instant::now() + deaf)))
    }

    fn connect(
        entry: &Entry,
        timeout: Duration,
        signals: Option<(SignalFd, Instant)>,
    ) -> Result<Self> {
        let (_dir, path) = short_path(&entry.dir.join(CONTROL_SOCKET))?;
        let address = UnixAddr::new(&path)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)
            .context("making a socket")?;
        let mut connection = Self::new(UnixStream::from(fd), entry.id.clone());
        connection.timeout = Some(timeout);
        connection.signals = signals;
        connection.begin();
        loop {
            match connect(connection.stream.as_raw_fd(), &address) {
                Ok(()) => return Ok(connection),
                // Its queue is full.
                Err(Errno::EAGAIN) => connection.pause(CONNECT_PAUSE)?,
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNREFUSED) => bail!(SandboxEnded),
                Err(e) => {
                    return Err(e).with_context(|| {
                        format!("connecting to the sandbox of container {}", entry.id)
                    });
                }
            }
        }
    }

    /// A connection that someone else made. It waits for ever until [`Connection::set_timeout`].
    pub fn from_stream(stream: UnixStream) -> Self {
        Self::new(stream, "?".to_owned())
    }

    fn new(stream: UnixStream, id: String) -> Self {
        let files = (Vec::new(), 0);
        Connection { stream, id, timeout: None, deadline: None, signals: None, files }
    }

    /// The socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// How long to wait for an answer from the next request on; `None` is for ever.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Waits no longer than until `end` for the answer to the request that was sent.
    pub fn wait_until(&mut self, end: Instant) {
        self.deadline = Some(end);
    }

    fn begin(&mut self) {
        self.deadline = self.timeout.map(|t| Instant::now() + t);
    }

    /// Waits at most `longest`, or until a signal asks this program to end.
    fn pause(&self, longest: Duration) -> Result<()> {
        self.wait(None, Some(Instant::now() + longest)).map(drop)
    }

    /// Waits until the socket is ready for `events`, until `sooner` at the latest; whether it is.
    fn wait(&self, events: Option<PollFlags>, sooner: Option<Instant>) -> Result<bool> {
        loop {
            let now = Instant::now();
            if self.deadline.is_some_and(|d| d <= now) {
                return Err(Unanswered {
                    id: self.id.clone(),
                    waited: self.timeout.unwrap_or_default(),
                }
                .into());
            }
            if sooner.is_some_and(|s| s <= now) {
                return Ok(false);
            }
            let deaf = self.signals.as_ref().map(|(_, from)| *from).filter(|from| *from > now);
            let signals = self.signals.as_ref().map(|(fd, _)| fd).filter(|_| deaf.is_none());
            let end = [self.deadline, sooner, deaf].into_iter().flatten().min();
            let left = end.map(|end| end.saturating_duration_since(now));
            // Rounded up, so that it is not waited for in vain once more.
            let limit = left.map_or(PollTimeout::NONE, |l| {
                PollTimeout::try_from(l.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX)
            });
            let mut fds = Vec::with_capacity(2);
            if let Some(signals) = signals {
                fds.push(PollFd::new(signals.as_fd(), PollFlags::POLLIN));
            }
            if let Some(events) = events {
                fds.push(PollFd::new(self.stream.as_fd(), events));
            }
            match poll(&mut fds, limit) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e).context("waiting for the sandbox"),
            }
            let ready = events.is_some() && fds.last().and_then(PollFd::any) == Some(true);
            if ready {
                return Ok(true);
            }
            if let Some(signals) = signals {
                console::end_if_asked(signals)?;
            }
        }
    }

    /// Sends a request with descriptors and waits for the answer.
    ///
    /// # Errors
    /// [`Refused`] for an answer that is an error; others when the connection breaks.
    pub fn call(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Reply> {
        self.send(request, fds)?;
        self.receive()
    }

    /// As [`Connection::call`], with up to `most` descriptors that come with the answer.
    ///
    /// # Errors
    /// As there.
    pub fn call_for_files(
        &mut self,
        request: &Request,
        most: usize,
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        self.files = (Vec::new(), most);
        let reply = self.call(request, &[]);
        let (files, _) = std::mem::take(&mut self.files);
        Ok((reply?, files))
    }

    /// As [`Connection::call`] for requests that are answered with Done.
    ///
    /// # Errors
    /// As there.
    pub fn order(&mut self, request: &Request) -> Result<()> {
        match self.call(request, &[])? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a request without waiting.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn send(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let body = postcard::to_allocvec(request).context("encoding a control request")?;
        if body.len() > MAX_FRAME {
            bail!(
                "arguments, environment and groups take {} bytes in all, and a sandbox takes {}: \
                shorten them, or pass them in a file",
                body.len(),
                MAX_FRAME
            );
        }
        let length = body.len() as u32;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(body);
        self.begin();
        let room = || self.wait(Some(PollFlags::POLLOUT), None).map(drop);
        sys::send_all(&self.stream, &bytes, fds, room).map_err(|e: anyhow::Error| {
            match e.downcast_ref().copied() {
                Some(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => SandboxEnded.into(),
                Some(_) => e.context("writing to the sandbox"),
                None => e,
            }
        })
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn receive(&mut self) -> Result<Reply> {
        let mut length = [0; 4];
        self.read(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length > MAX_REPLY {
            bail!("the sandbox sent an answer of {length} bytes");
        }
        let mut body = vec![0; length as usize];
        self.read(&mut body)?;
        understood(&body)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut at = 0;
        while at < buffer.len() {
            match self.read_some(&mut buffer[at..]) {
                Ok(0) | Err(Errno::ECONNRESET) => bail!(SandboxEnded),
                Ok(got) => at += got,
                Err(Errno::EAGAIN) => drop(self.wait(Some(PollFlags::POLLIN), None)?),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(anyhow!(e).context("reading from the sandbox")),
            }
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> nix::Result<usize> {
        let (files, most) = &mut self.files;
        let left = most.saturating_sub(files.len()).min(sys::MAX_FILES);
        if left == 0 {
            return recv(self.stream.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT);
        }
        let got = sys::receive_files(&self.stream, buffer, left, RecvFlags::DONTWAIT)
            .map_err(|e| Errno::from_raw(e.raw_os_error()))?;
        if got.cut_off {
            return Err(Errno::EMFILE);
        }
        files.extend(got.files);
        Ok(got.bytes)
    }
}

/// The error for an answer that does not fit the request.
pub fn unexpected(reply: &Reply) -> anyhow::Error {
    anyhow!("the sandbox gave an answer that does not fit: {reply:?}")
}

/// An answer, with what it says to people in characters that a terminal shows: programs give
/// themselves names.
fn understood(body: &[u8]) -> Result<Reply> {
    let printable =
        |text: &str| text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    match postcard::from_bytes(body).context("decoding the sandbox's answer")? {
        Reply::Error { errno, message } => {
            Err(Refused { errno, message: printable(&message) }.into())
        }
        Reply::Why(why) => {
            let kept_by = why.kept_by.as_deref().map(printable);
            Ok(Reply::Why(Wakefulness { kept_by, ..why }))
        }
        reply => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sandbox_says_is_for_a_terminal() {
        let told = |reply: &Reply| understood(&postcard::to_allocvec(reply).unwrap());
        let evil = "process 1 (\x1b]0;x\x07\u{9b}2J\n) runs".to_owned();
        let said = "process 1 ( ]0;x  2J ) runs";
        let error = told(&Reply::Error { errno: 16, message: evil.clone() }).unwrap_err();
        assert_eq!(error.downcast_ref::<Refused>().unwrap().message, said);
        let why =
            Wakefulness { kept_by: Some(evil), after_ms: 1, idle_ms: 2, ..Wakefulness::default() };
        let Ok(Reply::Why(why)) = told(&Reply::Why(why)) else { panic!("no answer") };
        assert_eq!(why.kept_by.as_deref(), Some(said));
    }
}
