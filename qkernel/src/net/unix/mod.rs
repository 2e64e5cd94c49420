//! AF_UNIX sockets (unix(7)), which live in the guest alone: streams, datagrams and sequenced
//! packets.
//!
//! A message is put straight into its receiver's queue. Who waits for room waits on the receiver's
//! wait queue (datagrams) or is notified through its own (connections).

mod incoming;
pub mod list;
pub mod names;
mod options;
mod outside;
pub mod rights;
mod transfer;
mod urgent;

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use linux_raw_sys::ioctl::FIONREAD;
use linux_raw_sys::net::{AF_INET, SOCK_DGRAM, SOCK_STREAM};
use qlib::Va;

use super::HostSocket;
use super::guest::ioctl::ioctl;
use super::guest::network;
use super::message::{self, Asked, Credentials};
use crate::errno::{Errno, Result};
use crate::fs::attr::Attributes;
use crate::fs::{Caller, OpenFile};
use crate::ipc::AnonInode;
use crate::ipc::sigio::Telling;
use crate::sync::Mutex;
use crate::task::Thread;
use crate::wait::{PollMask, WaitQueue};
use names::Name;
use options::Options;
pub use options::max_backlog;
use rights::InFlight;
use urgent::Urgency;

/// What a message costs its sender's buffer besides its bytes, as on Linux: it bounds how many
/// empty ones wait.
const MESSAGE_BYTES: usize = 576;

/// One message, or a piece of a stream.
struct Packet {
    bytes: Vec<u8>,
    /// How many of them have been read (streams).
    start: usize,
    rights: InFlight,
    /// Of who sent it, if either side wanted that then, or the sender gave them.
    credentials: Option<Credentials>,
    /// The sender's name, for datagrams.
    from: Option<Name>,
    /// What it takes of its sender's buffer (not streams).
    _charge: Option<Charge>,
    /// It is an urgent byte (MSG_OOB), or has been one.
    urgency: Urgency,
}

impl Packet {
    /// What a receiver is told of who sent it.
    fn told(&self) -> Credentials {
        self.credentials.unwrap_or(Credentials::UNKNOWN)
    }
}

/// A message's part of its sender's buffer, given back when it is dropped.
struct Charge {
    sender: Weak<UnixSocket>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.upgrade() {
            sender.state.lock().outgoing_bytes -= self.bytes;
            sender.note_room();
        }
    }
}

#[derive(Default)]
struct UnixState {
    /// bind(2).
    name: Option<Name>,
    /// The other side of a connection, or where a datagram socket sends.
    peer: Option<Weak<UnixSocket>>,
    /// The peer's name and credentials when they connected.
    peer_name: Option<Name>,
    peer_credentials: Option<Credentials>,
    /// Own credentials: whoever called connect(2), listen(2) or socketpair(2).
    credentials: Option<Credentials>,
    incoming: VecDeque<Packet>,
    incoming_bytes: usize,
    /// What its own messages, in whatever queue, take of SO_SNDBUF (not streams).
    outgoing_bytes: usize,
    is_connected: bool,
    /// shutdown(2).
    read_shut: bool,
    write_shut: bool,
    /// The descriptor is closed.
    is_closed: bool,
    /// To be reported by the next call, and by SO_ERROR.
    error: Option<Errno>,
    /// listen(2): the longest backlog, and the connections not accepted yet.
    backlog: Option<usize>,
    pending: VecDeque<Arc<UnixSocket>>,
    /// The other side has connected, and accept(2) has yet to make a descriptor of it.
    is_pending: bool,
    /// It is the host's, by a name in a volume.
    outside: Option<Arc<HostSocket>>,
    /// SO_PASSCRED, SO_PASSPIDFD.
    asked: Asked,
    options: Options,
    /// Packets that a stream's readers have taken; and, counted with those, the one that is the
    /// latest urgent byte (MSG_OOB).
    taken: u64,
    urgent: Option<u64>,
    /// Packets in the queue that are urgent bytes, or marks of such.
    urgent_packets: usize,
    /// Whom urgent bytes are told of by a signal (F_SETOWN).
    owner: Option<Weak<Telling>>,
}

/// An AF_UNIX socket.
pub struct UnixSocket {
    kind: u32,
    state: Mutex<UnixState>,
    queue: Arc<WaitQueue>,
    /// Those who wait until there is room for their datagrams or connections here.
    senders: WaitQueue,
    identity: AnonInode,
    me: Weak<UnixSocket>,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        rights::forget_holder(self.me.as_ptr() as usize);
        list::forget(self.number());
    }
}

impl UnixSocket {
    /// socket(2): `kind` SOCK_STREAM, SOCK_DGRAM or SOCK_SEQPACKET.
    pub fn new(kind: u32) -> Arc<Self> {
        let socket = Self::unnamed(kind, Arc::new(WaitQueue::new()));
        list::add(&socket);
        socket
    }

    /// One that is part of something else, and is on no list. `queue` is notified of readiness.
    pub fn unnamed(kind: u32, queue: Arc<WaitQueue>) -> Arc<Self> {
        let identity = AnonInode::new();
        Arc::new_cyclic(|me| UnixSocket {
            kind,
            state: Mutex::default(),
            queue,
            senders: WaitQueue::new(),
            identity,
            me: me.clone(),
        })
    }

    /// Its inode number.
    fn number(&self) -> u64 {
        self.identity.own_socket()
    }

    /// Whose it is, and when it was made.
    pub fn identity(&self) -> &AnonInode {
        &self.identity
    }

    /// What stat(2) says.
    pub fn attributes(&self) -> Attributes {
        self.identity.socket(self.number())
    }

    /// socketpair(2).
    pub fn pair(kind: u32, credentials: Credentials) -> (Arc<Self>, Arc<Self>) {
        let (one, two) = (Self::new(kind), Self::new(kind));
        Self::join(&one, &two);
        for socket in [&one, &two] {
            let mut state = socket.state.lock();
            state.credentials = Some(credentials);
            state.peer_credentials = Some(credentials);
        }
        (one, two)
    }

    /// Connects two with each other.
    pub fn join(one: &Arc<Self>, two: &Arc<Self>) {
        for (socket, peer) in [(one, two), (two, one)] {
            let mut state = socket.state.lock();
            state.peer = Some(Arc::downgrade(peer));
            state.is_connected = true;
        }
    }

    /// The next call of the other side of a connection fails.
    pub fn fail_peer(&self, error: Errno) {
        if let Some(peer) = self.peer() {
            peer.state.lock().error = Some(error);
            peer.wake_all();
        }
    }

    /// True if its queue holds descriptors.
    fn holds_rights(&self) -> bool {
        self.state.lock().incoming.iter().any(|packet| !packet.rights.is_empty())
    }

    /// Visits the files in its queue. `visit` must not look at this socket.
    fn visit_rights(&self, visit: &mut dyn FnMut(&Arc<OpenFile>)) {
        let state = self.state.lock();
        state.incoming.iter().flat_map(|packet| packet.rights.files()).for_each(visit);
    }

    /// Takes the descriptors out of its queue, which nobody will ever read.
    fn take_rights(&self) -> Vec<InFlight> {
        let mut state = self.state.lock();
        let with_rights = state.incoming.iter_mut().filter(|packet| !packet.rights.is_empty());
        with_rights.map(|packet| core::mem::take(&mut packet.rights)).collect()
    }

    /// What its queue holds, about, in bytes.
    pub fn held_bytes(&self) -> u64 {
        let state = self.state.lock();
        (state.incoming_bytes + (state.incoming.len() + state.pending.len()) * MESSAGE_BYTES) as u64
    }

    /// What notifies of readiness.
    pub fn events(&self) -> &WaitQueue {
        &self.queue
    }

    /// What notifies those who send or connect here.
    pub fn senders(&self) -> &WaitQueue {
        &self.senders
    }

    /// True if it is a SOCK_STREAM socket.
    pub fn is_stream(&self) -> bool {
        self.kind == SOCK_STREAM
    }

    fn is_datagram(&self) -> bool {
        self.kind == SOCK_DGRAM
    }

    /// The other side, if there is one and it is open.
    pub fn peer(&self) -> Option<Arc<UnixSocket>> {
        let peer = self.state.lock().peer.as_ref().and_then(Weak::upgrade)?;
        let is_closed = peer.state.lock().is_closed;
        (!is_closed).then_some(peer)
    }

    /// bind(2).
    pub fn bind(&self, thread: &Arc<Thread>, address: &[u8]) -> Result {
        if self.state.lock().name.is_some() {
            return Err(Errno::EINVAL);
        }
        let me = self.me.upgrade().ok_or(Errno::EINVAL)?;
        let name = names::bind(thread, &me, address)?;
        self.state.lock().name = Some(name);
        Ok(())
    }

    /// listen(2).
    pub fn listen(&self, backlog: u32, credentials: Credentials) -> Result {
        if self.is_datagram() {
            return Err(Errno::EOPNOTSUPP);
        }
        {
            let mut state = self.state.lock();
            if state.name.is_none() || state.is_connected {
                return Err(Errno::EINVAL);
            }
            state.backlog = Some(u64::from(backlog).min(options::max_backlog()) as usize);
            state.credentials = Some(credentials);
            // Whoever asks a listener has itself for an answer.
            state.peer_credentials = Some(credentials);
        }
        self.senders.wake(PollMask::SENDABLE);
        Ok(())
    }

    /// accept(2), without waiting. EAGAIN, EINVAL, EOPNOTSUPP.
    pub fn accept(&self) -> Result<Arc<UnixSocket>> {
        if self.is_datagram() {
            return Err(Errno::EOPNOTSUPP);
        }
        let accepted = {
            let mut state = self.state.lock();
            if state.backlog.is_none() || state.read_shut {
                return Err(Errno::EINVAL);
            }
            state.pending.pop_front().ok_or(Errno::EAGAIN)?
        };
        accepted.state.lock().is_pending = false;
        self.senders.wake(PollMask::SENDABLE);
        Ok(accepted)
    }

    /// Finds the socket that an address names, for connect(2). `None` for AF_UNSPEC.
    pub fn resolve(&self, thread: &Arc<Thread>, address: &[u8]) -> Result<Option<Arc<UnixSocket>>> {
        if super::address::family(address)? == 0 {
            return Ok(None);
        }
        self.autobind(thread)?;
        names::find(thread, address, self.kind).map(Some)
    }

    /// Finds where a message goes; `None`: the socket's own peer.
    pub fn resolve_for_send(
        &self,
        thread: &Arc<Thread>,
        address: &[u8],
    ) -> Result<Option<Arc<UnixSocket>>> {
        if !self.is_datagram() {
            let is_connected = self.state.lock().is_connected;
            // A connection's messages need no address, and may have none.
            return match (self.is_stream(), is_connected) {
                (true, true) => Err(Errno::EISCONN),
                (true, false) => Err(Errno::EOPNOTSUPP),
                _ => Ok(None),
            };
        }
        names::find(thread, address, self.kind).map(Some)
    }

    /// connect(2), without waiting: EAGAIN while the backlog is full. `target`: what
    /// [`UnixSocket::resolve`] found.
    pub fn connect(&self, target: Option<&Arc<UnixSocket>>, credentials: Credentials) -> Result {
        if self.is_datagram() {
            let mut state = self.state.lock();
            state.peer = target.map(Arc::downgrade);
            state.is_connected = target.is_some();
            return Ok(());
        }
        let target = target.ok_or(Errno::EINVAL)?;
        {
            let state = self.state.lock();
            if state.backlog.is_some() {
                return Err(Errno::EINVAL);
            }
            if state.is_connected {
                return Err(Errno::EISCONN);
            }
        }
        let me = self.me.upgrade().ok_or(Errno::EINVAL)?;
        let own_name = self.state.lock().name.clone();
        let served = UnixSocket::new(self.kind);
        let (listener_name, listener_credentials) = {
            let mut listener = target.state.lock();
            let backlog = match listener.backlog {
                Some(backlog) if !listener.is_closed && !listener.read_shut => backlog,
                _ => return Err(Errno::ECONNREFUSED),
            };
            // Linux lets one more wait than listen(2) said.
            if listener.pending.len() > backlog {
                return Err(Errno::EAGAIN);
            }
            let mut state = served.state.lock();
            state.name = listener.name.clone();
            state.peer = Some(Arc::downgrade(&me));
            state.is_connected = true;
            state.peer_name = own_name;
            state.is_pending = true;
            state.peer_credentials = Some(credentials);
            state.credentials = listener.credentials;
            state.asked = listener.asked;
            listener.pending.push_back(served.clone());
            (listener.name.clone(), listener.credentials)
        };
        {
            let mut state = self.state.lock();
            state.peer = Some(Arc::downgrade(&served));
            state.is_connected = true;
            state.peer_name = listener_name;
            state.peer_credentials = listener_credentials;
            state.credentials = Some(credentials);
        }
        target.queue.wake(PollMask::RECEIVED);
        self.queue.wake(PollMask::SENDABLE);
        Ok(())
    }

    /// shutdown(2): `how` 0 read, 1 write, 2 both.
    pub fn shutdown(&self, how: u32) -> Result {
        let (reads, writes) = (how != 1, how != 0);
        {
            let mut state = self.state.lock();
            state.read_shut |= reads;
            state.write_shut |= writes;
        }
        if let Some(peer) = self.peer().filter(|_| !self.is_datagram()) {
            {
                let mut state = peer.state.lock();
                state.read_shut |= writes;
                state.write_shut |= reads;
            }
            peer.wake_all();
        }
        self.wake_all();
        Ok(())
    }

    fn wake_all(&self) {
        for queue in [&self.queue, &self.senders] {
            queue.wake(PollMask::READ | PollMask::WRITE | PollMask::RDHUP | PollMask::ALWAYS);
        }
    }

    /// There may be more room for what it sends.
    fn note_room(&self) {
        if self.has_room(self.peer().as_deref()) {
            self.queue.wake(PollMask::SENDABLE);
        }
    }

    /// The descriptor was closed.
    pub fn close(&self) {
        let (name, incoming, pending, peer) = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.incoming_bytes = 0;
            let peer = state.peer.take().and_then(|p| p.upgrade());
            (
                state.name.clone(),
                core::mem::take(&mut state.incoming),
                core::mem::take(&mut state.pending),
                peer,
            )
        };
        if let (Some(name), Some(me)) = (name, self.me.upgrade()) {
            names::forget(&name, &me);
        }
        let lost = incoming.iter().any(|packet| packet.start < packet.bytes.len());
        drop(incoming);
        if let Some(peer) = peer.filter(|_| !self.is_datagram()) {
            {
                let mut state = peer.state.lock();
                state.read_shut = true;
                // What was sent here has not been read: the sender learns of it.
                if lost {
                    state.error = Some(Errno::ECONNRESET);
                }
            }
            peer.wake_all();
        }
        // Connections that nobody will accept.
        for connection in pending {
            let client = connection.peer();
            connection.close();
            if let Some(client) = client {
                client.state.lock().error = Some(Errno::ECONNRESET);
                client.wake_all();
            }
        }
        self.wake_all();
        rights::closed_one();
    }

    /// Ends the connection of a stream that is part of something else, and may have another one:
    /// the other side learns of it by ECONNRESET.
    pub fn dissolve(&self) {
        let (peer, gone) = {
            let mut state = self.state.lock();
            let peer = state.peer.take().and_then(|peer| peer.upgrade());
            (state.is_connected, state.read_shut, state.write_shut) = (false, false, false);
            (state.error, state.incoming_bytes) = (None, 0);
            (state.taken, state.urgent, state.urgent_packets) = (0, None, 0);
            (peer, core::mem::take(&mut state.incoming))
        };
        drop(gone);
        // It may have been connected with itself.
        if let Some(peer) = peer.filter(|peer| !core::ptr::eq(&**peer, self)) {
            {
                let mut state = peer.state.lock();
                (state.peer, state.read_shut) = (None, true);
                state.error = Some(Errno::ECONNRESET);
            }
            peer.wake_all();
        }
    }

    /// getsockname(2) or getpeername(2), as struct sockaddr_un.
    pub fn name(&self, of_peer: bool) -> Result<Vec<u8>> {
        let state = self.state.lock();
        if of_peer && !state.is_connected {
            return Err(Errno::ENOTCONN);
        }
        let name = if !of_peer {
            state.name.clone()
        } else if self.is_datagram() {
            let peer = state.peer.as_ref().and_then(Weak::upgrade);
            drop(state);
            peer.and_then(|p| p.state.lock().name.clone())
        } else {
            state.peer_name.clone()
        };
        Ok(names::to_address(name.as_ref()))
    }

    /// ioctl(2).
    pub fn ioctl(&self, caller: &dyn Caller, command: u32, argument: u64) -> Result<usize> {
        const SIOCOUTQ: u32 = 0x5411;
        const SIOCATMARK: u32 = 0x8905;
        let bytes = match command {
            FIONREAD => {
                let state = self.state.lock();
                if state.backlog.is_some() {
                    return Err(Errno::EINVAL);
                }
                match (self.is_stream(), state.incoming.front()) {
                    (true, _) => state.incoming_bytes,
                    (false, first) => first.map_or(0, |packet| packet.bytes.len()),
                }
            }
            SIOCOUTQ if self.is_stream() => {
                self.peer().map_or(0, |peer| peer.state.lock().incoming_bytes)
            }
            SIOCOUTQ => self.state.lock().outgoing_bytes,
            SIOCATMARK => self.is_at_mark().into(),
            // The interfaces are asked for by sockets of any family.
            _ if message::is_interface_ioctl(command) => {
                if let Some((namespace, own)) = network::current() {
                    return ioctl((&namespace, &own), caller, command, argument);
                }
                return HostSocket::new(AF_INET, SOCK_DGRAM, 0)?.ioctl(caller, command, argument);
            }
            _ => return Err(Errno::ENOTTY),
        };
        caller.mm().write(Va(argument), &(bytes as i32)).map(|()| 0)
    }

    /// Readiness now.
    pub fn poll(&self) -> PollMask {
        let peer = self.peer();
        let mut mask = PollMask::empty();
        let is_writable = self.is_writable(peer.as_deref());
        let state = self.state.lock();
        if state.backlog.is_some() {
            mask.set(PollMask::READ, !state.pending.is_empty());
            return mask;
        }
        mask.set(PollMask::ERR, state.error.is_some());
        mask.set(PollMask::READ, !state.incoming.is_empty() || state.read_shut);
        mask.set(PollMask::PRI, state.urgent.is_some());
        mask.set(PollMask::RDHUP, state.read_shut);
        if self.is_datagram() {
            mask.set(PollMask::HUP, state.read_shut && state.write_shut);
            mask.set(PollMask::WRITE, is_writable);
            return mask;
        }
        let is_over = state.is_connected && peer.is_none();
        mask.set(
            PollMask::HUP,
            is_over || !state.is_connected || (state.read_shut && state.write_shut),
        );
        mask.set(PollMask::WRITE, is_writable);
        mask
    }

    /// How much more may go into `peer`'s queue now: its stream's bytes, or any for a message.
    fn room(&self, peer: &UnixSocket) -> usize {
        let (limit, outgoing) = {
            let state = self.state.lock();
            (state.options.send_bytes, state.outgoing_bytes)
        };
        let state = peer.state.lock();
        if self.is_stream() {
            return limit.saturating_sub(state.stream_bytes());
        }
        // A pair of datagram sockets connected to each other is bounded by bytes only.
        let is_mutual = state.peer.as_ref().is_some_and(|p| p.ptr_eq(&self.me));
        if self.is_datagram() && !is_mutual && state.incoming.len() > options::max_datagrams() {
            return 0;
        }
        limit.saturating_sub(outgoing)
    }

    /// True if poll(2) says that it can be written to.
    fn is_writable(&self, peer: Option<&UnixSocket>) -> bool {
        self.has_room(peer) && !peer.is_some_and(|peer| self.is_blocked_by(peer))
    }

    /// True if a quarter of its buffer is taken at most: as on Linux, who waits for room hears of
    /// none before.
    fn has_room(&self, peer: Option<&UnixSocket>) -> bool {
        let taken = match (self.is_stream(), peer) {
            (true, Some(peer)) => peer.state.lock().stream_bytes(),
            (true, None) => 0,
            (false, _) => self.state.lock().outgoing_bytes,
        };
        taken.saturating_mul(4) <= self.state.lock().options.send_bytes
    }

    fn is_blocked_by(&self, peer: &UnixSocket) -> bool {
        self.room(peer) == 0
    }
}

#[cfg(test)]
mod tests;
