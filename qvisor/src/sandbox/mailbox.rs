//! Requests to the guest kernel and its answers: the mailbox through which requests go, and who
//! gets which answer.

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};

use qlib::Gpa;
use qlib::control::{FIRST_CONTAINER, Reply, Request};
use qlib::platform::{EVENT_CONTROL, Event};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::events::Dispatch;
use super::hostcall::HostSide;
use crate::sys;
use crate::sys::ordered::{Mutex, MutexGuard, place};

/// Bytes of requests that may wait for the mailbox.
pub(super) const MAX_LINE_BYTES: usize = 4 << 20;

/// Who gets an answer.
#[derive(Debug)]
pub(super) enum Target {
    /// `makes`: the answer is the number of something that nobody else knows of.
    Connection {
        key: u64,
        socket: Arc<OwnedFd>,
        makes: bool,
    },
    /// Nobody any more; what was made for the request is not wanted.
    Abandoned,
    Local(mpsc::Sender<Reply>),
}

/// What was made for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// A process, by its number.
    Process(u32),
    /// A further container.
    Container(u32),
}

impl Made {
    fn of(reply: &Reply) -> Option<Made> {
        match reply {
            Reply::Pid(pid) => Some(Made::Process(*pid)),
            Reply::Container(number) => Some(Made::Container(*number)),
            _ => None,
        }
    }
}

/// Requests on their way into the kernel.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The one that lies in the mailbox: the kernel has not said that it has a copy.
    pub(super) lying: Option<u64>,
    /// Those that come after it: id and bytes.
    pub(super) waiting: VecDeque<(u64, Gpa, Vec<u8>)>,
    /// How many bytes those are.
    pub(super) bytes: usize,
}

/// The requests that the kernel has not answered yet.
#[derive(Debug, Default)]
pub struct Replies {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Target>, place::MailboxTargets>,
    line: Mutex<Line, place::MailboxLine>,
    /// What was made for a connection: processes that it has not asked the end of yet, and
    /// containers.
    unclaimed: Mutex<Vec<(u64, Made)>, place::Unclaimed>,
    /// What nobody wants, and what wakes the event loop to end it.
    unwanted: Mutex<Vec<Made>, place::Unwanted>,
    pub(super) wakeup: OnceLock<OwnedFd>,
    /// The user that this process is of.
    owner: OnceLock<u32>,
}

impl Replies {
    /// No request outstanding.
    pub fn new() -> Replies {
        Replies::default()
    }

    pub(super) fn unclaimed(&self) -> MutexGuard<'_, Vec<(u64, Made)>> {
        self.unclaimed.lock()
    }

    pub(super) fn unwanted(&self) -> MutexGuard<'_, Vec<Made>> {
        self.unwanted.lock()
    }

    /// The user that this process is of, asked for once: before the process is confined.
    pub fn owner(&self) -> u32 {
        *self.owner.get_or_init(|| rustix::process::geteuid().as_raw())
    }

    /// Makes the eventfd that wakes their server up. Once it is confined a process can make none.
    ///
    /// # Errors
    /// Those of eventfd(2); EEXIST when there is one.
    pub fn make_wakeup(&self) -> Result<(), Errno> {
        self.owner();
        let wakeup = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        self.wakeup.set(wakeup).map_err(|_| Errno::EXIST)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Target>> {
        self.waiting.lock()
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }

    /// The kernel has copied request `id` out of the mailbox: puts the next one there, and has the
    /// event loop notify the kernel, which is in a host call now. ENOENT when that is not what lies
    /// there.
    pub fn taken(&self, host: &HostSide, id: u64) -> Result<(), Errno> {
        let mut line = self.line();
        if line.lying != Some(id) {
            return Err(Errno::NOENT);
        }
        line.lying = None;
        while let Some((id, gpa, payload)) = line.waiting.pop_front() {
            line.bytes -= payload.len();
            match host.memory.write(gpa, &payload) {
                Ok(()) => {
                    line.lying = Some(id);
                    host.poller.post(request_event(id, &payload));
                    break;
                }
                Err(e) => {
                    tracing::error!("a control request cannot be put into the mailbox: {e}");
                    self.waiting().remove(&id);
                }
            }
        }
        Ok(())
    }

    fn register(&self, target: Target) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.waiting().insert(id, target);
        id
    }

    /// The number of the last request.
    pub fn last(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The kernel knows requests up to this number, whose answers nobody waits for here.
    pub fn go_on_after(&self, last: u64) {
        self.next.fetch_max(last, Ordering::Relaxed);
    }

    pub(super) fn outstanding(&self, connection: u64) -> usize {
        self.waiting()
            .values()
            .filter(|t| matches!(t, Target::Connection { key, .. } if *key == connection))
            .count()
    }

    /// Forgets requests after this one, and all that was made for somebody: the connections that
    /// wait for those answers.
    pub(super) fn cut_after(&self, last: u64) -> Vec<u64> {
        let mut keys = Vec::new();
        self.waiting().retain(|id, target| {
            if let Target::Connection { key, .. } = target
                && *id > last
            {
                keys.push(*key);
            }
            *id <= last
        });
        self.unclaimed().clear();
        self.unwanted().clear();
        keys
    }

    pub(super) fn forget_connection(&self, connection: u64) {
        self.waiting().retain(|_, target| match target {
            Target::Connection { key, makes, .. } if *key == connection => {
                let makes = *makes;
                *target = Target::Abandoned;
                makes
            }
            _ => true,
        });
        let mut unclaimed = self.unclaimed();
        let left = unclaimed.extract_if(.., |(key, _)| *key == connection).map(|(_, made)| made);
        self.unwanted().extend(left);
    }

    /// Has the event loop end what nobody wants.
    fn wake_server(&self) {
        if let Some(wakeup) = self.wakeup.get() {
            rustix::io::write(wakeup, &1u64.to_ne_bytes()).ok();
        }
    }

    /// Passes the postcard form of a reply on to whoever waits for it. ENOENT when nobody does (any
    /// more), EINVAL when it is not a reply.
    pub fn deliver(&self, id: u64, reply: &[u8]) -> Result<(), Errno> {
        // The command line does not get to parse what did not pass here.
        let decoded: Reply = postcard::from_bytes(reply).map_err(|_| Errno::INVAL)?;
        // Answers on one connection must not mix: the lock is held until it is sent, which does not
        // block.
        let mut waiting = self.waiting();
        match waiting.remove(&id).ok_or(Errno::NOENT)? {
            Target::Connection { key, socket, makes } => {
                if let (true, Some(made)) = (makes, Made::of(&decoded)) {
                    self.unclaimed().push((key, made));
                }
                send_reply(&socket, reply);
            }
            Target::Abandoned => {
                if let Some(made) = Made::of(&decoded) {
                    self.unwanted().push(made);
                    self.wake_server();
                }
            }
            Target::Local(sender) => {
                // The receiver may have given up waiting.
                sender.send(decoded).ok();
            }
        }
        Ok(())
    }

    /// Answers on a connection without having asked the kernel.
    pub(super) fn answer(&self, socket: &OwnedFd, reply: &Reply) {
        let _turn = self.waiting();
        if let Ok(bytes) = postcard::to_allocvec(reply) {
            send_reply(socket, &bytes);
        }
    }
}

fn send_reply(socket: &OwnedFd, reply: &[u8]) {
    let head = (reply.len() as u32).to_le_bytes();
    let parts = [IoSlice::new(&head), IoSlice::new(reply)];
    let sent = sys::send_files(socket, &parts, &[], SendFlags::DONTWAIT);
    if sent != Ok(head.len() + reply.len()) {
        // Gone, or it does not read: nobody waits for such a client. The event loop sees the
        // hang-up.
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).ok();
    }
}

fn request_event(id: u64, payload: &[u8]) -> Event {
    Event { kind: EVENT_CONTROL, a: id, b: payload.len() as u64, ..Event::default() }
}

/// The guest buffer through which requests reach the kernel, one at a time: each lies there until
/// the kernel says that it has a copy ([`qlib::host::Op::MailboxTaken`]), and the others wait in
/// memory of the host.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox {
    /// Where.
    pub gpa: Gpa,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Mailbox {
    pub(super) fn submit(
        &self,
        host: &HostSide,
        request: &Request,
        target: Target,
        dispatch: Dispatch<'_>,
    ) -> Result<(), Errno> {
        let payload = postcard::to_allocvec(request).map_err(|_| Errno::INVAL)?;
        if payload.len() as u64 > self.bytes {
            return Err(Errno::TOOBIG);
        }
        if let Request::Start(process) | Request::Exec(process) = request {
            host.grant(process.capabilities.iter().fold(0, |all, set| all | set));
        }
        if let Request::Create(spec) = request {
            host.note_layer(spec.root_layer);
        }
        if let Request::Limit { container: FIRST_CONTAINER, limit } = request {
            host.note_limit(limit.guest);
        }
        let mut line = host.replies.line();
        if line.lying.is_some() {
            // What the VMM itself wants is little, and must not fail because others want much.
            if matches!(target, Target::Connection { .. })
                && line.bytes + payload.len() > MAX_LINE_BYTES
            {
                return Err(Errno::AGAIN);
            }
            let id = host.replies.register(target);
            line.bytes += payload.len();
            line.waiting.push_back((id, self.gpa, payload));
            return Ok(());
        }
        host.memory.write(self.gpa, &payload)?;
        let id = host.replies.register(target);
        line.lying = Some(id);
        // The kernel may say at once that it has taken it.
        drop(line);
        dispatch(&request_event(id, &payload));
        Ok(())
    }

    /// Gives a request of the VMM's own to the kernel. The reply comes over the channel, perhaps
    /// only after more turns of the event loop.
    pub fn local(
        &self,
        host: &HostSide,
        request: &Request,
        dispatch: Dispatch<'_>,
    ) -> Result<mpsc::Receiver<Reply>, Errno> {
        let (sender, receiver) = mpsc::channel();
        self.submit(host, request, Target::Local(sender), dispatch)?;
        Ok(receiver)
    }
}
