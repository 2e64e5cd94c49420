//! The files of /proc/net of a namespace that has a loopback interface.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use linux_raw_sys::net::{AF_INET, SOCK_DGRAM, SOCK_STREAM};

use super::interface::{INDEX, Interface, NAME};
use super::socket::{self, LoopbackSocket};
use crate::namespace::NetNamespace;

/// What a file reads as; of what there is nothing of, nothing.
pub fn read((namespace, interface): (&NetNamespace, &Interface), name: &str) -> Vec<u8> {
    let text = match name {
        "dev" => dev(interface),
        "if_inet6" => if_inet6(interface),
        "tcp" | "tcp6" => sockets(namespace, SOCK_STREAM, name.ends_with('6')),
        "udp" | "udp6" => sockets(namespace, SOCK_DGRAM, name.ends_with('6')),
        "route" => format!(
            "{:<127}\n",
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
        ),
        _ => String::new(),
    };
    text.into_bytes()
}

fn dev(interface: &Interface) -> String {
    let (packets, bytes) = interface.traffic();
    let name = String::from_utf8_lossy(NAME);
    format!(
        "Inter-|   Receive                                                |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs \
         drop fifo colls carrier compressed\n{name:>6}: {bytes:7} {packets:7}    0    0    0     0  \
         \x20       0         0 {bytes:8} {packets:7}    0    0    0     0       0          0\n"
    )
}

fn if_inet6(interface: &Interface) -> String {
    let mut text = String::new();
    for one in interface.addresses() {
        let IpAddr::V6(six) = one.ip else { continue };
        let digits: String = six.octets().iter().map(|byte| format!("{byte:02x}")).collect();
        // The scope of a host, permanent.
        text += &format!("{digits} {INDEX:02x} {:02x} 10 80 {:>8}\n", one.prefix, "lo");
    }
    text
}

fn hexadecimal(domain: u32, address: SocketAddr) -> String {
    let words = |bytes: &[u8]| -> String {
        let word = |b: &[u8]| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
        bytes.chunks_exact(4).map(|b| format!("{:08X}", word(b))).collect()
    };
    let ip = match address.ip() {
        IpAddr::V4(four) if domain == AF_INET => words(&four.octets()),
        IpAddr::V4(four) => words(&four.to_ipv6_mapped().octets()),
        IpAddr::V6(six) => words(&six.octets()),
    };
    format!("{ip}:{:04X}", address.port())
}

fn sockets(namespace: &NetNamespace, kind: u32, is_six: bool) -> String {
    let head = if is_six {
        "local_address                         remote_address "
    } else {
        "local_address rem_address "
    };
    let mut text = format!(
        "  sl  {head}  st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode{}\n",
        if kind == SOCK_DGRAM { " ref pointer drops" } else { "" }
    );
    let mut number = 0;
    for socket in socket::all(namespace, kind) {
        for one in core::iter::once(socket.clone()).chain(socket.pending()) {
            if (one.domain == AF_INET) != is_six {
                text += &line(number, &one, kind);
                number += 1;
            }
        }
    }
    text
}

fn line(number: usize, socket: &LoopbackSocket, kind: u32) -> String {
    let (local, remote) = socket.listed();
    // UDP has TCP's numbers for connected and not.
    let state = match (kind, remote.port()) {
        (SOCK_STREAM, _) => socket.tcp_state(),
        (_, 0) => 7,
        _ => 1,
    };
    let attributes = socket.attributes();
    format!(
        "{number:4}: {} {} {state:02X} 00000000:{:08X} 00:00000000 00000000 {:5}        0 {} 2 \
         0000000000000000 0\n",
        hexadecimal(socket.domain, local),
        hexadecimal(socket.domain, remote),
        socket.held_bytes(),
        attributes.uid,
        attributes.ino,
    )
}
