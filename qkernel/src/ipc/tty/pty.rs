//! Pseudoterminals (pty(7)): pairs of a master and a terminal, by number.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use linux_raw_sys::general::{
    O_NOCTTY, O_RDWR, RLIMIT_NOFILE, S_IFCHR, TIOCPKT_DATA, TIOCPKT_DOSTOP, TIOCPKT_NOSTOP,
    TIOCPKT_START, TIOCPKT_STOP,
};
use linux_raw_sys::ioctl::{
    FIONREAD, TIOCGPKT, TIOCGPTLCK, TIOCGPTN, TIOCGPTPEER, TIOCPKT, TIOCSIG, TIOCSPTLCK,
};
use qlib::Va;
use qlib::control::FIRST_CONTAINER;

use super::device::{SLAVE_MAJOR, TtyFile};
use super::{Far, Tty, ioctl};
use crate::abi::TimeSpec;
use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, SetAttributes, device};
use crate::fs::{Caller, FileOps, OpenFile, Tells, devpts};
use crate::io::IoBuffer;
use crate::sync::{Mutex, mutex};
use crate::task;
use crate::task::signal::{SIGNALS, SigInfo, send_to_group};
use crate::time;
use crate::user_namespace::UserNs;
use crate::wait::{PollMask, WaitQueue};

/// The most pseudoterminals there can be (the default of kernel.pty.max).
const MAX_PTYS: u32 = 4096;
/// How much a master takes of a write at a time.
const CHUNK_BYTES: usize = 1024;

/// A terminal in /dev/pts.
struct Entry {
    /// The container that it was made in.
    container: u32,
    /// The user namespace that it was made in.
    user: UserNs,
    tty: Weak<Tty>,
    is_locked: bool,
    /// What stat(2) reports of the device file.
    attributes: Attributes,
}

/// By number. The console has one, too.
static ENTRIES: Mutex<BTreeMap<u32, Entry>> = mutex(BTreeMap::new());

/// Enters a terminal of a container and a user namespace under the lowest free number; `make`
/// builds it.
pub fn enter(
    (container, user): (u32, UserNs),
    make: impl FnOnce(u32) -> Arc<Tty>,
    is_locked: bool,
    owner: (u32, u32),
) -> Result<Arc<Tty>> {
    let number = {
        let entries = ENTRIES.lock();
        (0..MAX_PTYS).find(|n| !entries.contains_key(n)).ok_or(Errno::ENOSPC)?
    };
    let tty = make(number);
    let attributes = new_attributes(number, owner);
    ENTRIES.lock().insert(
        number,
        Entry { container, user, tty: Arc::downgrade(&tty), is_locked, attributes },
    );
    Ok(tty)
}

/// Takes the number of a terminal back that is no more, unless it has been given to another since.
pub fn remove_dead(number: u32) {
    let mut entries = ENTRIES.lock();
    if entries.get(&number).is_some_and(|e| e.tty.strong_count() == 0) {
        entries.remove(&number);
    }
}

/// The terminal with this number.
pub fn tty(number: u32) -> Option<Arc<Tty>> {
    ENTRIES.lock().get(&number).and_then(|e| e.tty.upgrade())
}

/// The terminal with this number, if it was made in this container.
pub fn tty_of(container: u32, number: u32) -> Option<Arc<Tty>> {
    let entries = ENTRIES.lock();
    entries.get(&number).filter(|e| e.container == container).and_then(|e| e.tty.upgrade())
}

/// The numbers in use, ascending.
pub fn list() -> Vec<u32> {
    ENTRIES.lock().keys().copied().collect()
}

/// Those of terminals that were made in a container, in this user namespace or below: what a
/// /dev/pts of that lists.
pub fn list_of(container: u32, user: &UserNs) -> Vec<u32> {
    let entries = ENTRIES.lock();
    let is_there = |e: &Entry| e.container == container && user.contains(&e.user);
    entries.iter().filter(|(_, e)| is_there(e)).map(|(n, _)| *n).collect()
}

/// True if the terminal may not be opened yet (unlockpt(3)).
pub fn is_locked(number: u32) -> bool {
    ENTRIES.lock().get(&number).is_some_and(|e| e.is_locked)
}

/// The group of a terminal in /dev/pts: tty.
pub const SLAVE_GROUP: u32 = 5;
/// Its permission bits.
pub const SLAVE_MODE: u32 = 0o620;

/// Of a terminal that has just been made by `owner`, a user and a group.
fn new_attributes(number: u32, (uid, gid): (u32, u32)) -> Attributes {
    let ino = u64::from(number) + 3;
    Attributes {
        rdev: device(SLAVE_MAJOR, number),
        block_size: 1024,
        ..Attributes::new(S_IFCHR | SLAVE_MODE, uid, gid, devpts::DEVICE, ino)
    }
}

/// What stat(2) reports of /dev/pts/`number`.
pub fn slave_attributes(number: u32) -> Attributes {
    let entries = ENTRIES.lock();
    let known = entries.get(&number).map(|e| e.attributes);
    known.unwrap_or_else(|| new_attributes(number, (0, SLAVE_GROUP)))
}

/// chmod(2), chown(2), utimensat(2) of /dev/pts/`number`: a login gives its terminal to the user.
pub fn set_slave_attributes(number: u32, change: &SetAttributes) -> Result {
    let mut entries = ENTRIES.lock();
    let entry = entries.get_mut(&number).ok_or(Errno::EIO)?;
    change.apply(&mut entry.attributes);
    Ok(())
}

/// The terminal was written to, or read from. As on Linux, its file tells that to within 8 seconds,
/// which is no measure of how somebody types a password.
pub fn note_use(number: u32, written: bool) {
    let now = TimeSpec::from_ns(time::realtime_ns()).sec;
    if let Some(entry) = ENTRIES.lock().get_mut(&number) {
        let attributes = &mut entry.attributes;
        let used = if written { &mut attributes.mtime } else { &mut attributes.atime };
        if (now ^ used.sec) & !7 != 0 {
            used.sec = now;
        }
    }
}

/// The master side.
pub struct Master {
    tty: Arc<Tty>,
    side: Arc<Side>,
}

/// What both sides know of each other.
#[derive(Default)]
struct Side {
    /// Notified when the master can read or write.
    queue: WaitQueue,
    /// The terminal was open and no longer is.
    slave_closed: AtomicBool,
    /// TIOCPKT: the master reads what a packet is before it, and is told of changes.
    packets: AtomicBool,
    /// Those that it has yet to be told of (TIOCPKT_*).
    changes: AtomicU32,
}

impl Side {
    fn has_changes(&self) -> bool {
        self.packets.load(Ordering::Relaxed) && self.changes.load(Ordering::Relaxed) != 0
    }
}

impl Far for Side {
    fn on_output(&self, tty: &Tty) {
        if tty.has_output() {
            self.queue.wake(PollMask::READ);
        }
    }

    fn on_room(&self, tty: &Tty) {
        if tty.input_room() > 0 {
            self.queue.wake(PollMask::WRITE);
        }
    }

    fn on_change(&self, bits: u32) {
        if bits == 0 || !self.packets.load(Ordering::Relaxed) {
            return;
        }
        // Only the last of each two that exclude each other counts.
        let undone = [(TIOCPKT_STOP, TIOCPKT_START), (TIOCPKT_DOSTOP, TIOCPKT_NOSTOP)]
            .into_iter()
            .filter(|(a, b)| bits & (a | b) != 0)
            .fold(0, |all, (a, b)| all | a | b);
        let changes = self.changes.load(Ordering::Relaxed) & !undone | bits;
        self.changes.store(changes, Ordering::Relaxed);
        self.queue.wake(PollMask::READ | PollMask::PRI);
    }
}

/// The sides of pseudoterminals whose master lives, to be notified of the terminal's opens and
/// closes.
static SIDES: Mutex<BTreeMap<u32, Weak<Side>>> = mutex(BTreeMap::new());

fn side_of(tty: &Tty) -> Option<Arc<Side>> {
    SIDES.lock().get(&tty.number).and_then(Weak::upgrade)
}

/// The terminal is open now, and was not.
pub fn slave_opened(tty: &Tty) {
    if let Some(side) = side_of(tty) {
        side.slave_closed.store(false, Ordering::Relaxed);
    }
}

/// The last open file of the terminal is gone.
pub fn slave_closed(tty: &Tty) {
    if let Some(side) = side_of(tty) {
        side.slave_closed.store(true, Ordering::Relaxed);
        side.queue.wake(PollMask::HUP | PollMask::READ);
    }
}

/// Opens /dev/ptmx: a new pair.
pub fn open_master() -> Result<Arc<dyn FileOps>> {
    let side = Arc::new(Side::default());
    let far = side.clone();
    let (whose, owner) = match task::current::get() {
        Some(thread) => {
            let creds = thread.creds();
            ((thread.process.container, creds.user.clone()), (creds.fsuid, SLAVE_GROUP))
        }
        None => ((FIRST_CONTAINER, UserNs::default()), (0, 0)),
    };
    let tty = enter(whose, |number| Tty::new(number, far), true, owner)?;
    SIDES.lock().insert(tty.number, Arc::downgrade(&side));
    Ok(Arc::new(Master { tty, side }))
}

impl FileOps for Master {
    fn is_stream(&self) -> bool {
        true
    }

    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if buffer.remaining() > 0 && self.side.has_changes() {
            let changes = self.side.changes.load(Ordering::Relaxed) as u8;
            let stored = buffer.put(&[changes])?;
            self.side.changes.store(0, Ordering::Relaxed);
            return Ok(stored);
        }
        let head: &[u8] = match self.side.packets.load(Ordering::Relaxed) {
            true => &[TIOCPKT_DATA as u8],
            false => &[],
        };
        if !head.is_empty() && buffer.remaining() == head.len() && self.tty.has_output() {
            return buffer.put(head);
        }
        let bytes = self.tty.take_output(buffer.remaining().saturating_sub(head.len()));
        if !bytes.is_empty() {
            let put = buffer.put(head).and_then(|_| buffer.put(&bytes));
            let stored = put.unwrap_or(0);
            self.tty.return_output(&bytes[stored..]);
            return if stored > 0 { Ok(head.len() + stored) } else { Err(Errno::EFAULT) };
        }
        if buffer.remaining() == 0 {
            return Ok(0);
        }
        Err(if self.side.slave_closed.load(Ordering::Relaxed) { Errno::EIO } else { Errno::EAGAIN })
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        let mut done = 0;
        while buffer.remaining() > 0 {
            let room = self.tty.input_room();
            if room == 0 {
                break;
            }
            let bytes = match buffer.take_vec(room.min(CHUNK_BYTES)) {
                Ok(bytes) => bytes,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            self.tty.feed(&bytes);
            done += bytes.len();
        }
        if done == 0 && buffer.remaining() > 0 { Err(Errno::EAGAIN) } else { Ok(done) }
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        let mut mask = PollMask::empty();
        if self.tty.has_output() {
            mask |= PollMask::READ;
        }
        if self.side.has_changes() {
            mask |= PollMask::READ | PollMask::PRI;
        }
        if self.tty.input_room() > 0 {
            mask |= PollMask::WRITE;
        }
        if self.side.slave_closed.load(Ordering::Relaxed) {
            mask |= PollMask::HUP;
        }
        mask
    }

    fn tells(&self) -> Tells {
        Tells::DataAndEnd
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.side.queue)
    }

    fn ioctl(
        &self,
        caller: &dyn Caller,
        _file: &OpenFile,
        command: u32,
        argument: u64,
    ) -> Result<usize> {
        let (thread, mm) = (task::thread_of(caller)?, caller.mm());
        let at = Va(argument);
        match command {
            TIOCGPTN => mm.write(at, &self.tty.number)?,
            TIOCSPTLCK => {
                let locked: i32 = mm.read(at)?;
                if let Some(entry) = ENTRIES.lock().get_mut(&self.tty.number) {
                    entry.is_locked = locked != 0;
                }
            }
            TIOCGPTLCK => mm.write(at, &i32::from(is_locked(self.tty.number)))?,
            TIOCPKT => {
                let on: i32 = mm.read(at)?;
                if !self.side.packets.swap(on != 0, Ordering::Relaxed) {
                    self.side.changes.store(0, Ordering::Relaxed);
                }
            }
            TIOCGPKT => {
                mm.write(at, &i32::from(self.side.packets.load(Ordering::Relaxed)))?;
            }
            TIOCGPTPEER => {
                let flags = argument as u32;
                let ops = TtyFile::open(thread, &self.tty, flags | O_NOCTTY)?;
                let file = OpenFile::new(ops, O_RDWR | flags & linux_raw_sys::general::O_NONBLOCK);
                let close_on_exec = flags & linux_raw_sys::general::O_CLOEXEC != 0;
                let limit = thread.process.rlimit(RLIMIT_NOFILE);
                return thread.files().insert(file, close_on_exec, 0, limit).map(|fd| fd as usize);
            }
            TIOCSIG => {
                let signo = u32::try_from(argument)
                    .ok()
                    .filter(|s| (1..=SIGNALS).contains(s))
                    .ok_or(Errno::EINVAL)?;
                let (_, foreground) = self.tty.owners();
                if foreground != 0 {
                    send_to_group(foreground, SigInfo::kernel(signo));
                }
            }
            FIONREAD => mm.write(at, &(self.tty.output_bytes() as u32))?,
            _ => return ioctl::serve(thread, &self.tty, true, command, argument),
        }
        Ok(0)
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"/dev/ptmx".to_vec()
    }

    fn release(&self, _file: &OpenFile) {
        ENTRIES.lock().remove(&self.tty.number);
        SIDES.lock().remove(&self.tty.number);
        self.tty.hang_up();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
