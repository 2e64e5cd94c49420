//! The networks of network namespaces that programs make (unshare(2) with CLONE_NEWNET): each has a
//! loopback interface, which is down at first as on Linux, and no other. So nothing of them leaves
//! the kernel: their sockets are [`LoopbackSocket`]s, in the place of the host's.

mod address;
mod datagram;
mod files;
pub mod interface;
pub mod ioctl;
mod options;
mod ports;
mod rtnetlink;
mod socket;
mod stream;

pub use files::read as read_file;
pub use rtnetlink::server;
pub use socket::LoopbackSocket;

/// Nobody is in the network namespace of this number any more, and it has no sockets.
pub fn namespace_ended(number: u64) {
    interface::forget(number);
    socket::forget(number);
}
