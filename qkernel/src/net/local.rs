//! Netlink messages that the kernel answers itself, and what of the answers waits to be received.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Weak;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use linux_raw_sys::net::{AF_NETLINK, MSG_PEEK, MSG_TRUNC};

use super::HostSocket;
use super::netlink::{ERROR, HEADER, Message, half, word};
use crate::account;
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::sync::Mutex;

/// With more to be received nothing can be asked.
const MAX_UNREAD: usize = 1 << 20;
/// With more to be received nothing is told that was not asked for (net.core.rmem_default).
const MAX_TOLD: usize = 212_992;

/// What becomes of a message.
pub enum Served {
    /// It was answered, by these packets.
    Here(Vec<Vec<u8>>),
    /// It is the host's to answer.
    ByHost,
}

/// Serves one message, with its sequence number, of the socket with an address.
pub type Serve = Box<dyn Fn(&Message, u32, u32) -> Served + Send + Sync>;

/// A socket wants to be told of changes from now on, as far as its groups are about them. ENOBUFS.
pub type Watches = Box<dyn Fn(Weak<HostSocket>) -> Result + Send + Sync>;

/// The kernel as a netlink socket has it.
pub struct Kernel {
    /// Answers messages.
    pub serve: Serve,
    /// Of a namespace that a program made: groups are joined here, and not at the host.
    pub watch: Option<Watches>,
}

impl From<Serve> for Kernel {
    fn from(serve: Serve) -> Self {
        Kernel { serve, watch: None }
    }
}

#[derive(Default)]
struct Unread {
    packets: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// The part of a netlink socket that lives here.
pub struct Local {
    kernel: Kernel,
    /// The groups that it has joined here, a bit each.
    groups: AtomicU32,
    watches: AtomicBool,
    unread: Mutex<Unread>,
}

impl Local {
    /// Of a new socket.
    pub fn new(kernel: Kernel) -> Self {
        let (groups, watches) = (AtomicU32::new(0), AtomicBool::new(false));
        Local { kernel, groups, watches, unread: Mutex::default() }
    }

    /// True if groups are joined here.
    pub fn has_groups(&self) -> bool {
        self.kernel.watch.is_some()
    }

    /// The groups that were joined here, a bit each.
    pub fn groups(&self) -> u32 {
        self.groups.load(Relaxed)
    }

    /// Joins groups, and leaves all others. ENOBUFS.
    pub fn set_groups(&self, socket: Weak<HostSocket>, groups: u32) -> Result {
        if let Some(watch) = &self.kernel.watch
            && groups != 0
            && !self.watches.load(Relaxed)
        {
            watch(socket)?;
            self.watches.store(true, Relaxed);
        }
        self.groups.store(groups, Relaxed);
        Ok(())
    }

    /// True if there is room for what is no answer.
    pub fn has_room(&self) -> bool {
        self.unread.lock().bytes <= MAX_TOLD
    }

    /// What waits to be received, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.unread.lock().bytes as u64
    }

    /// True if something waits to be received.
    pub fn is_ready(&self) -> bool {
        !self.unread.lock().packets.is_empty()
    }

    /// Takes a message. What is not answered here `by_host` sends on. ENOBUFS with too much to be
    /// received.
    pub fn take(
        &self,
        message: &Message,
        sequence: u32,
        port: u32,
        by_host: impl FnOnce() -> Result,
    ) -> Result {
        if self.unread.lock().bytes > MAX_UNREAD {
            return Err(Errno::ENOBUFS);
        }
        let answer = match (self.kernel.serve)(message, sequence, port) {
            Served::Here(answer) => answer,
            Served::ByHost => match by_host() {
                Ok(()) => return Ok(()),
                // As the host's kernel would say it.
                Err(errno) => alloc::vec![
                    error(message, sequence, port, code(errno)).to_bytes(sequence, port)
                ],
            },
        };
        let mut unread = self.unread.lock();
        unread.bytes += answer.iter().map(Vec::len).sum::<usize>();
        unread.packets.extend(answer);
        Ok(())
    }

    /// Puts a packet there that is no answer. ENOBUFS with too much to be received.
    pub fn deliver(&self, packet: Vec<u8>) -> Result {
        let mut unread = self.unread.lock();
        if unread.bytes > MAX_UNREAD {
            return Err(Errno::ENOBUFS);
        }
        account::room_in(&mut unread.packets).map_err(|_| Errno::ENOBUFS)?;
        unread.bytes += packet.len();
        unread.packets.push_back(packet);
        Ok(())
    }

    /// Answers a message with an error. ENOBUFS as [`Local::take`].
    pub fn refuse(&self, message: &Message, sequence: u32, port: u32, errno: Errno) -> Result {
        self.deliver(error(message, sequence, port, code(errno)).to_bytes(sequence, port))
    }

    /// recvmsg(2): bytes and msg_flags. EAGAIN when nothing waits.
    pub fn receive(&self, buffer: &mut IoBuffer<'_>, flags: u32) -> Result<(usize, u32)> {
        let packet = {
            let mut unread = self.unread.lock();
            let packet = match flags & MSG_PEEK {
                0 => unread.packets.pop_front(),
                _ => unread.packets.front().cloned(),
            };
            let packet = packet.ok_or(Errno::EAGAIN)?;
            if flags & MSG_PEEK == 0 {
                unread.bytes -= packet.len();
            }
            packet
        };
        let put = buffer.put(&packet)?;
        let bytes = if flags & MSG_TRUNC != 0 { packet.len() } else { put };
        Ok((bytes, if put < packet.len() { MSG_TRUNC } else { 0 }))
    }
}

/// The kernel's address (struct sockaddr_nl).
pub fn kernel_address() -> Vec<u8> {
    let mut address = (AF_NETLINK as u16).to_ne_bytes().to_vec();
    address.resize(12, 0);
    address
}

/// Lets the kernel's address pass, or none. EPERM for any other.
pub fn check_receiver(address: &[u8]) -> Result {
    if address.is_empty() {
        return Ok(());
    }
    match (half(address, 0).map(u32::from), word(address, 4), word(address, 8)) {
        (Some(AF_NETLINK), Some(0), Some(0)) => Ok(()),
        (Some(AF_NETLINK), Some(_), Some(_)) => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

/// As NLMSG_ERROR and NLMSG_DONE carry it.
pub fn code(errno: Errno) -> i32 {
    -errno.0
}

/// NLMSG_ERROR about a request.
pub fn error(request: &Message, sequence: u32, port: u32, code: i32) -> Message {
    let mut body = code.to_ne_bytes().to_vec();
    let whole = request.to_bytes(sequence, port);
    // Of a request that was right only the head comes back.
    body.extend_from_slice(if code == 0 { &whole[..HEADER] } else { &whole });
    Message { kind: ERROR, flags: 0, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_the_only_receiver() {
        let to = |port: u32| {
            let mut to = alloc::vec![AF_NETLINK as u8, 0, 0, 0];
            to.extend(port.to_ne_bytes());
            to.extend([0; 4]);
            to
        };
        assert_eq!(check_receiver(&to(0)), Ok(()));
        assert_eq!(check_receiver(&to(1)), Err(Errno::EPERM));
        assert_eq!(check_receiver(&to(0)[..8]), Err(Errno::EINVAL));
    }

    #[test]
    fn what_the_host_refuses_is_answered() {
        let local = Local::new(Kernel::from(Box::new(|_: &_, _, _| Served::ByHost) as Serve));
        let message = Message { kind: 20, flags: 5, body: alloc::vec![2; 8] };
        assert_eq!(local.take(&message, 3, 4, || Ok(())), Ok(()));
        assert!(!local.is_ready());
        assert_eq!(local.take(&message, 3, 4, || Err(Errno::EPERM)), Ok(()));
        let mut space = alloc::vec![0; 100];
        let (bytes, flags) =
            local.receive(&mut IoBuffer::kernel(&mut space), 0).expect("an answer");
        assert_eq!((bytes, flags), (HEADER + 4 + HEADER + 8, 0));
        assert_eq!((half(&space, 4), word(&space, 8)), (Some(ERROR), Some(3)));
        assert_eq!(word(&space, HEADER), Some(-1i32 as u32));
        assert_eq!(local.held_bytes(), 0);
    }
}
