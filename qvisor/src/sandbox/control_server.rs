//! The control socket: how `quark kill`, `exec`, `state` and the others reach a sandbox.
//!
//! A Unix stream socket. A frame is its length (four bytes, little endian, of what follows) and the
//! postcard form of a [`qlib::control::Request`] or [`qlib::control::Reply`]. Descriptors for a new
//! process' standard streams ride on the first byte of its frame (SCM_RIGHTS), and
//! [`ProcessSpec::stdio`] holds indices into them (or nothing: then they are taken in order). A
//! Start without descriptors takes the streams that its container was made with. Answers come in
//! the order in which requests end, so who waits for long (Wait) opens a connection of its own. A
//! process that was made by Exec is killed if its connection ends before it was waited for or held:
//! whoever asked gave up. For the same reason a request whose connection has ended before it is
//! looked at is not served. A further container ends with the connection that it was made on.
//! Descriptors of its root and mounts come with its frame, some with each of the first bytes. Only
//! the user that runs the sandbox may connect; what is malformed ends that connection, nothing
//! else.

mod image;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qlib::control::{
    ContainerSpec, FIRST_CONTAINER, MemoryLimit, ProcessSpec, Reply, Request, SleepSpec,
};
use qlib::host::NO_HANDLE;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};

use super::confine::user_namespace;
use super::events::{Dispatch, KEY_FIRST, Sources};
use super::hostcall::HostSide;
use super::mailbox::{Made, Mailbox, Target};
use super::platform::Running;
use crate::streams::Stream;
use crate::sys;

/// The longest request, in bytes, without the head of its frame.
pub const MAX_FRAME: usize = 160 << 10;
/// Descriptors that may ride on the frame of a new container, and on another.
pub const MAX_FDS: usize = 512;
/// The same of a sandbox that becomes what it was.
const MAX_HELD_FDS: usize = 1 << 20;
const MAX_STREAMS: usize = 3;
/// Among them one for each process of `exec`, and for each further container.
const MAX_CONNECTIONS: usize = 256;
const MAX_OUTSTANDING: usize = 256;
/// With more no further container is made, and no process of exec, so that commands find a place.
const MOST_HELD: usize = MAX_CONNECTIONS / 4 * 3;
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
    /// What its other end stands for on the host.
    stands_for: Option<Stead>,
    /// It has asked for a sleep that lasts for it: the sandbox keeps its memory.
    keeps: bool,
}

/// What a process of the host stands for, which holds a connection.
#[derive(Clone, Copy, Debug)]
enum Stead {
    /// A guest process that lives no longer than the connection ([`Request::Hold`]).
    Process(u32),
    /// A further container, likewise ([`Request::Attend`]).
    Container,
}

/// The control server; lives on the event loop's thread.
pub struct ControlServer {
    host: Arc<HostSide>,
    platform: Arc<dyn Running>,
    mailbox: Mailbox,
    /// It takes further containers.
    is_shared: bool,
    listener: Option<OwnedFd>,
    connections: HashMap<u64, Connection>,
    next_key: u64,
    /// The connection that a copy of the sandbox was given to, which does nothing meanwhile.
    held: Option<u64>,
    /// The connection with which the sleep ends that was asked for on it.
    stays: Option<u64>,
    /// The connection that was given what the sandbox keeps, and writes it.
    given: Option<u64>,
    as_made: AsMade,
}

/// What the container is, whatever an image of it says.
#[derive(Clone, Debug, Default)]
pub struct AsMade {
    /// Its memory limit.
    pub limit: MemoryLimit,
    /// When it sleeps.
    pub sleep: SleepSpec,
    /// It is paused.
    pub is_paused: bool,
}

const KEY_LISTENER: u64 = KEY_FIRST;
const KEY_WAKEUP: u64 = KEY_FIRST + 1;

impl ControlServer {
    /// A server on `listener` (a listening Unix stream socket), if there is one.
    pub fn new(
        host: Arc<HostSide>,
        platform: Arc<dyn Running>,
        mailbox: Mailbox,
        is_shared: bool,
        listener: Option<OwnedFd>,
        as_made: AsMade,
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
            is_shared,
            listener,
            connections: HashMap::new(),
            next_key,
            held: None,
            stays: None,
            given: None,
            as_made,
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
                stands_for: None,
                keeps: false,
            };
            self.connections.insert(key, connection);
        }
    }

    fn close(&mut self, key: u64, dispatch: Dispatch<'_>) {
        let Some(connection) = self.connections.remove(&key) else { return };
        self.host.poller.unwatch(connection.socket.as_fd());
        let is_held = self.host.replies.outstanding(key) > 0;
        self.host.replies.forget_connection(key);
        self.host.output.forget(key);
        self.end_unwanted(dispatch);
        self.wake_for(key, dispatch);
        let is_its = self.given.map_or(connection.keeps, |given| given == key);
        if is_its && let Err(e) = self.settle(None, dispatch) {
            tracing::warn!("the sandbox keeps memory for a copy that nobody makes: {e}");
        }
        // As long as its end has not been reported, the number is still that of the process.
        if let Some(Stead::Process(pid)) = connection.stands_for.filter(|_| is_held) {
            self.end(Made::Process(pid), dispatch);
        }
    }

    /// Before the sandbox ends: waits for the end of the processes of the host that stand for
    /// processes of `exec`. Engines want to see them end before the container does, as where a PID
    /// namespace ends.
    pub fn see_off(&self) {
        let end = Instant::now() + FAREWELL;
        let held: Vec<&Connection> =
            self.connections.values().filter(|one| one.stands_for.is_some()).collect();
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

    /// Ends what was asked for by somebody who gave up waiting for it.
    fn end_unwanted(&mut self, dispatch: Dispatch<'_>) {
        if let Some(wakeup) = self.host.replies.wakeup.get() {
            rustix::io::read(wakeup, &mut [0u8; 8]).ok();
        }
        let unwanted = std::mem::take(&mut *self.host.replies.unwanted());
        for made in unwanted {
            self.end(made, dispatch);
        }
    }

    fn end(&self, made: Made, dispatch: Dispatch<'_>) {
        let request = match made {
            Made::Process(pid) => Request::Signal { pid, all: false, signo: libc::SIGKILL as u32 },
            Made::Container(container) => Request::Remove { container },
        };
        if let Err(e) = self.mailbox.local(&self.host, &request, dispatch) {
            tracing::warn!("{made:?} of the guest outlives who stood for it on the host: {e}");
        }
    }

    /// Takes what has come on a connection and serves it if that makes a frame; `Err` ends the
    /// connection.
    fn serve(&mut self, key: u64, dispatch: Dispatch<'_>) -> Result<(), Errno> {
        let most = if self.held == Some(key) { MAX_HELD_FDS } else { MAX_FDS };
        let connection = self.connections.get_mut(&key).ok_or(Errno::NOENT)?;
        if !connection.receive(most)? {
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
            self.host.replies.unclaimed().retain(|claim| *claim != (key, Made::Process(pid)));
        }
        let stands_for = match request {
            Request::Hold { pid } => Some(Stead::Process(pid)),
            Request::Attend { .. } => Some(Stead::Container),
            _ => None,
        };
        if let (Some(_), Some(connection)) = (stands_for, self.connections.get_mut(&key)) {
            connection.stands_for = stands_for;
        }
        match request {
            Request::Hibernate { stay: true, .. } => {
                self.stays = Some(key);
                if let Some(connection) = self.connections.get_mut(&key) {
                    connection.keeps = true;
                }
            }
            Request::Limit { container: FIRST_CONTAINER, limit } => self.as_made.limit = limit,
            Request::Pause => self.as_made.is_paused = true,
            Request::Resume => self.as_made.is_paused = false,
            Request::Checkpoint => return self.checkpoint(key, &socket, dispatch),
            Request::Release { end } => {
                self.release(key, &socket, end, dispatch);
                return Ok(());
            }
            Request::Written => return self.written(key, &socket, fds, dispatch),
            Request::NoteWake => {
                self.note_wake(key, &socket, fds);
                return Ok(());
            }
            Request::Adopt { layers } => {
                self.adopt(key, &socket, &layers, fds);
                return Ok(());
            }
            Request::Become { layers, files } => {
                return self.become_again(key, &socket, (layers, &files), fds, dispatch);
            }
            Request::WatchOutput { text } => {
                let watched = self.host.output.watch(key, &text);
                let reply = watched.map_or_else(no_watch, |()| Reply::Done);
                self.host.replies.answer(&socket, &reply);
                return Ok(());
            }
            Request::AwaitOutput => {
                match self.host.output.wait(key, &socket) {
                    Ok(false) => {}
                    Ok(true) => self.host.replies.answer(&socket, &Reply::Done),
                    Err(e) => self.host.replies.answer(&socket, &no_watch(e)),
                }
                return Ok(());
            }
            // What it was a copy of, may change.
            _ => self.held = None,
        }
        if let Request::Tasks { limit } = request {
            self.platform.limit_tasks(limit);
            self.host.replies.answer(&socket, &Reply::Done);
            return Ok(());
        }
        if request == Request::Platform {
            self.host.replies.answer(&socket, &Reply::Platform(self.platform.stats()));
            return Ok(());
        }
        if matches!(request, Request::Create(_) | Request::Exec(_))
            && self.connections.len() > MOST_HELD
        {
            let message = "the sandbox has as many containers and processes of exec as it may: \
                           have some of them end first";
            let message = message.to_owned();
            let reply = Reply::Error { errno: libc::EAGAIN, message };
            self.host.replies.answer(&socket, &reply);
            return Ok(());
        }
        let (request, handles) = self.admit(request, fds)?;
        let makes = matches!(request, Request::Exec(_) | Request::Create(_));
        let target = Target::Connection { key, socket: socket.clone(), makes };
        if let Err(e) = self.mailbox.submit(&self.host, &request, target, dispatch) {
            close_all(&self.host, &handles);
            let message = format!("the request does not reach the kernel: {e}");
            self.host.replies.answer(&socket, &Reply::Error { errno: e.raw_os_error(), message });
        }
        Ok(())
    }

    /// Turns descriptors that came with a request into handles. The kernel owns the handles from
    /// then on.
    fn admit(&self, request: Request, fds: Vec<OwnedFd>) -> Result<(Request, Vec<u32>), Errno> {
        if fds.len() > MAX_STREAMS && !matches!(request, Request::Create(_)) {
            return Err(Errno::MFILE);
        }
        match request {
            // The first container is made by the sandbox itself, before it listens.
            Request::Create(_) if !self.is_shared => Err(Errno::PERM),
            Request::Create(spec) => {
                let mut files = fds;
                let streams = files.len().checked_sub(MAX_STREAMS).ok_or(Errno::BADF)?;
                let mut streams = files.split_off(streams).into_iter().zip(spec.own_stdio);
                let streams: [_; MAX_STREAMS] =
                    std::array::from_fn(|_| streams.next().map(|(fd, own)| Stream { fd, own }));
                let given = hand_over(&self.host, files, streams, spec);
                given.map(|(spec, handles)| (Request::Create(spec), handles))
            }
            Request::Start(spec) if fds.is_empty() => {
                let stdio = [NO_HANDLE; MAX_STREAMS];
                Ok((Request::Start(ProcessSpec { stdio, ..spec }), Vec::new()))
            }
            // What the VMM alone asks for.
            Request::Remove { .. } | Request::Restored { .. } | Request::Kept { .. } => {
                Err(Errno::PERM)
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
                    close_all(&self.host, &handles);
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
}

/// Why nothing is looked for in the container's output.
fn no_watch(errno: Errno) -> Reply {
    let message = match errno {
        Errno::BUSY => "another text is looked for in its output already",
        _ => "what is looked for in its output has 1 to 4096 bytes",
    };
    Reply::Error { errno: errno.raw_os_error(), message: message.to_owned() }
}

fn close_all(host: &HostSide, handles: &[u32]) {
    for handle in handles {
        host.close(*handle).ok();
    }
}

/// Gives the root, the host's files of mounts, in this order, and the standard streams of a
/// container to the guest, as handles in what it is told of the container; and the handles.
///
/// # Errors
/// EBADF when descriptors are missing or too many; those of fstat(2), and EMFILE.
pub(super) fn hand_over(
    host: &HostSide,
    files: Vec<OwnedFd>,
    streams: [Option<Stream>; MAX_STREAMS],
    mut spec: ContainerSpec,
) -> Result<(ContainerSpec, Vec<u32>), Errno> {
    let mut handles = Vec::new();
    let fill = || {
        let of_host = spec.mounts.iter_mut().filter(|mount| mount.fstype == "host");
        let places = std::iter::once(&mut spec.root).chain(of_host.map(|mount| &mut mount.host));
        let mut files = files.into_iter();
        for place in places {
            *place = host.add_mount(files.next().ok_or(Errno::BADF)?)?;
            handles.push(*place);
        }
        if files.next().is_some() {
            return Err(Errno::BADF);
        }
        spec.stdio = [NO_HANDLE; MAX_STREAMS];
        for (place, stream) in spec.stdio.iter_mut().zip(streams) {
            if let Some(stream) = stream {
                *place = host.add_stdio(stream)?;
                handles.push(*place);
            }
        }
        Ok(())
    };
    match fill() {
        Ok(()) => Ok((spec, handles)),
        Err(e) => {
            close_all(host, &handles);
            Err(e)
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
    fn receive(&mut self, most_fds: usize) -> Result<bool, Errno> {
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
                    if self.fds.len() > most_fds {
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
