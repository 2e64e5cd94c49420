//! Terminals: `quark` hands over the master end, and the shim copies between it and the FIFOs.

use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt::Timeout,
    sockopt::set_socket_timeout,
};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::stdio::{self, Paths};

/// How long `quark` may take to hand over the terminal once it has made it.
const HANDOVER: Duration = Duration::from_secs(10);

/// How long output may take to be read by the client after the program's end. A process that the
/// program left behind may hold its terminal for ever.
const DRAIN: Duration = Duration::from_secs(2);

/// Bytes that are copied at a time. The memory is there only while they are.
const CHUNK: usize = 4096;

/// A socket for the handover.
pub struct Socket {
    listener: UnixListener,
    /// The directory, by whose descriptor the socket has a name that is short enough.
    _dir: OwnedFd,
    name: String,
}

impl Socket {
    /// Makes one in a directory.
    ///
    /// # Errors
    /// When that fails.
    pub fn new(dir: &Path) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let file = format!("terminal-{}.sock", COUNT.fetch_add(1, Ordering::Relaxed));
        std::fs::remove_file(dir.join(&file)).ok();
        let dir = std::fs::File::open(dir).with_context(|| dir.display().to_string())?;
        let fd = dir.as_raw_fd();
        let name = format!("/proc/{}/fd/{fd}/{file}", std::process::id());
        let listener = UnixListener::bind(&name).context("the socket for a terminal")?;
        Ok(Self { listener, _dir: dir.into(), name })
    }

    /// For --console-socket.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes what `quark` has sent.
    async fn receive(&self) -> Result<OwnedFd> {
        let (stream, _) = tokio::time::timeout(HANDOVER, self.listener.accept())
            .await
            .context("no terminal")??;
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        set_socket_timeout(&stream, Timeout::Recv, Some(HANDOVER))?;
        let (mut text, mut space) =
            ([0; 128], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut name = [IoSliceMut::new(&mut text)];
        recvmsg(&stream, &mut name, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        files.flatten().next().context("no terminal came")
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        std::fs::remove_file(&self.name).ok();
    }
}

/// A terminal's master end.
pub struct Terminal {
    master: Arc<AsyncFd<OwnedFd>>,
    output: JoinHandle<()>,
    input: Option<JoinHandle<()>>,
    /// The other end of standard input.
    kept: Option<OwnedFd>,
}

impl Terminal {
    /// Takes the terminal from `quark`, and starts to copy.
    ///
    /// # Errors
    /// When it does not come, or a FIFO cannot be opened.
    pub async fn attach(socket: &Socket, paths: &Paths) -> Result<Self> {
        let master = socket.receive().await?;
        rustix::fs::fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK)?;
        let master = Arc::new(watched(master)?);
        let output = match stdio::output(&paths.stdout)? {
            Some(ends) => {
                let (master, sink) = (master.clone(), Sink::new(ends.program)?);
                tokio::spawn(async move {
                    copy(&master, &sink).await.ok();
                    drop(ends.kept);
                })
            }
            // What nobody wants must be read all the same, or the program would wait.
            None => {
                let master = master.clone();
                tokio::spawn(async move { drain(&master).await })
            }
        };
        let (mut input, mut kept) = (None, None);
        if let Some(ends) = stdio::input(&paths.stdin)? {
            kept = ends.kept;
            let (source, sink) = (watched(ends.program)?, master.clone());
            input = Some(tokio::spawn(async move {
                copy(&source, &Sink::Ready(sink)).await.ok();
            }));
        }
        Ok(Self { master, output, input, kept })
    }

    /// Sets its size.
    ///
    /// # Errors
    /// When it has none any more.
    pub fn resize(&self, columns: u32, rows: u32) -> Result<()> {
        let size = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
        let size =
            Winsize { ws_row: size(rows), ws_col: size(columns), ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(self.master.get_ref(), size).context("the size of the terminal")
    }

    /// Lets standard input end: the client has closed it.
    pub fn close_stdin(&mut self) {
        self.kept = None;
    }

    /// Ends when all output has been copied, or nobody reads it.
    pub async fn finish(mut self) {
        tokio::time::timeout(DRAIN, &mut self.output).await.ok();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.output.abort();
        if let Some(input) = &self.input {
            input.abort();
        }
    }
}

/// Where bytes go.
enum Sink {
    /// Something that can be waited for.
    Ready(Arc<AsyncFd<OwnedFd>>),
    /// A file, which is always ready.
    File(OwnedFd),
}

impl Sink {
    fn new(fd: OwnedFd) -> Result<Self> {
        let stat = rustix::fs::fstat(&fd)?;
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        if kind == rustix::fs::FileType::RegularFile {
            return Ok(Sink::File(fd));
        }
        Ok(Sink::Ready(Arc::new(watched(fd)?)))
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = match self {
                Sink::File(file) => rustix::io::write(file, bytes)?,
                Sink::Ready(fd) => {
                    let mut guard = fd.writable().await?;
                    match guard.try_io(|fd| Ok(rustix::io::write(fd.as_fd(), bytes)?)) {
                        Ok(written) => written?,
                        Err(_would_block) => continue,
                    }
                }
            };
            bytes = &bytes[written..];
        }
        Ok(())
    }
}

/// Reads what is there: nothing at the end.
async fn read(source: &AsyncFd<OwnedFd>) -> io::Result<Vec<u8>> {
    loop {
        let mut guard = source.readable().await?;
        let mut bytes = vec![0; CHUNK];
        match guard.try_io(|fd| Ok(rustix::io::read(fd.as_fd(), &mut bytes[..])?)) {
            Ok(Ok(length)) => {
                bytes.truncate(length);
                return Ok(bytes);
            }
            Ok(Err(e)) if e.kind() == ErrorKind::Interrupted => {}
            // EIO: nobody has the other end of a terminal.
            Ok(Err(e)) => return Err(e),
            Err(_would_block) => {}
        }
    }
}

async fn copy(source: &AsyncFd<OwnedFd>, sink: &Sink) -> io::Result<()> {
    loop {
        let bytes = read(source).await?;
        if bytes.is_empty() {
            return Ok(());
        }
        sink.write_all(&bytes).await?;
    }
}

async fn drain(source: &AsyncFd<OwnedFd>) {
    while read(source).await.is_ok_and(|bytes| !bytes.is_empty()) {}
}

/// Registers a descriptor with the runtime.
#[expect(
    deprecated,
    reason = "register is unsafe, and asks for what an OwnedFd does: to stay the same"
)]
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::new(fd)
}
