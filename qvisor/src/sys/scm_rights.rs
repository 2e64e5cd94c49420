//! Messages of Unix sockets that carry descriptors (SCM_RIGHTS, unix(7)), and the two kinds of them
//! that there are: bytes of a stream, and the four words that zygote and sandbox exchange.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, RecvFlags, ReturnFlags, SendFlags};

/// The most descriptors in one message.
pub const MAX_FILES: usize = 32;
/// Bytes of control data for so many, and for a sender's ids.
const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_FILES), ScmCredentials(1));

/// Sends `parts`, and `files` with their first byte, if there are any; how many bytes went.
///
/// # Errors
/// Those of sendmsg(2); EINVAL for more than [`MAX_FILES`].
pub fn send_files(
    socket: impl AsFd,
    parts: &[IoSlice<'_>],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(net::SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    net::sendmsg(socket, parts, &mut control, flags | SendFlags::NOSIGNAL)
}

/// Sends all of `bytes`, and all of `files` with the first of them, over a stream; `wait` waits
/// until there is room.
///
/// # Errors
/// Those of sendmsg(2), and of `wait`; EMFILE for more files than can ride on so many bytes.
pub fn send_all<E: From<Errno>>(
    socket: impl AsFd,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
    mut wait: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    let mut files = files.chunks(MAX_FILES).peekable();
    let mut at = 0;
    while at < bytes.len() {
        let some = files.peek().copied().unwrap_or_default();
        // Those for which there is no room on the first byte ride on the next.
        let until = if files.len() <= 1 { bytes.len() } else { at + 1 };
        match send_files(&socket, &[IoSlice::new(&bytes[at..until])], some, SendFlags::DONTWAIT) {
            Ok(sent) => {
                at += sent;
                files.next();
            }
            Err(Errno::AGAIN) => wait()?,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    if files.next().is_some() { Err(Errno::MFILE.into()) } else { Ok(()) }
}

/// What [`receive_files`] gives.
#[derive(Debug)]
pub struct WithFiles {
    /// Bytes of data; 0 when nobody has the other end any more.
    pub bytes: usize,
    /// The descriptors.
    pub files: Vec<OwnedFd>,
    /// There were more descriptors than there was room for.
    pub cut_off: bool,
    /// The process that sent it, in our PID namespace, if the socket learns that.
    pub sender: Option<u32>,
}

/// Receives bytes, and up to `most` descriptors (at most [`MAX_FILES`]).
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive_files(
    socket: impl AsFd,
    bytes: &mut [u8],
    most: usize,
    flags: RecvFlags,
) -> Result<WithFiles, Errno> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let room = rustix::cmsg_space!(ScmRights(most.min(MAX_FILES)), ScmCredentials(1));
    let mut control = net::RecvAncillaryBuffer::new(&mut space[..room]);
    let mut parts = [IoSliceMut::new(bytes)];
    let got = net::recvmsg(socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let cut_off = got.flags.contains(ReturnFlags::CTRUNC);
    let mut message = WithFiles { bytes: got.bytes, files: Vec::new(), cut_off, sender: None };
    for part in control.drain() {
        match part {
            net::RecvAncillaryMessage::ScmRights(files) => message.files.extend(files),
            net::RecvAncillaryMessage::ScmCredentials(who) => {
                message.sender = Some(who.pid.as_raw_nonzero().get() as u32);
            }
            _ => {}
        }
    }
    // There is room for some more, as control data is aligned.
    if message.files.len() > most {
        message.files.clear();
        message.cut_off = true;
    }
    Ok(message)
}

/// A pair of sockets for messages: this process' own, which learns who has sent a message, and the
/// other.
pub fn message_sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = net::SocketFlags::CLOEXEC;
    let (ours, theirs) =
        net::socketpair(net::AddressFamily::UNIX, net::SocketType::SEQPACKET, flags, None)?;
    net::sockopt::set_socket_passcred(&ours, true)?;
    Ok((ours, theirs))
}

/// Sends a message without waiting for room.
pub fn send_message(socket: &OwnedFd, words: [u32; 4], file: Option<&OwnedFd>) -> io::Result<()> {
    let mut bytes = [0; 16];
    for (to, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    let file = file.map(AsFd::as_fd);
    send_files(socket, &[IoSlice::new(&bytes)], file.as_slice(), SendFlags::DONTWAIT)?;
    Ok(())
}

/// A message.
#[derive(Debug)]
pub struct Message {
    /// What it says.
    pub words: [u32; 4],
    /// The process that has sent it, in our PID namespace; the host vouches for it.
    pub sender: u32,
    /// The descriptor that came along.
    pub file: Option<OwnedFd>,
}

/// Waits for the next message; `None` when none has come in time.
///
/// # Errors
/// UnexpectedEof when nobody has the other end any more.
pub fn receive_message(socket: &OwnedFd, timeout: Duration) -> io::Result<Option<Message>> {
    let wait = rustix::time::Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut ready = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    match rustix::event::poll(&mut ready, Some(&wait)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(e) => return Err(e.into()),
    }
    let mut bytes = [0; 16];
    let received = receive_files(socket, &mut bytes, 1, RecvFlags::empty())?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut words = [0; 4];
    for (to, word) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *to = u32::from_ne_bytes(*word);
    }
    let file = received.files.into_iter().next();
    Ok(Some(Message { words, sender: received.sender.unwrap_or(0), file }))
}
