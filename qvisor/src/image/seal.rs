//! A stream of bytes that only who has a key can read, or could have written: segments of
//! XChaCha20-Poly1305 in the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár, 2015), by
//! which none can be left out, put elsewhere, or be missing at the end.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use aead_stream::{DecryptorBE32, EncryptorBE32, Nonce, StreamBE32};
use anyhow::{Context, Result, bail};
use chacha20poly1305::aead::Payload;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};

/// Bytes of a segment before it is encrypted; only the last one has less.
const SEGMENT: usize = 64 << 10;
/// By so much a segment grows.
const TAG: usize = 16;
/// Bytes that are drawn for each stream: 24 of a nonce, without a counter and a mark of the end.
pub const NONCE: usize = 19;
/// Bytes of a key.
const KEY: usize = 32;
/// The longest key file: digits, and some white space.
const MAX_KEY_FILE: u64 = 4096;

/// A key.
pub struct Key(XChaCha20Poly1305);

impl Key {
    /// The key that a file has in hexadecimal digits.
    ///
    /// # Errors
    /// When it cannot be read, or has something else.
    pub fn read(path: &Path) -> Result<Key> {
        let mut text = String::new();
        let file = fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let read = file.take(MAX_KEY_FILE).read_to_string(&mut text);
        let is_text = match read {
            Err(e) if e.kind() != io::ErrorKind::InvalidData => {
                return Err(e).with_context(|| format!("reading {}", path.display()));
            }
            read => read.is_ok(),
        };
        let digits: Option<Vec<u8>> =
            text.trim().chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let bytes = digits.filter(|digits| is_text && digits.len() == 2 * KEY);
        let Some(digits) = bytes else {
            bail!(
                "{} is no key file: it must have {} hexadecimal digits, as openssl rand -hex {KEY} \
                 writes them",
                path.display(),
                2 * KEY
            )
        };
        let mut key = [0; KEY];
        for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Key(XChaCha20Poly1305::new(&key.into())))
    }

    fn nonce(nonce: &[u8; NONCE]) -> Nonce<XChaCha20Poly1305, StreamBE32<XChaCha20Poly1305>> {
        (*nonce).into()
    }
}

/// What is written to it goes on encrypted.
pub struct Sealing<W> {
    to: W,
    stream: EncryptorBE32<XChaCha20Poly1305>,
    /// What stands before the stream, and must be the same.
    head: Vec<u8>,
    segment: Vec<u8>,
}

impl<W: Write> Sealing<W> {
    /// A stream after `head`, with a nonce that no other stream of this key has.
    pub fn new(to: W, key: &Key, nonce: &[u8; NONCE], head: &[u8]) -> Self {
        let stream = EncryptorBE32::from_aead(key.0.clone(), &Key::nonce(nonce));
        Sealing { to, stream, head: head.to_vec(), segment: Vec::with_capacity(SEGMENT) }
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// Those of what it goes to.
    pub fn finish(mut self) -> io::Result<W> {
        let last = Payload { msg: &self.segment, aad: &self.head };
        let bytes = self.stream.encrypt_last(last).map_err(|_| too_long())?;
        self.to.write_all(&bytes)?;
        Ok(self.to)
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, "too much for one key")
}

impl<W: Write> Write for Sealing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The last one is whatever is there at the end.
        if self.segment.len() == SEGMENT && !bytes.is_empty() {
            let next = Payload { msg: &self.segment, aad: &self.head };
            let sealed = self.stream.encrypt_next(next).map_err(|_| too_long())?;
            self.to.write_all(&sealed)?;
            self.segment.clear();
        }
        let fits = bytes.len().min(SEGMENT - self.segment.len());
        self.segment.extend_from_slice(&bytes[..fits]);
        Ok(fits)
    }

    fn flush(&mut self) -> io::Result<()> {
        // A segment is not cut short.
        Ok(())
    }
}

/// What is read from it comes from a stream that [`Sealing`] wrote.
pub struct Opening<R> {
    from: R,
    /// None after the last segment.
    stream: Option<DecryptorBE32<XChaCha20Poly1305>>,
    head: Vec<u8>,
    /// The next segment, encrypted.
    ahead: Vec<u8>,
    segment: io::Cursor<Vec<u8>>,
}

impl<R: Read> Opening<R> {
    /// The stream after `head`.
    ///
    /// # Errors
    /// Those of where it comes from.
    pub fn new(mut from: R, key: &Key, nonce: &[u8; NONCE], head: &[u8]) -> io::Result<Self> {
        let stream = Some(DecryptorBE32::from_aead(key.0.clone(), &Key::nonce(nonce)));
        let ahead = sealed_segment(&mut from)?;
        Ok(Opening { from, stream, head: head.to_vec(), ahead, segment: io::Cursor::default() })
    }

    /// Opens the next segment; false if there is none.
    fn advance(&mut self) -> io::Result<bool> {
        let Some(mut stream) = self.stream.take() else { return Ok(false) };
        let sealed = std::mem::take(&mut self.ahead);
        let payload = Payload { msg: &sealed, aad: &self.head };
        self.ahead = sealed_segment(&mut self.from)?;
        let opened = if self.ahead.is_empty() {
            stream.decrypt_last(payload)
        } else {
            let opened = stream.decrypt_next(payload);
            self.stream = Some(stream);
            opened
        };
        let segment = opened.map_err(|_| {
            let why = "it was encrypted with another key, or has been altered since";
            io::Error::new(io::ErrorKind::InvalidData, why)
        });
        self.segment = io::Cursor::new(segment?);
        Ok(true)
    }
}

/// As much as a segment has, if there is as much.
fn sealed_segment(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(SEGMENT + TAG);
    from.take((SEGMENT + TAG) as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl<R: Read> Read for Opening<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.segment.read(bytes)?;
            if n > 0 || bytes.is_empty() || !self.advance()? {
                return Ok(n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(byte: u8) -> Key {
        Key(XChaCha20Poly1305::new(&[byte; KEY].into()))
    }

    fn sealed(bytes: &[u8], head: &[u8]) -> Vec<u8> {
        let mut sealing = Sealing::new(Vec::new(), &key(1), &[7; NONCE], head);
        sealing.write_all(bytes).unwrap();
        sealing.finish().unwrap()
    }

    fn opened(sealed: &[u8], key: &Key, head: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        Opening::new(sealed, key, &[7; NONCE], head)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn every_length_is_read_as_it_was_written() {
        for len in [0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT, 3 * SEGMENT + 5] {
            let bytes: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
            let sealed = sealed(&bytes, b"head");
            assert_eq!(opened(&sealed, &key(1), b"head").unwrap(), bytes, "{len}");
            assert!(opened(&sealed, &key(2), b"head").is_err(), "{len}");
            assert!(opened(&sealed, &key(1), b"heal").is_err(), "{len}");
            // Without its last segment, and with a segment cut off before the tag.
            let whole = (len / SEGMENT) * (SEGMENT + TAG);
            if whole < sealed.len() {
                assert!(opened(&sealed[..whole], &key(1), b"head").is_err(), "{len}");
            }
        }
    }

    #[test]
    fn segments_cannot_change_places() {
        let bytes: Vec<u8> = (0..3 * SEGMENT).map(|n| (n / SEGMENT) as u8).collect();
        let mut sealed = sealed(&bytes, b"");
        let (first, second) = sealed.split_at_mut(SEGMENT + TAG);
        first.swap_with_slice(&mut second[..SEGMENT + TAG]);
        assert!(opened(&sealed, &key(1), b"").is_err());
    }

    proptest! {
        #[test]
        fn what_is_altered_is_not_read(at in 0..SEGMENT + 600, bit in 0..8) {
            let mut sealed = sealed(&vec![3; SEGMENT + 500], b"");
            let at = at % sealed.len();
            sealed[at] ^= 1_u8 << bit;
            prop_assert!(opened(&sealed, &key(1), b"").is_err());
        }
    }

    #[test]
    fn key_files_are_of_digits() {
        let path = std::env::temp_dir().join(format!("quark-key-test-{}", std::process::id()));
        let read = |text: &[u8]| {
            fs::write(&path, text).unwrap();
            let key = Key::read(&path);
            fs::remove_file(&path).unwrap();
            key.map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(read(&[b"0a".repeat(32).as_slice(), b"\n"].concat()), Ok(()));
        for wrong in [b"".as_slice(), &b"0a".repeat(31), &b"0g".repeat(32), &[0xff; 32]] {
            assert!(read(wrong).unwrap_err().contains("openssl rand -hex 32"));
        }
        assert!(Key::read(&path).err().unwrap().to_string().contains("opening"));
    }
}
