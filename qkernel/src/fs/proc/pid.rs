//! The directory of one process, or of one of its threads.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use linux_raw_sys::general::{
    CAP_AUDIT_CONTROL, CAP_DAC_OVERRIDE, CAP_SYS_NICE, CAP_SYS_RESOURCE, S_IFDIR, S_IFLNK, S_IFREG,
};
use qlib::{PAGE_SIZE, Va};

use super::map_files::MapFiles;
use super::pagemap::PageMap;
use super::{fd, maps, mounts, net, number, status, user_ns};
use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::fs::inode::Link;
use crate::fs::records::RecordFile;
use crate::fs::synth::{Dir, Listed, Node, link_by, numbered};
use crate::fs::{FileOps, OpenFile, nsfs};
use crate::io::IoBuffer;
use crate::mm::{AddressSpace, ProgramMemory};
use crate::task::access;
use crate::task::namespaces::{Kind, Namespace};
use crate::task::pid_namespace::PidNamespace;
use crate::task::{Login, Process, Thread};
use crate::user_namespace::Ids;

/// Which process, or thread, a file of /proc is about.
#[derive(Clone)]
pub struct Subject {
    process: Weak<Process>,
    /// For /proc/PID/task/TID.
    thread: Option<Weak<Thread>>,
    /// That of the file system.
    namespace: Arc<PidNamespace>,
}

impl Subject {
    /// The process; ESRCH when it is gone.
    pub fn process(&self) -> Result<Arc<Process>> {
        self.process.upgrade().ok_or(Errno::ESRCH)
    }

    /// The thread it is about; for a process its first. ESRCH when there is none.
    pub fn thread(&self) -> Result<Arc<Thread>> {
        match &self.thread {
            Some(thread) => thread.upgrade().ok_or(Errno::ESRCH),
            None => self.process()?.first_thread().ok_or(Errno::ESRCH),
        }
    }

    /// As [`Subject::thread`]; ESRCH also where the first thread of the process has ended while
    /// others live. What it had is not to be found by it any more.
    pub fn living(&self) -> Result<Arc<Thread>> {
        let thread = self.thread()?;
        let lives = self.is_thread() || thread.tid() == thread.process.pid;
        lives.then_some(thread).ok_or(Errno::ESRCH)
    }

    /// What the file system calls `pid`; 0 if it does not see it.
    pub fn number_of(&self, pid: u32) -> u32 {
        self.namespace.number_of(pid)
    }

    /// As [`Subject::number_of`], then what it is called in each namespace down to that of the
    /// process, as a list with tabs.
    pub fn numbers_of(&self, process: &Process, pid: u32) -> String {
        let numbers = self.namespace.numbers_down_to(&process.pid_namespace, pid);
        numbers.iter().map(u32::to_string).collect::<Vec<_>>().join("\t")
    }

    /// True if it is about a single thread.
    pub fn is_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// EACCES unless `reader` may look into the process (ptrace(2), "Ptrace access mode checking").
    pub fn check_access(&self, reader: &Arc<Thread>) -> Result<Arc<Thread>> {
        let thread = self.thread()?;
        access::check(reader, &thread, AccessMode::FileSystem).map_err(|_| Errno::EACCES)?;
        Ok(thread)
    }

    /// The same of what a thread gives up when it ends: ESRCH as [`Subject::living`].
    pub fn check_living(&self, reader: &Arc<Thread>) -> Result<Arc<Thread>> {
        self.check_access(reader)?;
        self.living()
    }

    /// The same of what a link leads to: ENOENT.
    fn check_linked(&self, reader: &Arc<Thread>) -> Result<Arc<Thread>> {
        self.check_living(reader).map_err(|errno| match errno {
            Errno::ESRCH => Errno::ENOENT,
            errno => errno,
        })
    }
}

/// The directory.
pub struct PidDir(Subject);

impl PidDir {
    /// Of a process.
    pub fn of_process(process: &Arc<Process>, namespace: &Arc<PidNamespace>) -> Self {
        let namespace = namespace.clone();
        PidDir(Subject { process: Arc::downgrade(process), thread: None, namespace })
    }
}

type Make = fn(Subject) -> Node;

/// A file that `read` writes for the subject.
fn about(subject: Subject, read: fn(&Subject, &Arc<Thread>) -> Result<Vec<u8>>) -> Node {
    Node::File(0o444, Box::new(move |reader| read(&subject, reader)), None)
}

/// As [`about`], for those who may look into the process when they open the file. It tells of the
/// program that runs then: once another one is executed there is no more to read.
fn private(subject: Subject, read: fn(&Process) -> Vec<u8>) -> Node {
    Node::Own(
        0o400,
        Box::new(move |opener| {
            let process = subject.check_access(opener)?.process.clone();
            let program = process.mm().program();
            let process = Arc::downgrade(&process);
            Ok(Arc::new(RecordFile::whole(move || {
                let process = process.upgrade().ok_or(Errno::ESRCH)?;
                Ok(if program.is_in(&process.mm()) { read(&process) } else { Vec::new() })
            })))
        }),
    )
}

/// As [`private`], about the memory alone: also a record at a time. `next` is as in
/// [`RecordFile::new`], with whom the file was opened by.
fn about_memory(subject: Subject, next: maps::Next) -> Node {
    Node::Own(
        0o400,
        Box::new(move |opener| {
            subject.check_access(opener)?;
            let program = subject.living().ok().map(|thread| thread.mm().program());
            let root = opener.fs().root;
            Ok(Arc::new(RecordFile::new(move |cursor| {
                match program.as_ref().and_then(|p| p.get()) {
                    Some(mm) => next(&mm, &root, cursor),
                    None => Ok(None),
                }
            })))
        }),
    )
}

/// As [`about_memory`], with the policy that the thread has then.
fn numa_maps(subject: Subject) -> Node {
    Node::Own(
        0o400,
        Box::new(move |opener| {
            let thread = subject.check_access(opener)?;
            let (program, root) = (thread.mm().program(), opener.fs().root);
            let policy = thread.attrs.lock().memory_policy;
            Ok(Arc::new(RecordFile::new(move |cursor| match program.get() {
                Some(mm) => maps::numa_maps(&mm, &root, policy, cursor),
                None => Ok(None),
            })))
        }),
    )
}

fn link(subject: Subject, follow: fn(&Arc<Thread>) -> Result<Link>) -> Node {
    link_by(move |reader| follow(&subject.check_linked(reader)?))
}

const NAMES: &[(&str, u32, Make)] = &[
    ("auxv", S_IFREG, |s| private(s, |p| p.image.lock().auxv.clone())),
    ("cgroup", S_IFREG, |s| about(s, |_, _| Ok(b"0::/\n".to_vec()))),
    ("cmdline", S_IFREG, |s| {
        about(s, |s, _| {
            let process = s.process()?;
            let image = process.image.lock().clone();
            Ok(image.arguments(&process.mm()))
        })
    }),
    ("comm", S_IFREG, comm),
    ("coredump_filter", S_IFREG, coredump_filter),
    // There is one.
    ("cpuset", S_IFREG, |s| about(s, |_, _| Ok(b"/\n".to_vec()))),
    ("cwd", S_IFLNK, |s| link(s, |t| Ok(Link::Place(t.fs().cwd)))),
    ("environ", S_IFREG, |s| {
        private(s, |p| {
            let image = p.image.lock().clone();
            image.environment(&p.mm())
        })
    }),
    ("exe", S_IFLNK, |s| link(s, exe)),
    ("fd", S_IFDIR, |s| Node::Dir(Arc::new(fd::FdDir::links(s)))),
    ("fdinfo", S_IFDIR, |s| Node::Dir(Arc::new(fd::FdDir::infos(s)))),
    ("gid_map", S_IFREG, |s| user_ns::map(s, Ids::Groups)),
    ("io", S_IFREG, |s| private(s, |_| status::io())),
    ("limits", S_IFREG, |s| about(s, status::limits)),
    ("loginuid", S_IFREG, loginuid),
    ("map_files", S_IFDIR, |s| Node::Dir(Arc::new(MapFiles(s)))),
    ("maps", S_IFREG, |s| about_memory(s, maps::maps)),
    ("mem", S_IFREG, |s| {
        Node::Own(
            0o600,
            Box::new(move |reader| Ok(Arc::new(MemFile(s.check_living(reader)?.mm().program())))),
        )
    }),
    ("mountinfo", S_IFREG, |s| {
        Node::Own(0o444, Box::new(move |_| mounts::open(&s, mounts::mountinfo)))
    }),
    ("mounts", S_IFREG, |s| Node::Own(0o444, Box::new(move |_| mounts::open(&s, mounts::mounts)))),
    ("net", S_IFDIR, |_| Node::Dir(Arc::new(net::NetDir))),
    ("ns", S_IFDIR, |s| Node::Dir(Arc::new(NsDir(s)))),
    ("numa_maps", S_IFREG, numa_maps),
    ("oom_adj", S_IFREG, |s| about(s, |_, _| Ok(b"0\n".to_vec()))),
    ("oom_score", S_IFREG, |s| about(s, |_, _| Ok(b"0\n".to_vec()))),
    ("oom_score_adj", S_IFREG, oom_score_adj),
    ("pagemap", S_IFREG, |s| {
        Node::Own(
            0o400,
            Box::new(move |by| Ok(Arc::new(PageMap(s.check_living(by)?.mm().program())))),
        )
    }),
    ("personality", S_IFREG, |s| {
        private(s, |p| format!("{:08x}\n", p.traits.lock().personality).into_bytes())
    }),
    ("projid_map", S_IFREG, |s| user_ns::map(s, Ids::Projects)),
    ("root", S_IFLNK, |s| link(s, |t| Ok(Link::Place(t.fs().root)))),
    ("sessionid", S_IFREG, |s| about(s, |s, _| Ok(login_of(s)?.session.to_string().into_bytes()))),
    ("setgroups", S_IFREG, user_ns::setgroups),
    ("smaps", S_IFREG, |s| about_memory(s, maps::smaps)),
    ("smaps_rollup", S_IFREG, |s| about_memory(s, maps::smaps_rollup)),
    ("stat", S_IFREG, |s| about(s, status::stat)),
    ("statm", S_IFREG, |s| about(s, status::statm)),
    ("status", S_IFREG, |s| about(s, status::status)),
    ("task", S_IFDIR, |s| Node::Dir(Arc::new(TaskDir(s)))),
    ("timerslack_ns", S_IFREG, timer_slack),
    ("uid_map", S_IFREG, |s| user_ns::map(s, Ids::Users)),
    ("wchan", S_IFREG, |s| about(s, |_, _| Ok(b"0".to_vec()))),
];

/// /proc/PID/ns: the namespaces of the thread, and those of its children to come.
struct NsDir(Subject);

/// The names in it. What children get is what the thread has, but where setns(2) and unshare(2)
/// say otherwise.
const NAMESPACES: [(&str, Kind); 10] = [
    ("cgroup", Kind::Cgroup),
    ("ipc", Kind::Ipc),
    ("mnt", Kind::Mnt),
    ("net", Kind::Net),
    ("pid", Kind::Pid),
    ("pid_for_children", Kind::Pid),
    ("time", Kind::Time),
    ("time_for_children", Kind::Time),
    ("user", Kind::User),
    ("uts", Kind::Uts),
];

impl Dir for NsDir {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let (_, kind) = *NAMESPACES.iter().find(|(n, _)| n.as_bytes() == name)?;
        let (subject, is_of_children) = (self.0.clone(), name == b"pid_for_children");
        Some(link_by(move |reader| {
            let thread = match kind {
                // It is in these for as long as it has a number.
                Kind::Pid if !is_of_children => subject.check_access(reader)?,
                Kind::User => subject.check_access(reader)?,
                _ => subject.check_linked(reader)?,
            };
            if !is_of_children {
                return Ok(nsfs::link_to(thread.namespace(kind)));
            }
            let namespace = thread.namespaces().pid_for_children.clone();
            // Nobody is in it before there is a first process.
            namespace.init().ok_or(Errno::ENOENT)?;
            Ok(nsfs::link_to(Namespace::Pid(namespace)))
        }))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        NAMESPACES.iter().map(|(name, _)| (name.as_bytes().to_vec(), S_IFLNK)).collect()
    }

    fn owner(&self) -> (u32, u32) {
        PidDir(self.0.clone()).owner()
    }

    fn mode(&self) -> u32 {
        0o511
    }
}

fn exe(thread: &Arc<Thread>) -> Result<Link> {
    let file = thread.process.image.lock().exe.clone().ok_or(Errno::ENOENT)?;
    Ok(Link::Place(fd::place_of(&file, &thread.fs().root)))
}

fn comm(subject: Subject) -> Node {
    let writer = subject.clone();
    Node::File(
        0o644,
        Box::new(move |_| Ok(format!("{}\n", subject.thread()?.name()).into_bytes())),
        Some(Box::new(move |by, bytes| {
            let thread = writer.thread()?;
            if !Arc::ptr_eq(&by.process, &thread.process) {
                return Err(Errno::EINVAL);
            }
            let end =
                bytes.iter().position(|b| *b == 0 || *b == b'\n').unwrap_or(bytes.len()).min(15);
            thread.set_name(bytes[..end].to_vec());
            Ok(())
        })),
    )
}

fn login_of(subject: &Subject) -> Result<Login> {
    Ok(subject.thread()?.attrs.lock().login)
}

/// Who logged in: written by the thread itself, once ([`Login`]).
fn loginuid(subject: Subject) -> Node {
    static SESSION: AtomicU32 = AtomicU32::new(0);
    let writer = subject.clone();
    Node::File(
        0o644,
        Box::new(move |by| {
            let uid = login_of(&subject)?.uid;
            let shown = if uid == Login::UNSET { uid } else { by.creds().uid_shown(uid) };
            Ok(shown.to_string().into_bytes())
        }),
        Some(Box::new(move |by, bytes| {
            if !Arc::ptr_eq(by, &writer.thread()?) {
                return Err(Errno::EPERM);
            }
            let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
            let uid = text.strip_suffix('\n').unwrap_or(text).parse().map_err(|_| Errno::EINVAL)?;
            let uid: u32 = uid;
            let uid = if uid == Login::UNSET { uid } else { by.creds().user.uid_of(uid)? };
            let may_change = by.creds().capable(CAP_AUDIT_CONTROL);
            let mut attrs = by.attrs.lock();
            let session = (SESSION.load(Relaxed) + 1) % Login::UNSET;
            let login = attrs.login.change(uid, session, may_change)?;
            if login.session == session {
                SESSION.store(session, Relaxed);
            }
            attrs.login = login;
            Ok(())
        })),
    )
}

/// What a core dump has in it (core(5)), for the process and its children to come.
fn coredump_filter(subject: Subject) -> Node {
    let writer = subject.clone();
    Node::File(
        0o644,
        Box::new(move |_| {
            let process = subject.process()?;
            if process.is_zombie() {
                return Ok(Vec::new());
            }
            let filter = process.traits.lock().coredump_filter;
            Ok(format!("{filter:08x}\n").into_bytes())
        }),
        Some(Box::new(move |_, bytes| {
            let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
            let filter = number_of(text.strip_suffix('\n').unwrap_or(text))?;
            writer.process()?.traits.lock().coredump_filter = filter & COREDUMP_BITS;
            Ok(())
        })),
    )
}

/// The bits of coredump_filter that mean something.
const COREDUMP_BITS: u32 = 0x1ff;

/// A number as C has it: hexadecimal after "0x", octal after "0". EINVAL.
fn number_of(text: &str) -> Result<u32> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let hexadecimal = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let (digits, radix) = match (hexadecimal, text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    if digits.starts_with(['+', '-']) {
        return Err(Errno::EINVAL);
    }
    u32::from_str_radix(digits, radix).map_err(|_| Errno::EINVAL)
}

/// Of the process, inherited by its children. See [`Traits`](crate::task::process::Traits).
fn oom_score_adj(subject: Subject) -> Node {
    let writer = subject.clone();
    Node::File(
        0o644,
        Box::new(move |_| {
            let (value, _) = subject.process()?.traits.lock().oom_score_adj;
            Ok(format!("{value}\n").into_bytes())
        }),
        Some(Box::new(move |by, bytes| {
            let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
            let value: i32 = text.trim().parse().map_err(|_| Errno::EINVAL)?;
            if !(-1000..=1000).contains(&value) {
                return Err(Errno::EINVAL);
            }
            let (creds, its) = (by.creds(), writer.thread()?.creds());
            let may = creds.capable_over((its.euid, its.egid), CAP_DAC_OVERRIDE);
            if creds.fsuid != its.euid && !may {
                // It has come to belong to another user since the file was opened.
                return Err(Errno::EACCES);
            }
            let process = writer.process()?;
            let (now, least) = &mut process.traits.lock().oom_score_adj;
            if creds.capable(CAP_SYS_RESOURCE) {
                *least = value;
            } else if value < *least {
                return Err(Errno::EACCES);
            }
            *now = value;
            Ok(())
        })),
    )
}

/// /proc/PID/timerslack_ns: 0 sets the default (proc(5)).
fn timer_slack(subject: Subject) -> Node {
    /// EPERM unless `by` is the process itself, or may change how it is scheduled.
    fn check(by: &Thread, thread: &Thread) -> Result {
        let is_capable = || by.creds().capable_in(&thread.creds().user, CAP_SYS_NICE);
        let may = by.process.pid == thread.process.pid || is_capable();
        if may { Ok(()) } else { Err(Errno::EPERM) }
    }
    let writer = subject.clone();
    Node::File(
        0o666,
        Box::new(move |by| {
            let thread = subject.thread()?;
            check(by, &thread)?;
            Ok(format!("{}\n", thread.timer_slack_ns()).into_bytes())
        }),
        Some(Box::new(move |by, bytes| {
            let thread = writer.thread()?;
            check(by, &thread)?;
            let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
            let slack: u64 = text.trim().parse().map_err(|_| Errno::EINVAL)?;
            thread.attrs.lock().timer_slack_ns = slack;
            Ok(())
        })),
    )
}

impl Dir for PidDir {
    fn process(&self) -> Option<Result<Arc<Process>>> {
        (!self.0.is_thread()).then(|| self.0.process())
    }

    fn find(&self, name: &[u8]) -> Option<Node> {
        let (_, _, make) = NAMES.iter().find(|(n, ..)| n.as_bytes() == name)?;
        (!self.0.is_thread() || name != b"task").then(|| make(self.0.clone()))
    }

    fn list(&self) -> Vec<(Vec<u8>, u32)> {
        let shown = |n: &str| !self.0.is_thread() || n != "task";
        NAMES
            .iter()
            .filter(|(n, ..)| shown(n))
            .map(|(n, kind, _)| (n.as_bytes().to_vec(), *kind))
            .collect()
    }

    fn owner(&self) -> (u32, u32) {
        self.0.thread().map_or((0, 0), |t| {
            let creds = t.creds();
            (creds.euid, creds.egid)
        })
    }
}

/// /proc/PID/task.
struct TaskDir(Subject);

impl Dir for TaskDir {
    fn find(&self, name: &[u8]) -> Option<Node> {
        let thread = self.0.namespace.thread(number(name)?)?;
        let process = self.0.process().ok()?;
        if !Arc::ptr_eq(&thread.process, &process) {
            return None;
        }
        let subject = Subject { thread: Some(Arc::downgrade(&thread)), ..self.0.clone() };
        Some(Node::Dir(Arc::new(PidDir(subject))))
    }

    fn list_from(&self, from: u64) -> Vec<Listed> {
        let Ok(process) = self.0.process() else { return Vec::new() };
        let tids = process.threads().into_iter().map(|thread| self.0.number_of(thread.tid()));
        let mut tids: Vec<u32> = tids.filter(|tid| u64::from(*tid) >= from).collect();
        tids.sort_unstable();
        numbered(tids, 0, S_IFDIR)
    }

    fn owner(&self) -> (u32, u32) {
        PidDir(self.0.clone()).owner()
    }
}

/// /proc/PID/mem: the memory of the program that ran when the file was opened, which is when access
/// is checked. Private memory can be written to whatever the process itself may do there: that is
/// how debuggers set breakpoints.
struct MemFile(ProgramMemory);

impl MemFile {
    fn transfer(
        &self,
        buffer: &mut IoBuffer<'_>,
        offset: u64,
        mut step: impl FnMut(&AddressSpace, &mut IoBuffer<'_>, Va, usize) -> Result,
    ) -> Result<usize> {
        let Some(mm) = self.0.get() else { return Ok(0) };
        let mut done = 0;
        while buffer.remaining() > 0 {
            let Some(va) = offset.checked_add(done).map(Va) else { break };
            let len = (PAGE_SIZE - va.page_offset()).min(buffer.remaining() as u64);
            match step(&mm, buffer, va, len as usize) {
                Ok(()) => done += len,
                Err(_) if done == 0 => return Err(Errno::EIO),
                Err(_) => break,
            }
        }
        Ok(done as usize)
    }
}

impl FileOps for MemFile {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        self.transfer(buffer, offset, |mm, buffer, va, len| {
            let mut bytes = alloc::vec![0; len];
            mm.read_bytes(va, &mut bytes)?;
            buffer.put(&bytes).map(|_| ())
        })
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, offset: u64) -> Result<usize> {
        self.transfer(buffer, offset, |mm, buffer, va, len| {
            mm.force_bytes(va, &buffer.take_vec(len)?)
        })
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
