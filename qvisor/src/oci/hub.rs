//! Files of further containers in the empty root of a sandbox that takes some.
//!
//! A sandbox process reaches files by descriptors of detached mounts. Where it is in a Landlock
//! domain that is not enough for those that come later: the domain was made before them, and
//! Landlock looks for a rule on the way from a file to the root of its mount tree. So they are
//! attached below the sandbox's root, for which such a sandbox has a rule: a directory for each
//! container, with a mount point for each of its mounts. Who attaches and detaches them is a
//! process of the host with privileges; the sandbox itself can mount nothing.
#![deny(unsafe_code)]

use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};

use crate::sys;

/// Runs `work` in a mount namespace: its paths begin at the root of that.
fn within<T: Send>(namespace: &OwnedFd, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let enter = || {
        // setns(2) takes only who shares its root directory with nobody.
        unshare(CloneFlags::CLONE_FS)?;
        setns(namespace, CloneFlags::CLONE_NEWNS)
    };
    let run = || {
        enter().context("entering the sandbox's mount namespace")?;
        work()
    };
    std::thread::scope(|scope| match scope.spawn(run).join() {
        Ok(done) => done,
        Err(_) => anyhow::bail!("the thread in the sandbox's mount namespace ended"),
    })
}

/// A place for the files of a container that nobody else has: an ID may be in use again while who
/// made the last one with it still cleans up.
pub fn new_place() -> String {
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// Attaches detached mounts at a [place](new_place) below the root of a sandbox, whose mount
/// namespace is given.
///
/// # Errors
/// With nothing left behind.
pub fn attach(namespace: &OwnedFd, place: &str, files: &[OwnedFd]) -> Result<()> {
    within(namespace, || {
        let attached = attach_here(place, files);
        if attached.is_err() {
            detach_here(place).ok();
        }
        attached.context("showing its files to the sandbox")
    })
}

fn attach_here(place: &str, files: &[OwnedFd]) -> Result<()> {
    let hub = sys::writable_copy(Path::new("/"))?;
    rustix::fs::mkdirat(&hub, place, Mode::RWXU)?;
    for (number, file) in files.iter().enumerate() {
        let point = format!("{place}/{number}");
        let kind = FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode as RawMode);
        match kind {
            FileType::Directory => rustix::fs::mkdirat(&hub, &point, Mode::RWXU)?,
            _ => rustix::fs::mknodat(&hub, &point, FileType::RegularFile, Mode::RUSR, 0)?,
        }
        sys::make_private(file)?;
        let path = format!("/{point}");
        move_mount(file, "", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    Ok(())
}

/// Detaches what is attached at a place.
///
/// # Errors
/// When something stays.
pub fn detach(namespace: &OwnedFd, place: &str) -> Result<()> {
    within(namespace, || detach_here(place).context("detaching files from the sandbox of the pod"))
}

fn detach_here(place: &str) -> Result<()> {
    let hub = sys::writable_copy(Path::new("/"))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = match rustix::fs::openat(&hub, place, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if matches!(name, "." | "..") {
            continue;
        }
        match unmount(format!("/{place}/{name}"), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // It had not come to be mounted.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
        let is_dir = entry.file_type() == FileType::Directory;
        let how = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(&dir, name, how)?;
    }
    Ok(rustix::fs::unlinkat(&hub, place, AtFlags::REMOVEDIR)?)
}
