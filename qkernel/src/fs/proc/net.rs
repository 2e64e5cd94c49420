//! /proc/net. Sockets of the internet families are the host's: the tables list none.

use crate::fs::synth::{Names, text};

/// The files.
pub const FILES: Names = &[
    ("arp", || {
        text("IP address       HW type     Flags       HW address            Mask     Device\n")
    }),
    ("dev", || {
        text(
            "Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
             lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n",
        )
    }),
    ("if_inet6", || text("00000000000000000000000000000001 01 80 10 80       lo\n")),
    ("ipv6_route", || text("")),
    ("netstat", || text("")),
    ("packet", || text("sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n")),
    ("protocols", || {
        text(
            "protocol  size sockets  memory press maxhdr  slab module     cl co di ac io in de sh \
            ss gs se re sp bi br ha uh gp em\n",
        )
    }),
    ("raw", || {
        text(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  \
            timeout inode ref pointer drops\n",
        )
    }),
    ("route", || {
        text(
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n",
        )
    }),
    ("snmp", || text("")),
    ("sockstat", || {
        text("sockets: used 0\nTCP: inuse 0 orphan 0 tw 0 alloc 0 mem 0\nUDP: inuse 0 mem 0\n")
    }),
    ("tcp", || {
        text(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  \
            timeout inode\n",
        )
    }),
    ("tcp6", || {
        text(
            "  sl  local_address                         remote_address                        st \
            tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n",
        )
    }),
    ("udp", || {
        text(
            "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  \
            timeout inode ref pointer drops\n",
        )
    }),
    ("udp6", || {
        text(
            "  sl  local_address                         remote_address                        st \
            tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n",
        )
    }),
    ("unix", || text("Num       RefCount Protocol Flags    Type St Inode Path\n")),
];
