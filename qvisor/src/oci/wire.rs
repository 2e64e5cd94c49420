//! Messages between a command and the sandbox process that it makes: JSON with a length in front, and descriptors.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message, in bytes; a configuration fits.
const MAX_MESSAGE: u32 = 32 << 20;

/// Sends `message`, and `fds` with its first byte.
pub fn send(mut stream: &UnixStream, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut bytes = u32::try_from(body.len())?.to_le_bytes().to_vec();
    bytes.extend(body);
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[] } else { &rights[..] };
    let sent = sendmsg::<UnixAddr>(stream.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    stream.write_all(&bytes[sent..])?;
    Ok(())
}

/// Receives a message and the descriptors that came with it; `None` when the other side is gone.
pub fn receive<T: DeserializeOwned>(mut stream: &UnixStream) -> Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = match recvmsg(stream, &mut [IoSliceMut::new(&mut length)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
        Ok(message) => message.bytes,
        Err(rustix::io::Errno::CONNRESET) => 0,
        Err(e) => return Err(e).context("receiving"),
    };
    if got == 0 {
        return Ok(None);
    }
    let rights = ancillary.drain().filter_map(|m| match m {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = rights.flatten().collect();
    stream.read_exact(&mut length[got..])?;
    let length = u32::from_le_bytes(length);
    if length > MAX_MESSAGE {
        bail!("a message of {length} bytes is too long");
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_carry_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        send(&a, &vec!["x".repeat(100_000)], &[null.as_fd(), null.as_fd()]).unwrap();
        let (message, fds) = receive::<Vec<String>>(&b).unwrap().unwrap();
        assert_eq!((message[0].len(), fds.len()), (100_000, 2));
        drop(a);
        assert!(receive::<u32>(&b).unwrap().is_none());
    }
}
