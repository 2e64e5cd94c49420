//! Urgent bytes of AF_UNIX streams (MSG_OOB): the last byte of such a message is to be read by
//! itself, while it is the latest, and the stream has a mark where it was.

use alloc::sync::{Arc, Weak};

use linux_raw_sys::net::{MSG_OOB, SO_OOBINLINE};

use super::{MESSAGE_BYTES, Packet, UnixSocket, UnixState};
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::ipc::sigio::Telling;
use crate::net::message::Received;

/// What a packet of a stream has to do with urgent bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Nothing.
    None,
    /// It is the latest urgent byte.
    Pending,
    /// It was one, until another came: a byte like others. Or until it was read: a mark.
    Past,
}

/// What a read of the stream does at a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AtUrgent {
    /// It takes its bytes.
    Taken,
    /// It is over before it.
    Ends,
    /// It goes on behind it.
    PassedOver,
}

impl Packet {
    /// True if it is where an urgent byte was, that has been read.
    fn is_mark(&self) -> bool {
        self.urgency == Urgency::Past && self.start == self.bytes.len()
    }
}

impl UnixState {
    /// What a stream's queue takes of its sender's buffer: urgent bytes and marks cost as much as
    /// messages, for there may be very many.
    pub(super) fn stream_bytes(&self) -> usize {
        self.incoming_bytes + self.urgent_packets * MESSAGE_BYTES
    }

    /// The packet that is the latest urgent byte.
    fn urgent_packet(&mut self) -> Option<&mut Packet> {
        let at = usize::try_from(self.urgent?.checked_sub(self.taken)?).ok()?;
        self.incoming.get_mut(at)
    }

    /// The next packet is one, of which those before it are bytes of the stream.
    pub(super) fn note_urgent(&mut self) {
        if let Some(before) = self.urgent_packet() {
            before.urgency = Urgency::Past;
        }
        self.urgent = Some(self.taken + self.incoming.len() as u64);
        self.urgent_packets += 1;
    }
}

impl UnixSocket {
    /// What a read does at the packet that it has taken out of the queue. `has_some`: it has bytes
    /// already. As Linux since 6.12 has it.
    pub(super) fn at_urgent(&self, packet: &mut Packet, has_some: bool, peeks: bool) -> AtUrgent {
        let mut state = self.state.lock();
        let is_inline = state.options.has(SO_OOBINLINE);
        match packet.urgency {
            Urgency::Past if packet.is_mark() && has_some && state.urgent.is_none() => {
                AtUrgent::Ends
            }
            Urgency::Past if packet.is_mark() => AtUrgent::PassedOver,
            Urgency::Pending if has_some => AtUrgent::Ends,
            Urgency::Pending if peeks && is_inline => AtUrgent::Taken,
            Urgency::Pending if peeks => AtUrgent::PassedOver,
            Urgency::Pending => {
                state.urgent = None;
                packet.urgency = Urgency::Past;
                if is_inline { AtUrgent::Taken } else { AtUrgent::PassedOver }
            }
            _ => AtUrgent::Taken,
        }
    }

    /// recvmsg(2) with MSG_OOB: EINVAL if there is none, or they are read with the stream.
    pub(super) fn receive_urgent(
        &self,
        buffer: &mut IoBuffer<'_>,
        peeks: bool,
    ) -> Result<Received> {
        let byte = {
            let mut state = self.state.lock();
            if state.options.has(SO_OOBINLINE) {
                return Err(Errno::EINVAL);
            }
            *state.urgent_packet().and_then(|packet| packet.bytes.last()).ok_or(Errno::EINVAL)?
        };
        let bytes = buffer.put(&[byte])?;
        if !peeks {
            let mut state = self.state.lock();
            if let Some(packet) = state.urgent_packet() {
                packet.urgency = Urgency::Past;
                packet.start = packet.bytes.len();
                state.incoming_bytes -= 1;
            }
            state.urgent = None;
        }
        Ok(Received { bytes, flags: MSG_OOB, ..Received::default() })
    }

    /// FIONREAD of TCP: what can be read at once, for a read ends at the mark.
    pub fn bytes_before_mark(&self) -> usize {
        let state = self.state.lock();
        if state.urgent_packets == 0 || state.options.has(SO_OOBINLINE) {
            return state.incoming_bytes;
        }
        let is_pending = |packet: &Packet| packet.urgency == Urgency::Pending;
        let mark = state.incoming.iter().rposition(|packet| is_pending(packet) || packet.is_mark());
        let before = state.incoming.iter().take(mark.unwrap_or(state.incoming.len()));
        before.map(|packet| packet.bytes.len() - packet.start).sum()
    }

    /// SIOCATMARK: the next read begins where an urgent byte is, or was.
    pub(super) fn is_at_mark(&self) -> bool {
        let state = self.state.lock();
        let next = state.incoming.get(1);
        let is_pending = |packet: &Packet| packet.urgency == Urgency::Pending;
        state.incoming.front().is_some_and(|first| {
            let is_mark =
                || first.is_mark() && (state.urgent.is_none() || next.is_some_and(is_pending));
            is_pending(first) || is_mark()
        })
    }

    /// F_SETOWN: whom a signal tells of urgent bytes.
    pub fn set_owner(&self, owner: &Arc<Telling>) {
        self.state.lock().owner = Some(Arc::downgrade(owner));
    }

    /// An urgent byte has come.
    pub(super) fn tell_of_urgent(&self) {
        let owner = self.state.lock().owner.as_ref().and_then(Weak::upgrade);
        if let Some(owner) = owner {
            owner.tell_of_urgent();
        }
    }
}
