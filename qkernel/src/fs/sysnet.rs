//! /sys/class/net and what its links lead to, the interfaces of the container's network namespace.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{S_IFDIR, S_IFLNK, S_IFREG};

use super::inode;
use super::synth::{Dir, Node, file, link_by};
use crate::errno::{Errno, Result};
use crate::net::links::{self, Attribute, COUNTERS, Link};

const IFF_UP: u32 = 1;
const IFF_DORMANT: u32 = 1 << 17;
/// What an IFLA_OPERSTATE is called.
const STATES: &[&str] =
    &["unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"];

/// class/net: links.
pub struct Class;

impl Dir for Class {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let link = links::find(name).ok()?;
        let target = [b"../../devices/virtual/net/", &link.name[..]].concat();
        Some(link_by(move |_| Ok(inode::Link::Path(target.clone()))))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        names().into_iter().map(|name| (name, S_IFLNK)).collect()
    }

    fn is_fleeting(&self) -> bool {
        true
    }
}

/// devices/virtual/net: a directory for each.
pub struct Devices;

impl Dir for Devices {
    fn find(&self, name: &[u8]) -> Option<Node> {
        Some(Node::Dir(Arc::new(Device { name: links::find(name).ok()?.name })))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        names().into_iter().map(|name| (name, S_IFDIR)).collect()
    }

    fn is_fleeting(&self) -> bool {
        true
    }
}

fn names() -> Vec<Vec<u8>> {
    let all = links::all().unwrap_or_default();
    all.into_iter().map(|link| link.name).collect()
}

/// A file, and what it reads as.
type Of = (&'static str, fn(&Link) -> Result<String>);

const FILES: &[Of] = &[
    ("addr_len", |l| Ok(l.bytes(Attribute::Address).map_or(0, <[u8]>::len).to_string())),
    ("address", |l| Ok(hardware(l.bytes(Attribute::Address)))),
    ("broadcast", |l| Ok(hardware(l.bytes(Attribute::Broadcast)))),
    ("carrier", |l| if_up(l, number(l, Attribute::Carrier))),
    ("carrier_changes", |l| number(l, Attribute::CarrierChanges)),
    ("carrier_down_count", |l| number(l, Attribute::CarrierDowns)),
    ("carrier_up_count", |l| number(l, Attribute::CarrierUps)),
    ("dormant", |l| if_up(l, Ok(u32::from(l.flags & IFF_DORMANT != 0).to_string()))),
    // What only the driver knows.
    ("duplex", |_| Err(Errno::EINVAL)),
    ("flags", |l| Ok(format!("0x{:x}", l.flags & 0xffff & !0x40))),
    ("ifalias", |l| Ok(text(l.bytes(Attribute::Alias).unwrap_or_default()))),
    ("ifindex", |l| Ok(l.index.to_string())),
    ("iflink", |l| Ok(l.number(Attribute::Link).unwrap_or(l.index).to_string())),
    ("link_mode", |l| number(l, Attribute::LinkMode)),
    ("mtu", |l| number(l, Attribute::Mtu)),
    ("netdev_group", |l| number(l, Attribute::Group)),
    ("operstate", |l| {
        let state = l.number(Attribute::OperState).unwrap_or(0) as usize;
        Ok(STATES.get(state).unwrap_or(&"unknown").to_string())
    }),
    ("proto_down", |l| number(l, Attribute::ProtoDown)),
    ("speed", |_| Err(Errno::EINVAL)),
    ("tx_queue_len", |l| number(l, Attribute::QueueLength)),
    ("type", |l| Ok(l.kind.to_string())),
    ("uevent", |l| Ok(format!("INTERFACE={}\nIFINDEX={}", text(&l.name), l.index))),
];

fn number(link: &Link, attribute: Attribute) -> Result<String> {
    link.number(attribute).map(|n| n.to_string()).ok_or(Errno::EOPNOTSUPP)
}

fn if_up(link: &Link, value: Result<String>) -> Result<String> {
    if link.flags & IFF_UP == 0 { Err(Errno::EINVAL) } else { value }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes)).into_owned()
}

fn hardware(address: Option<&[u8]>) -> String {
    let parts: Vec<_> = address.unwrap_or_default().iter().map(|b| format!("{b:02x}")).collect();
    parts.join(":")
}

fn line(text: String) -> Vec<u8> {
    (text + "\n").into_bytes()
}

/// devices/virtual/net/NAME.
struct Device {
    name: Vec<u8>,
}

impl Dir for Device {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let of = self.name.clone();
        match name {
            b"statistics" => return Some(Node::Dir(Arc::new(Statistics { of }))),
            b"subsystem" => {
                let target = b"../../../../class/net".to_vec();
                return Some(link_by(move |_| Ok(inode::Link::Path(target.clone()))));
            }
            _ => {}
        }
        let (_, content) = FILES.iter().find(|(n, _)| n.as_bytes() == name)?;
        Some(file(move |_| Ok(line(content(&links::find(&of)?)?))))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        let files = FILES.iter().map(|(name, _)| (name.as_bytes().to_vec(), S_IFREG));
        let others = [(b"statistics".to_vec(), S_IFDIR), (b"subsystem".to_vec(), S_IFLNK)];
        files.chain(others).collect()
    }
}

/// devices/virtual/net/NAME/statistics.
struct Statistics {
    of: Vec<u8>,
}

impl Dir for Statistics {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let index = COUNTERS.iter().position(|n| n.as_bytes() == name)?;
        let of = self.of.clone();
        Some(file(move |_| {
            let value = links::find(&of)?.counter(index).ok_or(Errno::EOPNOTSUPP)?;
            Ok(line(value.to_string()))
        }))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        COUNTERS.iter().map(|name| (name.as_bytes().to_vec(), S_IFREG)).collect()
    }
}
