//! Signals that tell of I/O (fcntl(2), "Managing signals"): whom an open file tells, by which
//! signal (F_SETOWN, F_SETSIG), and the telling, while O_ASYNC is set.

use alloc::sync::{Arc, Weak};

use linux_raw_sys::general::{
    F_OWNER_PGRP, F_OWNER_PID, F_OWNER_TID, POLLERR, POLLHUP, POLLIN, POLLMSG, POLLOUT, POLLRDNORM,
    POLLWRBAND, POLLWRNORM, SIGIO, SIGURG,
};

use crate::errno::{Errno, Result};
use crate::fs::lease::Told;
use crate::fs::{CloseHook, Fd, FileOps, OpenFile, Tells};
use crate::ipc::tty::device::TtyFile;
use crate::sync::Mutex;
use crate::task::signal::{
    SIGNALS, SigInfo, Signo, send_to_process, send_to_thread, would_be_allowed,
};
use crate::task::{Process, Thread, table};
use crate::wait::{Observer, PollMask, Sleeper, Turn};

/// si_code: there is data (asm-generic/siginfo.h).
const POLL_IN: i32 = 1;
/// si_code: there is room.
const POLL_OUT: i32 = 2;
/// si_code: there is a message (a lease is broken, a directory has changed).
const POLL_MSG: i32 = 3;
/// si_code: something went wrong.
const POLL_ERR: i32 = 4;
/// si_code: the other side has gone.
const POLL_HUP: i32 = 6;

/// Who is told.
#[derive(Clone, Default)]
pub enum Who {
    /// Nobody.
    #[default]
    Nobody,
    /// One thread.
    Thread(Weak<Thread>),
    /// A process.
    Process(Weak<Process>),
    /// All processes of a group, by the kernel's own number of it.
    Group(u32),
}

/// What `struct f_owner_ex` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// F_OWNER_*.
    pub kind: u32,
    /// As the caller calls it; 0 for nobody.
    pub number: u32,
}

impl Named {
    /// Of a process, or of a group if it is negative: not the least number.
    pub fn from_signed(owner: i32) -> Self {
        let kind = if owner < 0 { F_OWNER_PGRP } else { F_OWNER_PID };
        Named { kind, number: owner.unsigned_abs() }
    }

    /// The number, negative for a group.
    pub fn signed(self) -> i32 {
        let number = self.number as i32;
        if self.kind == F_OWNER_PGRP { -number } else { number }
    }
}

impl Who {
    /// Whom `thread` calls so. EINVAL, ESRCH.
    pub fn find(thread: &Thread, named: Named) -> Result<Who> {
        let Named { kind, number } = named;
        if !matches!(kind, F_OWNER_TID | F_OWNER_PID | F_OWNER_PGRP) {
            return Err(Errno::EINVAL);
        }
        Ok(match kind {
            _ if number == 0 => Who::Nobody,
            F_OWNER_TID => Who::Thread(Arc::downgrade(&thread.find_thread(number)?)),
            F_OWNER_PID => Who::Process(Arc::downgrade(&thread.find_process_of(number)?)),
            _ => {
                let pgid = thread.pid_of(number)?;
                Who::Group(table::members(pgid).next().ok_or(Errno::ESRCH)?.pgid())
            }
        })
    }

    /// What `thread` calls it, while it lives.
    fn named(&self, thread: &Thread) -> Named {
        match self {
            Who::Nobody => Named { kind: F_OWNER_TID, number: 0 },
            Who::Thread(one) => {
                let tid = one.upgrade().filter(|t| !t.is_dying()).map_or(0, |t| t.tid());
                Named { kind: F_OWNER_TID, number: thread.number_of(tid) }
            }
            Who::Process(one) => {
                let pid = one.upgrade().filter(|p| !p.is_zombie()).map_or(0, |p| p.pid);
                Named { kind: F_OWNER_PID, number: thread.number_of(pid) }
            }
            Who::Group(pgid) => {
                let pgid = table::members(*pgid).next().map_or(0, |_| *pgid);
                Named { kind: F_OWNER_PGRP, number: thread.number_of(pgid) }
            }
        }
    }
}

/// What an open file's description keeps of all this, once somebody has asked for some of it.
#[derive(Default)]
pub struct Telling {
    settings: Mutex<Settings>,
}

#[derive(Clone, Default)]
struct Settings {
    who: Who,
    /// Of the one who chose `who`: the effective and the real user id.
    uids: (u32, u32),
    /// 0: SIGIO, without what happened.
    signo: Signo,
    /// While O_ASYNC is set: the descriptor that it was set by, and the place in the file's queue.
    switched_on: Option<(Fd, u64)>,
    /// The sides that count.
    sides: PollMask,
}

/// That of `file`, if there is one.
fn kept(file: &OpenFile) -> Option<Arc<Telling>> {
    file.telling.lock().clone()?.downcast().ok()
}

/// That of `file`, made if there is none.
pub fn of(file: &OpenFile) -> Arc<Telling> {
    kept(file).unwrap_or_else(|| {
        let telling = Arc::new(Telling::default());
        *file.telling.lock() = Some(telling.clone());
        telling
    })
}

/// F_SETOWN, F_SETOWN_EX: `thread` has `file` tell `who`.
pub fn set_owner(thread: &Thread, file: &OpenFile, who: Who) {
    let creds = thread.creds();
    let telling = of(file);
    let mut settings = telling.settings.lock();
    settings.who = who;
    settings.uids = (creds.euid, creds.uid);
}

/// F_GETOWN, F_GETOWN_EX.
pub fn owner(thread: &Thread, file: &OpenFile) -> Named {
    let who = kept(file).map(|telling| telling.settings.lock().who.clone());
    who.unwrap_or_default().named(thread)
}

/// F_SETSIG. EINVAL.
pub fn set_signal(file: &OpenFile, signo: Signo) -> Result {
    if signo > SIGNALS {
        return Err(Errno::EINVAL);
    }
    of(file).settings.lock().signo = signo;
    Ok(())
}

/// F_GETSIG.
pub fn signal(file: &OpenFile) -> Signo {
    kept(file).map_or(0, |telling| telling.settings.lock().signo)
}

/// Switches O_ASYNC of `file`, which is `fd`, on or off: whether it can tell. ENOMEM.
pub fn switch(thread: &Thread, file: &OpenFile, fd: Fd, on: bool) -> Result<bool> {
    let (Tells::Data | Tells::DataAndEnd, Some(queue)) = (file.ops.tells(), file.ops.queue())
    else {
        return Ok(false);
    };
    if !on {
        let Some(telling) = kept(file) else { return Ok(true) };
        let was = telling.settings.lock().switched_on.take();
        if let Some((_, id)) = was {
            queue.unregister(id);
            file.close_hooks.lock().remove(&CloseHook::id(&*telling));
        }
        return Ok(true);
    }
    let telling = of(file);
    if let Some((by, _)) = &mut telling.settings.lock().switched_on {
        *by = fd;
        return Ok(true);
    }
    let mut sides = PollMask::empty();
    sides.set(PollMask::READ, file.is_readable());
    // Of room in a terminal or an AF_UNIX socket Linux tells only who has found none: nobody hears
    // of it here, for a handler that writes to it would be told without end.
    sides.set(PollMask::WRITE, file.is_writable() && file.ops.tells() == Tells::Data);
    let observer = Arc::new(Ear { telling: Arc::downgrade(&telling), tells: file.ops.tells() });
    let id = queue.try_register(sides, Turn::Always, observer)?;
    {
        let mut settings = telling.settings.lock();
        settings.switched_on = Some((fd, id));
        settings.sides = sides;
    }
    file.close_hooks.lock().insert(CloseHook::id(&*telling), telling.clone());
    tell_terminals_users(thread, file, &telling);
    // A socket of the host's is watched from its first look on.
    file.poll();
    Ok(true)
}

/// What has `file`, which is `fd`, tell of its lease, or of what happens in it: the caller, if
/// nobody has said whom.
pub fn messages(thread: &Thread, file: &OpenFile, fd: Fd) -> Arc<dyn Told> {
    let telling = of(file);
    let is_unset = matches!(telling.settings.lock().who, Who::Nobody);
    if is_unset {
        set_owner(thread, file, Who::Process(Arc::downgrade(&thread.process)));
    }
    Arc::new(Messages { telling: Arc::downgrade(&telling), fd })
}

struct Messages {
    telling: Weak<Telling>,
    fd: Fd,
}

impl Told for Messages {
    fn tell(&self) {
        let Some(telling) = self.telling.upgrade() else { return };
        let settings = telling.settings.lock().clone();
        settings.tell(POLL_MSG, POLLIN | POLLRDNORM | POLLMSG, self.fd);
    }
}

/// Nobody is told of anything any more, as before F_SETOWN and F_SETSIG: a lease was given up.
pub fn forget_owner(file: &OpenFile) {
    if let Some(telling) = kept(file) {
        let old = {
            let mut settings = telling.settings.lock();
            settings.signo = 0;
            core::mem::take(&mut settings.who)
        };
        drop(old);
    }
}

/// A terminal that nobody has said of whom it tells: its foreground group, or else the caller.
fn tell_terminals_users(thread: &Thread, file: &OpenFile, telling: &Telling) {
    let Some(terminal) = file.downcast::<TtyFile>() else { return };
    if !matches!(telling.settings.lock().who, Who::Nobody) {
        return;
    }
    let (_, foreground) = terminal.tty().owners();
    let who = match foreground {
        0 => Who::Process(Arc::downgrade(&thread.process)),
        pgid => Who::Group(pgid),
    };
    set_owner(thread, file, who);
}

/// What a file's queue notifies while O_ASYNC is set.
struct Ear {
    telling: Weak<Telling>,
    tells: Tells,
}

impl Observer for Ear {
    fn notify(&self, events: PollMask) {
        let Some(telling) = self.telling.upgrade() else { return };
        let settings = telling.settings.lock().clone();
        let Some((fd, _)) = settings.switched_on else { return };
        if let Some((code, band)) = news(events, settings.sides, self.tells) {
            settings.tell(code, band, fd);
        }
    }
}

impl Telling {
    /// Tells of urgent bytes (MSG_OOB), which needs no O_ASYNC and has a signal of its own.
    pub fn tell_of_urgent(&self) {
        let settings = self.settings.lock().clone();
        settings.send(SigInfo::kernel(SIGURG));
    }
}

impl CloseHook for Telling {
    fn closed(&self, ops: &dyn FileOps) {
        let was = self.settings.lock().switched_on.take();
        if let (Some((_, id)), Some(queue)) = (was, ops.queue()) {
            queue.unregister(id);
        }
    }

    fn id(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }
}

/// si_code and si_band for what happened on these sides of a file.
fn news(events: PollMask, sides: PollMask, tells: Tells) -> Option<(i32, u32)> {
    let has = |mask: PollMask| events.intersects(mask & sides);
    Some(match () {
        () if tells == Tells::DataAndEnd && events.contains(PollMask::HUP) => {
            (POLL_HUP, POLLHUP | POLLERR)
        }
        () if has(PollMask::READ) => (POLL_IN, POLLIN | POLLRDNORM),
        () if has(PollMask::WRITE) => (POLL_OUT, POLLOUT | POLLWRNORM | POLLWRBAND),
        () if tells == Tells::DataAndEnd && events.contains(PollMask::ERR) => (POLL_ERR, POLLERR),
        () => return None,
    })
}

impl Settings {
    fn tell(&self, code: i32, band: u32, fd: Fd) {
        self.send(match self.signo {
            0 => SigInfo::kernel(SIGIO),
            signo => SigInfo::poll(signo, code, band.into(), fd),
        });
    }

    fn send(&self, info: SigInfo) {
        // What finds no room in a queue is told of by SIGIO, which needs none.
        let tell = |send: &dyn Fn(SigInfo) -> Result| {
            if send(info).is_err() {
                // It is about to end, if that fails too.
                let _ = send(SigInfo::kernel(SIGIO));
            }
        };
        let one = |process: Option<Arc<Process>>| {
            if let Some(process) = process.filter(|process| self.may_tell(process)) {
                tell(&|info| send_to_process(&process, info));
            }
        };
        match &self.who {
            Who::Nobody => {}
            Who::Thread(thread) => {
                let thread = thread.upgrade().filter(|thread| self.may_tell(&thread.process));
                if let Some(thread) = thread {
                    tell(&|info| send_to_thread(&thread, info));
                }
            }
            Who::Process(process) => one(process.upgrade()),
            Who::Group(pgid) => table::group(*pgid).into_iter().map(Some).for_each(one),
        }
    }

    /// True if who chose them may send them a signal, or could then.
    fn may_tell(&self, process: &Process) -> bool {
        let (euid, uid) = self.uids;
        euid == 0 || would_be_allowed(euid, uid, process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_goes_by_the_sides_of_the_file() {
        let both = PollMask::READ | PollMask::WRITE;
        let code = |events, sides, tells| news(events, sides, tells).map(|(code, _)| code);
        // The end of a pipe's other side is data, or room.
        let end = both | PollMask::ALWAYS;
        assert_eq!(code(end, PollMask::READ, Tells::Data), Some(POLL_IN));
        assert_eq!(code(end, PollMask::WRITE, Tells::Data), Some(POLL_OUT));
        assert_eq!(code(end, both, Tells::DataAndEnd), Some(POLL_HUP));
        assert_eq!(code(PollMask::WRITE, PollMask::READ, Tells::Data), None);
        assert_eq!(code(PollMask::ERR, PollMask::READ, Tells::DataAndEnd), Some(POLL_ERR));
        // Who watches everything is woken by every change of an internet socket.
        assert_eq!(code(PollMask::ALWAYS, PollMask::READ, Tells::Data), None);
    }
}
