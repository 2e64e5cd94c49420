//! Host calls: one handler for each operation of [`qlib::host::Op`], a file for each
//! family.
//!
//! Nothing of a request is trusted. Segments must lie in guest memory, handles must exist and be of
//! the right kind, paths stay beneath their root, and every call ends with a value or an errno.

mod attr;
mod bounded;
mod dir;
mod disk;
mod file;
pub mod image;
mod linger;
mod lock;
mod misc;
mod netchange;
mod netfile;
mod netlink;
pub mod output;
mod owners;
mod path;
mod pressure;
mod procfs;
mod records;
mod socket;
mod sockopt;
mod store;
pub mod table;
mod tty;
pub mod uds;
mod window;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use qlib::Gpa;
use qlib::control::RootLayer;
use qlib::host::{HostCall, MAX_SEGMENTS, NO_HANDLE, Op, Segment};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::admission::Admission;
use super::events::Poller;
use super::log_limit::LogBudget;
use super::mailbox::Replies;
use super::memory::{GuestMemory, GuestRange, Ranges};
use super::names::{self, Names};
use super::pressure::Pressure;
use super::wake_note::WakeNote;
use bounded::Bounded;
use disk::DiskWork;
use lock::LockWaits;
use output::Output;
use owners::Owners;
use path::GuestPath;
use records::RecordCount;
use sockopt::NetLimits;
use table::{Object, Table};
use uds::{HostUds, Uds};

use crate::store::Store;
use crate::streams::Stream;

/// Everything a host call may touch.
#[derive(Debug)]
pub struct HostSide {
    /// Guest memory.
    pub memory: Arc<GuestMemory>,
    /// The objects behind handles.
    pub handles: Table,
    /// The event loop's shared half.
    pub poller: Arc<Poller>,
    /// Where answers to control requests go.
    pub replies: Arc<Replies>,
    /// Where pages go when the sandbox sleeps, if it has a store.
    store: Option<Store>,
    /// Where the next wake is noted.
    pub wake_note: WakeNote,
    /// Whom a wake waits for before it reads its working set.
    admission: OnceLock<Admission>,
    /// What tells that the host is short of memory, if the sandbox is to sleep then.
    pressure: OnceLock<Pressure>,
    /// What the host remembers of names that the guest looked up.
    names: Arc<Names>,
    /// /proc/self/fd, through which a descriptor is opened anew.
    proc_fd: Arc<OwnedFd>,
    /// The capabilities that processes of the container were given, as a mask. See
    /// [`HostSide::grant`].
    granted: AtomicU64,
    /// What the network namespace says.
    net: NetLimits,
    /// Whose set-ID programs the guest must not see as such.
    owners: Owners,
    /// What is taken at most to reach the memory limit, in bytes. See [`HostSide::note_limit`].
    to_the_limit: AtomicU64,
    /// What the files of layers on disk may hold, in bytes. See [`HostSide::note_layer`].
    layer_bytes: AtomicU64,
    /// How many descriptors handles and windows may hold.
    max_descriptors: usize,
    /// What the guest may still write into the log.
    log: LogBudget,
    /// The reads and writes that may block.
    bounded: Arc<Bounded>,
    /// What the host does with its disk for the guest.
    disk: Arc<DiskWork>,
    /// Locks of others that the guest waits for.
    lock_waits: Arc<LockWaits>,
    /// How many record locks the guest holds.
    lock_records: Arc<RecordCount>,
    /// AF_UNIX sockets in volumes.
    uds: Uds,
    /// What somebody waits for in the container's output.
    pub output: Output,
}

/// One request while it is served.
struct Call<'h> {
    host: &'h HostSide,
    handle: u32,
    args: [u64; 6],
    segments: SmallVec<[Segment; 8]>,
}

type Outcome = Result<u64, Errno>;

impl HostSide {
    /// A host side over `memory` with no handles yet.
    pub fn new(
        memory: Arc<GuestMemory>,
        poller: Arc<Poller>,
        replies: Arc<Replies>,
        store: Option<Store>,
    ) -> Result<HostSide, Errno> {
        let proc_fd = Arc::new(crate::sys::procfs::descriptors()?);
        let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        crate::sys::take_interrupts().map_err(errno)?;
        let (granted, net, owners) = (AtomicU64::new(0), NetLimits::read(), Owners::read());
        let (max_descriptors, log) = (table::descriptor_share(), LogBudget::default());
        let (handles, disk) = (Table::new(), Arc::new(DiskWork::new(poller.clone())));
        let lock_waits = Arc::new(LockWaits::new(poller.clone()));
        Ok(HostSide {
            memory,
            handles,
            poller,
            replies,
            store,
            wake_note: WakeNote::default(),
            admission: OnceLock::new(),
            pressure: OnceLock::new(),
            names: Arc::default(),
            proc_fd,
            granted,
            net,
            owners,
            to_the_limit: AtomicU64::new(0),
            layer_bytes: AtomicU64::new(0),
            max_descriptors,
            log,
            bounded: Arc::default(),
            disk,
            lock_waits,
            lock_records: Arc::default(),
            uds: Uds::default(),
            output: Output::default(),
        })
    }

    /// Gives an object that the guest asked for a handle. EMFILE when its share of the host's
    /// descriptors is used up.
    fn insert(&self, object: Object) -> Result<u32, Errno> {
        self.check_room()?;
        self.handles.insert(object)
    }

    /// EMFILE when the guest would be given no further handle.
    fn check_room(&self) -> Result<(), Errno> {
        let waits = self.disk.len() + self.lock_waits.len();
        let used = self.handles.len() + self.memory.window_count() + waits;
        if used >= self.max_descriptors { Err(Errno::MFILE) } else { Ok(()) }
    }

    /// Notes the memory limit that the guest has, or is about to have, in bytes (0: none). The
    /// cgroup's is a little above; what the guest keeps in reserve lies between. A lower one than
    /// before changes nothing.
    pub fn note_limit(&self, limit: u64) {
        const MORE_BYTES: u64 = 48 << 20;
        let ram = self.memory.ram_bytes();
        let within = if limit == 0 { ram } else { limit.min(ram) };
        if let Some(store) = &self.store {
            let layers = self.layer_bytes.load(Ordering::Relaxed);
            store.raise_quota(within.saturating_mul(2).saturating_add(layers));
        }
        let most = if limit != 0 && limit <= ram { limit / 3 + MORE_BYTES } else { 0 };
        self.to_the_limit.fetch_max(most, Ordering::Relaxed);
        self.names.note_limit(limit);
    }

    /// Notes that a process of the container is given `capabilities` (a mask) from outside: what
    /// the host is asked to do from now on may need them. Our own do not count, so whoever takes
    /// over the guest kernel gets none but those.
    pub fn grant(&self, capabilities: u64) {
        self.granted.fetch_or(capabilities, Ordering::AcqRel);
    }

    /// Notes that a container with this layer over its root is made: what its files hold comes to
    /// the store beside what memory does.
    pub fn note_layer(&self, layer: Option<RootLayer>) {
        if let Some(layer) = layer.filter(|layer| layer.is_on_disk)
            && let Some(store) = &self.store
        {
            let bytes = layer.bytes(self.memory.ram_bytes());
            self.layer_bytes.fetch_add(bytes, Ordering::Relaxed);
            store.raise_quota_by(bytes);
        }
    }

    /// Has wakes wait for a place, from now on.
    pub fn admit_by(&self, admission: Option<Admission>) {
        if let Some(admission) = admission {
            self.admission.get_or_init(|| admission);
        }
    }

    /// Has the guest be told when the host is short of memory.
    pub fn be_told_by(&self, pressure: Option<Pressure>) {
        if let Some(pressure) = pressure {
            self.pressure.get_or_init(|| pressure);
        }
    }

    /// Has the host drop what it remembers of names when that is too much.
    pub fn drop_names_by(&self, files: Option<names::Files>) {
        self.names.be_told_by(files);
    }

    /// Allows AF_UNIX sockets in volumes, once, before the guest runs.
    pub fn allow_uds(&self, uds: HostUds) {
        self.uds.allow(uds);
    }

    fn granted(&self) -> u64 {
        self.granted.load(Ordering::Acquire)
    }

    /// Serves `call`: fills in `ret`, and `args` where the operation has results there.
    pub fn call(&self, call: &mut HostCall) {
        let outcome = self.serve(call);
        if outcome == Err(Errno::NOENT) {
            self.names.missed();
        }
        call.ret = match outcome {
            Ok(value) => i64::try_from(value).unwrap_or(i64::from(-libc::EOVERFLOW)),
            Err(errno) => -i64::from(errno.raw_os_error()),
        };
    }

    fn serve(&self, call: &mut HostCall) -> Outcome {
        let op = Op::from_u32(call.op).ok_or(Errno::NOSYS)?;
        let segments = self.segments(call.segs, call.seg_count)?;
        let mut request = Call { host: self, handle: call.handle, args: call.args, segments };
        let outcome = request.dispatch(op);
        tracing::trace!(?op, handle = request.handle, ?outcome, "host call");
        call.args = request.args;
        outcome
    }

    fn segments(&self, table: Gpa, count: u32) -> Result<SmallVec<[Segment; 8]>, Errno> {
        if count > MAX_SEGMENTS {
            return Err(Errno::INVAL);
        }
        const SIZE: usize = size_of::<Segment>();
        let bytes = count as usize * SIZE;
        // The segment table must be RAM: one that a file's truncation takes away makes no sense.
        let range = self.memory.ram_slice(table, bytes as u64).ok_or(Errno::FAULT)?;
        let mut raw: SmallVec<[u8; 8 * SIZE]> = SmallVec::from_elem(0, bytes);
        range.read(&mut raw)?;
        let word = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default());
        Ok(raw
            .chunks_exact(SIZE)
            .map(|s| Segment { gpa: Gpa(word(&s[..8])), len: word(&s[8..]) })
            .collect())
    }

    /// Registers a descriptor that the caller of the sandbox supplied as directory or file to
    /// mount.
    pub fn add_mount(&self, fd: OwnedFd) -> Result<u32, Errno> {
        self.handles.insert(Object::mount(fd)?)
    }

    /// Registers one that serves as standard input, output or error.
    pub fn add_stdio(&self, stream: Stream) -> Result<u32, Errno> {
        self.handles.insert(Object::stdio(stream)?)
    }

    /// Gives up a handle.
    pub fn close(&self, handle: u32) -> Result<(), Errno> {
        let object = self.handles.remove(handle).ok_or(Errno::BADF)?;
        self.output.closed(handle);
        if object.token().is_some() {
            self.poller.unwatch(object.fd().as_fd());
        }
        Ok(())
    }
}

impl<'h> Call<'h> {
    fn dispatch(&mut self, op: Op) -> Outcome {
        match op {
            Op::Open => self.open(),
            Op::Create => self.create(),
            Op::Close => self.host.close(self.handle).map(|()| 0),
            Op::Read => self.read(),
            Op::Write => self.write(),
            Op::Truncate => self.truncate(),
            Op::Seek => self.seek(),
            Op::StreamFlags => self.stream_flags(),
            Op::Allocate => self.allocate(),
            Op::Sync => self.sync(),
            Op::SyncFs => self.sync_fs(),
            Op::Fetch => self.fetch(),
            Op::HugePage => self.huge_page(),
            Op::DiskResult => self.disk_result(),
            Op::DiskForget => self.disk_forget(),
            Op::Lock => self.lock(),
            Op::LockTest => self.lock_test(),
            Op::LockWait => self.lock_wait(),
            Op::LockForget => self.lock_forget(),
            Op::StatPath => self.stat_path(),
            Op::Stat => self.stat(),
            Op::StatFs => self.stat_fs(),
            Op::SetAttr => self.set_attr(),
            Op::GetXattr => self.get_xattr(),
            Op::SetXattr => self.set_xattr(),
            Op::ListXattr => self.list_xattr(),
            Op::RemoveXattr => self.remove_xattr(),
            Op::ReadDir => self.read_dir(),
            Op::ReadLink => self.read_link(),
            Op::MkDir => self.mkdir(),
            Op::MkNod => self.mknod(),
            Op::SymLink => self.symlink(),
            Op::Link => self.link(),
            Op::LinkFile => self.link_file(),
            Op::Rename => self.rename(),
            Op::Unlink => self.unlink(),
            Op::WindowMap => self.window_map(),
            Op::WindowDrop => self.window_drop(),
            Op::WindowsRelease => self.windows_release(),
            Op::TtyIoctl => self.tty_ioctl(),
            Op::Socket => self.socket(),
            Op::Bind => self.bind(),
            Op::Connect => self.connect(),
            Op::Listen => self.listen(),
            Op::Accept => self.accept(),
            Op::Send => self.send(),
            Op::Recv => self.recv(),
            Op::Shutdown => self.shutdown(),
            Op::GetSockOpt => self.get_sockopt(),
            Op::SetSockOpt => self.set_sockopt(),
            Op::GetSockName => self.socket_name(false),
            Op::GetPeerName => self.socket_name(true),
            Op::SockIoctl => self.sock_ioctl(),
            Op::Watch => self.watch(),
            Op::NetFile => self.net_file(),
            Op::ConnectUnix => self.connect_unix(),
            Op::BindUnix => self.bind_unix(),
            Op::Poll => self.poll(),
            Op::TakeReady => self.take_ready(),
            Op::Committed => self.committed(),
            Op::Resident => {
                self.args[0] = self.host.memory.resident_bytes();
                Ok(0)
            }
            Op::Random => self.random(),
            Op::Log => self.log(),
            Op::ControlReply => self.control_reply(),
            Op::Exit => self.exit(),
            Op::Clocks => self.clocks(),
            Op::MailboxTaken => self.host.replies.taken(self.host, self.args[0]).map(|()| 0),
            Op::MemoryUsedUp => self.memory_used_up(),
            Op::PressureWatch | Op::PressureLine | Op::PressureLeave => self.pressure_call(op),
            Op::SwapOut | Op::SwapIn | Op::SwapFree | Op::ReapOut | Op::ReapIn | Op::StoreStat => {
                self.store_call(op)
            }
        }
    }

    fn object(&self) -> Result<Arc<Object>, Errno> {
        if self.handle == NO_HANDLE {
            return Err(Errno::BADF);
        }
        self.host.handles.get(self.handle).ok_or(Errno::BADF)
    }

    /// Segment `index`, checked.
    fn range(&self, index: usize) -> Result<GuestRange<'h>, Errno> {
        let s = self.segments.get(index).ok_or(Errno::INVAL)?;
        self.host.memory.slice(s.gpa, s.len).ok_or(Errno::FAULT)
    }

    /// Segments from `index` on, checked.
    fn ranges(&self, index: usize) -> Result<Ranges<'h>, Errno> {
        self.host.memory.ranges(self.segments.get(index..).ok_or(Errno::INVAL)?)
    }

    /// Segment `index` as a path.
    fn path(&self, index: usize) -> Result<GuestPath, Errno> {
        GuestPath::read(self.range(index)?)
    }

    /// Copies `bytes` to segment `index`, whole; EINVAL when it is too small.
    fn put(&self, index: usize, bytes: &[u8]) -> Outcome {
        let range = self.range(index)?;
        if range.len() < bytes.len() {
            return Err(Errno::INVAL);
        }
        range.write(bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Argument `index` as a 32-bit number; EINVAL when it is larger.
    fn arg32(&self, index: usize) -> Result<u32, Errno> {
        u32::try_from(self.args[index]).map_err(|_| Errno::INVAL)
    }

    /// Argument `index` as a C int, sign taken from its low 32 bits.
    fn arg_int(&self, index: usize) -> i32 {
        self.args[index] as u32 as i32
    }
}

#[cfg(test)]
mod tests;
