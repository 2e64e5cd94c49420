//! The control socket: how `quark kill`, `exec`, `state` and the others reach a sandbox.
//!
//! A Unix stream socket. A frame is its length (four bytes, little endian, of what follows) and the
//! postcard form of a [`qlib::control::Request`] or [`qlib::control::Reply`]. Descriptors for a new
//! process' standard streams ride on the first byte of its frame (SCM_RIGHTS), and
//! [`ProcessSpec::stdio`] holds indices into them (or nothing: then they are taken in order). A
//! Start without descriptors takes the streams that the sandbox was given at its boot. Answers come
//! in the order in which requests end, so who waits for long (Wait) opens a connection of its own.
//! A process that was made by Exec is killed if its connection ends before it was waited for or
//! held: whoever asked gave up. For the same reason a request whose connection has ended before it
//! is looked at is not served. Only the user that runs the sandbox may connect; what is malformed
//! ends that connection, nothing else.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qlib::control::{ProcessSpec, Reply, Request};
use qlib::host::NO_HANDLE;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};

use super::confine::user_namespace;
use super::events::{Dispatch, KEY_FIRST, Sources};
use super::hostcall::HostSide;
use super::mailbox::{Mailbox, Target};
use super::platform::Running;
use crate::streams::Stream;
use crate::sys;

/// The longest request, in bytes, without the head of its frame.
pub const MAX_FRAME: usize = 160 << 10;
/// Descriptors that may ride on one frame.
const MAX_FDS: usize = 3;
const MAX_CONNECTIONS: usize = 64;
const MAX_OUTSTANDING: usize = 256;
/// How long the sandbox's end waits for that of the processes that stand for processes of `exec`.
const FAREWELL: Duration = Duration::from_millis(500);
/// How long those take from where they can be seen to end to where their parent can.
const EXIT: Duration = Duration::from_millis(10);

/// A connection, with what has come of the frame that is under way.
#[derive(Debug)]
struct Connection {
    socket: Arc<OwnedFd>,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// The guest process that lives no longer than this connection ([`Request::Hold`]).
    holds: Option<u32>,
}

/// The control server; lives on the event loop's thread.
pub struct ControlServer {
    host: Arc<HostSide>,
    platform: Arc<dyn Running>,
    mailbox: Mailbox,
    /// Handles of the streams for the first process.
    stdio: [u32; 3],
    listener: Option<OwnedFd>,
    connections: HashMap<u64, Connection>,
    next_key: u64,
}

const KEY_LISTENER: u64 = KEY_FIRST;
const KEY_WAKEUP: u64 = KEY_FIRST + 1;

impl ControlServer {
    /// A server on `listener` (a listening Unix stream socket), if there is one.
    pub fn new(
        host: Arc<HostSide>,
        platform: Arc<dyn Running>,
        mailbox: Mailbox,
        stdio: [u32; 3],
        listener: Option<OwnedFd>,
    ) -> Result<ControlServer, Errno> {
        if let Some(listener) = &listener {
            let flags = rustix::fs::fcntl_getfl(listener)?;
            rustix::fs::fcntl_setfl(listener, flags | rustix::fs::OFlags::NONBLOCK)?;
            host.poller.add_source(listener.as_fd(), KEY_LISTENER)?;
        }
        if host.replies.wakeup.get().is_none() {
            host.replies.make_wakeup()?;
        }
        if let Some(wakeup) = host.replies.wakeup.get() {
            host.poller.add_source(wakeup.as_fd(), KEY_WAKEUP)?;
        }
        let next_key = KEY_WAKEUP + 1;
        Ok(ControlServer {
            host,
            platform,
            mailbox,
            stdio,
            listener,
            connections: HashMap::new(),
            next_key,
        })
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        if let Ok(socket) = rustix::net::accept_with(listener, flags) {
            self.add(socket);
        }
    }

    /// Takes a connection on, if it is of the same user.
    fn add(&mut self, socket: OwnedFd) {
        // The peer's process id is 0 when it is outside of our PID namespace, which rustix takes
        // for an error.
        let peer =
            nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials);
        let user = user_namespace::maker().unwrap_or_else(|| self.host.replies.owner());
        let same_user = peer.is_ok_and(|c| c.uid() == user);
        if !same_user || self.connections.len() >= MAX_CONNECTIONS {
            return;
        }
        let key = self.next_key;
        tracing::debug!("control connection {key:#x}");
        if self.host.poller.add_source(socket.as_fd(), key).is_ok() {
            self.next_key += 1;
            let connection = Connection {
                socket: Arc::new(socket),
                bytes: Vec::new(),
                fds: Vec::new(),
                holds: None,
            };
            self.connections.insert(key, connection);
        }
    }

    fn close(&mut self, key: u64, dispatch: Dispatch<'_>) {
        let Some(connection) = self.connections.remove(&key) else { return };
        self.host.poller.unwatch(connection.socket.as_fd());
        let is_held = self.host.replies.outstanding(key) > 0;
        self.host.replies.forget_connection(key);
        self.end_unwanted(dispatch);
        // As long as its end has not been reported, the number is still that of the process.
        if let Some(pid) = connection.holds.filter(|_| is_held) {
            let request = Request::Signal { pid, all: false, signo: libc::SIGKILL as u32 };
            if let Err(e) = self.mailbox.local(&self.host, &request, dispatch) {
                tracing::warn!("guest process {pid} outlives the process that stood for it: {e}");
            }
        }
    }

    /// Before the sandbox ends: waits for the end of the processes of the host that stand for
    /// processes of `exec`. Engines want to see them end before the container does, as where a PID
    /// namespace ends.
    pub fn see_off(&self) {
        let end = Instant::now() + FAREWELL;
        let held: Vec<&Connection> =
            self.connections.values().filter(|one| one.holds.is_some()).collect();
        for connection in &held {
            // Whoever has no answer yet knows from this.
            rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Write).ok();
        }
        for connection in &held {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let mut gone = [PollFd::new(&connection.socket, PollFlags::IN)];
            rustix::event::poll(&mut gone, Some(&left)).ok();
        }
        if !held.is_empty() {
            let exit = Timespec { tv_sec: 0, tv_nsec: EXIT.subsec_nanos().into() };
            rustix::event::poll(&mut [], Some(&exit)).ok();
        }
    }

    /// Ends processes whose start was asked for by somebody who gave up waiting for it.
    fn end_unwanted(&mut self, dispatch: Dispatch<'_>) {
        if let Some(wakeup) = self.host.replies.wakeup.get() {
            rustix::io::read(wakeup, &mut [0u8; 8]).ok();
        }
        let unwanted = std::mem::take(&mut *self.host.replies.unwanted());
        for pid in unwanted {
            let request = Request::Signal { pid, all: false, signo: libc::SIGKILL as u32 };
            if let Err(e) = self.mailbox.local(&self.host, &request, dispatch) {
                tracing::warn!("guest process {pid} outlives the command that gave up on it: {e}");
            }
        }
    }

    /// Takes what has come on a connection and serves it if that makes a frame; `Err` ends the
    /// connection.
    fn serve(&mut self, key: u64, dispatch: Dispatch<'_>) -> Result<(), Errno> {
        let connection = self.connections.get_mut(&key).ok_or(Errno::NOENT)?;
        if !connection.receive()? {
            return Ok(());
        }
        let (socket, bytes, fds) = connection.take();
        // Who has gone meanwhile gave up waiting, and said that nothing was done.
        if has_hung_up(&socket) {
            return Err(Errno::PIPE);
        }
        let request = parse(&bytes).ok_or(Errno::BADMSG)?;
        if self.host.replies.outstanding(key) >= MAX_OUTSTANDING {
            return Err(Errno::AGAIN);
        }
        if let Request::Hold { pid } | Request::Wait { pid } = request {
            self.host.replies.unclaimed().retain(|claim| *claim != (key, pid));
        }
        if let Request::Hold { pid } = request
            && let Some(connection) = self.connections.get_mut(&key)
        {
            connection.holds = Some(pid);
        }
        if request == Request::Platform {
            self.host.replies.answer(&socket, &Reply::Platform(self.platform.stats()));
            return Ok(());
        }
        let (request, handles) = self.admit(request, fds)?;
        let starts = matches!(request, Request::Exec(_));
        let target = Target::Connection { key, socket: socket.clone(), starts };
        if let Err(e) = self.mailbox.submit(&self.host, &request, target, dispatch) {
            self.close_handles(&handles);
            let message = format!("the request does not reach the kernel: {e}");
            self.host.replies.answer(&socket, &Reply::Error { errno: e.raw_os_error(), message });
        }
        Ok(())
    }

    /// Turns descriptors that came with a request into handles. The kernel owns the handles from
    /// then on.
    fn admit(&self, request: Request, fds: Vec<OwnedFd>) -> Result<(Request, Vec<u32>), Errno> {
        match request {
            // The container is made by the sandbox itself, before it listens.
            Request::Create(_) => Err(Errno::PERM),
            Request::Start(spec) if fds.is_empty() => {
                Ok((Request::Start(ProcessSpec { stdio: self.stdio, ..spec }), Vec::new()))
            }
            Request::Start(spec) => {
                self.admit_process(spec, fds).map(|(s, h)| (Request::Start(s), h))
            }
            Request::Exec(spec) => {
                self.admit_process(spec, fds).map(|(s, h)| (Request::Exec(s), h))
            }
            Request::Hold { pid } => Ok((Request::Wait { pid }, Vec::new())),
            other => Ok((other, Vec::new())),
        }
    }

    fn admit_process(
        &self,
        spec: ProcessSpec,
        fds: Vec<OwnedFd>,
    ) -> Result<(ProcessSpec, Vec<u32>), Errno> {
        let mut handles = Vec::new();
        for (fd, own) in
            fds.into_iter().zip(spec.own_stdio.into_iter().chain(std::iter::repeat(false)))
        {
            // With a terminal all three are the same.
            if spec.terminal && !handles.is_empty() {
                break;
            }
            match self.host.add_stdio(Stream { fd, own }) {
                Ok(handle) => handles.push(handle),
                Err(e) => {
                    self.close_handles(&handles);
                    return Err(e);
                }
            }
        }
        let in_order = spec.stdio == [NO_HANDLE; 3];
        let mut stdio = [NO_HANDLE; 3];
        for (i, (to, index)) in stdio.iter_mut().zip(spec.stdio).enumerate() {
            let index = if in_order { i } else { index as usize };
            let index = if spec.terminal { 0 } else { index };
            *to = handles.get(index).copied().unwrap_or(NO_HANDLE);
        }
        Ok((ProcessSpec { stdio, ..spec }, handles))
    }

    fn close_handles(&self, handles: &[u32]) {
        for handle in handles {
            self.host.close(*handle).ok();
        }
    }
}

impl Sources for ControlServer {
    fn ready(&mut self, key: u64, dispatch: Dispatch<'_>) {
        if key == KEY_LISTENER {
            self.accept();
        } else if key == KEY_WAKEUP {
            self.end_unwanted(dispatch);
        } else if let Err(e) = self.serve(key, dispatch) {
            if e != Errno::PIPE {
                tracing::debug!("control connection closed: {e}");
            }
            self.close(key, dispatch);
        }
    }
}

impl Connection {
    /// The length of the frame that is under way, with its head, once that is known.
    fn frame_len(&self) -> Result<Option<usize>, Errno> {
        let Some(head) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len > MAX_FRAME { Err(Errno::MSGSIZE) } else { Ok(Some(len + 4)) }
    }

    /// Takes what has come, up to the end of the frame; whether the frame is whole. EPIPE at the
    /// end of the stream.
    fn receive(&mut self) -> Result<bool, Errno> {
        loop {
            let have = self.bytes.len();
            let want = self.frame_len()?.unwrap_or(4);
            if have == want && have > 4 {
                return Ok(true);
            }
            if have == want && want == 4 && self.frame_len()? == Some(4) {
                // An empty frame holds no request.
                return Err(Errno::BADMSG);
            }
            self.bytes.resize(want, 0);
            let got = receive(&self.socket, &mut self.bytes[have..]);
            self.bytes.truncate(have + got.as_ref().map_or(0, |(n, _)| *n));
            match got {
                Ok((_, fds)) => {
                    self.fds.extend(fds);
                    if self.fds.len() > MAX_FDS {
                        return Err(Errno::MFILE);
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
    }

    /// The socket, the body of the whole frame and its descriptors. Nothing is kept: an idle
    /// sandbox holds no big buffers.
    fn take(&mut self) -> (Arc<OwnedFd>, Vec<u8>, Vec<OwnedFd>) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..4.min(bytes.len()));
        (self.socket.clone(), bytes, std::mem::take(&mut self.fds))
    }
}

/// True if the other side of a connection has closed it, with nothing more to read.
fn has_hung_up(socket: &OwnedFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    matches!(rustix::net::recv(socket, &mut [0u8; 1], flags), Ok((_, 0)) | Err(Errno::CONNRESET))
}

/// The request that is all of `bytes`.
fn parse(bytes: &[u8]) -> Option<Request> {
    let (request, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(request)
}

/// Receives bytes and descriptors without waiting. EPIPE at the end, EBADMSG when descriptors were
/// cut off.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let got = sys::receive_files(socket, buffer, MAX_FDS, RecvFlags::DONTWAIT)?;
    if got.cut_off {
        return Err(Errno::BADMSG);
    }
    if got.bytes == 0 {
        return Err(Errno::PIPE);
    }
    Ok((got.bytes, got.files))
}

#[cfg(test)]
mod tests;
