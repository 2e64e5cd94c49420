//! Messages about links: RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::CAP_NET_ADMIN;

use super::{CREATE, EXCLUSIVE, LINK, find, place};
use crate::errno::{Errno, Result};
use crate::net::guest::interface::{Interface, Kind, UP};
use crate::net::guest::network::{self, Network};
use crate::net::netlink::{Message, append, attributes, word};
use crate::random;
use crate::task::current;

/// Bytes of struct ifinfomsg.
const IFINFO: usize = 16;
/// IFLA_*.
const ADDRESS: u16 = 1;
const BROADCAST: u16 = 2;
const NAME: u16 = 3;
const MTU: u16 = 4;
const PEER: u16 = 5;
const DISCIPLINE: u16 = 6;
const MASTER: u16 = 10;
const QUEUE_LENGTH: u16 = 13;
const OPERATIONAL_STATE: u16 = 16;
const LINK_MODE: u16 = 17;
const NET_NS_PID: u16 = 19;
const INFO: u16 = 18;
const ALIAS: u16 = 20;
const STATISTICS: u16 = 23;
const AF_SPEC: u16 = 26;
const GROUP: u16 = 27;
const NET_NS_FD: u16 = 28;
const PROMISCUITY: u16 = 30;
const SEND_QUEUES: u16 = 31;
const RECEIVE_QUEUES: u16 = 32;
const CARRIER: u16 = 33;
const NET_NS_ID: u16 = 37;
const LEAST_MTU: u16 = 50;
const MOST_MTU: u16 = 51;
const OTHER_NAME: u16 = 53;
/// IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER.
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
/// What would have an effect that is not there: EOPNOTSUPP.
const REFUSED: &[u16] = &[QUEUE_LENGTH, OPERATIONAL_STATE, LINK_MODE, ALIAS, CARRIER, NET_NS_ID];
/// ARPHRD_ETHER, ARPHRD_LOOPBACK.
const ETHERNET: u16 = 1;
const LOOPBACK: u16 = 772;
/// What a queue holds as a rule, in packets.
pub const QUEUE: u32 = 1000;

/// ARPHRD_* of an interface.
pub fn hardware_kind(link: &Interface) -> u16 {
    if link.kind == Kind::Loopback { LOOPBACK } else { ETHERNET }
}

/// All links.
pub fn all(network: &Network) -> Vec<Message> {
    network.links().iter().map(|link| message(network, link)).collect()
}

/// A link, as RTM_NEWLINK tells of it.
pub fn message(network: &Network, link: &Interface) -> Message {
    let mut body = alloc::vec![0, 0];
    body.extend(hardware_kind(link).to_ne_bytes());
    body.extend(link.index().to_ne_bytes());
    body.extend(link.flags().to_ne_bytes());
    body.extend([0; 4]);
    let word = |body: &mut Vec<u8>, kind, value: u32| append(body, kind, &value.to_ne_bytes());
    append(&mut body, NAME, &[&link.name()[..], b"\0"].concat());
    word(&mut body, QUEUE_LENGTH, QUEUE);
    append(&mut body, OPERATIONAL_STATE, &[link.operational_state()]);
    append(&mut body, LINK_MODE, &[0]);
    word(&mut body, MTU, link.mtu());
    let (least, most) = if link.kind == Kind::Loopback { (0, 0) } else { (68, 65535) };
    word(&mut body, LEAST_MTU, least);
    word(&mut body, MOST_MTU, most);
    append(&mut body, DISCIPLINE, if link.is_up() { b"noqueue\0" } else { b"noop\0" });
    word(&mut body, GROUP, 0);
    word(&mut body, PROMISCUITY, link.bridge().is_some().into());
    word(&mut body, SEND_QUEUES, 1);
    word(&mut body, RECEIVE_QUEUES, 1);
    append(&mut body, CARRIER, &[link.is_running().into()]);
    append(&mut body, ADDRESS, &link.hardware());
    let everybody = if link.kind == Kind::Loopback { [0; 6] } else { [0xff; 6] };
    append(&mut body, BROADCAST, &everybody);
    let traffic = link.traffic();
    // struct rtnl_link_stats64 begins with packets received and sent, and their bytes.
    let [(sent, received), (sent_bytes, received_bytes)] =
        [traffic.packets, traffic.bytes].map(|both| (both[0], both[1]));
    let counted = [received, sent, received_bytes, sent_bytes].map(u64::to_ne_bytes).concat();
    append(&mut body, STATISTICS, &[&counted[..], &[0; 160]].concat());
    if let Some(bridge) = link.bridge() {
        word(&mut body, MASTER, bridge.index());
    }
    if let Some(peer) = link.peer() {
        word(&mut body, PEER, peer.index());
        if let Some(other) = peer.network().filter(|other| other.number != network.number) {
            word(&mut body, NET_NS_ID, network.number_of(&other));
        }
    }
    if link.kind != Kind::Loopback {
        let mut info = Vec::new();
        append(&mut info, INFO_KIND, &[link.kind.name().as_bytes(), b"\0"].concat());
        append(&mut body, INFO, &info);
    }
    Message { kind: LINK, flags: 0, body }
}

/// A string of an attribute ends with its first zero.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The link that a message is about, by its number or its name. ENODEV; EINVAL.
pub fn named(network: &Network, request: &Message) -> Result<Arc<Interface>> {
    let body = &request.body;
    let by_name = match find(body, IFINFO, NAME)? {
        Some(name) => Some(name),
        None => find(body, IFINFO, OTHER_NAME)?,
    };
    match (word(body, 4).ok_or(Errno::EINVAL)?, by_name) {
        (0, Some(name)) => network.named(text(name)),
        (0, None) => Err(Errno::EINVAL),
        (index, _) if i32::try_from(index).is_err() => Err(Errno::EINVAL),
        (index, _) => network.link(index),
    }
}

/// The network that a message says a link is to be in. EINVAL for the container's, to which none
/// of these can go; EPERM; ESRCH, EBADF for who is not there.
fn destination(body: &[u8]) -> Result<Option<Arc<Network>>> {
    let Some(namespace) = place::named(body, IFINFO, [NET_NS_PID, NET_NS_FD])? else {
        return Ok(None);
    };
    let creds = current::get().ok_or(Errno::ESRCH)?.creds();
    if !creds.capable_in(&namespace.user, CAP_NET_ADMIN) {
        return Err(Errno::EPERM);
    }
    network::of(&namespace).map(Some).ok_or(Errno::EINVAL)
}

/// An address as Ethernet has it, of one interface, and given out locally.
fn any_hardware() -> [u8; 6] {
    let mut hardware = [0; 6];
    random::fill(&mut hardware);
    hardware[0] = hardware[0] & !1 | 2;
    hardware
}

/// RTM_NEWLINK: makes a link, or changes the one that is meant.
pub fn make(network: &Arc<Network>, request: &Message) -> Result {
    match named(network, request) {
        Ok(_) if request.flags & EXCLUSIVE != 0 => return Err(Errno::EEXIST),
        Ok(link) => return apply(network, &link, &request.body, true),
        Err(Errno::EINVAL) if word(&request.body, 4) == Some(0) => {}
        Err(Errno::ENODEV) if request.flags & CREATE != 0 => {}
        Err(error) => return Err(error),
    }
    if request.flags & CREATE == 0 {
        return Err(Errno::ENODEV);
    }
    let new = New::of(request)?;
    let place = destination(&request.body)?.unwrap_or_else(|| network.clone());
    if new.kind != Kind::Veth {
        return settle(&place, &Interface::new(new.kind, any_hardware()), &request.body);
    }
    let other_place = destination(new.peer)?.unwrap_or_else(|| network.clone());
    settle_pair((&place, &request.body), (&other_place, new.peer))
}

/// What a message says of a new link.
struct New<'a> {
    kind: Kind,
    /// Of a pair, what the other one is to be: a message of its own.
    peer: &'a [u8],
}

impl<'a> New<'a> {
    /// EOPNOTSUPP for a kind that is not there.
    fn of(request: &'a Message) -> Result<Self> {
        let info = find(&request.body, IFINFO, INFO)?.unwrap_or_default();
        let part = |wanted| attributes(info).find(|(kind, _)| *kind == wanted).map(|one| one.1);
        let kind = part(INFO_KIND).and_then(|name| Kind::of_name(text(name)));
        let peer = part(INFO_DATA)
            .and_then(|data| attributes(data).find(|(kind, _)| *kind == VETH_PEER))
            .map_or(&[0; IFINFO][..], |(_, body)| body);
        Ok(New { kind: kind.ok_or(Errno::EOPNOTSUPP)?, peer })
    }
}

/// Puts a new pair into two networks.
fn settle_pair(
    (place, body): (&Arc<Network>, &[u8]),
    (other_place, other): (&Arc<Network>, &[u8]),
) -> Result {
    let ends = Interface::pair([any_hardware(), any_hardware()]);
    settle(other_place, &ends[1], other)?;
    settle(place, &ends[0], body).inspect_err(|_| other_place.take(&ends[1]))
}

/// RTM_NEWLINK of who is in the container's own network namespace, if it names where the link is to
/// be: both ends of a pair, in namespaces that programs made. `None` for other messages.
pub fn make_elsewhere(request: &Message) -> Option<Result> {
    let has_place = |kind| find(&request.body, IFINFO, kind).is_ok_and(|place| place.is_some());
    if request.kind != LINK || !has_place(NET_NS_PID) && !has_place(NET_NS_FD) {
        return None;
    }
    Some(make_pair_elsewhere(request))
}

fn make_pair_elsewhere(request: &Message) -> Result {
    let new = New::of(request)?;
    let place = destination(&request.body)?.ok_or(Errno::EOPNOTSUPP)?;
    let other_place = destination(new.peer)?.ok_or(Errno::EOPNOTSUPP)?;
    if new.kind != Kind::Veth {
        return Err(Errno::EOPNOTSUPP);
    }
    settle_pair((&place, &request.body), (&other_place, new.peer))
}

/// Puts a new link into a network, as a message says it is to be.
fn settle(network: &Arc<Network>, link: &Arc<Interface>, body: &[u8]) -> Result {
    let standard = alloc::format!("{}%d", link.kind.name());
    let name = find(body, IFINFO, NAME)?.map_or(standard.as_bytes(), text);
    network.put(link, name)?;
    apply(network, link, body, false).inspect_err(|_| network.take(link))
}

/// RTM_SETLINK.
pub fn change(network: &Arc<Network>, request: &Message) -> Result {
    let link = named(network, request)?;
    apply(network, &link, &request.body, true)
}

/// Has a link be as a message says. `moves`: it may say where.
fn apply(network: &Arc<Network>, link: &Arc<Interface>, body: &[u8], moves: bool) -> Result {
    let given = body.get(IFINFO..).ok_or(Errno::EINVAL)?;
    for (kind, data) in attributes(given) {
        match kind {
            MTU => link.set_mtu(word(data, 0).ok_or(Errno::EINVAL)?)?,
            ADDRESS => link.set_hardware(data.try_into().map_err(|_| Errno::EINVAL)?)?,
            MASTER => {
                let bridge = match word(data, 0).ok_or(Errno::EINVAL)? {
                    0 => None,
                    index => Some(network.link(index)?),
                };
                link.attach(bridge.as_ref())?;
            }
            NAME if word(body, 4) != Some(0) => network.rename(link, text(data))?,
            // What a family would set is of no effect; of a new link they say how it is anyway.
            AF_SPEC if moves => return Err(Errno::EOPNOTSUPP),
            _ if REFUSED.contains(&kind) => return Err(Errno::EOPNOTSUPP),
            _ => {}
        }
    }
    let (flags, mask) = word(body, 8).zip(word(body, 12)).ok_or(Errno::EINVAL)?;
    // Without a mask the flags are meant as a whole, if there are any.
    if mask & UP != 0 || mask == 0 && flags != 0 {
        network.set_up(link, flags & UP != 0);
    }
    if moves && let Some(other) = destination(body)? {
        network.give(link, &other)?;
    }
    Ok(())
}
