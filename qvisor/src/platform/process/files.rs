//! The descriptors of stubs. All stubs and the zygote have one table, which is not the sandbox
//! process': the zygote's socket, guest RAM, and the files of windows that some stub has been
//! ordered to map, each at a number that is chosen here. A file gets there when an operation that
//! needs it is approved, by the hand of the thread that carries it out (SECCOMP_IOCTL_NOTIF_ADDFD),
//! and is closed by the zygote when its window is gone.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::layout::{FD_FILES, FD_RAM};
use super::zygote::Zygote;
use crate::sys::ordered::{Mutex, place};

/// The files that have numbers.
pub struct Files {
    ram: Arc<OwnedFd>,
    table: Arc<Table>,
}

struct Table {
    zygote: Arc<Zygote>,
    most: i32,
    state: Mutex<Descriptors, place::StubFiles>,
}

#[derive(Default)]
struct Descriptors {
    /// By the address of the file's `OwnedFd`, which is no other's as long as there is a `Weak`.
    files: HashMap<usize, (Weak<OwnedFd>, Arc<StubFile>)>,
    /// The first number that was never used.
    next: i32,
    /// Numbers that are free when the zygote has closed so many.
    free: VecDeque<(i32, u64)>,
}

/// A number in the stubs' table. It is closed there when the last of these goes.
pub struct StubFile {
    /// The number.
    pub number: i32,
    there: AtomicBool,
    table: Option<Arc<Table>>,
}

impl std::fmt::Debug for StubFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "descriptor {} of stubs", self.number)
    }
}

impl StubFile {
    /// True if the file is there already.
    pub fn is_there(&self) -> bool {
        self.there.load(Ordering::Acquire)
    }

    /// It is there now.
    pub fn set_there(&self) {
        self.there.store(true, Ordering::Release);
    }
}

impl Drop for StubFile {
    fn drop(&mut self) {
        if let Some(table) = self.table.take() {
            let closed = if self.is_there() { table.zygote.close(self.number) } else { 0 };
            table.state.lock().free.push_back((self.number, closed));
        }
    }
}

impl Files {
    /// The zygote has `ram`, and as many descriptors as this process may have.
    pub fn new(ram: Arc<OwnedFd>, zygote: Arc<Zygote>) -> Self {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = limit.and_then(|n| i32::try_from(n).ok()).unwrap_or(i32::MAX);
        let state = Mutex::new(Descriptors { next: FD_FILES, ..Descriptors::default() });
        Self { ram, table: Arc::new(Table { zygote, most, state }) }
    }

    /// The number of guest RAM, if that is what `file` is.
    pub fn ram(&self, file: &Arc<OwnedFd>) -> Option<i32> {
        Arc::ptr_eq(file, &self.ram).then_some(FD_RAM)
    }

    /// The number of a file; `None` when there are no more. That cannot be unless the zygote has
    /// ended: each file has a number in this process' table as well, and that has other files
    /// besides.
    pub fn place(&self, file: &Arc<OwnedFd>) -> Option<Arc<StubFile>> {
        let key = Arc::as_ptr(file) as usize;
        let mut state = self.table.state.lock();
        if let Some((_, place)) = state.files.get(&key) {
            return Some(place.clone());
        }
        let closed = self.table.zygote.closed();
        let number = match state.free.front() {
            Some((number, when)) if *when <= closed => {
                let number = *number;
                state.free.pop_front();
                number
            }
            _ if state.next < self.table.most => {
                state.next += 1;
                state.next - 1
            }
            _ => return None,
        };
        let place =
            StubFile { number, there: AtomicBool::new(false), table: Some(self.table.clone()) };
        let place = Arc::new(place);
        state.files.insert(key, (Arc::downgrade(file), place.clone()));
        Some(place)
    }

    /// Gives up the numbers of files that are gone here.
    pub fn sweep(&self) {
        let mut gone = Vec::new();
        let mut state = self.table.state.lock();
        state.files.retain(|_, (file, place)| {
            let alive = file.strong_count() > 0;
            if !alive {
                gone.push(place.clone());
            }
            alive
        });
        drop(state);
        // Their end takes the lock.
        drop(gone);
    }
}
