//! The files of /proc/net of a namespace that a program made.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use linux_raw_sys::net::AF_INET;

use super::interface::{Interface, Kind, network_of};
use super::network::Network;
use super::routes::{Route, Target};
use super::socket::{self, GuestSocket, ICMP, ICMP6, RAW, TCP, UDP};

/// What a file reads as; of what there is nothing of, nothing.
pub fn read(network: &Network, name: &str) -> Vec<u8> {
    let is_six = name.ends_with('6');
    let sockets = |protocol| sockets(network, protocol, is_six);
    let text = match name {
        "dev" => dev(network),
        "if_inet6" => if_inet6(network),
        "tcp" | "tcp6" => sockets(TCP),
        "udp" | "udp6" => sockets(UDP),
        "icmp" => sockets(ICMP),
        "icmp6" => sockets(ICMP6),
        "raw" => sockets(ICMP | RAW),
        "raw6" => sockets(ICMP6 | RAW),
        "route" => routes(network),
        _ => String::new(),
    };
    text.into_bytes()
}

fn named(link: &Interface) -> String {
    String::from_utf8_lossy(&link.name()).into_owned()
}

fn dev(network: &Network) -> String {
    let mut text = String::from(
        "Inter-|   Receive                                                |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs \
         drop fifo colls carrier compressed\n",
    );
    for link in network.links() {
        let traffic = link.traffic();
        let ([sent, received], [sent_bytes, received_bytes]) = (traffic.packets, traffic.bytes);
        text += &format!(
            "{:>6}: {received_bytes:7} {received:7}    0    0    0     0          0         0 \
             {sent_bytes:8} {sent:7}    0    0    0     0       0          0\n",
            named(&link)
        );
    }
    text
}

fn if_inet6(network: &Network) -> String {
    let mut text = String::new();
    for link in network.links() {
        for one in link.addresses() {
            let IpAddr::V6(six) = one.ip else { continue };
            let digits: String = six.octets().iter().map(|byte| format!("{byte:02x}")).collect();
            // The scope of a host or of everywhere, permanent.
            let scope = if link.kind == Kind::Loopback { 0x10 } else { 0 };
            let (index, name) = (link.index(), named(&link));
            text += &format!("{digits} {index:02x} {:02x} {scope:02x} 80 {name:>8}\n", one.prefix);
        }
    }
    text
}

/// The routes of IPv4.
fn routes(network: &Network) -> String {
    /// RTF_UP, RTF_GATEWAY, RTF_HOST, RTF_REJECT.
    const FLAGS: [u16; 4] = [1, 2, 4, 0x200];
    let head =
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT";
    let mut text = format!("{head:<127}\n");
    let number = |ip: IpAddr| match ip {
        IpAddr::V4(four) => u32::from_ne_bytes(four.octets()),
        IpAddr::V6(_) => 0,
    };
    let all: Vec<Route> = network.routes.lock().all().to_vec();
    for route in all.iter().filter(|route| route.to.is_ipv4()) {
        let name = network.link(route.index).map_or_else(|_| String::from("*"), |l| named(&l));
        let has =
            [true, route.gateway.is_some(), route.prefix == 32, route.target != Target::Unicast];
        let flags: u16 = FLAGS.iter().zip(has).filter(|(_, has)| *has).map(|(flag, _)| flag).sum();
        let mask = network_of(core::net::Ipv4Addr::BROADCAST.into(), route.prefix);
        let line = format!(
            "{name}\t{:08X}\t{:08X}\t{flags:04X}\t0\t0\t{}\t{:08X}\t0\t0\t0",
            number(route.to),
            route.gateway.map_or(0, number),
            route.metric,
            number(mask),
        );
        text += &format!("{line:<127}\n");
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

fn sockets(network: &Network, protocol: u32, is_six: bool) -> String {
    let head = if is_six {
        "local_address                         remote_address "
    } else {
        "local_address rem_address "
    };
    let mut text = format!(
        "  sl  {head}  st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode{}\n",
        if protocol == TCP { "" } else { " ref pointer drops" }
    );
    let mut number = 0;
    for socket in socket::all(network.number, protocol) {
        for one in core::iter::once(socket.clone()).chain(socket.pending()) {
            if (one.domain == AF_INET) != is_six {
                text += &line(number, &one);
                number += 1;
            }
        }
    }
    text
}

fn line(number: usize, socket: &GuestSocket) -> String {
    let (local, remote) = socket.listed();
    // Others have TCP's numbers for connected and not.
    let state = match (socket.protocol, remote.ip().is_unspecified()) {
        (TCP, _) => socket.tcp_state(),
        (_, true) => 7,
        (_, false) => 1,
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
