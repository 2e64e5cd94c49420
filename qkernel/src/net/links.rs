//! The interfaces of the container's network namespace, as the host's rtnetlink(7) tells of them.

use alloc::vec::Vec;

use super::netlink::{self, DUMP, Message, REQUEST, half, word};
use crate::errno::{Errno, Result};

const NETLINK_ROUTE: u32 = 0;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
/// Bytes of struct ifinfomsg.
const INFO: usize = 16;

/// The counters, in the order of struct rtnl_link_stats64.
pub const COUNTERS: &[&str] = &[
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
    "rx_length_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
    "rx_compressed",
    "tx_compressed",
    "rx_nohandler",
];

/// An attribute (IFLA_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u16)]
pub enum Attribute {
    Address = 1,
    Broadcast = 2,
    Name = 3,
    Mtu = 4,
    Link = 5,
    QueueLength = 13,
    OperState = 16,
    LinkMode = 17,
    Alias = 20,
    Counters = 23,
    Group = 27,
    Carrier = 33,
    CarrierChanges = 35,
    ProtoDown = 39,
    CarrierUps = 47,
    CarrierDowns = 48,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: Vec<u8>,
    /// Its number.
    pub index: u32,
    /// ARPHRD_*.
    pub kind: u16,
    /// IFF_*.
    pub flags: u32,
    attributes: Vec<u8>,
}

impl Link {
    fn of(message: &Message) -> Option<Link> {
        let body = &message.body;
        let mut link = Link {
            name: Vec::new(),
            index: word(body, 4)?,
            kind: half(body, 2)?,
            flags: word(body, 8)?,
            attributes: body.get(INFO..)?.to_vec(),
        };
        let name = link.bytes(Attribute::Name)?;
        link.name = name.split(|byte| *byte == 0).next()?.to_vec();
        // A name of a directory.
        let is_plain = !link.name.is_empty() && !link.name.contains(&b'/');
        is_plain.then_some(link)
    }

    /// The data of an attribute.
    pub fn bytes(&self, attribute: Attribute) -> Option<&[u8]> {
        netlink::attributes(&self.attributes)
            .find(|(kind, _)| *kind == attribute as u16)
            .map(|(_, data)| data)
    }

    /// An attribute of one or four bytes.
    pub fn number(&self, attribute: Attribute) -> Option<u32> {
        match self.bytes(attribute)? {
            [byte] => Some((*byte).into()),
            bytes => word(bytes, 0),
        }
    }

    /// The counter with this number in [`COUNTERS`]. Older hosts have fewer.
    pub fn counter(&self, index: usize) -> Option<u64> {
        let bytes = self.bytes(Attribute::Counters)?;
        let at = index.checked_mul(8)?;
        bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
    }
}

/// All of them.
pub fn all() -> Result<Vec<Link>> {
    let body = alloc::vec![0; INFO];
    let question = Message { kind: RTM_GETLINK, flags: REQUEST | DUMP, body };
    let answer = netlink::ask(NETLINK_ROUTE, &question)?;
    match answer.iter().find_map(Message::errno) {
        Some(errno) => Err(errno),
        None => Ok(answer.iter().filter(|m| m.kind == RTM_NEWLINK).filter_map(Link::of).collect()),
    }
}

/// The one of this name. ENODEV.
pub fn find(name: &[u8]) -> Result<Link> {
    all()?.into_iter().find(|link| link.name == name).ok_or(Errno::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_what_its_message_says() {
        let mut body = alloc::vec![0, 0, 1, 0, 7, 0, 0, 0, 0x43, 0, 1, 0, 0, 0, 0, 0];
        netlink::append(&mut body, 3, b"eth0\0");
        netlink::append(&mut body, 4, &1500u32.to_ne_bytes());
        netlink::append(&mut body, 16, &[6]);
        netlink::append(&mut body, 23, &[[3u64, 4].map(u64::to_ne_bytes).concat()].concat());
        let link = Link::of(&Message { kind: RTM_NEWLINK, flags: 2, body }).expect("well formed");
        assert_eq!((&link.name[..], link.index, link.kind), (&b"eth0"[..], 7, 1));
        assert_eq!(link.flags, 0x1_0043);
        assert_eq!(link.number(Attribute::Mtu), Some(1500));
        assert_eq!(link.number(Attribute::OperState), Some(6));
        assert_eq!(link.number(Attribute::Group), None);
        assert_eq!([0, 1, 2].map(|i| link.counter(i)), [Some(3), Some(4), None]);
    }

    #[test]
    fn names_are_names_of_directories() {
        for name in [&b"a/b\0"[..], b"\0", b""] {
            let mut body = alloc::vec![0; INFO];
            netlink::append(&mut body, 3, name);
            assert_eq!(Link::of(&Message { kind: RTM_NEWLINK, flags: 2, body }), None);
        }
    }
}
