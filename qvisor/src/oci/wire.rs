//! Messages between a command and the sandbox process that it makes: JSON with a length in front,
//! and descriptors.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sys;

/// The longest message, in bytes; a configuration fits.
const MAX_MESSAGE: u32 = 32 << 20;

/// Sends `message`, and `fds` with its first byte.
pub fn send(
    mut stream: &UnixStream,
    message: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut bytes = u32::try_from(body.len())?.to_le_bytes().to_vec();
    bytes.extend(body);
    let sent = sys::send_files(stream, &[IoSlice::new(&bytes)], fds, SendFlags::empty())?;
    stream.write_all(&bytes[sent..])?;
    Ok(())
}

/// Receives a message and the descriptors that came with it; `None` when the other side is gone.
pub fn receive<T: DeserializeOwned>(mut stream: &UnixStream) -> Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let got = match sys::receive_files(stream, &mut length, sys::MAX_FILES, RecvFlags::empty()) {
        Err(Errno::CONNRESET) => return Ok(None),
        got => got.context("receiving")?,
    };
    if got.bytes == 0 {
        return Ok(None);
    }
    if got.cut_off {
        bail!("descriptors that came with a message are cut off; are too many files open?");
    }
    let fds = got.files;
    stream.read_exact(&mut length[got.bytes..])?;
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
