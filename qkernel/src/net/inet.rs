//! Sockets of the host (AF_INET, AF_INET6, AF_NETLINK): non-blocking there, with their readiness
//! remembered here.
//!
//! A socket is watched, edge triggered, from the first time somebody finds it not ready or asks for
//! its readiness; before that it is simply tried. What is remembered as *not ready* is true until
//! an event says otherwise, so waiting costs no host call. What is remembered as ready may have
//! been used up by a call since: [`HostSocket::poll`] asks the host again where that matters.

use alloc::string::{String, ToString};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::ioctl::FIONREAD;
use linux_raw_sys::net::{AF_NETLINK, MSG_CONFIRM, MSG_DONTROUTE, MSG_EOR, MSG_MORE};
use linux_raw_sys::net::{
    MSG_ERRQUEUE, MSG_OOB, MSG_PEEK, MSG_TRUNC, SO_ERROR, SOCK_STREAM, SOL_SOCKET,
};
use qlib::host::{MAX_SEGMENTS, Op, Segment};
use zerocopy::FromBytes;

use super::address::MAX_ADDRESS_BYTES;
use super::answers;
use super::host::{self, HostWatcher, Untaken};
use super::local::{self, Kernel, Local};
use super::message::Received;
use super::netlink::{self, word};
use super::probes;
use super::talk::Talk;
use crate::errno::{Errno, Result};
use crate::fs::Caller;
use crate::fs::attr::{Attributes, Statx};
use crate::host::{Call, Handle, NOTHING};
use crate::io::IoBuffer;
use crate::ipc::AnonInode;
use crate::mm::Access;
use crate::sync::Mutex;
use crate::wait::{PollMask, WaitQueue};
use crate::{arch, input, time};

/// Not among the headers' constants: connect by the first send.
const MSG_FASTOPEN: u32 = 0x2000_0000;
/// Flags that the host is given; the others are the guest kernel's business.
const SEND_FLAGS: u32 = MSG_OOB | MSG_DONTROUTE | MSG_EOR | MSG_MORE | MSG_CONFIRM | MSG_FASTOPEN;
/// The longest of netlink messages sent at once.
const MAX_NETLINK: usize = 1 << 16;
/// The most lists asked for by one call. Each takes as long as there are sockets, at one go.
const MOST_DUMPS: u32 = 8;
const RECEIVE_FLAGS: u32 = MSG_OOB | MSG_PEEK | MSG_TRUNC | MSG_ERRQUEUE;
/// The most bytes received from a stream by one host call: user pages are faulted in for all of it.
const MAX_RECEIVE: usize = 256 << 10;
/// The most bytes of one datagram or of a stream sent by one host call.
const MAX_MESSAGE: usize = 1 << 20;
/// The most control data that the host gives.
pub const MAX_CONTROL: usize = 4096;

/// The bits of readiness that are remembered.
const KEPT: PollMask = PollMask::IN
    .union(PollMask::PRI)
    .union(PollMask::OUT)
    .union(PollMask::ERR)
    .union(PollMask::HUP)
    .union(PollMask::RDHUP);
/// Bits that stay as long as their cause does, and let receiving end.
const STICKY: PollMask = PollMask::ERR.union(PollMask::HUP).union(PollMask::RDHUP);

struct Ready {
    /// The host notifies of readiness.
    is_watched: bool,
    mask: PollMask,
    /// What was known when a watch began that nobody waited for, while no call has used the socket:
    /// its first event reports it again.
    known: PollMask,
    /// The turn of the kernel in which the host last said EAGAIN.
    exhausted_turn: u64,
}

/// A socket of the host.
pub struct HostSocket {
    handle: Handle,
    domain: u32,
    kind: u32,
    /// Of netlink sockets of programs: what is answered here.
    local: Option<Local>,
    queue: Arc<WaitQueue>,
    /// Names it in events.
    token: u64,
    ready: Mutex<Ready>,
    talk: Mutex<Talk>,
    /// One side only asks whether the container lives.
    is_probe: AtomicBool,
    identity: AnonInode,
    /// The host's inode number; 0 as long as nobody has asked.
    inode: AtomicU64,
}

impl HostWatcher for HostSocket {
    fn on_ready(&self, events: PollMask) {
        let news = self.reportable(events);
        {
            let mut ready = self.ready.lock();
            ready.mask |= events & KEPT;
            ready.known = PollMask::empty();
        }
        if !news.is_empty() {
            self.queue.wake(concerns(news));
        }
    }

    fn is_news(&self, events: PollMask) -> bool {
        let known = self.ready.lock().known;
        !(self.reportable(events) - known).is_empty()
    }

    fn watch_asleep(&self) {
        if self.ready.lock().is_watched {
            return;
        }
        // Asked before it is watched: what comes meanwhile is news.
        let Ok(known) = self.ask() else { return };
        if self.watch().is_ok() {
            self.ready.lock().known = known;
        }
    }

    fn answers_asleep(&self) -> bool {
        if !answers::are_on() || !self.is_stream() {
            return false;
        }
        let listens = *self.talk.lock() == Talk::Listens;
        if listens { answers::on_connection(self) } else { answers::on_data(self.token) }
    }

    fn untaken(&self) -> Option<Untaken> {
        let listens = *self.talk.lock() == Talk::Listens;
        let what = if listens { Untaken::Connection } else { Untaken::Data };
        self.holds_input().then_some(what)
    }

    fn asked_ns(&self, now_ns: u64) -> Option<u64> {
        self.talk.lock().asked_ns(now_ns)
    }

    fn describe(&self) -> String {
        let of_peer = *self.talk.lock() != Talk::Listens;
        let address = self.name(of_peer).or_else(|_| self.name(!of_peer));
        address.map_or_else(|_| "a socket".to_string(), |bytes| super::address::show(&bytes))
    }

    fn owner(&self) -> Option<(u64, u32)> {
        Some((self.inode().ok()?, self.identity.uid()))
    }
}

/// Adds RDNORM to IN and WRNORM to OUT.
fn with_synonyms(mut mask: PollMask) -> PollMask {
    mask.set(PollMask::RDNORM, mask.contains(PollMask::IN));
    mask.set(PollMask::WRNORM, mask.contains(PollMask::OUT));
    mask
}

/// Whom it concerns that `events` have come: as on Linux a change of the state everybody.
fn concerns(events: PollMask) -> PollMask {
    let mut mask = with_synonyms(events);
    if events.contains(PollMask::IN) {
        mask |= PollMask::RECEIVED;
    }
    if events.intersects(STICKY) {
        mask |= PollMask::ALWAYS;
    }
    mask
}

impl HostSocket {
    /// Whose it is, and when it was made.
    pub fn identity(&self) -> &AnonInode {
        &self.identity
    }

    /// socket(2). EAFNOSUPPORT and its like are the host's answers.
    pub fn new(domain: u32, kind: u32, protocol: u32) -> Result<Arc<Self>> {
        Ok(Self::from_handle(Self::make(domain, kind, protocol)?, domain, kind, None))
    }

    /// The same of a netlink socket, whose messages `kernel` looks at first.
    pub fn netlink(kind: u32, protocol: u32, kernel: Kernel) -> Result<Arc<Self>> {
        let handle = Self::make(AF_NETLINK, kind, protocol)?;
        Ok(Self::from_handle(handle, AF_NETLINK, kind, Some(Local::new(kernel))))
    }

    fn make(domain: u32, kind: u32, protocol: u32) -> Result<Handle> {
        let call =
            Call::new(Op::Socket).arg(0, domain.into()).arg(1, kind.into()).arg(2, protocol.into());
        Ok(Handle::new(call.run()? as u32))
    }

    fn from_handle(handle: Handle, domain: u32, kind: u32, local: Option<Local>) -> Arc<Self> {
        Self::from_parts(handle, domain, kind, local, Arc::new(WaitQueue::new()))
    }

    /// A socket that is there already, with those who wait for it.
    pub fn of_queue(handle: Handle, domain: u32, kind: u32, queue: Arc<WaitQueue>) -> Arc<Self> {
        Self::from_parts(handle, domain, kind, None, queue)
    }

    /// Has it notify those who wait, from now on.
    pub fn begin_to_watch(&self) -> Result {
        self.watch()
    }

    fn from_parts(
        handle: Handle,
        domain: u32,
        kind: u32,
        local: Option<Local>,
        queue: Arc<WaitQueue>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<HostSocket>| HostSocket {
            handle,
            domain,
            kind,
            local,
            queue,
            token: host::add_watcher(me.clone()),
            ready: Mutex::new(Ready {
                is_watched: false,
                mask: KEPT,
                known: PollMask::empty(),
                exhausted_turn: 0,
            }),
            talk: Mutex::new(Talk::default()),
            is_probe: AtomicBool::new(false),
            identity: AnonInode::new(),
            inode: AtomicU64::new(0),
        })
    }

    fn call(&self, op: Op) -> Call {
        Call::on(op, self.handle.number())
    }

    /// What notifies of readiness. It does so only after a call has given EAGAIN, or after
    /// [`HostSocket::poll`].
    pub fn events(&self) -> &WaitQueue {
        &self.queue
    }

    /// AF_*.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// True if it is a SOCK_STREAM socket.
    pub fn is_stream(&self) -> bool {
        self.kind == SOCK_STREAM
    }

    /// The host's inode number, by which its tables name the socket.
    fn inode(&self) -> Result<u64> {
        let known = self.inode.load(Relaxed);
        if known != 0 {
            return Ok(known);
        }
        let mut statx = alloc::vec![0; size_of::<Statx>()];
        self.call(Op::Stat).bytes_out(&mut statx).run()?;
        let inode = Statx::read_from_bytes(&statx).map_err(|_| Errno::EIO)?.ino;
        self.inode.store(inode, Relaxed);
        Ok(inode)
    }

    /// What stat(2) says.
    pub fn attributes(&self) -> Result<Attributes> {
        Ok(self.identity.socket(self.inode()?))
    }

    // ---- readiness ----

    /// True if something lies there that a program has yet to take, and will. The end of a
    /// connection is nothing to take: it may lie there for ever. So may datagrams that nobody has
    /// ever waited for.
    fn holds_input(&self) -> bool {
        let may_hold = {
            let ready = self.ready.lock();
            let waited_for = self.is_stream() || ready.is_watched;
            waited_for && ready.mask.contains(PollMask::IN)
        };
        let lies_there = |mask: PollMask| {
            mask.contains(PollMask::IN)
                && match mask & STICKY {
                    mask if mask.is_empty() => true,
                    // Who has asked and said that this is all still waits for the answer.
                    PollMask::RDHUP => self.is_stream() && self.unread_bytes() > 0,
                    _ => false,
                }
        };
        may_hold && self.ask().is_ok_and(lies_there)
    }

    fn unread_bytes(&self) -> i32 {
        // The host writes to the heap, not to a stack of the kernel.
        let mut bytes = alloc::vec![0; size_of::<i32>()];
        match self.raw_ioctl(FIONREAD, &mut bytes) {
            Ok(_) => bytes.try_into().map_or(0, i32::from_ne_bytes),
            Err(_) => 0,
        }
    }

    /// What of the host's `events` somebody may wait for. OUT comes along with every other event;
    /// only its return is new.
    fn reportable(&self, events: PollMask) -> PollMask {
        let events = events & KEPT;
        if self.ready.lock().mask.contains(PollMask::OUT) { events - PollMask::OUT } else { events }
    }

    /// True if trying `direction` may succeed (or fail otherwise than by EAGAIN). What comes from
    /// this sandbox itself is there before any event tells of it: so without an event it is known
    /// only for as long as nobody else can have done anything.
    fn may(&self, direction: PollMask) -> bool {
        let ready = self.ready.lock();
        !ready.is_watched
            || ready.mask.intersects(direction | STICKY)
            || ready.exhausted_turn != arch::lock::turn()
    }

    /// Begins to watch. The host reports the state at this moment too, by an event.
    fn watch(&self) -> Result {
        if self.ready.lock().is_watched {
            return Ok(());
        }
        self.call(Op::Watch).arg(0, self.token).run()?;
        let mut ready = self.ready.lock();
        ready.is_watched = true;
        // Reading and writing may be tried as before; of the rest the event will notify.
        ready.mask = PollMask::IN | PollMask::OUT;
        Ok(())
    }

    /// Asks the host for the state now.
    fn ask(&self) -> Result<PollMask> {
        let mut mask = PollMask::from_bits_truncate(self.call(Op::Poll).run()? as u32) & KEPT;
        mask.set(PollMask::IN, mask.contains(PollMask::IN) || answers::is_waiting(self.token));
        let mut ready = self.ready.lock();
        // Of room that has come back an event tells, and those who wait hear of it by that: it is
        // not known before.
        ready.mask = mask - (PollMask::OUT - ready.mask);
        Ok(mask)
    }

    /// The host has just said EAGAIN to `direction`.
    fn exhausted(&self, direction: PollMask) -> Result {
        self.watch()?;
        let is_sticky = {
            let mut ready = self.ready.lock();
            ready.known = PollMask::empty();
            ready.exhausted_turn = arch::lock::turn();
            ready.mask.intersects(STICKY)
        };
        if is_sticky {
            // An error or a hang-up did not let it through: find out what really holds.
            return self.ask().map(|_| ());
        }
        self.ready.lock().mask.remove(direction);
        Ok(())
    }

    /// A call may have used up what is remembered as ready. It stays remembered until the host says
    /// EAGAIN: a short transfer alone does not tell whether an end of file has come since, for
    /// which no event would come again.
    fn stale(&self) {
        self.ready.lock().known = PollMask::empty();
    }

    /// After a call that changes the state by itself: asks anew and notifies who waits.
    fn changed(&self) {
        if !self.ready.lock().is_watched {
            return;
        }
        if let Ok(mask) = self.ask() {
            self.ready.lock().mask = mask;
            self.queue.wake(concerns(mask) | PollMask::ALWAYS);
        }
    }

    fn try_op<T>(&self, direction: PollMask, op: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.may(direction) {
            return Err(Errno::EAGAIN);
        }
        let is_reported = {
            let ready = self.ready.lock();
            ready.is_watched && ready.mask.intersects(direction)
        };
        let result = op();
        match result {
            Err(Errno::EAGAIN) => self.exhausted(direction)?,
            Err(_) => self.stale(),
            // Something came that no event reported.
            Ok(_) if direction == PollMask::IN && !is_reported => input::note(),
            Ok(_) => {}
        }
        result
    }

    /// Readiness now, as the host says it: an event tells when to look, and may be late.
    pub fn poll(&self) -> PollMask {
        let mut mask = self.watch().and_then(|()| self.ask()).unwrap_or(PollMask::ERR);
        mask.set(PollMask::IN, mask.contains(PollMask::IN) || self.has_answers());
        with_synonyms(mask)
    }

    // ---- calls ----

    /// bind(2).
    pub fn bind(self: &Arc<Self>, address: &[u8]) -> Result {
        let Some(local) = self.local.as_ref().filter(|local| local.has_groups()) else {
            return self.bind_at(address);
        };
        // Groups are those of another namespace than the host knows.
        let mut plain = address.to_vec();
        plain.iter_mut().skip(8).for_each(|byte| *byte = 0);
        self.bind_at(&plain)?;
        local.set_groups(Arc::downgrade(self), word(address, 8).unwrap_or(0))
    }

    /// NETLINK_ADD_MEMBERSHIP or NETLINK_DROP_MEMBERSHIP of a socket whose groups are joined here:
    /// `None` for others, and for other options. EINVAL.
    pub fn set_membership(
        self: &Arc<Self>,
        (level, name): (u32, u32),
        value: &[u8],
    ) -> Option<Result> {
        /// SOL_NETLINK, and the options.
        const LEVEL: u32 = 270;
        const ADD: u32 = 1;
        const DROP: u32 = 2;
        let local = self.local.as_ref().filter(|local| local.has_groups())?;
        if level != LEVEL || !matches!(name, ADD | DROP) {
            return None;
        }
        let group = word(value, 0).filter(|group| (1..=u32::BITS).contains(group));
        let Some(group) = group else { return Some(Err(Errno::EINVAL)) };
        let (bit, old) = (1 << (group - 1), local.groups());
        let groups = if name == ADD { old | bit } else { old & !bit };
        Some(local.set_groups(Arc::downgrade(self), groups))
    }

    /// True if a netlink socket has room for what is no answer.
    pub fn has_room(&self) -> bool {
        self.local.as_ref().is_some_and(Local::has_room)
    }

    /// The groups of a netlink socket that were joined here, a bit each.
    pub fn groups(&self) -> u32 {
        self.local.as_ref().map_or(0, Local::groups)
    }

    fn bind_at(&self, address: &[u8]) -> Result {
        self.call(Op::Bind).bytes(address).run().map(|_| ())
    }

    /// listen(2).
    pub fn listen(&self, backlog: u32) -> Result {
        self.call(Op::Listen).arg(0, backlog.into()).run()?;
        *self.talk.lock() = Talk::Listens;
        self.changed();
        Ok(())
    }

    /// accept(2): the new socket and, if wanted, its peer's address.
    pub fn accept(&self, want_address: bool) -> Result<(Arc<HostSocket>, Vec<u8>)> {
        let ask = want_address || probes::are_known();
        let (accepted, address) = match answers::accepted(self.token) {
            Some(before) => before,
            None => self.try_op(PollMask::IN, || {
                let accepted = self.take_connection(ask)?;
                self.stale();
                Ok(accepted)
            })?,
        };
        let is_probe = accepted.is_probe.load(Relaxed);
        input::note_taken(is_probe);
        if is_probe {
            answers::learn_from(self.token, accepted.token);
        }
        Ok((accepted, address))
    }

    /// The same for the kernel itself, whatever is known of readiness.
    pub(super) fn accept_now(&self) -> Result<(Arc<HostSocket>, Vec<u8>)> {
        self.take_connection(true)
    }

    fn take_connection(&self, ask: bool) -> Result<(Arc<HostSocket>, Vec<u8>)> {
        let mut address = alloc::vec![0; if ask { MAX_ADDRESS_BYTES } else { 0 }];
        let call = self.call(Op::Accept);
        let call = if ask { call.bytes_out(&mut address) } else { call.segments(&[NOTHING]) };
        let (handle, out) = call.run_out()?;
        address.truncate(out[0] as usize);
        let handle = Handle::new(handle as u32);
        let accepted = Self::from_handle(handle, self.domain, self.kind, None);
        *accepted.talk.lock() = Talk::Serves;
        accepted.is_probe.store(probes::is_one(&address), Relaxed);
        Ok((accepted, address))
    }

    /// Receives into kernel memory, whatever is known of readiness: bytes.
    pub(super) fn receive_now(&self, bytes: &mut [u8], flags: u32) -> Result<usize> {
        let call = self.call(Op::Recv).arg(0, flags.into()).segments(&[NOTHING; 2]);
        call.bytes_out(bytes).run().map(|count| count as usize)
    }

    /// Sends from kernel memory, whatever is known of readiness: bytes.
    pub(super) fn send_now(&self, bytes: &[u8]) -> Result<usize> {
        let call = self.call(Op::Send).segments(&[NOTHING; 2]);
        call.bytes(bytes).run().map(|count| count as usize)
    }

    /// What names it in events.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// connect(2), without waiting: EINPROGRESS or EALREADY while it is under way. Called again
    /// afterwards it reports the outcome.
    pub fn connect(&self, address: &[u8]) -> Result {
        let result = self.call(Op::Connect).bytes(address).run().map(|_| ());
        if probes::is_of_a_check(address) {
            self.is_probe.store(true, Relaxed);
        }
        if self.is_stream() {
            *self.talk.lock() = Talk::Asks;
        }
        match result {
            Err(Errno::EINPROGRESS | Errno::EALREADY) => {
                self.watch()?;
                self.ready.lock().mask = PollMask::empty();
            }
            _ => self.changed(),
        }
        result
    }

    /// sendmsg(2), without waiting: bytes sent; of a stream as many as go. EAGAIN.
    pub fn send(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        address: &[u8],
        control: &[u8],
    ) -> Result<usize> {
        if let Some(local) = &self.local {
            return self.send_messages(local, buffer, address);
        }
        let mut sent = 0;
        loop {
            match self.send_once(buffer, flags, address, control) {
                Ok(bytes) => sent += bytes,
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
            }
            if !self.is_stream() || buffer.remaining() == 0 || !self.may(PollMask::OUT) {
                return Ok(sent);
            }
        }
    }

    fn send_once(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        address: &[u8],
        control: &[u8],
    ) -> Result<usize> {
        if !self.is_stream() && buffer.remaining() > MAX_MESSAGE {
            return Err(Errno::EMSGSIZE);
        }
        self.try_op(PollMask::OUT, || {
            let data = buffer.segments(Access::Read, MAX_MESSAGE, MAX_SEGMENTS as usize - 2)?;
            let wanted = length(&data);
            if wanted < buffer.remaining() && !self.is_stream() {
                // The datagram lies in more pieces than one call carries.
                return Err(if data.len() as u32 >= MAX_SEGMENTS - 2 {
                    Errno::EMSGSIZE
                } else if buffer.is_awaited(wanted, Access::Read) {
                    Errno::ERESTARTNOMEM
                } else {
                    Errno::EFAULT
                });
            }
            let mut call = self.call(Op::Send).arg(0, u64::from(flags & SEND_FLAGS));
            for part in [address, control] {
                call = if part.is_empty() { call.segments(&[NOTHING]) } else { call.bytes(part) };
            }
            // Whoever is answered may ask again at once: that is noted after this.
            let before = *self.talk.lock();
            self.talk.lock().send(time::monotonic_ns);
            let sent = call.segments(&data).run();
            let sent = sent.inspect_err(|_| *self.talk.lock() = before)? as usize;
            if answers::is_learning(self.token) {
                answers::on_sent(self.token, &data, sent);
            }
            if matches!(before, Talk::IsAsked(_)) && !self.is_probe.load(Relaxed) {
                input::note_answered();
            }
            buffer.advance(sent);
            self.stale();
            host::note_sent();
            Ok(sent)
        })
    }

    /// recvmsg(2), without waiting. EAGAIN.
    pub fn receive(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        want_address: bool,
        control_bytes: usize,
    ) -> Result<Received> {
        if let Some(local) = self.local.as_ref().filter(|local| local.is_ready()) {
            let (bytes, flags) = local.receive(buffer, flags)?;
            let address = local::kernel_address();
            return Ok(Received { bytes, address, flags, ..Received::default() });
        }
        let max = if self.is_stream() { MAX_RECEIVE } else { MAX_MESSAGE };
        let mut op = || {
            let data = buffer.segments(Access::Write, max, MAX_SEGMENTS as usize - 2)?;
            let wanted = length(&data);
            let is_short = !self.is_stream() && wanted < buffer.remaining().min(max);
            if is_short && buffer.is_awaited(wanted, Access::Write) {
                // What does not fit would be lost.
                return Err(Errno::ERESTARTNOMEM);
            }
            let mut address = alloc::vec![0; if want_address { MAX_ADDRESS_BYTES } else { 0 }];
            let mut control = alloc::vec![0; control_bytes.min(MAX_CONTROL)];
            let mut call = self.call(Op::Recv).arg(0, u64::from(flags & RECEIVE_FLAGS));
            for part in [&mut address, &mut control] {
                call =
                    if part.is_empty() { call.segments(&[NOTHING]) } else { call.bytes_out(part) };
            }
            let (bytes, out) = call.segments(&data).run_out()?;
            address.truncate(out[0] as usize);
            control.truncate(out[1] as usize);
            let bytes = bytes as usize;
            if flags & MSG_PEEK == 0 && answers::is_learning(self.token) {
                answers::on_received(self.token, &data, bytes.min(wanted));
            }
            buffer.advance(bytes.min(wanted));
            self.stale();
            Ok(Received { bytes, address, control, flags: out[2] as u32, ..Received::default() })
        };
        if flags & (MSG_OOB | MSG_ERRQUEUE) != 0 {
            // These never wait, and say nothing about other data.
            let result = op();
            self.stale();
            return result;
        }
        let received = self.try_op(PollMask::IN, op)?;
        // The end of a stream is no question.
        if flags & MSG_PEEK == 0 && (received.bytes > 0 || !self.is_stream()) {
            self.talk.lock().receive(input::last_ns());
            input::note_taken(self.is_probe.load(Relaxed) || probes::is_one(&received.address));
        } else if received.bytes == 0 && self.is_probe.load(Relaxed) {
            input::note_probe_ends();
        }
        Ok(received)
    }

    /// shutdown(2).
    pub fn shutdown(&self, how: u32) -> Result {
        self.call(Op::Shutdown).arg(0, how.into()).run()?;
        self.changed();
        Ok(())
    }

    /// getsockname(2) or getpeername(2).
    pub fn name(&self, of_peer: bool) -> Result<Vec<u8>> {
        let mut address = alloc::vec![0; MAX_ADDRESS_BYTES];
        let op = if of_peer { Op::GetPeerName } else { Op::GetSockName };
        let length = self.call(op).bytes_out(&mut address).run()?;
        address.truncate(length as usize);
        if let Some(local) = self.local.as_ref().filter(|local| local.has_groups() && !of_peer)
            && let Some(groups) = address.get_mut(8..12)
        {
            groups.copy_from_slice(&local.groups().to_ne_bytes());
        }
        Ok(address)
    }

    /// True if answers of the kernel itself wait to be received.
    fn has_answers(&self) -> bool {
        self.local.as_ref().is_some_and(Local::is_ready)
    }

    /// True if it is a netlink socket.
    pub fn is_netlink(&self) -> bool {
        self.local.is_some()
    }

    /// Puts a packet of this kernel into a netlink socket. ENOBUFS with too much to be received.
    pub fn deliver(&self, packet: Vec<u8>) -> Result {
        self.local.as_ref().ok_or(Errno::EINVAL)?.deliver(packet)?;
        self.queue.wake(PollMask::RECEIVED);
        Ok(())
    }

    /// Sends netlink messages, each to whom it is for. What the host refuses is answered, and no
    /// error of the call, as it is the kernel's on Linux too.
    fn send_messages(
        &self,
        local: &Local,
        buffer: &mut IoBuffer<'_>,
        address: &[u8],
    ) -> Result<usize> {
        local::check_receiver(address)?;
        if buffer.remaining() > MAX_NETLINK {
            return Err(Errno::EMSGSIZE);
        }
        let port = self.port()?;
        let bytes = buffer.take_vec(MAX_NETLINK)?;
        let (mut rest, mut dumps) = (&bytes[..], 0);
        while let Some((message, sequence)) = netlink::next(&mut rest) {
            // The kernel does not answer to what is no request.
            if message.kind < netlink::FIRST || message.flags & netlink::REQUEST == 0 {
                continue;
            }
            dumps += u32::from(message.flags & netlink::DUMP != 0);
            if dumps > MOST_DUMPS {
                local.refuse(&message, sequence, port, Errno::EBUSY)?;
                continue;
            }
            local.take(&message, sequence, port, || {
                let whole = message.to_bytes(sequence, 0);
                self.call(Op::Send).segments(&[NOTHING; 2]).bytes(&whole).run().map(|_| ())
            })?;
        }
        self.stale();
        if local.is_ready() {
            self.queue.wake(PollMask::RECEIVED);
        }
        host::note_sent();
        Ok(bytes.len())
    }

    /// The address of a netlink socket, which gets one if it has none.
    fn port(&self) -> Result<u32> {
        let port = || self.name(false).map(|name| word(&name, 4).unwrap_or(0));
        match port()? {
            0 => {
                self.bind_at(&local::kernel_address())?;
                port()
            }
            port => Ok(port),
        }
    }

    /// What it holds to be received, but for what the host holds.
    pub fn held_bytes(&self) -> u64 {
        self.local.as_ref().map_or(0, Local::held_bytes)
    }

    /// getsockopt(2): the value, at most `max` bytes.
    pub fn option(&self, level: u32, name: u32, max: usize) -> Result<Vec<u8>> {
        let mut value = alloc::vec![0; max.clamp(1, 4096)];
        let call = self.call(Op::GetSockOpt).arg(0, level.into()).arg(1, name.into());
        let length = call.bytes_out(&mut value).run()?;
        if (level, name) == (SOL_SOCKET, SO_ERROR) {
            self.stale();
        }
        value.truncate((length as usize).min(max));
        Ok(value)
    }

    /// setsockopt(2).
    pub fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result {
        let call = self.call(Op::SetSockOpt).arg(0, level.into()).arg(1, name.into());
        let call = if value.is_empty() { call.segments(&[NOTHING]) } else { call.bytes(value) };
        call.run().map(|_| ())
    }

    /// ioctl(2) of a socket: `data` in and out. The length of what came out.
    pub fn raw_ioctl(&self, command: u32, data: &mut [u8]) -> Result<usize> {
        self.call(Op::SockIoctl).arg(0, command.into()).bytes_out(data).run().map(|n| n as usize)
    }

    /// ioctl(2).
    pub fn ioctl(&self, caller: &dyn Caller, command: u32, argument: u64) -> Result<usize> {
        super::message::ioctl(self, caller, command, argument)
    }
}

impl Drop for HostSocket {
    fn drop(&mut self) {
        host::remove_watcher(self.token);
        answers::forget(self.token);
    }
}

fn length(segments: &[Segment]) -> usize {
    segments.iter().map(|s| s.len as usize).sum()
}
