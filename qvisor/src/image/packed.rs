//! An image in one file, compressed, encrypted, or both: for keeping it, as it must be unpacked
//! before anything can be made of it. The file has what the files of the image have, without their
//! holes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use serde::{Deserialize, Serialize};

use super::directory::{
    FILES, MANIFEST, MAX_LAYERS, PACKED, at, check_free, draft, layer, link, make_new, open,
};
use super::files::Files;
use super::seal::{Key, NONCE, Opening, Sealing};
use crate::{store, sys};

/// What the file begins with: its name, and the version of its form.
const MAGIC: [u8; 8] = *b"quarkpk\x01";
/// Bytes before the stream: [`MAGIC`], flags, a nonce.
const HEAD: usize = MAGIC.len() + 1 + NONCE;
/// Flag: the stream is compressed (zstd).
const COMPRESSED: u8 = 1;
/// Flag: the stream is encrypted, after it was compressed.
const ENCRYPTED: u8 = 2;
/// Levels above it take much longer for little.
const LEVEL: i32 = 3;
/// The longest record, in bytes.
const MAX_RECORD: usize = 256;
/// Bytes that are moved at once.
const BATCH: usize = 1 << 20;

/// What the stream has, each after its length in two bytes.
#[derive(Debug, Serialize, Deserialize)]
enum Record {
    /// The next file, and how long it is.
    File { name: String, bytes: u64 },
    /// So many bytes of it are at this place, and follow.
    Data { offset: u64, bytes: u64 },
    /// That was all.
    End,
}

/// How an image is packed.
pub struct How {
    /// It is compressed.
    pub compress: bool,
    /// It is encrypted with this key.
    pub key: Option<Key>,
}

/// Packs an image into the directory `to`, which is made if it does not exist and must have no
/// image yet.
///
/// # Errors
/// With nothing left of it.
pub fn pack(from: &Files, to: &Path, how: &How) -> Result<()> {
    let is_new = make_new(to)?;
    check_free(to)?;
    let written = write_at(from, to, how);
    written
        .inspect_err(|_| {
            if is_new {
                fs::remove_dir(to).ok();
            }
        })
        .with_context(|| format!("writing the image to {}", to.display()))
}

/// Writes the file, which has no name until it is whole: who is killed leaves nothing. Where the
/// file system has no such files it has a name that says so.
fn write_at(from: &Files, to: &Path, how: &How) -> Result<()> {
    let mode = Mode::RUSR | Mode::WUSR;
    let nameless = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, to, nameless, mode) {
        Ok(file) => {
            let file = File::from(file);
            write(from, &file, how)?;
            return Ok(link(&file, &to.join(PACKED))?);
        }
        // What Linux says for file systems that have none, and before it knew of them.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let beside = to.join(draft(PACKED));
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(&beside).with_context(|| format!("making {}", beside.display()))?;
    let written = write(from, &file, how).and_then(|()| fs::rename(&beside, to.join(PACKED)));
    written.inspect_err(|_| {
        fs::remove_file(&beside).ok();
    })?;
    Ok(())
}

fn write(from: &Files, to: &File, how: &How) -> io::Result<()> {
    let mut nonce = [0; NONCE];
    let mut flags = 0;
    if how.compress {
        flags |= COMPRESSED;
    }
    if how.key.is_some() {
        flags |= ENCRYPTED;
        rustix::rand::getrandom(&mut nonce, GetRandomFlags::empty())?;
    }
    let head = [&MAGIC[..], &[flags], &nonce].concat();
    let mut to = BufWriter::with_capacity(BATCH, to);
    to.write_all(&head)?;
    let mut to = match &how.key {
        None => compressed(from, to, how.compress)?,
        Some(key) => {
            let sealing = Sealing::new(to, key, &nonce, &head);
            compressed(from, sealing, how.compress)?.finish()?
        }
    };
    to.flush()
}

/// Writes the stream, and gives back where it went.
fn compressed<W: Write>(from: &Files, mut to: W, compress: bool) -> io::Result<W> {
    if !compress {
        return write_records(from, &mut to).map(|()| to);
    }
    let mut encoder = zstd::Encoder::new(to, LEVEL)?;
    encoder.include_checksum(true)?;
    write_records(from, &mut encoder)?;
    encoder.finish()
}

fn write_records(from: &Files, to: &mut impl Write) -> io::Result<()> {
    let mut block = vec![0; BATCH];
    for (file, name) in from.each() {
        let bytes = file.metadata()?.len();
        record(to, &Record::File { name, bytes })?;
        for extent in sys::extents(file.as_fd()) {
            let (mut offset, end) = extent?;
            record(to, &Record::Data { offset, bytes: end - offset })?;
            while offset < end {
                let part = &mut block[..BATCH.min((end - offset) as usize)];
                file.read_exact_at(part, offset)?;
                to.write_all(part)?;
                offset += part.len() as u64;
            }
        }
    }
    record(to, &Record::End)
}

fn record(to: &mut impl Write, record: &Record) -> io::Result<()> {
    let bytes = postcard::to_allocvec(record).map_err(io::Error::other)?;
    to.write_all(&(bytes.len() as u16).to_le_bytes())?;
    to.write_all(&bytes)
}

/// The image in `dir`, whatever its form: unpacked, if it is packed, to files without a name.
/// With a key, it must have been encrypted with that one.
///
/// # Errors
/// When there is none, or it is not what was written.
pub fn find(dir: &Path, key: Option<&Key>) -> Result<Files> {
    let shown = dir.display();
    let is_packed = dir.join(PACKED).symlink_metadata().is_ok();
    if !is_packed {
        ensure!(key.is_none(), "the image in {shown} is not encrypted: leave out --key-file");
        return Files::open(dir);
    }
    let file = open(at(dir)?.as_fd(), PACKED);
    file.and_then(|file| read(dir, BufReader::with_capacity(BATCH, file), key))
        .with_context(|| format!("reading {}", dir.join(PACKED).display()))
}

fn read(dir: &Path, mut from: impl Read, key: Option<&Key>) -> Result<Files> {
    let mut head = [0; HEAD];
    from.read_exact(&mut head).context("it is cut short")?;
    let (magic, rest) = head.split_at(MAGIC.len());
    let (flags, nonce) = (rest[0], rest[1..].try_into()?);
    ensure!(
        magic == MAGIC && flags & !(COMPRESSED | ENCRYPTED) == 0,
        "it is no packed image, or one of another version of quark"
    );
    let is_compressed = flags & COMPRESSED != 0;
    match (flags & ENCRYPTED != 0, key) {
        (false, None) => decompressed(dir, from, is_compressed),
        (true, Some(key)) => {
            decompressed(dir, Opening::new(from, key, &nonce, &head)?, is_compressed)
        }
        (true, None) => bail!("it is encrypted: say --key-file FILE"),
        (false, Some(_)) => bail!("it is not encrypted: leave out --key-file"),
    }
}

fn decompressed(dir: &Path, mut from: impl Read, is_compressed: bool) -> Result<Files> {
    match is_compressed {
        true => read_records(dir, &mut zstd::Decoder::new(from)?),
        false => read_records(dir, &mut from),
    }
}

fn read_records(dir: &Path, from: &mut impl Read) -> Result<Files> {
    let layers = (0..MAX_LAYERS).map(layer);
    let known: Vec<String> =
        FILES.map(str::to_owned).into_iter().chain(layers).chain([MANIFEST.to_owned()]).collect();
    let mut files: HashMap<String, File> = HashMap::new();
    let mut current: Option<(File, u64)> = None;
    let mut block = vec![0; BATCH];
    loop {
        match next(from)? {
            Record::File { name, bytes } => {
                ensure!(known.contains(&name), "it has a file {:?}", name);
                let file = store::fresh_file()?;
                file.set_len(bytes).context("making a file as long as it says")?;
                let listed = file.try_clone()?;
                ensure!(files.insert(name, listed).is_none(), "it has a file twice");
                current = Some((file, bytes));
            }
            Record::Data { offset, bytes } => {
                let (file, len) = current.as_ref().context("it has data of no file")?;
                let end = offset.checked_add(bytes).filter(|end| end <= len);
                let end = end.context("it has data past the end of a file")?;
                let mut at = offset;
                while at < end {
                    let part = &mut block[..BATCH.min((end - at) as usize)];
                    from.read_exact(part)?;
                    file.write_all_at(part, at).context("unpacking it")?;
                    at += part.len() as u64;
                }
            }
            Record::End => break,
        }
    }
    // What comes after it would be as much a part of what was checked.
    ensure!(from.read(&mut block)? == 0, "it goes on after its end");
    Files::unpacked(dir, |name| files.remove(name))
}

fn next(from: &mut impl Read) -> Result<Record> {
    let mut len = [0; 2];
    from.read_exact(&mut len)?;
    let len = usize::from(u16::from_le_bytes(len));
    ensure!(len <= MAX_RECORD, "it has a record that is too long");
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).context("it has a record that is none")
}
