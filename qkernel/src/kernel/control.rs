//! Control requests from qvisor, and their answers.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use qlib::control::{ProcessInfo, Reply, Request, Usage, WakeCause};
use qlib::host::Op;

use super::{containers, image, signals, start, waits};
use crate::arch::heap;
use crate::errno::{Errno, Result};
use crate::hibernate;
use crate::hibernate::deflate::{Failure, Why};
use crate::hibernate::quiesce::Patience;
use crate::host::Call;
use crate::ipc::tty;
use crate::mm::committed::Committed;
use crate::mm::swap::kept;
use crate::task::pause::{self, Reason};
use crate::task::pid_namespace::PidNamespace;
use crate::task::table::{self, Past};
use crate::task::{Process, share};
use crate::{arch, executor};

/// A request lies in the mailbox: `id` is what its reply must name, `len` its length in bytes.
pub fn on_request(id: u64, len: u64) {
    let boot = arch::boot();
    let mut bytes = alloc::vec![0; len.min(boot.mailbox_bytes) as usize];
    let copied = arch::copy_from_gpa(&mut bytes, boot.mailbox);
    // Serving it may take long; the next one may come.
    if let Err(errno) = Call::new(Op::MailboxTaken).arg(0, id).run() {
        crate::klog!(Error, "the mailbox cannot be given back: {errno:?}");
    }
    // It must be served when programs have used memory up.
    heap::on_reserve(|| serve_bytes(id, copied, &bytes));
}

fn serve_bytes(id: u64, copied: Result, bytes: &[u8]) {
    let request =
        copied.and_then(|()| postcard::from_bytes::<Request>(bytes).map_err(|_| Errno::EINVAL));
    match request {
        Ok(request) => serve(id, request),
        Err(errno) => reply(id, &failure(errno, "the control request cannot be read".to_string())),
    }
}

/// Answers request `id`.
pub fn reply(id: u64, reply: &Reply) {
    let bytes = match postcard::to_allocvec(reply) {
        Ok(bytes) => bytes,
        Err(_) => return crate::klog!(Error, "a control reply cannot be encoded"),
    };
    if let Err(errno) = Call::new(Op::ControlReply).arg(0, id).bytes(&bytes).run() {
        crate::klog!(Error, "a control reply was refused: {errno:?}");
    }
}

/// An answer that says that a request failed.
pub fn failure(errno: Errno, message: String) -> Reply {
    Reply::Error { errno: errno.0, message }
}

fn done(result: Result) -> Reply {
    match result {
        Ok(()) => Reply::Done,
        Err(errno) => failure(errno, errno.to_string()),
    }
}

fn serve(id: u64, request: Request) {
    match request {
        Request::Create(spec) => {
            hibernate::wake(WakeCause::Exec);
            reply(id, &containers::create(&spec));
        }
        Request::Start(spec) => start::start(id, spec, true),
        Request::Exec(spec) => start::start(id, spec, false),
        Request::Wait { pid } | Request::Hold { pid } => waits::wait(id, pid),
        Request::Attend { container } => containers::attend(id, container),
        Request::Remove { container } => {
            containers::remove(container);
            reply(id, &Reply::Done);
        }
        Request::Signal { pid, all, signo } => reply(id, &done(signals::send(pid, all, signo))),
        Request::Processes { container } => reply(id, &processes(container)),
        Request::Usage { container } => reply(id, &Reply::Usage(usage(container))),
        Request::Resize { pid, rows, cols } => reply(id, &done(resize(pid, rows, cols))),
        Request::Hibernate { patience_ms, force, stay } => {
            let patience = Patience { ns: patience_ms.saturating_mul(1_000_000), force, stay };
            // Who takes this back may come before the task has begun.
            let called_off = hibernate::called_off();
            executor::spawn(async move {
                let why = Why::Asked(patience);
                let answer = match hibernate::deflate::deflate(why, called_off).await {
                    Ok(()) => Reply::Done,
                    Err(Failure { errno, reason }) => failure(errno, reason),
                };
                reply(id, &answer);
            })
        }
        Request::Wake => {
            hibernate::keep_awake();
            reply(id, &Reply::Done);
        }
        Request::Pause => executor::spawn(async move {
            reply(id, &done(pause::pause(Reason::Order).await.map(|_| ())))
        }),
        Request::Resume => {
            // A hibernated container stays so: that is another kind of sleep, which a wake ends.
            pause::resume(Reason::Order);
            reply(id, &Reply::Done);
        }
        Request::Limit { container, limit } => {
            reply(id, &done(containers::limit(container, limit)));
        }
        Request::Stats => reply(id, &Reply::Stats(Box::new(hibernate::stats::collect()))),
        Request::Why => reply(id, &Reply::Why(hibernate::idle::wakefulness())),
        Request::Checkpoint => {
            let refused = |reason: &str| failure(Errno::EBUSY, reason.to_string());
            reply(id, &image::obstacle().map_or(Reply::Done, refused));
        }
        Request::Kept { written: false } => {
            kept::take_back();
            reply(id, &Reply::Done);
        }
        Request::Kept { written: true } => {
            const GONE: &str = "its programs needed the memory that it kept for the image: give it \
                                more, or put it to sleep first (quark kill ID STOP)";
            let gone = || failure(Errno::ENOMEM, GONE.to_string());
            reply(id, &if kept::written() { Reply::Done } else { gone() });
        }
        Request::Restored { hostname, limit, sleep, paused, background } => {
            const TOO_MUCH: &str =
                "the image holds more memory than the container may have: give it more";
            hibernate::become_copy();
            let is_another = hostname.is_some();
            let taken = containers::take_over(hostname, limit, &sleep);
            if taken.is_ok() {
                if background {
                    hibernate::background::ask();
                }
                image::become_another(is_another);
                pause::resume(Reason::Order);
                if paused {
                    executor::spawn(async { pause::pause(Reason::Order).await.map_or((), drop) });
                }
            }
            let refused = |errno| failure(errno, TOO_MUCH.to_string());
            reply(id, &taken.map_or_else(refused, |()| Reply::Done));
        }
        Request::AwaitService => executor::spawn(async move {
            hibernate::idle::served().await;
            reply(id, &Reply::Done);
        }),
        Request::Platform
        | Request::Release { .. }
        | Request::Adopt { .. }
        | Request::NoteWake
        | Request::Written
        | Request::Become { .. }
        | Request::WatchOutput { .. }
        | Request::AwaitOutput
        | Request::Tasks { .. } => {
            reply(id, &failure(Errno::EINVAL, "that is for the VMM to answer".to_string()));
        }
    }
}

fn resize(pid: u32, rows: u16, cols: u16) -> Result {
    let process = table::process(pid).ok_or(Errno::ESRCH)?;
    let tty = tty::controlling(&process).map_err(|_| Errno::ENOTTY)?;
    tty.set_window(tty::Window { words: [rows, cols, 0, 0] });
    Ok(())
}

/// The processes of a container, as they see each other.
fn processes(number: u32) -> Reply {
    let container = match containers::find(number) {
        Ok(container) => container,
        Err((errno, message)) => return failure(errno, message),
    };
    let namespace = container.namespaces.pid_for_children;
    let own = table::processes().filter(|process| process.container == number);
    Reply::Processes(own.map(|process| describe(&process, &namespace)).collect())
}

/// What the programs of a container use.
fn usage(container: u32) -> Usage {
    let Past { user_ns, system_ns, oom_kills } = table::past_of(container);
    let memory_bytes = share::held_bytes(container, Some(&mut Committed::default()));
    let ended = Usage { memory_bytes, user_ns, system_ns, oom_kills, ..Usage::default() };
    let own = table::processes().filter(|process| process.container == container);
    own.fold(ended, |sum, process| {
        let time = process.usage();
        Usage {
            user_ns: sum.user_ns + time.user_ns,
            system_ns: sum.system_ns + time.system_ns,
            threads: sum.threads + process.threads().len() as u64,
            ..sum
        }
    })
}

fn describe(process: &Process, namespace: &PidNamespace) -> ProcessInfo {
    let cmdline = process.image.lock().cmdline.clone();
    let words: Vec<&[u8]> = cmdline.split(|b| *b == 0).collect();
    let rss_bytes = process.mm().resident_bytes();
    ProcessInfo {
        pid: namespace.number_of(process.pid),
        ppid: namespace.number_of(process.ppid()),
        uid: process.uid(),
        threads: process.threads().len() as u32,
        state: process.state_letter(),
        rss_bytes,
        utime_us: process.usage().user_ns / 1000,
        start_ns: process.start_ns,
        cmdline: String::from_utf8_lossy(&words.join(&b' ')).trim_end().to_string(),
    }
}
