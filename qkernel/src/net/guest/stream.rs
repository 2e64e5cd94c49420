//! Connections: TCP as programs see it where nothing is lost or delayed.
//! The bytes of a connection go through a pair of sockets as those of AF_UNIX do.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::SocketAddr;

use linux_raw_sys::net::{AF_UNSPEC, MSG_TRUNC};

use super::address::{self, family_is};
use super::path::Path;
use super::ports::choose;
use super::socket::{GuestSocket, Listener, Role, State, ports_of};
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::net::message::{Control, Received};
use crate::net::unix::{UnixSocket, max_backlog};
use crate::wait::PollMask;

/// The most bytes that are thrown away by one recv(2) with MSG_TRUNC.
const MOST_DISCARDED: usize = 64 << 10;

impl Listener {
    /// Nobody will accept these.
    pub fn end(self) {
        for served in self.pending {
            served.data.fail_peer(Errno::ECONNRESET);
            served.close();
        }
        for (client, number) in self.waiting {
            let Some(client) = client.upgrade() else { continue };
            {
                let mut state = client.state.lock();
                if !state.waits(number) {
                    continue;
                }
                state.role = Role::Idle;
                state.error = Some(Errno::ECONNREFUSED);
            }
            client.wake_all();
        }
    }

    fn is_full(&self) -> bool {
        // Linux lets one more wait than listen(2) said.
        self.pending.len() > self.backlog
    }
}

impl State {
    /// True if its connection of this number waits for room.
    fn waits(&self, number: u64) -> bool {
        matches!(self.role, Role::Connecting) && self.connections == number
    }
}

impl GuestSocket {
    /// listen(2).
    pub fn listen(&self, backlog: u32) -> Result {
        if !self.is_stream() {
            return Err(Errno::EOPNOTSUPP);
        }
        let backlog = u64::from(backlog).min(max_backlog()) as usize;
        {
            let mut state = self.state.lock();
            match &mut state.role {
                Role::Idle => {}
                Role::Listens(listener) => {
                    listener.backlog = backlog;
                    drop(state);
                    self.let_in();
                    return Ok(());
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        self.autobind()?;
        self.claim_connections()?;
        self.state.lock().role = Role::Listens(Listener { backlog, ..Listener::default() });
        self.wake_all();
        Ok(())
    }

    /// accept(2), without waiting: the new socket, and its peer's address. EAGAIN.
    pub fn accept(&self) -> Result<(Arc<GuestSocket>, Vec<u8>)> {
        if !self.is_stream() {
            return Err(Errno::EOPNOTSUPP);
        }
        let accepted = match &mut self.state.lock().role {
            Role::Listens(listener) => listener.pending.pop_front().ok_or(Errno::EAGAIN)?,
            _ => return Err(Errno::EINVAL),
        };
        self.let_in();
        let from = accepted.name(true)?;
        Ok((accepted, from))
    }

    /// There may be room for those who wait.
    fn let_in(&self) {
        let Some(me) = self.me.upgrade() else { return };
        loop {
            let next = match &mut self.state.lock().role {
                Role::Listens(listener) if !listener.is_full() => listener.waiting.pop_front(),
                _ => None,
            };
            let Some((client, number)) = next else { return };
            let Some(client) = client.upgrade() else { continue };
            let waits = client.state.lock().waits(number);
            if waits {
                client.meet(&me, false);
            }
        }
    }

    pub(super) fn listens(&self) -> bool {
        matches!(self.state.lock().role, Role::Listens(_))
    }

    pub(super) fn connect_stream(&self, bytes: &[u8]) -> Result {
        if bytes.len() < 2 {
            return Err(Errno::EINVAL);
        }
        if family_is(bytes, AF_UNSPEC) {
            self.dissolve();
            return Ok(());
        }
        {
            let mut state = self.state.lock();
            if core::mem::take(&mut state.is_dissolved) {
                state.error = None;
            }
            state.report()?;
            match &mut state.role {
                Role::Idle => {}
                Role::Connecting => return Err(Errno::EALREADY),
                Role::Connected { is_told } if !*is_told => {
                    *is_told = true;
                    return Ok(());
                }
                Role::Connected { .. } | Role::Listens(_) => return Err(Errno::EISCONN),
            }
        }
        let outcome = self.begin(bytes);
        if !matches!(outcome, Ok(()) | Err(Errno::EINPROGRESS)) {
            self.unbind();
        }
        outcome
    }

    /// Makes it a socket without connections again: who has one learns of the end of it.
    fn dissolve(&self) {
        let role = {
            let mut state = self.state.lock();
            let role = core::mem::take(&mut state.role);
            if matches!(role, Role::Connecting | Role::Connected { .. }) {
                state.error = Some(Errno::ECONNRESET);
                state.is_dissolved = true;
                state.connections += 1;
            }
            state.remote = None;
            (state.read_shut, state.write_shut, state.is_told_of_end) = (false, false, false);
            role
        };
        match role {
            Role::Idle => return,
            Role::Connecting => {}
            Role::Connected { .. } => self.data.dissolve(),
            Role::Listens(listener) => {
                listener.end();
                let local = self.state.lock().local;
                if let Some(local) = local {
                    // An error: it has no port any more.
                    let claim = self.claim(local.ip(), false);
                    let key = (self.protocol, local.port());
                    let _ = self.ports.lock().change(key, &self.me, claim);
                }
            }
        }
        self.unbind();
        self.wake_all();
    }

    /// Begins a connection to an address.
    fn begin(&self, bytes: &[u8]) -> Result {
        let (to, path) = self.route(address::parse(self.domain, bytes)?)?;
        let local = self.local_for(path.source).map_err(|error| match error {
            Errno::EADDRINUSE => Errno::EADDRNOTAVAIL,
            other => other,
        })?;
        // What Linux would try for minutes is told at once: nobody answers.
        let there = path.arrives.as_ref().ok_or(Errno::EHOSTUNREACH)?;
        if !there.reaches(local.ip(), &self.network) {
            return Err(Errno::EHOSTUNREACH);
        }
        if local == to && there.number == self.network.number {
            return self.meet_itself(local);
        }
        let candidates = ports_of(there.number).lock().at(self.protocol, to);
        let index = path.arrival(local, to.ip()).index;
        let rank = |one: &GuestSocket| {
            let rank = u8::from(one.device() == 0);
            (one.listens() && one.hears(index)).then_some(rank)
        };
        let listener = choose(candidates, (local, to), rank);
        let listener = listener.ok_or(Errno::ECONNREFUSED)?;
        let number = {
            let mut state = self.state.lock();
            (state.local, state.remote) = (Some(local), Some(to));
            state.peer_network = there.number;
            state.connections
        };
        let me = self.me.upgrade().ok_or(Errno::EINVAL)?;
        let has_room = {
            let mut state = listener.state.lock();
            let Role::Listens(known) = &mut state.role else { return Err(Errno::ECONNREFUSED) };
            if known.is_full() {
                let is_other =
                    |client: &Weak<_>| client.strong_count() > 0 && !client.ptr_eq(&self.me);
                known.waiting.retain(|(client, _)| is_other(client));
                known.waiting.push_back((self.me.clone(), number));
            }
            !known.is_full()
        };
        if !has_room {
            self.state.lock().role = Role::Connecting;
            return Err(Errno::EINPROGRESS);
        }
        me.meet(&listener, true);
        Ok(())
    }

    /// Has a connection with itself: what it asks for comes to where it asks from (a simultaneous
    /// open, RFC 9293, 3.5).
    fn meet_itself(&self, at: SocketAddr) -> Result {
        {
            let mut state = self.state.lock();
            (state.local, state.remote) = (Some(at), Some(at));
            state.peer_network = self.network.number;
            state.role = Role::Connected { is_told: true };
        }
        UnixSocket::join(&self.data, &self.data);
        self.queue.wake(PollMask::SENDABLE | PollMask::WRITE);
        Ok(())
    }

    /// Has a connection with a listener that has room. `is_told`: connect(2) tells of it.
    fn meet(&self, listener: &Arc<GuestSocket>, is_told: bool) {
        let (local, remote) = {
            let state = self.state.lock();
            (state.local, state.remote)
        };
        let options = listener.state.lock().options.clone();
        let served = listener.served(State {
            local: remote,
            remote: local,
            peer_network: self.network.number,
            role: Role::Connected { is_told: true },
            options,
            ..State::default()
        });
        if let Some(local) = remote {
            let (key, claim) = ((served.protocol, local.port()), served.claim(local.ip(), false));
            served.ports.lock().add_connection(key, claim, &served.me);
        }
        served.data.take_buffers_of(&listener.data);
        UnixSocket::join(&self.data, &served.data);
        if let Role::Listens(known) = &mut listener.state.lock().role {
            known.pending.push_back(served);
        }
        self.state.lock().role = Role::Connected { is_told };
        listener.queue.wake(PollMask::RECEIVED);
        self.queue.wake(PollMask::SENDABLE | PollMask::WRITE);
    }

    /// Fails for one that has no connection: by `nothing`, or EAGAIN while it gets one.
    fn check_connected(&self, nothing: Errno) -> Result {
        let mut state = self.state.lock();
        state.report()?;
        match state.role {
            Role::Connected { .. } => Ok(()),
            Role::Connecting => Err(Errno::EAGAIN),
            _ => Err(nothing),
        }
    }

    pub(super) fn send_stream(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<usize> {
        self.check_connected(Errno::EPIPE)?;
        let path = self.way_to_peer()?;
        let asked = buffer.remaining();
        let sent = match self.data.send(buffer, flags, None, &mut Control::default()) {
            // That the other end is gone is learned by sending to it: what is lost is that once.
            Err(Errno::EPIPE) if !self.knows_its_end() => {
                buffer.advance(asked);
                asked
            }
            outcome => outcome?,
        };
        path.count(sent);
        Ok(sent)
    }

    /// True if sending is over by its own doing, or it has been told that nobody hears it, which it
    /// is from now on.
    fn knows_its_end(&self) -> bool {
        let mut state = self.state.lock();
        state.write_shut || core::mem::replace(&mut state.is_told_of_end, true)
    }

    /// True if the other side is to learn that what it may have sent was not taken: SO_LINGER with
    /// no time.
    pub(super) fn resets_at_close(&self) -> bool {
        self.is_stream() && self.data.lingers_for() == Some(0)
    }

    /// The way to the other end. EHOSTUNREACH while there is none: what Linux would send again and
    /// again is told at once.
    fn way_to_peer(&self) -> Result<Path> {
        let (remote, number) = {
            let state = self.state.lock();
            (state.remote.ok_or(Errno::EPIPE)?, state.peer_network)
        };
        let path = self.network.path_by(self.device(), remote.ip());
        let path = path.map_err(|_| Errno::EHOSTUNREACH)?;
        let is_there = path.arrives.as_ref().is_some_and(|network| network.number == number);
        is_there.then_some(path).ok_or(Errno::EHOSTUNREACH)
    }

    pub(super) fn receive_stream(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<Received> {
        self.check_connected(Errno::ENOTCONN)?;
        if flags & MSG_TRUNC != 0 {
            // What is read is thrown away (tcp(7)).
            let mut space = alloc::vec![0; buffer.remaining().min(MOST_DISCARDED)];
            return self.data.receive(&mut IoBuffer::kernel(&mut space), flags & !MSG_TRUNC);
        }
        match self.data.receive(buffer, flags) {
            Err(Errno::EAGAIN) if self.state.lock().read_shut => Ok(Received::default()),
            outcome => outcome,
        }
    }

    pub(super) fn shut_stream(&self, how: u32) -> Result {
        let listener = {
            let mut state = self.state.lock();
            match &mut state.role {
                Role::Connected { .. } => {
                    state.write_shut |= how != 0;
                    state.read_shut |= how != 1;
                    None
                }
                Role::Listens(_) if how == 1 => return Ok(()),
                Role::Listens(listener) => {
                    let listener = core::mem::take(listener);
                    state.role = Role::Idle;
                    Some(listener)
                }
                _ => return Err(Errno::ENOTCONN),
            }
        };
        match (listener, how) {
            (Some(listener), _) => listener.end(),
            // The other side does not learn that nobody reads, and what it sends can be read.
            (None, 0) => {}
            (None, _) => self.data.shutdown(1)?,
        }
        self.wake_all();
        Ok(())
    }

    pub(super) fn poll_stream(&self) -> PollMask {
        let (read_shut, write_shut) = {
            let state = self.state.lock();
            match &state.role {
                Role::Listens(listener) if listener.pending.is_empty() => return PollMask::empty(),
                Role::Listens(_) => return PollMask::READ,
                Role::Idle => return PollMask::WRITE | PollMask::HUP,
                Role::Connecting => return PollMask::empty(),
                Role::Connected { .. } => (state.read_shut, state.write_shut),
            }
        };
        let mut mask = self.data.poll();
        if read_shut {
            mask |= PollMask::READ | PollMask::RDHUP;
        }
        // Each direction ends for itself, and a reset ends both.
        let is_reset = mask.contains(PollMask::ERR);
        mask.set(PollMask::HUP, is_reset || write_shut && mask.contains(PollMask::RDHUP));
        mask
    }

    /// Connections of listeners that accept(2) has yet to take, as of /proc/net/tcp.
    pub(super) fn pending(&self) -> VecDeque<Arc<GuestSocket>> {
        match &self.state.lock().role {
            Role::Listens(listener) => listener.pending.clone(),
            _ => VecDeque::new(),
        }
    }

    /// TCP's number for what it does, as of /proc/net/tcp.
    pub(super) fn tcp_state(&self) -> u8 {
        const ESTABLISHED: u8 = 1;
        const SYN_SENT: u8 = 2;
        const CLOSE: u8 = 7;
        const LISTEN: u8 = 10;
        match self.state.lock().role {
            Role::Idle => CLOSE,
            Role::Listens(_) => LISTEN,
            Role::Connecting => SYN_SENT,
            Role::Connected { .. } => ESTABLISHED,
        }
    }
}
