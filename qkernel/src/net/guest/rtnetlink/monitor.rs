//! The multicast groups of rtnetlink(7): who has joined them is told of what becomes of a network.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::{DELETE, address, link, route};
use crate::errno::Result;
use crate::net::HostSocket;
use crate::net::guest::network::{Event, Network, Watch};
use crate::net::netlink::Message;

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE.
const LINKS: u32 = 1;
const ADDRESSES: [u32; 2] = [0x10, 0x100];
const ROUTES: [u32; 2] = [0x40, 0x400];

/// A socket that has joined a group.
struct Monitor {
    socket: Weak<HostSocket>,
}

/// A socket has joined its first group. ENOBUFS.
pub fn join(network: &Network, socket: Weak<HostSocket>) -> Result {
    network.watch(Arc::new(Monitor { socket }))
}

/// The group that is told of an event.
fn group_of(event: &Event) -> u32 {
    match event {
        Event::Link(_) | Event::NoLink(_) => LINKS,
        Event::Address(_, one) | Event::NoAddress(_, one) => {
            ADDRESSES[usize::from(one.ip.is_ipv6())]
        }
        Event::Route(route) | Event::NoRoute(route) => ROUTES[usize::from(route.to.is_ipv6())],
    }
}

impl Watch for Monitor {
    fn is_over(&self) -> bool {
        self.socket.strong_count() == 0
    }

    fn wants(&self, event: &Event) -> bool {
        // Who does not read loses messages, as on Linux.
        let is_wanted =
            |socket: &Arc<HostSocket>| socket.groups() & group_of(event) != 0 && socket.has_room();
        self.socket.upgrade().as_ref().is_some_and(is_wanted)
    }

    fn words(&self, network: &Network, event: &Event) -> Vec<u8> {
        let (message, is_gone) = match event {
            Event::Link(link) => (link::message(network, link), false),
            Event::NoLink(link) => (link::message(network, link), true),
            Event::Address(link, one) => (address::message(link, *one), false),
            Event::NoAddress(link, one) => (address::message(link, *one), true),
            Event::Route(route) => (route::message(route), false),
            Event::NoRoute(route) => (route::message(route), true),
        };
        let kind = if is_gone { message.kind | DELETE } else { message.kind };
        Message { kind, ..message }.to_bytes(0, 0)
    }

    fn tell(&self, words: &[u8]) {
        if let Some(socket) = self.socket.upgrade() {
            // There was room.
            let _: Result = socket.deliver(words.to_vec());
        }
    }
}
