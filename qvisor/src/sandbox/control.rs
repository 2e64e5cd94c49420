//! The control socket: how `quark kill`, `exec`, `state` and the others reach a sandbox.
//!
//! A Unix stream socket. A frame is its length (four bytes, little endian, of what follows) and the postcard form of a
//! [`qlib::control::Request`] or [`qlib::control::Reply`]. Descriptors for a new process' standard streams ride on the first
//! byte of its frame (SCM_RIGHTS), and [`ProcessSpec::stdio`] holds indices into them (or nothing: then they are taken in
//! order). A Start without descriptors takes the streams that the sandbox was given at its boot. Answers come in the order in which requests end, so who waits for long (Wait) opens a
//! connection of its own. A process that was made by Exec is killed if its connection ends before it was waited for or held: whoever asked gave up. For the same reason a request whose connection has ended before it is looked at is not served. Only the user that runs the sandbox may connect; what is malformed ends that connection, nothing
//! else.

use std::collections::{HashMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};

use qlib::Gpa;
use qlib::control::{PlatformStats, ProcessSpec, Reply, Request};
use qlib::host::NO_HANDLE;
use qlib::platform::{EVENT_CONTROL, Event};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags, SocketFlags,
};

use super::confine::user_namespace;
use super::events::{Dispatch, KEY_FIRST, Sources};
use super::hostcall::HostSide;
use crate::platform::PlatformKind;
use crate::platform::kvm::stats::Exits;
use crate::streams::Stream;

/// The longest request, in bytes, without the head of its frame.
pub const MAX_FRAME: usize = 160 << 10;
/// Descriptors that may ride on one frame.
const MAX_FDS: usize = 3;
const MAX_CONNECTIONS: usize = 64;
const MAX_OUTSTANDING: usize = 256;
/// Bytes of requests that may wait for the mailbox.
const MAX_LINE_BYTES: usize = 4 << 20;

/// Who gets an answer.
#[derive(Debug)]
enum Target {
    /// `starts`: the answer is the number of a process that nobody else knows of.
    Connection {
        key: u64,
        socket: Arc<OwnedFd>,
        starts: bool,
    },
    /// Nobody any more; a process that was started for the request is not wanted.
    Abandoned,
    Local(mpsc::Sender<Reply>),
}

/// Requests on their way into the kernel.
#[derive(Debug, Default)]
struct Line {
    /// The one that lies in the mailbox: the kernel has not said that it has a copy.
    lying: Option<u64>,
    /// Those that come after it: id and bytes.
    waiting: VecDeque<(u64, Gpa, Vec<u8>)>,
    /// How many bytes those are.
    bytes: usize,
}

/// The requests that the kernel has not answered yet.
#[derive(Debug, Default)]
pub struct Replies {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Target>>,
    line: Mutex<Line>,
    /// Processes that were started for a connection which has not asked for their end yet.
    unclaimed: Mutex<Vec<(u64, u32)>>,
    /// Processes that nobody wants, and what wakes the event loop to end them.
    unwanted: Mutex<Vec<u32>>,
    bell: OnceLock<OwnedFd>,
    /// The user that this process is of.
    owner: OnceLock<u32>,
}

impl Replies {
    /// No request outstanding.
    pub fn new() -> Replies {
        Replies::default()
    }

    fn unclaimed(&self) -> MutexGuard<'_, Vec<(u64, u32)>> {
        self.unclaimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unwanted(&self) -> MutexGuard<'_, Vec<u32>> {
        self.unwanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The user that this process is of, asked for once: before the process is confined.
    pub fn owner(&self) -> u32 {
        *self.owner.get_or_init(|| rustix::process::geteuid().as_raw())
    }

    /// Makes the bell of their server, which is done by then or does it: a process that is confined makes no eventfd.
    ///
    /// # Errors
    /// Those of eventfd(2); EEXIST when there is one.
    pub fn make_bell(&self) -> Result<(), Errno> {
        self.owner();
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        self.bell.set(bell).map_err(|_| Errno::EXIST)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Target>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel has copied request `id` out of the mailbox: puts the next one there, and has the event loop tell the kernel, which is in a
    /// host call now. ENOENT when that is not what lies there.
    pub fn taken(&self, host: &HostSide, id: u64) -> Result<(), Errno> {
        let mut line = self.line();
        if line.lying != Some(id) {
            return Err(Errno::NOENT);
        }
        line.lying = None;
        while let Some((id, gpa, payload)) = line.waiting.pop_front() {
            line.bytes -= payload.len();
            match host.memory.write(gpa, &payload) {
                Ok(()) => {
                    line.lying = Some(id);
                    host.poller.post(request_event(id, &payload));
                    break;
                }
                Err(e) => {
                    tracing::error!("a control request cannot be put into the mailbox: {e}");
                    self.waiting().remove(&id);
                }
            }
        }
        Ok(())
    }

    fn register(&self, target: Target) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.waiting().insert(id, target);
        id
    }

    fn outstanding(&self, connection: u64) -> usize {
        self.waiting().values().filter(|t| matches!(t, Target::Connection { key, .. } if *key == connection)).count()
    }

    fn forget_connection(&self, connection: u64) {
        self.waiting().retain(|_, target| match target {
            Target::Connection { key, starts, .. } if *key == connection => {
                let starts = *starts;
                *target = Target::Abandoned;
                starts
            }
            _ => true,
        });
        let mut unclaimed = self.unclaimed();
        let left = unclaimed.extract_if(.., |(key, _)| *key == connection).map(|(_, pid)| pid);
        self.unwanted().extend(left);
    }

    /// Has the event loop end processes that nobody wants.
    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            rustix::io::write(bell, &1u64.to_ne_bytes()).ok();
        }
    }

    /// Passes the postcard form of a reply on to whoever waits for it. ENOENT when nobody does (any more), EINVAL when
    /// it is not a reply.
    pub fn deliver(&self, id: u64, reply: &[u8]) -> Result<(), Errno> {
        // The command line does not get to parse what did not pass here.
        let decoded: Reply = postcard::from_bytes(reply).map_err(|_| Errno::INVAL)?;
        // Answers on one connection must not mix: the lock is held until it is sent, which does not block.
        let mut waiting = self.waiting();
        match waiting.remove(&id).ok_or(Errno::NOENT)? {
            Target::Connection { key, socket, starts } => {
                if let (true, Reply::Pid(pid)) = (starts, &decoded) {
                    self.unclaimed().push((key, *pid));
                }
                send_reply(&socket, reply);
            }
            Target::Abandoned => {
                if let Reply::Pid(pid) = decoded {
                    self.unwanted().push(pid);
                    self.ring();
                }
            }
            Target::Local(sender) => {
                // The receiver may have given up waiting.
                sender.send(decoded).ok();
            }
        }
        Ok(())
    }

    /// Answers on a connection without having asked the kernel.
    fn answer(&self, socket: &OwnedFd, reply: &Reply) {
        let _turn = self.waiting();
        if let Ok(bytes) = postcard::to_allocvec(reply) {
            send_reply(socket, &bytes);
        }
    }
}

fn send_reply(socket: &OwnedFd, reply: &[u8]) {
    let head = (reply.len() as u32).to_le_bytes();
    let parts = [IoSlice::new(&head), IoSlice::new(reply)];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags);
    if sent != Ok(head.len() + reply.len()) {
        // Gone, or it does not read: nobody waits for such a client. The event loop sees the hang-up.
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).ok();
    }
}

fn request_event(id: u64, payload: &[u8]) -> Event {
    Event { kind: EVENT_CONTROL, a: id, b: payload.len() as u64, ..Event::default() }
}

/// The guest buffer through which requests reach the kernel, one at a time: each lies there until the kernel says that it has a copy
/// ([`qlib::host::Op::MailboxTaken`]), and the others wait in memory of the host.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox {
    /// Where.
    pub gpa: Gpa,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Mailbox {
    fn submit(&self, host: &HostSide, request: &Request, target: Target, dispatch: Dispatch<'_>) -> Result<(), Errno> {
        let payload = postcard::to_allocvec(request).map_err(|_| Errno::INVAL)?;
        if payload.len() as u64 > self.bytes {
            return Err(Errno::TOOBIG);
        }
        if let Request::Start(process) | Request::Exec(process) = request {
            host.grant(process.capabilities.iter().fold(0, |all, set| all | set));
        }
        let mut line = host.replies.line();
        if line.lying.is_some() {
            // What the VMM itself wants is little, and must not fail because others want much.
            if matches!(target, Target::Connection { .. }) && line.bytes + payload.len() > MAX_LINE_BYTES {
                return Err(Errno::AGAIN);
            }
            let id = host.replies.register(target);
            line.bytes += payload.len();
            line.waiting.push_back((id, self.gpa, payload));
            return Ok(());
        }
        host.memory.write(self.gpa, &payload)?;
        let id = host.replies.register(target);
        line.lying = Some(id);
        // The kernel may say at once that it has taken it.
        drop(line);
        dispatch(&request_event(id, &payload));
        Ok(())
    }

    /// Gives a request of the VMM's own to the kernel. The reply comes over the channel, perhaps only after more
    /// turns of the event loop.
    pub fn local(
        &self,
        host: &HostSide,
        request: &Request,
        dispatch: Dispatch<'_>,
    ) -> Result<mpsc::Receiver<Reply>, Errno> {
        let (sender, receiver) = mpsc::channel();
        self.submit(host, request, Target::Local(sender), dispatch)?;
        Ok(receiver)
    }
}

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
#[derive(Debug)]
pub struct ControlServer {
    host: Arc<HostSide>,
    mailbox: Mailbox,
    /// Handles of the streams for the first process.
    stdio: [u32; 3],
    listener: Option<OwnedFd>,
    connections: HashMap<u64, Connection>,
    next_key: u64,
    /// On the kvm platform.
    exits: Option<Arc<Exits>>,
}

const KEY_LISTENER: u64 = KEY_FIRST;
const KEY_BELL: u64 = KEY_FIRST + 1;

impl ControlServer {
    /// A server on `listener` (a listening Unix stream socket), if there is one.
    pub fn new(
        host: Arc<HostSide>,
        mailbox: Mailbox,
        stdio: [u32; 3],
        listener: Option<OwnedFd>,
    ) -> Result<ControlServer, Errno> {
        if let Some(listener) = &listener {
            let flags = rustix::fs::fcntl_getfl(listener)?;
            rustix::fs::fcntl_setfl(listener, flags | rustix::fs::OFlags::NONBLOCK)?;
            host.poller.add_source(listener.as_fd(), KEY_LISTENER)?;
        }
        if host.replies.bell.get().is_none() {
            host.replies.make_bell()?;
        }
        if let Some(bell) = host.replies.bell.get() {
            host.poller.add_source(bell.as_fd(), KEY_BELL)?;
        }
        let next_key = KEY_BELL + 1;
        Ok(ControlServer { host, mailbox, stdio, listener, connections: HashMap::new(), next_key, exits: None })
    }

    /// Says that the guest runs on the kvm platform, and where its exits are counted.
    pub fn set_exits(&mut self, exits: Arc<Exits>) {
        self.exits = Some(exits);
    }

    fn platform_stats(&self) -> PlatformStats {
        match &self.exits {
            Some(exits) => exits.read(),
            None => PlatformStats { name: PlatformKind::Process.to_string(), ..PlatformStats::default() },
        }
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
        // The peer's process id is 0 when it is outside of our PID namespace, which rustix takes for an error.
        let peer = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials);
        let user = user_namespace::maker().unwrap_or_else(|| self.host.replies.owner());
        let same_user = peer.is_ok_and(|c| c.uid() == user);
        if !same_user || self.connections.len() >= MAX_CONNECTIONS {
            return;
        }
        let key = self.next_key;
        tracing::debug!("control connection {key:#x}");
        if self.host.poller.add_source(socket.as_fd(), key).is_ok() {
            self.next_key += 1;
            let connection = Connection { socket: Arc::new(socket), bytes: Vec::new(), fds: Vec::new(), holds: None };
            self.connections.insert(key, connection);
        }
    }

    fn close(&mut self, key: u64, dispatch: Dispatch<'_>) {
        let Some(connection) = self.connections.remove(&key) else { return };
        self.host.poller.unwatch(connection.socket.as_fd());
        let is_held = self.host.replies.outstanding(key) > 0;
        self.host.replies.forget_connection(key);
        self.end_unwanted(dispatch);
        // As long as its end has not been told, the number is still that of the process.
        if let Some(pid) = connection.holds.filter(|_| is_held) {
            let request = Request::Signal { pid, all: false, signo: libc::SIGKILL as u32 };
            if let Err(e) = self.mailbox.local(&self.host, &request, dispatch) {
                tracing::warn!("guest process {pid} outlives the process that stood for it: {e}");
            }
        }
    }

    /// Ends processes whose start was asked for by somebody who gave up waiting for it.
    fn end_unwanted(&mut self, dispatch: Dispatch<'_>) {
        if let Some(bell) = self.host.replies.bell.get() {
            rustix::io::read(bell, &mut [0u8; 8]).ok();
        }
        let unwanted = std::mem::take(&mut *self.host.replies.unwanted());
        for pid in unwanted {
            let request = Request::Signal { pid, all: false, signo: libc::SIGKILL as u32 };
            if let Err(e) = self.mailbox.local(&self.host, &request, dispatch) {
                tracing::warn!("guest process {pid} outlives the command that gave up on it: {e}");
            }
        }
    }

    /// Takes what has come on a connection and serves it if that makes a frame; `Err` ends the connection.
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
            self.host.replies.answer(&socket, &Reply::Platform(self.platform_stats()));
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

    /// Turns descriptors that came with a request into handles. The kernel owns the handles from then on.
    fn admit(&self, request: Request, fds: Vec<OwnedFd>) -> Result<(Request, Vec<u32>), Errno> {
        match request {
            // The container is made by the sandbox itself, before it listens.
            Request::Create(_) => Err(Errno::PERM),
            Request::Start(spec) if fds.is_empty() => {
                Ok((Request::Start(ProcessSpec { stdio: self.stdio, ..spec }), Vec::new()))
            }
            Request::Start(spec) => self.admit_process(spec, fds).map(|(s, h)| (Request::Start(s), h)),
            Request::Exec(spec) => self.admit_process(spec, fds).map(|(s, h)| (Request::Exec(s), h)),
            Request::Hold { pid } => Ok((Request::Wait { pid }, Vec::new())),
            other => Ok((other, Vec::new())),
        }
    }

    fn admit_process(&self, spec: ProcessSpec, fds: Vec<OwnedFd>) -> Result<(ProcessSpec, Vec<u32>), Errno> {
        let mut handles = Vec::new();
        for (fd, own) in fds.into_iter().zip(spec.own_stdio.into_iter().chain(std::iter::repeat(false))) {
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
        } else if key == KEY_BELL {
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

    /// Takes what has come, up to the end of the frame; whether the frame is whole. EPIPE at the end of the stream.
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

    /// The socket, the body of the whole frame and its descriptors. Nothing is kept: an idle sandbox holds no big buffers.
    fn take(&mut self) -> (Arc<OwnedFd>, Vec<u8>, Vec<OwnedFd>) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..4.min(bytes.len()));
        (self.socket.clone(), bytes, std::mem::take(&mut self.fds))
    }
}

/// Whether the other side of a connection has closed it, with nothing more to read.
fn has_hung_up(socket: &OwnedFd) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    matches!(rustix::net::recv(socket, &mut [0u8; 1], flags), Ok((_, 0)) | Err(Errno::CONNRESET))
}

/// The request that is all of `bytes`.
fn parse(bytes: &[u8]) -> Option<Request> {
    let (request, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(request)
}

/// Receives bytes and descriptors without waiting. EPIPE at the end, EBADMSG when descriptors were cut off.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut parts, &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::BADMSG);
    }
    if got.bytes == 0 {
        return Err(Errno::PIPE);
    }
    Ok((got.bytes, fds))
}

#[cfg(test)]
mod tests;
