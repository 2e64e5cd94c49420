//! Which processors a thread may use.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle};

thread_local! {
    /// What this thread could use before it was [kept](Processors::keep) on one of them.
    static BEFORE: Cell<Option<Processors>> = const { Cell::new(None) };
}

/// The processors that a thread may use.
#[derive(Clone, Copy)]
pub struct Processors(libc::cpu_set_t);

impl Processors {
    /// Those of thread `tid` (0: this one); `None` if the host does not say.
    pub fn of(tid: u32) -> Option<Self> {
        // SAFETY: a cpu_set_t is plain data, of the size that is passed.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let r = libc::sched_getaffinity(tid as i32, size_of::<libc::cpu_set_t>(), &raw mut set);
            (r == 0).then_some(Self(set))
        }
    }

    /// These are this thread's: what it is to get back after it was [kept](Self::keep) on one. If
    /// nothing but a cpuset bounds it, every processor there can be, for who sets a thread's
    /// processors bounds it also when the cpuset has grown.
    pub fn to_give_back(self) -> Self {
        let every = Self::every();
        every.give_to(0);
        // SAFETY: plain data.
        if Self::of(0).is_some_and(|now| unsafe { libc::CPU_EQUAL(&now.0, &self.0) }) {
            return every;
        }
        self.give_to(0);
        self
    }

    /// Their numbers.
    fn numbers(&self) -> Vec<usize> {
        // SAFETY: plain data; the indices are below the size of the set.
        (0..libc::CPU_SETSIZE as usize)
            .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &self.0) })
            .collect()
    }

    /// Every processor that there can be.
    fn every() -> Self {
        // SAFETY: plain data, of which each bit stands for a processor.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            (&raw mut set).write_bytes(0xff, 1);
            Self(set)
        }
    }

    /// Only `cpu`.
    pub fn only(cpu: usize) -> Self {
        // SAFETY: plain data; the macro checks the index.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            Self(set)
        }
    }

    /// All of these but `cpu`; `None` if none is left.
    pub fn without(mut self, cpu: usize) -> Option<Self> {
        // SAFETY: the macros check the index.
        unsafe {
            libc::CPU_CLR(cpu, &mut self.0);
            (libc::CPU_COUNT(&self.0) > 0).then_some(self)
        }
    }

    /// Keeps this thread, which may use all of these, on `cpu` alone until [`Self::let_go`].
    pub fn keep(&self, cpu: usize) {
        BEFORE.set(Some(*self));
        Self::only(cpu).give_to(0);
    }

    /// This thread may use all of these again.
    pub fn let_go(&self) {
        BEFORE.set(None);
        self.give_to(0);
    }

    /// Lets thread `tid` (0: this one) use these only. Where the host refuses, it stays as it was.
    pub fn give_to(&self, tid: u32) {
        // SAFETY: plain data, of the size that is passed.
        unsafe {
            libc::sched_setaffinity(tid as i32, size_of::<libc::cpu_set_t>(), &raw const self.0)
        };
    }
}

/// The processor that this thread runs on; `None` if the host does not say.
pub fn current_processor() -> Option<usize> {
    // SAFETY: no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Starts a thread. It may use all processors, also where this one is [kept](Processors::keep) on
/// one, which the host would have it inherit.
pub fn spawn_thread<T: Send + 'static>(
    name: impl Into<String>,
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let before = BEFORE.get();
    Builder::new().name(name.into()).stack_size(stack_bytes).spawn(move || {
        if let Some(all) = before {
            all.give_to(0);
        }
        work()
    })
}

/// Keeps this thread and child `pid` (and the threads it will make) on one of the processors that
/// this thread may use, the `pick`th modulo their number. Where the host refuses, they stay where
/// they are.
pub fn share_core(pid: u32, pick: u32) {
    let Some(all) = Processors::of(0) else { return };
    let usable = all.numbers();
    let Some(cpu) = usable.get(pick as usize % usable.len().max(1)) else { return };
    all.keep(*cpu);
    Processors::only(*cpu).give_to(pid);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_that_is_kept_are_not_kept() {
        let numbers = || Processors::of(0).expect("the host says").numbers();
        let all = Processors::of(0).expect("the host says");
        let seen = || spawn_thread("seen", 64 << 10, numbers).expect("a thread").join();
        all.keep(all.numbers()[0]);
        let inherited = std::thread::spawn(numbers).join().expect("no panic");
        let meanwhile = seen().expect("no panic");
        all.let_go();
        assert_eq!(inherited, [all.numbers()[0]]);
        assert_eq!(meanwhile, all.numbers());
        assert_eq!(numbers(), all.numbers());
        assert_eq!(seen().expect("no panic"), all.numbers());
    }
}
