//! The containers of the sandbox. The first one is the sandbox's own, and all others end with it.
//! Those are further containers of its pod: they have their own files, and share the kernel, its
//! memory, its sleep, the network, and what else they have no namespace of their own for.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use qlib::control::{
    ContainerSpec, FIRST_CONTAINER, FurtherNamespaces, MemoryLimit, Reply, SleepSpec, Timers,
    WakeCause, Whose,
};
use qlib::host::{NO_HANDLE, Op};

use super::control::{failure, reply};
use super::waits::{self, exit_code};
use super::{checks, shrink_all};
use crate::errno::{Errno, Result};
use crate::fs::mount::namespace::MountNamespace;
use crate::fs::proc::sys;
use crate::fs::{self, FsContext, Sources};
use crate::hibernate;
use crate::hibernate::idle::Habit;
use crate::host::{Call, Handle};
use crate::ipc::{self, tty};
use crate::mm::AddressSpace;
use crate::mm::committed::Committed;
use crate::namespace::IpcNamespace;
use crate::net::{answers, probes};
use crate::sync::{Mutex, mutex};
use crate::task::namespaces::Namespaces;
use crate::task::pid_namespace::PidNamespace;
use crate::task::{Process, exit, share, table};
use crate::user_namespace::UserNs;
use crate::utsname::UtsNamespace;
use crate::wait::Signal;
use crate::{account, executor, mm, time};

/// How long the end of a container's first process waits for that of its other processes.
const FAREWELL_NS: u64 = 2_000_000_000;

/// How many there may be at once.
const MAX_CONTAINERS: usize = 1 << 10;

/// What a process has of its container.
#[derive(Clone)]
pub struct Container {
    /// Where its processes find their files, until one has moved its root.
    pub fs: FsContext,
    /// What its processes see of the system.
    pub namespaces: Namespaces,
    /// Its first process, once that has been started.
    pub first: Option<Arc<Process>>,
    /// oom_score_adj that the first process began with.
    pub oom_score_adj: i32,
}

struct Kept {
    container: Container,
    /// The streams of its first process, until that has been started.
    streams: Streams,
    limit: MemoryLimit,
    /// Who is told of its end.
    attended: Attended,
    /// Its first process has ended, or nobody attends it any more.
    is_ending: bool,
    /// It has ended.
    ended: Option<End>,
}

/// How a further container ended.
#[derive(Clone, Copy)]
struct End {
    /// The exit code of its first process.
    code: i32,
    /// That was killed because memory was used up.
    for_memory: bool,
}

/// Who is told of the end of a further container.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attended {
    /// Somebody will ask.
    NotYet,
    /// This request.
    By(u64),
    /// Nobody any more.
    ByNobody,
}

struct Containers {
    by_number: BTreeMap<u32, Kept>,
    last: u32,
}

static CONTAINERS: Mutex<Containers> =
    mutex(Containers { by_number: BTreeMap::new(), last: FIRST_CONTAINER });

/// Set at each end of a process, for the ends of containers.
static ENDED: Mutex<Vec<Arc<Signal>>> = mutex(Vec::new());

/// Its parts that a process needs: ESRCH, with a line, if there is no such container.
pub fn find(number: u32) -> core::result::Result<Container, (Errno, String)> {
    let containers = CONTAINERS.lock();
    let found = containers.by_number.get(&number).filter(|kept| !kept.is_ending);
    found.map(|kept| kept.container.clone()).ok_or_else(|| {
        let what = match number {
            FIRST_CONTAINER => "the container has not been made yet".to_string(),
            _ => "the container has ended".to_string(),
        };
        (Errno::ESRCH, what)
    })
}

/// Its first process has been started, with this oom_score_adj.
pub fn begun(number: u32, first: &Arc<Process>, oom_score_adj: i32) {
    if let Some(kept) = CONTAINERS.lock().by_number.get_mut(&number) {
        kept.container.first = Some(first.clone());
        kept.container.oom_score_adj = oom_score_adj;
    }
}

/// Takes the streams that its first process is to have.
pub fn take_streams(number: u32) -> Streams {
    let mut containers = CONTAINERS.lock();
    let kept = containers.by_number.get_mut(&number);
    kept.map(|kept| core::mem::take(&mut kept.streams)).unwrap_or_default()
}

/// Makes a container.
pub fn create(spec: &ContainerSpec) -> Reply {
    let sources = Sources::of(spec);
    let streams = spec.stdio.map(|handle| (handle != NO_HANDLE).then(|| Handle::new(handle)));
    let is_first = CONTAINERS.lock().by_number.is_empty();
    let made = if is_first {
        create_first(spec, sources, streams)
    } else {
        create_further(spec, sources, streams)
    };
    match made {
        Ok(number) => Reply::Container(number),
        Err((errno, message)) => failure(errno, message),
    }
}

type Streams = [Option<Handle>; 3];
type Made = core::result::Result<u32, (Errno, String)>;

fn create_first(spec: &ContainerSpec, sources: Sources, streams: Streams) -> Made {
    sys::renew_boot_id();
    #[cfg(feature = "poison")]
    if crate::arch::poison::attempt(&spec.hostname) {
        return Err((Errno::ECANCELED, "poisoned".to_string()));
    }
    UtsNamespace::initial().set_hostname(spec.hostname.clone());
    for (name, value) in &spec.sysctl {
        if let Err(errno) = fs::proc::set_sysctl(name, value) {
            let why = match errno {
                Errno::ENOENT => "there is no such setting in the guest kernel",
                Errno::EPERM => "it would have no effect in the guest kernel",
                _ => "it cannot have this value",
            };
            return Err((errno, format!("sysctl {name}={value}: {why}")));
        }
    }
    // Made while there is memory for certain.
    AddressSpace::placeholder();
    account::note_memory_limit(spec.memory_limit);
    let namespaces = Namespaces::initial();
    let fs = mount(spec, sources, FIRST_CONTAINER, &namespaces)?;
    enter(FIRST_CONTAINER, (fs, namespaces), streams, spec.memory_limit);
    sleep_as(&spec.sleep);
    Ok(FIRST_CONTAINER)
}

fn create_further(spec: &ContainerSpec, sources: Sources, streams: Streams) -> Made {
    let (count, number) = {
        let mut containers = CONTAINERS.lock();
        containers.last += 1;
        (containers.by_number.len(), containers.last)
    };
    if count >= MAX_CONTAINERS {
        return Err((Errno::ENOSPC, format!("the pod has {count} containers already")));
    }
    if table::process(1).is_none_or(|first| first.is_zombie()) {
        let what = "the pod's first container does not run: start it before others are made";
        return Err((Errno::ESRCH, what.to_string()));
    }
    let namespaces = namespaces(&spec.namespaces, &spec.hostname)?;
    let fs = mount(spec, sources, number, &namespaces)?;
    enter(number, (fs, namespaces), streams, spec.memory_limit);
    if let Err(errno) = apply_limit() {
        let refused = CONTAINERS.lock().by_number.remove(&number);
        drop(refused);
        table::forget_container(number);
        set_limit();
        let what = "the pod holds more memory than the limits of its containers allow together";
        return Err((errno, what.to_string()));
    }
    Ok(number)
}

fn namespaces(
    whose: &FurtherNamespaces,
    hostname: &str,
) -> core::result::Result<Namespaces, (Errno, String)> {
    let user = UserNs::default();
    let mut namespaces = Namespaces { mnt: MountNamespace::empty(&user), ..Namespaces::initial() };
    match whose.ipc {
        Whose::First => {}
        Whose::Own => namespaces.ipc = IpcNamespace::new(&user, ipc::namespace_ended),
        Whose::Of(other) => namespaces.ipc = find(other)?.namespaces.ipc,
    }
    match whose.pid {
        Whose::First => {}
        Whose::Own => {
            let within = PidNamespace::initial().within(&user);
            namespaces.pid_for_children = within
                .map_err(|errno| (errno, format!("making the container's namespaces: {errno}")))?;
        }
        Whose::Of(other) => namespaces.pid_for_children = find(other)?.namespaces.pid_for_children,
    }
    match whose.uts {
        Whose::First => {}
        Whose::Own => {
            namespaces.uts = UtsNamespace::initial().copy(&user);
            namespaces.uts.set_hostname(hostname.to_string());
        }
        Whose::Of(other) => namespaces.uts = find(other)?.namespaces.uts,
    }
    Ok(namespaces)
}

fn mount(
    spec: &ContainerSpec,
    sources: Sources,
    number: u32,
    namespaces: &Namespaces,
) -> core::result::Result<FsContext, (Errno, String)> {
    fs::mount_container(spec, sources, number, namespaces).map_err(|(errno, place)| {
        let advice = match errno {
            Errno::EROFS => ": it does not exist, and cannot be made on a read-only file system",
            _ => "",
        };
        (errno, format!("making {place} in the container failed: {errno}{advice}"))
    })
}

fn enter(
    number: u32,
    (fs, namespaces): (FsContext, Namespaces),
    streams: Streams,
    limit: MemoryLimit,
) {
    let kept = Kept {
        container: Container { fs, namespaces, first: None, oom_score_adj: 0 },
        streams,
        limit,
        attended: Attended::NotYet,
        is_ending: false,
        ended: None,
    };
    CONTAINERS.lock().by_number.insert(number, kept);
    table::know_container(number);
}

/// When the sandbox goes to sleep by itself, and what its timers do then.
fn sleep_as(spec: &SleepSpec) {
    probes::come_from(&spec.ignore_from);
    answers::are(&spec.answer);
    checks::are(&spec.ignore_exec);
    hibernate::deflate::let_timers(spec.timers);
    if spec.dry_run && (spec.after_ms > 0 || spec.on_pressure) {
        hibernate::dry::begin();
    }
    if spec.on_pressure {
        hibernate::told::heed();
    }
    if spec.after_ms > 0 {
        hibernate::idle::watch(Habit {
            after_ns: spec.after_ms.saturating_mul(1_000_000),
            timers_rest: spec.timers == Timers::Rest,
        });
    }
}

/// Container `number` has this limit from now on: EBUSY if more is held.
pub fn limit(number: u32, limit: MemoryLimit) -> Result {
    if number != FIRST_CONTAINER
        && limit.whole != 0
        && share::held_bytes(number, Some(&mut Committed::default())) > limit.guest
    {
        return Err(Errno::EBUSY);
    }
    let before = {
        let mut containers = CONTAINERS.lock();
        let container = containers.by_number.get_mut(&number).ok_or(Errno::ESRCH)?;
        core::mem::replace(&mut container.limit, limit)
    };
    let done = apply_limit();
    if done.is_err()
        && let Some(container) = CONTAINERS.lock().by_number.get_mut(&number)
    {
        container.limit = before;
    }
    done
}

/// The first container is another one from now on, of this name and with this limit: EBUSY if more
/// is held.
pub fn take_over(hostname: Option<String>, limit: MemoryLimit, sleep: &SleepSpec) -> Result {
    self::limit(FIRST_CONTAINER, limit)?;
    if let Some(hostname) = hostname {
        UtsNamespace::initial().set_hostname(hostname);
    }
    sleep_as(sleep);
    Ok(())
}

/// The limits have changed as containers came or went. Who goes cannot be refused.
fn set_limit() {
    if let Err(errno) = apply_limit() {
        crate::klog!(Info, "the memory limit stays as it was: {errno}");
    }
}

fn apply_limit() -> Result {
    let by_number: Vec<(u32, MemoryLimit)> = {
        let containers = CONTAINERS.lock();
        containers.by_number.iter().map(|(number, c)| (*number, c.limit)).collect()
    };
    let limits: Vec<MemoryLimit> = by_number.iter().map(|(_, limit)| *limit).collect();
    let limit = joint_limit(&limits);
    if limit != account::memory_limit() {
        mm::limit::set_limit(limit, shrink_all)?;
    }
    let is_own =
        |(number, limit): &(u32, MemoryLimit)| *number != FIRST_CONTAINER && limit.whole != 0;
    let own = by_number.into_iter().filter(is_own);
    share::set(own.map(|(number, limit)| (number, limit.guest)));
    Ok(())
}

/// What holds for all of them together: the first one's limit, in whose cgroup of the host all of
/// the sandbox is; else the sum of the others', if each has one.
fn joint_limit(limits: &[MemoryLimit]) -> MemoryLimit {
    match limits.split_first() {
        Some((first, others)) if first.whole == 0 => {
            if others.is_empty() || others.iter().any(|limit| limit.whole == 0) {
                return MemoryLimit::default();
            }
            others.iter().fold(MemoryLimit::default(), |sum, limit| MemoryLimit {
                whole: sum.whole.saturating_add(limit.whole),
                guest: sum.guest.saturating_add(limit.guest),
            })
        }
        Some((first, _)) => *first,
        None => MemoryLimit::default(),
    }
}

/// Answers request `id` when a further container has ended.
pub fn attend(id: u64, number: u32) {
    if set_attended(number, Attended::By(id)) {
        return tell_end(number);
    }
    let what = "there is no such container in the pod";
    reply(id, &failure(Errno::ESRCH, what.to_string()));
}

/// Notes who is told of the end of a further container: whether there is one of this number.
fn set_attended(number: u32, attended: Attended) -> bool {
    match CONTAINERS.lock().by_number.get_mut(&number) {
        Some(kept) if number != FIRST_CONTAINER => {
            kept.attended = attended;
            true
        }
        _ => false,
    }
}

/// If a further container has ended, and it is known who is to be told, it is forgotten.
fn tell_end(number: u32) {
    let gone = {
        let by_number = &mut CONTAINERS.lock().by_number;
        let is_known = |kept: &Kept| kept.ended.is_some() && kept.attended != Attended::NotYet;
        if by_number.get(&number).is_some_and(is_known) { by_number.remove(&number) } else { None }
    };
    let Some(gone) = gone else { return };
    table::forget_container(number);
    let (attended, ended) = (gone.attended, gone.ended);
    // Its mounts go before others hear of it.
    drop(gone);
    set_limit();
    if let (Attended::By(id), Some(End { code, for_memory })) = (attended, ended) {
        reply(id, &Reply::Ended { code, for_memory });
    }
}

/// A process has become a zombie with this wait status.
pub fn process_ended(process: &Arc<Process>, status: i32) {
    checks::ends(process.pid);
    waits::process_ended(process, status);
    for ended in &*ENDED.lock() {
        ended.set();
    }
    if process.is_first {
        let for_memory = process.tree.lock().is_killed_for_memory;
        match process.container {
            FIRST_CONTAINER => end_all(exit_code(status)),
            number => end(number, End { code: exit_code(status), for_memory }),
        }
    }
}

/// Nobody attends a further container any more: its processes are killed.
pub fn remove(number: u32) {
    if set_attended(number, Attended::ByNobody) {
        hibernate::wake(WakeCause::Signal);
        tell_end(number);
        let code = 128 + linux_raw_sys::general::SIGKILL as i32;
        end(number, End { code, for_memory: false });
    }
}

/// Waits until none of these processes runs, or the time is over.
async fn see_off(are_they: impl Fn(&Process) -> bool, deadline_ns: u64) {
    let signal = Arc::new(Signal::default());
    ENDED.lock().push(signal.clone());
    let timer = time::insert(deadline_ns, signal.clone());
    while table::processes().any(|p| are_they(&p) && !p.is_zombie())
        && time::monotonic_ns() < deadline_ns
    {
        signal.wait().await;
    }
    time::cancel(timer);
    let gone = {
        let mut ended = ENDED.lock();
        let at = ended.iter().position(|other| Arc::ptr_eq(other, &signal));
        at.map(|at| ended.remove(at))
    };
    drop(gone);
}

/// A further container ends: kills what is left of it, waits for that, and tells who attends.
fn end(number: u32, how: End) {
    {
        let mut containers = CONTAINERS.lock();
        let Some(container) = containers.by_number.get_mut(&number) else { return };
        if core::mem::replace(&mut container.is_ending, true) {
            return;
        }
    }
    exit::kill_all(|process| process.container == number);
    executor::spawn(async move {
        let deadline_ns = time::monotonic_ns() + FAREWELL_NS;
        see_off(|process| process.container == number, deadline_ns).await;
        tty::console::drain(deadline_ns).await;
        waits::container_gone(number);
        if let Some(kept) = CONTAINERS.lock().by_number.get_mut(&number) {
            kept.ended = Some(how);
        }
        tell_end(number);
    });
}

/// True if the platform took the first container's first process away, which is why the sandbox
/// ends then.
static FIRST_TAKEN_AWAY: AtomicBool = AtomicBool::new(false);

/// The platform has taken a thread of `process` away, and the process ends for that.
pub fn process_taken_away(process: &Process) {
    if process.pid == 1 {
        FIRST_TAKEN_AWAY.store(true, Ordering::Relaxed);
    }
}

/// The first container's first process has ended: kills what is left, waits for it, and ends the
/// sandbox.
fn end_all(code: i32) {
    exit::kill_all(|process| process.pid != 1);
    executor::spawn(async move {
        let deadline_ns = time::monotonic_ns() + FAREWELL_NS;
        see_off(|_| true, deadline_ns).await;
        tty::console::drain(deadline_ns).await;
        let why = u64::from(FIRST_TAKEN_AWAY.load(Ordering::Relaxed));
        if let Err(errno) = Call::new(Op::Exit).arg(0, code as u64).arg(1, why).run() {
            crate::klog!(Error, "the sandbox refused to end: {errno:?}");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_count_together() {
        let limit = |whole: u64| MemoryLimit { whole, guest: whole / 2 };
        let none = MemoryLimit::default();
        assert_eq!(joint_limit(&[]), none);
        assert_eq!(joint_limit(&[limit(8)]), limit(8));
        assert_eq!(joint_limit(&[limit(8), limit(2), none]), limit(8));
        assert_eq!(joint_limit(&[none]), none);
        assert_eq!(joint_limit(&[none, limit(2), limit(4)]), limit(6));
        assert_eq!(joint_limit(&[none, limit(2), none]), none);
    }
}
