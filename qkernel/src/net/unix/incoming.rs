//! The queue of an AF_UNIX socket, as who receives goes through it.

use alloc::vec::Vec;

use super::urgent::Urgency;
use super::{Packet, UnixSocket};

impl UnixSocket {
    /// SO_PEEK_OFF: looks go on from where the last one ended, and reads take that with them.
    pub(super) fn move_peek_offset(&self, peeks: bool, bytes: usize) {
        if let Some(offset) = &mut self.state.lock().options.peek_offset {
            *offset =
                if peeks { offset.saturating_add(bytes) } else { offset.saturating_sub(bytes) };
        }
    }

    /// Takes out what lies before the place where a look begins: that, and how many bytes of the
    /// next one lie before it too.
    pub(super) fn before_look(&self) -> (Vec<Packet>, usize) {
        let mut left = self.state.lock().options.peek_offset.unwrap_or(0);
        let mut before = Vec::new();
        while left > 0 {
            let Some(packet) = self.pop() else { break };
            let length = packet.bytes.len() - packet.start;
            if length > left {
                self.unpop(packet);
                break;
            }
            left -= length;
            before.push(packet);
        }
        (before, left)
    }

    /// Puts these back, in their order.
    pub(super) fn unpop_all(&self, packets: Vec<Packet>) {
        packets.into_iter().rev().for_each(|packet| self.unpop(packet));
    }

    /// Takes the first one out.
    pub(super) fn pop(&self) -> Option<Packet> {
        let mut state = self.state.lock();
        let packet = state.incoming.pop_front()?;
        state.incoming_bytes -= packet.bytes.len() - packet.start;
        state.taken += 1;
        state.urgent_packets -= usize::from(packet.urgency != Urgency::None);
        Some(packet)
    }

    /// Puts it back.
    pub(super) fn unpop(&self, packet: Packet) {
        let mut state = self.state.lock();
        state.incoming_bytes += packet.bytes.len() - packet.start;
        state.taken -= 1;
        state.urgent_packets += usize::from(packet.urgency != Urgency::None);
        state.incoming.push_front(packet);
    }
}
