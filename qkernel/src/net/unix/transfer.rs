//! Messages through AF_UNIX sockets.

use alloc::sync::{Arc, Weak};

use linux_raw_sys::net::{MSG_OOB, MSG_PEEK, MSG_TRUNC};

use super::rights::{self, InFlight};
use super::{Charge, MESSAGE_BYTES, Packet, UnixSocket, names};
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::mm::reclaim;
use crate::net::message::{Control, Received};
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
        if flags & MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let peer = self.destination(target)?;
        if self.is_stream() {
            self.send_stream(&peer, buffer, control)
        } else {
            self.send_packet(&peer, buffer, control)
        }
    }

    fn destination(&self, target: Option<&Arc<UnixSocket>>) -> Result<Arc<UnixSocket>> {
        let peer = self.peer();
        let is_connected = {
            let mut state = self.state.lock();
            let is_over = state.is_connected && peer.is_none() && !self.is_datagram();
            if state.write_shut || is_over {
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
            let bytes = match buffer.take_vec(room.min(MAX_PIECE)) {
                Ok(bytes) if !bytes.is_empty() => bytes,
                Err(error) if sent == 0 => return Err(error),
                _ => break,
            };
            let rights = send_off(peer, control)?;
            sent += bytes.len();
            let mut state = peer.state.lock();
            state.incoming_bytes += bytes.len();
            match state.incoming.back_mut() {
                // Short writes go together, unless something distinguishes them.
                Some(last)
                    if rights.is_empty()
                        && last.credentials == control.credentials
                        && last.rights.is_empty()
                        && last.bytes.len() + bytes.len() <= 4096 =>
                {
                    last.bytes.extend_from_slice(&bytes);
                }
                _ => state.incoming.push_back(Packet {
                    bytes,
                    start: 0,
                    rights,
                    credentials: control.credentials,
                    from: None,
                    _charge: None,
                }),
            }
        }
        if sent > 0 {
            peer.queue.wake(PollMask::RECEIVED);
            return Ok(sent);
        }
        if buffer.remaining() == 0 { Ok(0) } else { Err(Errno::EAGAIN) }
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
        let bytes = buffer.take_vec(length)?;
        if bytes.len() < length {
            return Err(if reclaim::is_short() { Errno::ERESTARTNOMEM } else { Errno::EFAULT });
        }
        let rights = send_off(peer, control)?;
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
                credentials: control.credentials,
                from,
                _charge: Some(charge),
            });
        }
        peer.queue.wake(PollMask::RECEIVED);
        Ok(length)
    }

    /// recvmsg(2), without waiting. EAGAIN.
    pub fn receive(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<Received> {
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
                let is_over = state.read_shut
                    || (!self.is_datagram()
                        && state.peer.as_ref().and_then(Weak::upgrade).is_none());
                return if is_over { Ok(Received::default()) } else { Err(Errno::EAGAIN) };
            }
        }
        let received = if self.is_stream() {
            self.receive_stream(buffer, flags & MSG_PEEK != 0)
        } else {
            self.receive_packet(buffer, flags)
        }?;
        if flags & MSG_PEEK == 0 {
            self.senders.wake(PollMask::SENDABLE);
            if let Some(peer) = self.peer().filter(|peer| peer.is_stream()) {
                peer.note_room();
            }
        }
        Ok(received)
    }

    fn pop(&self) -> Option<Packet> {
        let mut state = self.state.lock();
        let packet = state.incoming.pop_front()?;
        state.incoming_bytes -= packet.bytes.len() - packet.start;
        Some(packet)
    }

    fn unpop(&self, packet: Packet) {
        let mut state = self.state.lock();
        state.incoming_bytes += packet.bytes.len() - packet.start;
        state.incoming.push_front(packet);
    }

    fn receive_stream(&self, buffer: &mut IoBuffer<'_>, peeks: bool) -> Result<Received> {
        let passes_credentials = self.state.lock().passes_credentials;
        let mut received = Received::default();
        let mut seen = alloc::vec::Vec::new();
        let mut failure = None;
        while buffer.remaining() > 0 {
            let Some(mut packet) = self.pop() else { break };
            // Bytes of different senders are not glued together when the program asks who sent
            // them.
            if received.bytes > 0
                && passes_credentials
                && packet.credentials != received.credentials
            {
                self.unpop(packet);
                break;
            }
            let start = packet.start;
            match buffer.put(&packet.bytes[start..]) {
                Ok(copied) => {
                    packet.start += copied;
                    received.bytes += copied;
                }
                Err(error) => {
                    failure = Some(error);
                    self.unpop(packet);
                    break;
                }
            }
            if passes_credentials {
                received.credentials = packet.credentials;
            }
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
            if has_rights || !is_whole {
                break;
            }
        }
        for packet in seen.into_iter().rev() {
            self.unpop(packet);
        }
        match failure {
            Some(error) if received.bytes == 0 => Err(error),
            _ => Ok(received),
        }
    }

    fn receive_packet(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<Received> {
        let passes_credentials = self.state.lock().passes_credentials;
        let Some(mut packet) = self.pop() else { return Err(Errno::EAGAIN) };
        let copied = match buffer.put(&packet.bytes) {
            Ok(copied) => copied,
            Err(error) => {
                self.unpop(packet);
                return Err(error);
            }
        };
        let is_cut = copied < packet.bytes.len();
        let mut received = Received {
            bytes: if flags & MSG_TRUNC != 0 { packet.bytes.len() } else { copied },
            flags: if is_cut { MSG_TRUNC } else { 0 },
            credentials: packet.credentials.filter(|_| passes_credentials),
            ..Received::default()
        };
        if let Some(from) = &packet.from {
            received.address = names::to_address(Some(from));
        }
        if flags & MSG_PEEK != 0 {
            received.rights = packet.rights.peek();
            self.unpop(packet);
        } else {
            received.rights = packet.rights.receive();
        }
        Ok(received)
    }
}
