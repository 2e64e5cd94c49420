//! A sandbox that is held: it sleeps, has given away what it is, and does nothing until it is
//! released, or the command ends that holds it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use qlib::control::{HibernationState, Reply, Request};

use super::client::{ANSWER_TIMEOUT, Connection, Refused, unexpected};
use super::hibernation;
use super::state::Entry;
use crate::image::write::{Shared, Sources};
use crate::sandbox::hostcall::image::Parts;
use crate::store;
use crate::store::kept::Kept;

/// How often it is put to sleep if something wakes it before it can be held.
const TRIES: u32 = 20;
/// How long it may take to become idle. Then it is stopped in the middle of what it does.
const PATIENCE: Duration = Duration::from_secs(1);
/// More files than any sandbox has.
const MAX_FILES: usize = 1 << 20;

/// A sandbox that is held, and what it is.
#[derive(Debug)]
pub struct Held {
    /// The connection that holds it.
    pub connection: Connection,
    /// What it is besides its files.
    pub parts: Parts,
    /// Pages that its store has places for, and that it keeps until they are written.
    pub kept: Kept,
    /// Guest memory, and the files of its store.
    pub sources: Sources,
    /// Those that `parts` names.
    pub files: Vec<OwnedFd>,
}

impl Held {
    /// Puts a sandbox to sleep, if it does not, and holds it. `patience`: how long it may take to
    /// become idle, by default a second.
    ///
    /// # Errors
    /// When it cannot be put to sleep, or is something that cannot be copied.
    pub fn hold(entry: &Entry, patience: Option<Duration>) -> Result<Held> {
        // Whoever was awake is woken when it ends.
        let mut connection = Connection::open(entry, ANSWER_TIMEOUT)?;
        let given = sleeping(&mut connection, patience.unwrap_or(PATIENCE))?;
        Held::of(connection, given)
    }

    /// Holds a sandbox that sleeps.
    ///
    /// # Errors
    /// When it does not, or is something that cannot be copied.
    pub fn hold_sleeper(entry: &Entry) -> Result<Held> {
        let mut connection = Connection::open(entry, ANSWER_TIMEOUT)?;
        let given = ask(&mut connection)?;
        Held::of(connection, given)
    }

    /// What a sandbox gave by this connection.
    fn of(connection: Connection, (bytes, files): (Vec<u8>, Vec<OwnedFd>)) -> Result<Held> {
        let (parts, kept): (Parts, Kept) =
            postcard::from_bytes(&bytes).context("decoding what the sandbox is")?;
        ensure!(kept.is_of(&parts.store, parts.ram_bytes), "what the sandbox keeps fits nowhere");
        let mut files = files.into_iter();
        let mut next = || files.next().map(File::from).context("a file did not come");
        let ram = next()?;
        let of_slots = parts.store.layers.len() + usize::from(parts.store.own);
        let swap = (0..of_slots).map(|_| next()).collect::<Result<_>>()?;
        let reap = parts.store.reap.is_some().then(next).transpose()?;
        let files: Vec<OwnedFd> = files.collect();
        ensure!(files.len() == parts.files as usize, "the sandbox did not send all of its files");
        Ok(Held { connection, parts, kept, sources: Sources { ram, swap, reap }, files })
    }

    /// Lets it go on, or ends it. What it keeps, it keeps as long as this lives.
    ///
    /// # Errors
    /// When it was held for too long, and has gone on.
    pub fn release(&mut self, end: bool) -> Result<()> {
        self.connection.order(&Request::Release { end })
    }

    /// Has it note in `file` when it wakes next.
    ///
    /// # Errors
    /// When it was held for too long, and has gone on.
    pub fn note_wake(&mut self, file: &File) -> Result<()> {
        match self.connection.call(&Request::NoteWake, &[file.as_fd()])? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// What it keeps is written, and has these checksums.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn written(&mut self, sums: &File) -> Result<()> {
        match self.connection.call(&Request::Written, &[sums.as_fd()])? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// Has a sandbox that is held go on with the files of an image of it, as if they were its own.
///
/// # Errors
/// When it does not; it has its own then.
pub fn adopt(connection: &mut Connection, shared: Shared) -> Result<()> {
    let fresh = store::fresh_files()?;
    let (layers, files): (Vec<u64>, Vec<File>) = shared.layers.into_iter().unzip();
    let files = fresh.iter().chain(&files).chain(&shared.reap);
    let files: Vec<BorrowedFd<'_>> = files.map(AsFd::as_fd).collect();
    match connection.call(&Request::Adopt { layers }, &files)? {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Has a sandbox that sleeps say what it is.
fn ask(connection: &mut Connection) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    match connection.call_for_files(&Request::Checkpoint, MAX_FILES)? {
        (Reply::Image(bytes), files) => Ok((bytes, files)),
        (other, _) => Err(unexpected(&other)),
    }
}

/// Puts it to sleep if it is not, and has it say what it is. It does nothing from then on until the
/// connection is used again, or ends.
fn sleeping(connection: &mut Connection, patience: Duration) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    // One that does not answer at all is found out sooner.
    let stats = match connection.call(&Request::Stats, &[])? {
        Reply::Stats(stats) => stats,
        other => return Err(unexpected(&other)),
    };
    let sleep = hibernation::request(connection, patience, true, true);
    let mut is_asleep = stats.state == HibernationState::Hibernated;
    let mut tries = 0;
    loop {
        let asked = match is_asleep {
            true => Ok(()),
            false => connection.order(&sleep),
        };
        is_asleep = false;
        tries += 1;
        let is_busy = |e: &anyhow::Error| {
            let refused = e.downcast_ref::<Refused>().map(|refused| refused.errno);
            tries < TRIES && matches!(refused, Some(libc::EBUSY | libc::EINTR))
        };
        match asked.and_then(|()| ask(connection)) {
            Ok(given) => return Ok(given),
            // Something has woken it meanwhile, or it fell asleep in the middle of a fork(2), whose
            // child is on the host yet: another sleep finds it elsewhere.
            Err(e) if is_busy(&e) => connection.order(&Request::Wake)?,
            Err(e) => return Err(hibernation::explained(e)),
        }
    }
}
