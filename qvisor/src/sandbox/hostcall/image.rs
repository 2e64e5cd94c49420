//! A sandbox taken apart, and put together again: what it is besides guest memory and the contents
//! of its store. [`HostSide::parts`] says what there is, and gives the files, of a sandbox that
//! sleeps; [`HostSide::put_back`] makes another one the same.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use anyhow::Context;
use qlib::Gpa;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::HostSide;
use super::table::{Kind, Object, file_type, is_nodev};
use crate::sandbox::image::Image;
use crate::store::{FILES, Store, Stored};
use crate::streams::Stream;

/// What a sandbox is besides guest memory and the contents of its store. Files are named by their
/// index among those that come with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Parts {
    /// Where guest memory lies in the sandbox process.
    pub base: u64,
    /// Its size in bytes.
    pub ram_bytes: u64,
    /// Numbers of the blocks that hold user memory.
    pub user_blocks: Vec<u64>,
    /// What the store holds.
    pub store: Stored,
    /// Handles.
    pub handles: Vec<HandlePart>,
    /// File windows.
    pub windows: Vec<WindowPart>,
    /// Capabilities that its programs were given, as a mask.
    pub granted: u64,
    /// The number of the last request to its kernel.
    pub last_request: u64,
    /// How many files the handles and windows name.
    pub files: u32,
}

/// A handle.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HandlePart {
    /// Its number.
    pub number: u32,
    /// What it is.
    pub kind: Kind,
    /// By what token the guest watches it.
    pub token: Option<u64>,
    /// SO_LINGER may be on.
    pub lingers: bool,
    /// Its file.
    pub file: u32,
}

/// A file window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WindowPart {
    /// Where it begins.
    pub gpa: Gpa,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Writes go to the file.
    pub writable: bool,
    /// Its file.
    pub file: u32,
}

/// The files of a sandbox, besides guest memory.
#[derive(Debug)]
pub struct Files {
    /// Those that [`Parts`] names.
    pub named: Vec<Arc<OwnedFd>>,
    /// Those of its store, in the order of [`Stored::files`].
    pub store: Vec<Arc<File>>,
}

/// Standard streams that a container is given, after its root and volumes.
pub const STREAMS: u32 = 3;

/// Why a sandbox cannot be put together again.
#[derive(Debug, thiserror::Error)]
pub enum PutBackError {
    /// The image does not fit together.
    #[error("the image is damaged: {0}")]
    Damaged(&'static str),
    /// A standard stream is another kind of thing than it was.
    #[error(
        "standard stream {stream} is a {now} now, and was a {then} when the checkpoint was made: \
         give it one"
    )]
    OtherStream {
        /// 0 to 2.
        stream: u32,
        /// What it is.
        now: &'static str,
        /// What it was.
        then: &'static str,
    },
    /// The host refused something.
    #[error("the host refused to {0}: {1}")]
    Host(&'static str, Errno),
}

impl HostSide {
    /// What this sandbox is, which sleeps, and its files. Or why it cannot be said.
    pub fn parts(&self) -> Result<(Parts, Files), &'static str> {
        if self.disk.len() + self.lock_waits.len() > 0 {
            return Err("a program waits for a file of the host");
        }
        let store = self.store.as_ref().ok_or("it has no store")?;
        let mut files: Vec<Arc<OwnedFd>> = Vec::new();
        let mut known = HashMap::new();
        let mut index_of = |file: &Arc<OwnedFd>| {
            *known.entry(Arc::as_ptr(file)).or_insert_with(|| {
                files.push(file.clone());
                files.len() as u32 - 1
            })
        };
        let handles = self.handles.all().into_iter().map(|(number, object)| HandlePart {
            number,
            kind: object.kind(),
            token: object.token(),
            lingers: object.lingers(),
            file: index_of(object.fd()),
        });
        let handles = handles.collect();
        let windows = self.memory.each_window(|gpa, window| WindowPart {
            gpa,
            offset: window.offset,
            len: window.len,
            writable: window.writable,
            file: index_of(&window.file),
        });
        let count = files.len() as u32;
        let (stored, store) = store.stored();
        let parts = Parts {
            base: self.memory.base(),
            ram_bytes: self.memory.ram_bytes(),
            user_blocks: self.memory.user_blocks(),
            store: stored,
            handles,
            windows,
            granted: self.granted(),
            last_request: self.replies.last(),
            files: count,
        };
        Ok((parts, Files { named: files, store }))
    }

    /// Its store.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Has its store go on with files that hold the same as its own
    /// ([`crate::store::Store::adopt`]).
    ///
    /// # Errors
    /// As there, with nothing changed.
    pub fn adopt(
        &self,
        layers: Vec<(u64, File)>,
        reap: Option<File>,
        fresh: [File; FILES],
    ) -> anyhow::Result<()> {
        let store = self.store.as_ref().context("it has no store")?;
        Ok(store.adopt(layers, reap, fresh)?)
    }

    /// Makes this one, which sleeps, what it was when an image was made of it; what is given, it
    /// still has.
    ///
    /// # Errors
    /// When it cannot be; it is neither then.
    pub fn go_back(&self, image: Image) -> anyhow::Result<()> {
        image.fill_store(self.store.as_ref().context("it has no store")?)?;
        for gpa in self.memory.each_window(|gpa, _| gpa) {
            self.memory.window_drop(gpa);
        }
        self.memory.become_user_blocks(&image.parts.user_blocks)?;
        image.fill(&self.memory)?;
        Ok(self.put_back(&image.parts, image.files)?)
    }

    /// Makes this one, which has been given what every sandbox is given and nothing else, the same
    /// as one that was `parts`; `files` are its files, `None` for what is given.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn put_back(&self, parts: &Parts, files: Vec<Option<OwnedFd>>) -> Result<(), PutBackError> {
        let files: Vec<Option<Arc<OwnedFd>>> = files.into_iter().map(|f| f.map(Arc::new)).collect();
        let file = |index: u32| {
            let file = files.get(index as usize);
            file.ok_or(PutBackError::Damaged("it names a file that it does not have"))
        };
        let given = self.handles.all();
        let first_stream = (given.len() as u32).saturating_sub(STREAMS);
        for (number, _) in given {
            let stays = parts
                .handles
                .iter()
                .any(|part| part.number == number && matches!(file(part.file), Ok(None)));
            if !stays {
                self.close(number).ok();
            }
        }
        let mut opened = Vec::new();
        for part in &parts.handles {
            let object = match file(part.file)? {
                None => {
                    let given = self.handles.get(part.number);
                    let given = given.ok_or(PutBackError::Damaged("a handle is not given"))?;
                    let stream = part.number.saturating_sub(first_stream);
                    check_stream(part.kind, given.kind(), stream)?;
                    given
                }
                Some(file) => {
                    let object = Object::shared(file.clone(), kind_of(part.kind, file.as_fd())?);
                    opened.push((part.number, Arc::new(object)));
                    opened[opened.len() - 1].1.clone()
                }
            };
            if part.lingers {
                object.set_lingers();
            }
            if let Some(token) = part.token {
                // What does not poll was ready from the start.
                match self.poller.watch(object.as_fd(), token) {
                    Ok(()) => object.set_watched(token),
                    Err(Errno::PERM) => {}
                    Err(e) => return Err(PutBackError::Host("watch a handle", e)),
                }
            }
        }
        if !self.handles.put(opened) {
            return Err(PutBackError::Damaged("two handles have one number, or it is too high"));
        }
        for part in &parts.windows {
            let file = file(part.file)?.clone();
            let file = file.ok_or(PutBackError::Damaged("a window shows no file"))?;
            self.memory
                .window_put(part.gpa, file, part.offset, part.len, part.writable)
                .map_err(|e| PutBackError::Host("map a file", e.into()))?;
        }
        self.grant(parts.granted);
        self.replies.go_on_after(parts.last_request);
        Ok(())
    }

    /// Puts other standard streams in the place of those that were given, from handle `first` on.
    /// What the guest has closed stays so.
    ///
    /// # Errors
    /// When one is another kind of thing than that in its place.
    pub fn change_streams(&self, first: u32, streams: Vec<Stream>) -> Result<(), PutBackError> {
        for (stream, fd) in (0..).zip(streams) {
            let handle = first + stream;
            let Some(then) = self.handles.get(handle) else { continue };
            let is_stream = matches!(
                then.kind(),
                Kind::Stream { .. } | Kind::StdioFile | Kind::StdioDir | Kind::StdioSocket
            );
            if !is_stream {
                continue;
            }
            let now = Object::stdio(fd).map_err(|e| PutBackError::Host("take a stream", e))?;
            check_stream(then.kind(), now.kind(), stream)?;
            self.close(handle).ok();
            if let Some(token) = then.token() {
                match self.poller.watch(now.as_fd(), token) {
                    Ok(()) => now.set_watched(token),
                    Err(Errno::PERM) => {}
                    Err(e) => return Err(PutBackError::Host("watch a stream", e)),
                }
            }
            if !self.handles.put([(handle, Arc::new(now))]) {
                return Err(PutBackError::Damaged("a stream has no place"));
            }
        }
        Ok(())
    }
}

/// What a descriptor is that was opened for a handle of this kind.
fn kind_of(then: Kind, fd: BorrowedFd<'_>) -> Result<Kind, PutBackError> {
    let other = PutBackError::Damaged("a handle is of another kind than its file");
    let refused = |e| PutBackError::Host("look at a file", e);
    let kind = file_type(fd).map_err(refused)?;
    let is_path = rustix::fs::fcntl_getfl(fd).map_err(refused)?.contains(OFlags::PATH);
    match (then, kind) {
        (Kind::Dir { .. }, FileType::Directory) => Ok(Kind::Dir { nodev: is_nodev(fd) }),
        (Kind::File, FileType::RegularFile) if !is_path => Ok(Kind::File),
        (Kind::Path, _) if is_path => Ok(Kind::Path),
        (Kind::Socket { .. }, FileType::Socket) => {
            let domain = rustix::net::sockopt::socket_domain(fd).map_err(refused)?;
            Ok(Kind::Socket { domain: domain.as_raw().into() })
        }
        _ => Err(other),
    }
}

/// A guest goes on with a stream as it knows it.
fn check_stream(then: Kind, now: Kind, stream: u32) -> Result<(), PutBackError> {
    let name = |kind| match kind {
        Kind::Stream { tty: true, .. } => "terminal",
        Kind::Stream { .. } => "pipe or device",
        Kind::StdioFile => "regular file",
        Kind::StdioDir => "directory",
        Kind::StdioSocket => "socket",
        _ => "file or directory of a mount",
    };
    let (now, then) = (name(now), name(then));
    if now == then {
        return Ok(());
    }
    Err(PutBackError::OtherStream { stream, now, then })
}
