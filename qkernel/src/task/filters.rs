//! Filters of system calls as a thread has them, and what they say of a call (seccomp(2)).
//!
//! A thread's filters are a list that begins with the newest; threads and processes share what they
//! have inherited. Most numbers are allowed by programs that look at nothing but the number; which
//! they are a thread finds out once, and remembers. What follows from a verdict is
//! [`super::seccomp`]'s.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{__NR_exit, __NR_read, __NR_rt_sigreturn, __NR_write};
use qlib::seccomp::{Call, Program, ret};

use super::listener::Listener;
use crate::account;
use crate::errno::{Errno, Result};
use crate::sync::Mutex;

/// The most instructions of all filters of a thread together (MAX_INSNS_PER_PATH); each filter
/// counts [`EACH_INSNS`] more than it has.
const MAX_CHAIN_INSNS: usize = 32768;
const EACH_INSNS: usize = 4;
/// Numbers of calls that are remembered are below this.
const NUMBERS: usize = 512;

/// A set of numbers of calls.
#[derive(Default)]
struct Numbers([AtomicU64; NUMBERS / 64]);

impl Numbers {
    fn has(&self, nr: u64) -> bool {
        let word = self.0.get(nr as usize / 64);
        word.is_some_and(|word| word.load(Relaxed) >> (nr % 64) & 1 != 0)
    }

    fn add(&self, nr: u64) {
        if let Some(word) = self.0.get(nr as usize / 64) {
            word.store(word.load(Relaxed) | 1 << (nr % 64), Relaxed);
        }
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
    }
}

impl Clone for Numbers {
    fn clone(&self) -> Self {
        Numbers(self.0.each_ref().map(|word| AtomicU64::new(word.load(Relaxed))))
    }
}

/// A filter and those before it.
pub struct Filter {
    program: Program,
    /// What it does to a call is logged (SECCOMP_FILTER_FLAG_LOG).
    logs: bool,
    /// Whom it has asked about calls (SECCOMP_RET_USER_NOTIF).
    listener: Option<Arc<Listener>>,
    previous: Option<Arc<Filter>>,
    /// How many there are.
    count: u32,
    /// How many of them have, or had, a listener.
    listeners: u32,
    /// Their instructions, [`EACH_INSNS`] added for each.
    insns: usize,
}

impl Drop for Filter {
    /// Without recursion: there may be thousands.
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.is_unused();
        }
        let mut previous = self.previous.take();
        while let Some(mut filter) = previous.and_then(Arc::into_inner) {
            previous = filter.previous.take();
        }
    }
}

impl Filter {
    /// The filter and those before it, the newest first.
    fn all(&self) -> impl Iterator<Item = &Filter> {
        core::iter::successors(Some(self), |filter| filter.previous.as_deref())
    }

    /// What they hold, in bytes.
    fn held_bytes(&self) -> u64 {
        let each = account::on_heap(size_of::<Filter>());
        let listeners = u64::from(self.listeners) * account::on_heap(size_of::<Listener>());
        u64::from(self.count) * each + listeners + 8 * self.insns as u64
    }

    /// True if they allow a call whatever its arguments are, as far as that can be seen.
    fn allow_unseen(&self, nr: u64) -> bool {
        let call = Call { nr, ..Call::default() };
        // Number and architecture.
        let word = |offset| if offset < 8 { call.word(offset) } else { None };
        let allows = |value| ret::action(value) == ret::ALLOW;
        self.all().all(|filter| filter.program.run(word).is_some_and(allows))
    }

    /// What they say of a call, and which of them says it: of the most severe actions the newest.
    fn judge(&self, call: &Call) -> (u32, Option<&Filter>) {
        let mut verdict = (ret::ALLOW, None);
        for filter in self.all() {
            let value = filter.program.run(|offset| call.word(offset)).unwrap_or(ret::KILL_PROCESS);
            if ret::rank(value) < ret::rank(verdict.0) {
                verdict = (value, Some(filter));
            }
        }
        verdict
    }
}

/// How a thread's calls are restricted, as /proc/PID/status has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// They are not.
    #[default]
    Off,
    /// To the four of [`STRICT`].
    Strict,
    /// By filters.
    Filter,
}

/// What strict mode leaves.
const STRICT: [u32; 4] = [__NR_read, __NR_write, __NR_exit, __NR_rt_sigreturn];

/// A thread's part.
#[derive(Default)]
pub struct State {
    /// [`Mode`], looked at for each call.
    mode: AtomicU8,
    /// Numbers that have been looked at, and those of them that all filters allow whatever the rest
    /// of the call is.
    known: Numbers,
    allowed: Numbers,
    filter: Mutex<Option<Arc<Filter>>>,
}

impl State {
    /// True if calls are restricted.
    pub fn is_on(&self) -> bool {
        self.mode.load(Relaxed) != Mode::Off as u8
    }

    /// How they are.
    pub fn mode(&self) -> Mode {
        const OFF: u8 = Mode::Off as u8;
        const FILTER: u8 = Mode::Filter as u8;
        match self.mode.load(Relaxed) {
            OFF => Mode::Off,
            FILTER => Mode::Filter,
            _ => Mode::Strict,
        }
    }

    /// How many filters there are.
    pub fn count(&self) -> u32 {
        self.filter.lock().as_ref().map_or(0, |filter| filter.count)
    }

    /// For a thread that this one makes.
    pub fn inherit(&self) -> State {
        State {
            mode: AtomicU8::new(self.mode.load(Relaxed)),
            known: self.known.clone(),
            allowed: self.allowed.clone(),
            filter: Mutex::new(self.filter.lock().clone()),
        }
    }

    /// What another filter would lead to. EINVAL in strict mode, EBUSY when it has a listener and
    /// one before it too, ENOMEM when there are too many instructions.
    pub fn with(&self, new: NewFilter) -> Result<Arc<Filter>> {
        let NewFilter { program, logs, listener } = new;
        if self.mode() == Mode::Strict {
            return Err(Errno::EINVAL);
        }
        let previous = self.filter.lock().clone();
        let listens = |filter: &Filter| filter.listener.as_ref().is_some_and(|l| l.is_open());
        if listener.is_some() && previous.as_ref().is_some_and(|last| last.all().any(listens)) {
            return Err(Errno::EBUSY);
        }
        let (count, listeners, others) =
            previous.as_ref().map_or((0, 0, 0), |last| (last.count, last.listeners, last.insns));
        // The new one has none added: so Linux counts.
        if others + program.len() > MAX_CHAIN_INSNS {
            return Err(Errno::ENOMEM);
        }
        Ok(Arc::new(Filter {
            logs,
            listeners: listeners + u32::from(listener.is_some()),
            listener,
            previous,
            count: count + 1,
            insns: others + program.len() + EACH_INSNS,
            program,
        }))
    }

    /// Has these filters count from now on.
    pub fn set(&self, filter: Arc<Filter>) {
        // The old one may be the last of its list: not dropped while the lock is held.
        let old = self.filter.lock().replace(filter);
        drop(old);
        self.known.clear();
        self.allowed.clear();
        self.mode.store(Mode::Filter as u8, Relaxed);
    }

    /// Gives the filters up: the thread ends, and makes no more calls.
    pub fn release(&self) {
        let old = self.filter.lock().take();
        drop(old);
    }

    /// True if this has no filters but such as `newer` has, too.
    pub fn is_within(&self, newer: &State) -> bool {
        let own = self.filter.lock().clone();
        let newer = newer.filter.lock().clone();
        match (self.mode(), own) {
            (Mode::Off, _) => true,
            (Mode::Filter, Some(own)) => {
                newer.is_some_and(|newer| newer.all().any(|f| core::ptr::eq(f, &*own)))
            }
            _ => false,
        }
    }

    /// Restricts to the calls of strict mode. EINVAL when there are filters.
    pub fn be_strict(&self) -> Result {
        if self.mode() == Mode::Filter {
            return Err(Errno::EINVAL);
        }
        self.mode.store(Mode::Strict as u8, Relaxed);
        Ok(())
    }

    /// True if a call is to be served, and nothing else is to be done about it.
    pub fn lets_pass(&self, call: &Call) -> bool {
        !self.is_on() || self.allowed.has(call.nr) || matches!(self.verdict(call), Verdict::Pass)
    }

    /// The same of this call and of all with its number, whatever their arguments are.
    pub fn lets_all_pass(&self, call: &Call) -> bool {
        self.lets_pass(call) && (!self.is_on() || self.allowed.has(call.nr))
    }

    /// True if the filters allow a call whatever its arguments are.
    fn always_allows(&self, filter: &Filter, nr: u64) -> bool {
        if nr < NUMBERS as u64 && !self.known.has(nr) {
            self.known.add(nr);
            if filter.allow_unseen(nr) {
                self.allowed.add(nr);
            }
        }
        self.allowed.has(nr)
    }

    /// What is to become of a call.
    pub fn verdict(&self, call: &Call) -> Verdict {
        match (self.mode(), &*self.filter.lock()) {
            (Mode::Off, _) => Verdict::Pass,
            (Mode::Filter, Some(filter)) if self.always_allows(filter, call.nr) => Verdict::Pass,
            (Mode::Filter, Some(filter)) => match filter.judge(call) {
                (value, Some(filter)) if ret::action(value) != ret::ALLOW => {
                    let is_asked = ret::action(value) == ret::USER_NOTIF;
                    let listener = filter.listener.as_ref().filter(|_| is_asked).cloned();
                    Verdict::Filter { value, logs: filter.logs, listener }
                }
                _ => Verdict::Pass,
            },
            _ if STRICT.iter().any(|nr| u64::from(*nr) == call.nr) => Verdict::Pass,
            _ => Verdict::Strict,
        }
    }

    /// What the filters hold, in bytes, and where, by which shared ones are known.
    pub fn held_bytes(&self) -> Option<(*const Filter, u64)> {
        self.filter.lock().as_ref().map(|filter| (Arc::as_ptr(filter), filter.held_bytes()))
    }
}

/// A filter that is to be added.
pub struct NewFilter {
    /// The program.
    pub program: Program,
    /// SECCOMP_FILTER_FLAG_LOG.
    pub logs: bool,
    /// SECCOMP_FILTER_FLAG_NEW_LISTENER.
    pub listener: Option<Arc<Listener>>,
}

/// What is to become of a call.
pub enum Verdict {
    /// It is served.
    Pass,
    /// Strict mode forbids it.
    Strict,
    /// What a filter has returned for it, which is not SECCOMP_RET_ALLOW.
    Filter {
        /// See there.
        value: u32,
        /// The filter logs.
        logs: bool,
        /// Who is asked, if that is what it has returned and somebody ever listened.
        listener: Option<Arc<Listener>>,
    },
}

#[cfg(test)]
mod tests;
