//! Which processors a thread may use.
#![allow(unsafe_code)]

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

    /// Their numbers.
    fn numbers(&self) -> Vec<usize> {
        // SAFETY: plain data; the indices are below the size of the set.
        (0..libc::CPU_SETSIZE as usize)
            .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &self.0) })
            .collect()
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

/// Keeps this thread and child `pid` (and the threads it will make) on one of the processors that
/// this thread may use, the `pick`th modulo their number. Where the host refuses, they stay where
/// they are.
pub fn share_core(pid: u32, pick: u32) {
    let usable = Processors::of(0).map_or(Vec::new(), |all| all.numbers());
    let Some(cpu) = usable.get(pick as usize % usable.len().max(1)) else { return };
    for task in [0, pid] {
        Processors::only(*cpu).give_to(task);
    }
}
