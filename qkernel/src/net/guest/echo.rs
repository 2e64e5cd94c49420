//! ICMP, as ping(8) uses it (icmp(7), raw(7)): who asks for an echo has it from whoever has the
//! address. Sockets of SOCK_DGRAM hear the answers to their own questions, raw ones hear all.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use linux_raw_sys::net::SOCK_DGRAM;

use super::address;
use super::datagram::{Arrival, check_flags, length_of};
use super::network::Network;
use super::socket::{GuestSocket, ICMP, ICMP6, RAW, RAW_PORT, ports_of};
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;

/// Bytes of an ICMP header: type, code, checksum, identifier, number.
const HEADER: usize = 8;
/// The longest message: what an IPv4 packet has room for.
const MAX_BYTES: usize = 65515;
/// Of IPv4 and of IPv6: ICMP_ECHO and ICMPV6_ECHO_REQUEST, ICMP_ECHOREPLY and ICMPV6_ECHO_REPLY.
const REQUEST: [u8; 2] = [8, 128];
const REPLY: [u8; 2] = [0, 129];
/// Hops that a message may have at first.
pub(super) const TTL: u8 = 64;
/// Bytes of a header of IPv4 without options.
const IP_HEADER: usize = 20;

/// The sum of RFC 1071, over words in network order.
fn sum(bytes: &[u8], first: u32) -> u16 {
    let word =
        |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    let mut sum = bytes.chunks(2).map(word).fold(first, |sum, word| sum.wrapping_add(word));
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Puts the checksum into a message from one address to another: of IPv6 they are part of it.
fn seal(message: &mut [u8], from: IpAddr, to: IpAddr) {
    let pseudo = match (from, to) {
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = (message.len() as u32).to_be_bytes();
            let head = [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, 58]].concat();
            u32::from(!sum(&head, 0))
        }
        _ => 0,
    };
    message[2..4].fill(0);
    let value = sum(message, pseudo);
    message[2..4].copy_from_slice(&value.to_be_bytes());
}

/// An IPv4 packet of a message, as raw sockets have it.
fn packet(message: &[u8], from: IpAddr, to: IpAddr, gateways: u8) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { return message.to_vec() };
    let length = (IP_HEADER + message.len()) as u16;
    let [high, low] = length.to_be_bytes();
    let mut head =
        alloc::vec![0x45, 0, high, low, 0, 0, 0, 0, TTL.saturating_sub(gateways), ICMP as u8, 0, 0];
    head.extend(from.octets());
    head.extend(to.octets());
    let value = sum(&head, 0);
    head[10..12].copy_from_slice(&value.to_be_bytes());
    head.extend(message);
    head
}

impl GuestSocket {
    /// sendmsg(2) of a socket of ICMP. EINVAL for what is no question, of one that is not raw.
    pub(super) fn send_echo(
        &self,
        buffer: &mut IoBuffer<'_>,
        flags: u32,
        to: &[u8],
    ) -> Result<usize> {
        check_flags(flags)?;
        let length = length_of(buffer, MAX_BYTES)?;
        let to = match to {
            [] => self.remote().ok_or(Errno::EDESTADDRREQ)?,
            given => address::parse(self.domain, given)?,
        };
        let (to, path) = self.route(to)?;
        let is_six = usize::from(to.is_ipv6());
        if self.kind == SOCK_DGRAM && length < HEADER {
            return Err(Errno::EINVAL);
        }
        let from = self.local_for(path.source)?;
        let mut message = buffer.take_message()?;
        if self.kind == SOCK_DGRAM {
            if message[..2] != [REQUEST[is_six], 0] {
                return Err(Errno::EINVAL);
            }
            message[4..6].copy_from_slice(&from.port().to_be_bytes());
        }
        if message.len() >= HEADER && (self.kind == SOCK_DGRAM || is_six == 1) {
            seal(&mut message, from.ip(), to.ip());
        }
        path.count(length);
        let Some(there) = &path.arrives else { return Ok(length) };
        hear(there, &message, path.arrival(SocketAddr::new(from.ip(), 0), to.ip()));
        if message.len() >= HEADER
            && message[..2] == [REQUEST[is_six], 0]
            && let Ok(back) = there.path(from.ip())
            && let Some(asker) = &back.arrives
        {
            message[0] = REPLY[is_six];
            seal(&mut message, to.ip(), from.ip());
            back.count(length);
            hear(asker, &message, back.arrival(SocketAddr::new(to.ip(), 0), from.ip()));
        }
        Ok(length)
    }

    /// True if a raw socket wants no message of this type.
    fn filters(&self, kind: u8) -> bool {
        self.state.lock().options.filters(kind)
    }
}

/// A message arrives at a network.
fn hear(there: &Network, message: &[u8], arrival: Arrival) {
    let (from, to) = (arrival.from.ip(), arrival.to);
    let is_six = usize::from(to.is_ipv6());
    let protocol = if is_six == 1 { ICMP6 } else { ICMP };
    let ports = ports_of(there.number);
    let kind = message.first().copied().unwrap_or_default();
    let raw = ports.lock().at(protocol | RAW, SocketAddr::new(to, RAW_PORT));
    for (socket, _) in raw.iter().filter(|(socket, _)| !socket.filters(kind)) {
        let is_its = socket.remote().is_none_or(|remote| remote.ip() == from);
        if is_its && socket.hears(arrival.index) {
            socket.deliver(arrival, packet(message, from, to, arrival.gateways));
        }
    }
    if message.len() >= HEADER && kind == REPLY[is_six] {
        let port = u16::from_be_bytes([message[4], message[5]]);
        let own = ports.lock().at(protocol, SocketAddr::new(to, port));
        if let Some((socket, _)) = own.iter().find(|(socket, _)| socket.hears(arrival.index)) {
            socket.deliver(arrival, message.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_standard() {
        // The example of RFC 1071, section 3.
        assert_eq!(sum(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7], 0), !0xddf2);
        assert_eq!(sum(&[1], 0), !0x0100);
    }

    #[test]
    fn what_is_sealed_sums_up_to_nothing() {
        let [from, to] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().expect("an address"));
        let mut message = alloc::vec![8, 0, 7, 7, 1, 2, 3, 4, 5];
        seal(&mut message, from, to);
        assert_eq!(sum(&message, 0), 0);
        let packet = packet(&message, from, to, 1);
        assert_eq!((sum(&packet[..IP_HEADER], 0), packet.len()), (0, 29));
        assert_eq!(packet[8], 63);
        assert_eq!(&packet[12..20], [10, 0, 0, 1, 10, 0, 0, 2]);
    }
}
