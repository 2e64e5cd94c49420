//! The client side of a sandbox's control socket.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use qlib::control::{Reply, Request};

use super::state::{CONTROL_SOCKET, Entry};

/// The longest answer that is believed, in bytes.
const MAX_REPLY: u32 = 16 << 20;

/// An answer that says the request failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// Linux errno.
    pub errno: i32,
    /// What failed and what to do.
    pub message: String,
}

/// A connection to a sandbox: one request at a time.
#[derive(Debug)]
pub struct Connection(UnixStream);

/// Makes the socket of a container that is being created.
///
/// # Errors
/// Those of bind(2).
pub fn listen(entry: &Entry) -> Result<UnixListener> {
    let (_dir, path) = short_path(entry)?;
    UnixListener::bind(path).with_context(|| format!("creating {}", entry.dir.join(CONTROL_SOCKET).display()))
}

/// The socket by a path that fits into a socket address, however long the state directory's is. It is good while the
/// descriptor lives.
fn short_path(entry: &Entry) -> io::Result<(std::os::fd::OwnedFd, String)> {
    let dir = entry.open_dir()?;
    let path = format!("/proc/self/fd/{}/{CONTROL_SOCKET}", dir.as_raw_fd());
    Ok((dir, path))
}

impl Connection {
    /// Connects to a container's sandbox.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn open(entry: &Entry) -> Result<Self> {
        let (_dir, path) = short_path(entry)?;
        let stream = UnixStream::connect(path);
        Ok(Connection(stream.with_context(|| format!("connecting to the sandbox of container {}", entry.id))?))
    }

    /// A connection that someone else made.
    pub fn from_stream(stream: UnixStream) -> Self {
        Connection(stream)
    }

    /// The socket.
    pub fn stream(&self) -> &UnixStream {
        &self.0
    }

    /// How long to wait for an answer; `None` is for ever.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        Ok(self.0.set_read_timeout(timeout)?)
    }

    /// Sends a request with descriptors and waits for the answer.
    ///
    /// # Errors
    /// [`Refused`] for an answer that is an error; others when the connection breaks.
    pub fn call(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Reply> {
        self.send(request, fds)?;
        self.receive()
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
        let length = u32::try_from(body.len()).context("control request too long")?;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(body);
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() { &[] } else { &rights[..] };
        let sent =
            sendmsg::<UnixAddr>(self.0.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None);
        let sent = sent.context("writing to the sandbox")?;
        self.0.write_all(&bytes[sent..]).context("writing to the sandbox")
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
        match postcard::from_bytes(&body).context("decoding the sandbox's answer")? {
            Reply::Error { errno, message } => Err(Refused { errno, message: message.replace('\n', " ") }.into()),
            reply => Ok(reply),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.0.read_exact(buffer).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => anyhow!("the sandbox ended"),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => anyhow!("the sandbox does not answer"),
            _ => anyhow!(e).context("reading from the sandbox"),
        })
    }
}

/// The error for an answer that does not fit the request.
pub fn unexpected(reply: &Reply) -> anyhow::Error {
    anyhow!("the sandbox gave an answer that does not fit: {reply:?}")
}
