//! `quark pool`: containers of a template that are ready to go on, and who takes one.
//!
//! The supervisor makes containers under IDs of its own, up to where they wait for
//! [`ToChild::Go`]. Who takes one gets the other end of its set-up socket and the lock by which it
//! is somebody's own, gives its directory another name, and has it go on. Until then whoever has
//! these two ends it by ending: nothing is left that runs.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signalfd::SignalFd;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::bundle::Bundle;
use super::child::{FromChild, ToChild};
use super::cli::{self, Global};
use super::client::short_path;
use super::create::{self, Begun, Created, Origin};
use super::error::ContainerError;
use super::state::{Entry, State, Store};
use super::template::{self, Template};
use super::{checkpoint, durable, info, life, run, wait, wire};
use crate::console;
use crate::image::Manifest;
use crate::sandbox::hostcall::image::STREAMS;
use crate::sandbox::hostcall::table::Kind;
use crate::streams::Stream;
use crate::sys::Child;
use crate::sys::utc::Utc;

/// How long the two sides may take to answer each other.
const TALK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nothing is made after something could not be made.
const PAUSE: Duration = Duration::from_secs(1);

/// What a supervisor is asked: for a container, with this bundle if one was chosen.
#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    bundle: Option<PathBuf>,
}

/// Its answer.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// This container is the asker's, whose first process has this number. With it come its
    /// set-up socket and its owner's lock.
    Yours(String, u32),
    /// There is none, as it says.
    None(String),
}

/// Where the supervisor of a template listens.
fn socket_path(store: &Store, name: &str, given: Option<&Path>) -> PathBuf {
    given.map_or_else(|| store.pools().join(format!("{name}.sock")), Path::to_owned)
}

/// `quark pool`: until a signal asks it to end; the exit code.
///
/// # Errors
/// With no container left.
pub fn pool(global: &Global, options: &cli::Pool) -> Result<i32> {
    create::check_global(global)?;
    let store = Store::new(&global.root)?;
    let template = template::open(&store, &options.template)?;
    let mut bundle = Bundle::load(template.bundle(options.bundle.as_deref())?)?;
    if options.new_network {
        bundle.set_new_network();
    }
    if bundle.process.terminal {
        bail!("a container with a terminal cannot be kept ready: whose terminal it is to be?");
    }
    let manifest = template.read()?;
    checkpoint::check_bundle(&template.files.dir, &manifest, &bundle)?;
    let streams = stand_ins(&manifest)?;
    let signals = console::catch_signals()?;
    let path = socket_path(&store, &template.name, options.socket.as_deref());
    let listener = listen(&store, &path)?;
    for entry in store.entries(&format!("pool-{}-", template.name)) {
        life::remove_abandoned(&entry);
    }
    let supervisor = Supervisor {
        global,
        store: &store,
        template: &template,
        bundle: &bundle,
        manifest: &manifest,
        background: options.background,
        size: options.size as usize,
        streams,
        signals,
        made: 0,
        begun: Vec::new(),
        ready: VecDeque::new(),
        given: Vec::new(),
        not_before: Instant::now(),
    };
    let ended = supervisor.serve(&listener);
    std::fs::remove_file(&path).ok();
    ended.map(|()| 0)
}

fn opening(socket: &Path) -> String {
    format!("opening {}", socket.parent().unwrap_or(socket).display())
}

/// Listens where nobody does.
fn listen(store: &Store, path: &Path) -> Result<UnixListener> {
    template::alone(store, || {
        if path.parent() == Some(&store.pools()) {
            std::fs::create_dir_all(store.pools()).context("making the directory of pools")?;
        }
        let (_dir, short) = short_path(path).with_context(|| opening(path))?;
        if UnixStream::connect(&short).is_ok() {
            bail!("there is a pool at {} already", path.display());
        }
        let is_socket =
            |m: std::fs::Metadata| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type());
        if std::fs::symlink_metadata(&short).is_ok_and(is_socket) {
            std::fs::remove_file(&short).ok();
        }
        // Who may connect may have the containers.
        let before = rustix::process::umask(Mode::from_bits_retain(0o177));
        let bound = UnixListener::bind(&short);
        rustix::process::umask(before);
        bound.with_context(|| format!("listening at {}", path.display()))
    })
}

/// What stands for the standard streams until somebody takes the container: they must be of the
/// kind that the image has.
fn stand_ins(manifest: &Manifest) -> Result<[OwnedFd; STREAMS as usize]> {
    let first = manifest.container.volumes.len() as u32 + 1;
    let null = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let one = |number: u32| -> Result<OwnedFd> {
        let handle = manifest.parts.handles.iter().find(|handle| handle.number == number);
        Ok(match handle.map(|handle| handle.kind) {
            Some(Kind::Stream { tty: true, .. }) => bail!(
                "the container of the template had a terminal, and such a one cannot be kept ready"
            ),
            Some(Kind::StdioFile) => rustix::fs::memfd_create("stream", MemfdFlags::CLOEXEC)?,
            Some(Kind::StdioSocket) => UnixStream::pair()?.0.into(),
            Some(Kind::StdioDir) => {
                rustix::fs::open("/", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?
            }
            _ => null()?,
        })
    };
    Ok([one(first)?, one(first + 1)?, one(first + 2)?])
}

/// The supervisor of a pool.
struct Supervisor<'a> {
    global: &'a Global,
    store: &'a Store,
    template: &'a Template,
    bundle: &'a Bundle,
    /// What it says of itself.
    manifest: &'a Manifest,
    /// The rest of the image is read ahead of use once they go on.
    background: bool,
    size: usize,
    streams: [OwnedFd; STREAMS as usize],
    signals: SignalFd,
    /// How many have been begun, ever.
    made: u64,
    begun: Vec<Begun>,
    ready: VecDeque<Created>,
    /// Those that somebody took, with the IDs that they had: this process is their parent.
    given: Vec<(Entry, Child)>,
    /// When the next one may be begun.
    not_before: Instant,
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        self.begun.clear();
        self.ready.drain(..).for_each(run::undo);
    }
}

impl Supervisor<'_> {
    fn serve(mut self, listener: &UnixListener) -> Result<()> {
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        let mut has_been_full = false;
        loop {
            while self.ready.len() + self.begun.len() < self.size
                && self.begun.len() < at_once
                && Instant::now() >= self.not_before
            {
                let begun = self.begin();
                self.note(begun, has_been_full)?;
            }
            if !has_been_full && self.ready.len() == self.size {
                has_been_full = true;
                info::print(&format!("{} containers are ready\n", self.size))?;
            }
            let ready = match self.wait(listener)? {
                Event::Signal => match console::end_if_asked(&self.signals) {
                    Err(_) => return Ok(()),
                    Ok(()) => continue,
                },
                Event::Asked => {
                    if let Err(e) = self.answer(listener) {
                        tracing::warn!("whoever asked for a container has not got one: {e:#}");
                    }
                    if !self.template.is_current(self.store) {
                        bail!("template {} has been deleted", self.template.name);
                    }
                    continue;
                }
                Event::Ended => {
                    self.reap();
                    continue;
                }
                Event::Pause => continue,
                Event::Made(at) => self.begun.swap_remove(at).finish(&self.signals),
            };
            let ready = ready.map(|created| self.ready.push_back(created));
            self.note(ready, has_been_full)?;
        }
    }

    /// Goes on after a failure, a moment later, unless it is one of the first containers.
    fn note(&mut self, done: Result<()>, has_been_full: bool) -> Result<()> {
        match done {
            Err(e) if has_been_full && !e.is::<console::Interrupted>() => {
                tracing::warn!("a container for the pool was not made: {e:#}");
                self.not_before = Instant::now() + PAUSE;
                Ok(())
            }
            other => other,
        }
    }

    fn begin(&mut self) -> Result<()> {
        self.made += 1;
        let id = format!("pool-{}-{}-{}", self.template.name, std::process::id(), self.made);
        let image = Origin::new(&self.template.files, self.manifest)?;
        let streams = Some(self.streams.each_ref().map(AsFd::as_fd));
        let request =
            create::Request::of_image(self.global, &id, self.bundle, image, &self.signals);
        self.begun.push(create::begin(&create::Request {
            streams,
            background: self.background,
            ..request
        })?);
        Ok(())
    }

    /// What happens next.
    fn wait(&self, listener: &UnixListener) -> Result<Event> {
        let mut fds = vec![self.signals.as_fd(), listener.as_fd()];
        fds.extend(self.begun.iter().map(Begun::setup));
        let of_begun = fds.len();
        fds.extend(self.ready.iter().map(|created| created.child.pidfd()));
        fds.extend(self.given.iter().map(|(_, child)| child.pidfd()));
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // What is being made is told of when it is.
        let timeout = if self.begun.is_empty() && self.ready.len() < self.size {
            let pause = self.not_before.saturating_duration_since(Instant::now());
            PollTimeout::try_from(pause).unwrap_or(PollTimeout::MAX)
        } else {
            PollTimeout::NONE
        };
        loop {
            match poll(&mut fds, timeout) {
                Err(nix::errno::Errno::EINTR) => {}
                other => {
                    other.context("waiting")?;
                    break;
                }
            }
        }
        let first = fds.iter().position(|fd| fd.any() == Some(true));
        Ok(match first {
            None => Event::Pause,
            Some(0) => Event::Signal,
            Some(1) => Event::Asked,
            Some(at) if at < of_begun => Event::Made(at - 2),
            Some(_) => Event::Ended,
        })
    }

    /// Gives a container to whoever connects.
    fn answer(&mut self, listener: &UnixListener) -> Result<()> {
        let (stream, _) = listener.accept().context("accepting a connection")?;
        stream.set_read_timeout(Some(TALK_TIMEOUT))?;
        stream.set_write_timeout(Some(TALK_TIMEOUT))?;
        let Some((Ask { bundle }, _)) = wire::receive(&stream)? else { return Ok(()) };
        let none = |why: String| wire::send(&stream, &Answer::None(why), &[]);
        if !self.template.is_current(self.store) {
            return none("its template has been deleted".into());
        }
        if bundle.is_some_and(|bundle| bundle != self.bundle.dir) {
            return none(format!("its bundle is {}", self.bundle.dir.display()));
        }
        self.reap();
        let Some(created) = self.ready.front() else { return none("none is ready".into()) };
        let lock = created.owner_lock.as_ref().context("it is nobody's")?;
        let answer = Answer::Yours(created.entry.id.clone(), self.manifest.container.init);
        wire::send(&stream, &answer, &[created.setup.as_fd(), lock.as_fd()])?;
        if let Some(Created { entry, child, .. }) = self.ready.pop_front() {
            self.given.push((entry, child));
        }
        Ok(())
    }

    /// Takes note of those that have ended.
    fn reap(&mut self) {
        let ended = |child: &Child| {
            let mut fds = [PollFd::new(child.pidfd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
        };
        let (over, ready): (VecDeque<_>, _) =
            self.ready.drain(..).partition(|created| ended(&created.child));
        self.ready = ready;
        for created in over {
            tracing::warn!("container {} of the pool has ended", created.entry.id);
            self.not_before = Instant::now() + PAUSE;
            run::undo(created);
        }
        let (over, given): (Vec<_>, _) = self.given.drain(..).partition(|(_, child)| ended(child));
        self.given = given;
        for (entry, mut child) in over {
            child.wait().ok();
            // Whoever took it may have ended before it was theirs by name.
            life::remove_abandoned(&entry);
        }
    }
}

/// What a supervisor waits for.
enum Event {
    /// A signal.
    Signal,
    /// Somebody wants a container.
    Asked,
    /// The container that was begun with this index is made, or not.
    Made(usize),
    /// A sandbox process has ended.
    Ended,
    /// It is time to try again.
    Pause,
}

/// A container that was taken from a pool, and has not gone on.
struct Taken {
    entry: Entry,
    state: State,
    init: u32,
    setup: UnixStream,
    _lock: OwnedFd,
}

/// Has a container of the template's pool become that of `options`, and stays with it; the exit
/// code, or `None` if there is none to be had.
///
/// # Errors
/// With nothing left behind.
pub fn run_ready(
    global: &Global,
    store: &Store,
    name: &str,
    options: &cli::RunAny,
) -> Result<Option<i32>> {
    let create = &options.run.create;
    run::check(global, create)?;
    let signals = run::signals(options.run.detach)?;
    let taken = match take(store, name, options) {
        Ok(taken) => taken,
        Err(e) if e.is::<ContainerError>() => return Err(e),
        Err(e) => {
            tracing::debug!("started without the pool of template {name}: {e:#}");
            return Ok(None);
        }
    };
    let Taken { entry, state, init, setup, _lock } = taken;
    let begin = || {
        give_streams(&setup)?;
        if let Some(path) = &create.pid_file {
            create::write_pid_file(path, state.pid)?;
        }
        life::go_on(store, &entry.id, (init, None), &setup)?.finish()
    };
    if let Err(e) = begin() {
        if let Some(path) = &create.pid_file {
            std::fs::remove_file(path).ok();
        }
        life::end(&state)?;
        life::destroy(&entry, &state)?;
        return Err(e);
    }
    if options.run.detach {
        return Ok(Some(0));
    }
    let state = entry.load()?;
    if let Some(pidfd) = state.sandbox()? {
        console::attend(pidfd.as_fd(), &signals, None, |signo| {
            run::forward(&entry, state.init, signo, None, global.timeout)
        })?;
    }
    let status = wait::end_of_container(&entry, &state)?;
    if !options.run.keep {
        life::destroy(&entry, &state)?;
    }
    Ok(Some(status))
}

/// Takes one, and gives it its ID.
fn take(store: &Store, name: &str, options: &cli::RunAny) -> Result<Taken> {
    let create = &options.run.create;
    let entry = store.entry(&create.id)?;
    life::remove_abandoned(&entry);
    let exists = || ContainerError::Exists(create.id.clone());
    if entry.dir.exists() {
        return Err(exists().into());
    }
    durable::check_free(&entry)?;
    if create.console_socket.is_some() {
        bail!("those of a pool have no terminal");
    }
    store.entry(name)?;
    let socket = socket_path(store, name, options.pool.as_ref().and_then(Option::as_deref));
    let (_dir, short) = short_path(&socket).with_context(|| opening(&socket))?;
    let stream = UnixStream::connect(short)
        .with_context(|| format!("nobody listens at {}", socket.display()))?;
    stream.set_read_timeout(Some(TALK_TIMEOUT))?;
    let bundle = options.bundle_given.then(|| std::fs::canonicalize(&create.bundle)).transpose()?;
    wire::send(&stream, &Ask { bundle }, &[])?;
    let (answer, fds) = wire::receive(&stream)?.context("the pool has ended")?;
    let (id, init) = match answer {
        Answer::Yours(id, init) => (id, init),
        Answer::None(why) => bail!("{why}"),
    };
    let Ok([setup, lock]) = <[OwnedFd; 2]>::try_from(fds) else {
        bail!("it came without its files")
    };
    let was = store.entry(&id)?;
    let rename = |from: &Path, to: &Path| {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags)
    };
    // What it has copies of goes first: of a name without a container they are nobody's.
    match rename(&was.rw_dirs(), &entry.rw_dirs()) {
        Err(rustix::io::Errno::NOENT) => {}
        renamed => renamed.with_context(|| format!("giving {id} its ID"))?,
    }
    match rename(&was.dir, &entry.dir) {
        Ok(()) => {}
        failed => {
            rename(&entry.rw_dirs(), &was.rw_dirs()).ok();
            if failed == Err(rustix::io::Errno::EXIST) {
                return Err(exists().into());
            }
            failed.with_context(|| format!("giving {id} its ID"))?;
        }
    }
    let rename = || {
        let mut state = entry.load()?;
        state.id.clone_from(&entry.id);
        state.created = Utc::now().to_string();
        entry.save(&state)?;
        Ok::<_, anyhow::Error>(state)
    };
    match rename() {
        Ok(state) => Ok(Taken { entry, state, init, setup: setup.into(), _lock: lock }),
        Err(e) => {
            drop((setup, lock));
            life::remove_abandoned(&entry);
            Err(e)
        }
    }
}

/// Gives a container that waits this program's standard streams.
fn give_streams(setup: &UnixStream) -> Result<()> {
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let streams = Stream::take_each([input.as_fd(), output.as_fd(), error.as_fd()])
        .context("taking the standard streams")?;
    let fds: Vec<BorrowedFd<'_>> = streams.iter().map(|stream| stream.fd.as_fd()).collect();
    wire::send(setup, &ToChild::Streams(streams.each_ref().map(|stream| stream.own)), &fds)?;
    match wire::receive(setup)? {
        Some((FromChild::Ready(_), _)) => Ok(()),
        Some((FromChild::Failed(message), _)) => bail!("{message}"),
        None => bail!("the sandbox process has ended; its log may say why"),
    }
}
