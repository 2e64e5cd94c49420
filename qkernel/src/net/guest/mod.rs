//! The networks of network namespaces that programs make (unshare(2) with CLONE_NEWNET). Each has a
//! loopback interface, which is down at first as on Linux, and may get pairs of virtual Ethernet,
//! bridges and dummies. None leads to the container's own network, whose interfaces are the host's:
//! so nothing of them leaves the kernel, and their sockets are [`GuestSocket`]s, in the place of
//! the host's.

mod address;
mod datagram;
mod echo;
mod files;
pub mod interface;
pub mod ioctl;
mod kept;
pub mod network;
mod options;
mod path;
mod ports;
mod routes;
mod rtnetlink;
mod socket;
mod stream;

pub use files::read as read_file;
pub use rtnetlink::{answer_outside, server};
pub use socket::GuestSocket;

/// Nobody is in the network namespace of this number any more, and it has no sockets.
pub fn namespace_ended(number: u64) {
    network::namespace_ended(number);
    socket::forget(number);
}
