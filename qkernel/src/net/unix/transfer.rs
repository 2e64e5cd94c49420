//! Messages through AF_UNIX sockets.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use linux_raw_sys::net::{
    MSG_OOB, MSG_PEEK, MSG_TRUNC, SO_TIMESTAMP_OLD, SO_TIMESTAMPNS_OLD, SOL_SOCKET,
};
use zerocopy::IntoBytes;

use super::rights::{self, InFlight};
use super::urgent::{AtUrgent, Urgency};
use super::{Charge, MESSAGE_BYTES, Packet, UnixSocket, names};
use crate::abi::TimeSpec;
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::net::message::{self, Control, Credentials, Received};
use crate::time;
use crate::wait::PollMask;

/// The longest piece of a stream that is queued as one.
const MAX_PIECE: usize = 32 << 10;

/// Sends the descriptors of a message off to `peer`.
fn send_off(peer: &Arc<UnixSocket>, control: &mut Control) -> Result<InFlight> {
    if control.rights.is_empty() {
        return Ok(InFlight::default());
    }
    let rights = InFlight::new(core::mem::take(&mut control.rights))?;
    rights::note_holder(peer);
    Ok(rights)
}

impl UnixSocket {
    /// sendmsg(2), without waiting. `target`: where a datagram goes, if not to the peer. The rights
    /// in `control` are taken once they have been sent. EAGAIN.
    pub fn send(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        target: Option<&Arc<UnixSocket>>,
        control: &mut Control,
    ) -> Result<usize> {
        let is_urgent = flags & MSG_OOB != 0;
        if is_urgent && (!self.is_stream() || buffer.remaining() == 0) {
            return Err(Errno::EOPNOTSUPP);
        }
        let peer = self.destination(target)?;
        if self.is_stream() {
            self.send_stream(&peer, buffer, control, is_urgent)
        } else {
            self.send_packet(&peer, buffer, control)
        }
    }

    fn destination(&self, target: Option<&Arc<UnixSocket>>) -> Result<Arc<UnixSocket>> {
        let peer = self.peer();
        let is_connected = {
            let mut state = self.state.lock();
            if !self.is_datagram() && !state.is_connected {
                return Err(Errno::ENOTCONN);
            }
            if state.write_shut || (peer.is_none() && !self.is_datagram()) {
                return Err(Errno::EPIPE);
            }
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            state.is_connected
        };
        if let Some(target) = target {
            if target.state.lock().is_closed {
                return Err(Errno::ECONNREFUSED);
            }
            return Ok(target.clone());
        }
        match peer {
            Some(peer) => Ok(peer),
            None if is_connected => {
                // Told once. Then it is a socket without a peer, and without what came from that.
                let lost = {
                    let mut state = self.state.lock();
                    state.is_connected = false;
                    state.incoming_bytes = 0;
                    core::mem::take(&mut state.incoming)
                };
                drop(lost);
                Err(Errno::ECONNREFUSED)
            }
            None => Err(Errno::ENOTCONN),
        }
    }

    fn send_stream(
        &self,
        peer: &Arc<UnixSocket>,
        buffer: &mut IoBuffer<'_>,
        control: &mut Control,
        is_urgent: bool,
    ) -> Result<usize> {
        let mut sent = 0;
        while buffer.remaining() > 0 {
            if peer.state.lock().read_shut {
                return if sent > 0 { Ok(sent) } else { Err(Errno::EPIPE) };
            }
            let room = self.room(peer);
            if room == 0 {
                break;
            }
            // The last byte is the urgent one, by itself.
            let is_last = is_urgent && buffer.remaining() == 1;
            let most = match is_urgent {
                true => (buffer.remaining() - 1).max(1),
                false => MAX_PIECE,
            };
            let bytes = match buffer.take_vec(room.min(MAX_PIECE).min(most)) {
                Ok(bytes) if !bytes.is_empty() => bytes,
                Err(error) if sent == 0 => return Err(error),
                _ => break,
            };
            let rights = send_off(peer, control)?;
            sent += bytes.len();
            let credentials = self.credentials_for(peer, control);
            let mut state = peer.state.lock();
            state.incoming_bytes += bytes.len();
            if is_last {
                state.note_urgent();
            }
            match state.incoming.back_mut() {
                // Short writes go together, unless something distinguishes them.
                Some(last)
                    if rights.is_empty()
                        && !is_last
                        && last.urgency == Urgency::None
                        && last.credentials == credentials
                        && last.rights.is_empty()
                        && last.bytes.len() + bytes.len() <= 4096 =>
                {
                    last.bytes.extend_from_slice(&bytes);
                }
                _ => state.incoming.push_back(Packet {
                    bytes,
                    start: 0,
                    rights,
                    credentials,
                    from: None,
                    _charge: None,
                    urgency: if is_last { Urgency::Pending } else { Urgency::None },
                }),
            }
            drop(state);
            if is_last {
                peer.tell_of_urgent();
            }
        }
        if sent > 0 {
            peer.queue.wake(PollMask::RECEIVED);
            return Ok(sent);
        }
        if buffer.remaining() == 0 { Ok(0) } else { Err(Errno::EAGAIN) }
    }

    /// What a message carries of its sender: what that gave, or who it is if one of both wants to
    /// know. Of a peer that is yet to be accepted nobody can tell.
    fn credentials_for(&self, peer: &UnixSocket, control: &Control) -> Option<Credentials> {
        let own = self.state.lock().asked.is_any();
        let asks = || {
            let peer = peer.state.lock();
            peer.asked.is_any() || peer.is_pending
        };
        control.claimed.or_else(|| control.sender.filter(|_| own || asks()))
    }

    fn send_packet(
        &self,
        peer: &Arc<UnixSocket>,
        buffer: &mut IoBuffer<'_>,
        control: &mut Control,
    ) -> Result<usize> {
        let own_name = {
            let state = self.state.lock();
            if buffer.remaining() > state.options.send_bytes - 32 {
                return Err(Errno::EMSGSIZE);
            }
            state.name.clone()
        };
        {
            let state = peer.state.lock();
            if state.read_shut {
                return Err(Errno::EPIPE);
            }
            // A connected datagram socket hears its peer only.
            let elsewhere = state.peer.as_ref().is_some_and(|p| !p.ptr_eq(&self.me));
            if self.is_datagram() && elsewhere {
                return Err(Errno::EPERM);
            }
        }
        if self.is_blocked_by(peer) {
            return Err(Errno::EAGAIN);
        }
        let length = buffer.remaining();
        let bytes = buffer.take_message()?;
        let rights = send_off(peer, control)?;
        let credentials = self.credentials_for(peer, control);
        let from = own_name.filter(|_| self.is_datagram());
        let charge = Charge { sender: self.me.clone(), bytes: length + MESSAGE_BYTES };
        self.state.lock().outgoing_bytes += charge.bytes;
        {
            let mut state = peer.state.lock();
            state.incoming_bytes += length;
            state.incoming.push_back(Packet {
                bytes,
                start: 0,
                rights,
                credentials,
                from,
                _charge: Some(charge),
                urgency: Urgency::None,
            });
        }
        peer.queue.wake(PollMask::RECEIVED);
        Ok(length)
    }

    /// recvmsg(2), without waiting. EAGAIN.
    pub fn receive(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<Received> {
        if flags & MSG_OOB != 0 && self.is_stream() {
            return self.receive_urgent(buffer, flags & MSG_PEEK != 0);
        }
        if flags & MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        {
            let mut state = self.state.lock();
            if state.backlog.is_some() || (!self.is_datagram() && !state.is_connected) {
                return Err(if self.is_stream() { Errno::EINVAL } else { Errno::ENOTCONN });
            }
            if state.incoming.is_empty() {
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
                drop(state);
                return if self.is_over() { Ok(Received::default()) } else { Err(Errno::EAGAIN) };
            }
        }
        let received = if self.is_stream() {
            self.receive_stream(buffer, flags & MSG_PEEK != 0)
        } else {
            self.receive_packet(buffer, flags)
        };
        // Marks alone make room, too.
        if flags & MSG_PEEK == 0 && (received.is_ok() || self.is_stream()) {
            self.senders.wake(PollMask::SENDABLE);
            if let Some(peer) = self.peer().filter(|peer| peer.is_stream()) {
                peer.note_room();
            }
        }
        received
    }

    /// True if nothing more will come.
    fn is_over(&self) -> bool {
        let state = self.state.lock();
        let has_peer = || state.peer.as_ref().and_then(Weak::upgrade).is_some();
        state.read_shut || (!self.is_datagram() && !has_peer())
    }

    fn receive_stream(&self, buffer: &mut IoBuffer<'_>, peeks: bool) -> Result<Received> {
        let asked = self.state.lock().asked;
        let mut received = Received { asked, ..Received::default() };
        let (mut seen, mut skip) = if peeks { self.before_look() } else { Default::default() };
        let is_past_all = !seen.is_empty() && self.state.lock().incoming.is_empty();
        let mut failure = None;
        // Also with no room for bytes: descriptors need none.
        // What was there were marks alone.
        let mut finds_marks = false;
        while let Some(mut packet) = self.pop() {
            match self.at_urgent(&mut packet, received.bytes > 0, peeks) {
                AtUrgent::Taken => finds_marks = false,
                AtUrgent::Ends => {
                    self.unpop(packet);
                    break;
                }
                AtUrgent::PassedOver => {
                    finds_marks = received.bytes == 0;
                    if peeks {
                        seen.push(packet);
                    }
                    continue;
                }
            }
            // Bytes of different senders are not glued together when the program asks who sent
            // them.
            let credentials = asked.is_any().then(|| packet.told());
            if received.bytes > 0 && credentials != received.credentials {
                self.unpop(packet);
                break;
            }
            let start = packet.start;
            packet.start += core::mem::take(&mut skip);
            match buffer.put(&packet.bytes[packet.start..]) {
                Ok(copied) => {
                    packet.start += copied;
                    received.bytes += copied;
                }
                Err(error) => {
                    failure = Some(error);
                    packet.start = start;
                    self.unpop(packet);
                    break;
                }
            }
            received.credentials = credentials;
            let has_rights = !packet.rights.is_empty();
            let is_whole = packet.start == packet.bytes.len();
            if peeks {
                received.rights = packet.rights.peek();
                packet.start = start;
                seen.push(packet);
            } else {
                received.rights = packet.rights.receive();
                if !is_whole {
                    self.unpop(packet);
                }
            }
            // Descriptors end a read: the next bytes may have others.
            if has_rights || !is_whole || buffer.remaining() == 0 {
                break;
            }
        }
        self.unpop_all(seen);
        self.move_peek_offset(peeks, received.bytes);
        match failure {
            None if (is_past_all || finds_marks) && !self.is_over() => Err(Errno::EAGAIN),
            Some(error) if received.bytes == 0 => Err(error),
            _ => Ok(received),
        }
    }

    /// SO_TIMESTAMP, SO_TIMESTAMPNS: when a message is received, as nothing has noted when it came.
    fn append_time(&self, control: &mut Vec<u8>) {
        let asked = {
            let state = self.state.lock();
            [SO_TIMESTAMPNS_OLD, SO_TIMESTAMP_OLD].into_iter().find(|kind| state.options.has(*kind))
        };
        let Some(kind) = asked else { return };
        let mut now = TimeSpec::from_ns(time::realtime_ns());
        if kind == SO_TIMESTAMP_OLD {
            // struct timeval, which has the same form.
            now.nsec /= 1000;
        }
        message::append(control, SOL_SOCKET, kind, now.as_bytes());
    }

    fn receive_packet(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<Received> {
        let asked = self.state.lock().asked;
        let (before, skip) =
            if flags & MSG_PEEK != 0 { self.before_look() } else { Default::default() };
        let Some(mut packet) = self.pop() else {
            self.unpop_all(before);
            return if self.is_over() { Ok(Received::default()) } else { Err(Errno::EAGAIN) };
        };
        let copied = match buffer.put(&packet.bytes[skip..]) {
            Ok(copied) => copied,
            Err(error) => {
                self.unpop(packet);
                self.unpop_all(before);
                return Err(error);
            }
        };
        let is_cut = copied < packet.bytes.len() - skip;
        let mut received = Received {
            bytes: if flags & MSG_TRUNC != 0 { packet.bytes.len() - skip } else { copied },
            flags: if is_cut { MSG_TRUNC } else { 0 },
            asked,
            credentials: asked.is_any().then(|| packet.told()),
            ..Received::default()
        };
        self.append_time(&mut received.control);
        if let Some(from) = &packet.from {
            received.address = names::to_address(Some(from));
        }
        // A message is read as a whole, and looked at as far as it was copied.
        let peeks = flags & MSG_PEEK != 0;
        self.move_peek_offset(peeks, if peeks { copied } else { packet.bytes.len() });
        if peeks {
            received.rights = packet.rights.peek();
            self.unpop(packet);
            self.unpop_all(before);
        } else {
            received.rights = packet.rights.receive();
        }
        Ok(received)
    }
}
