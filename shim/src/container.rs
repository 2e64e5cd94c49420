//! A container, and what is done with it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use containerd_shim_protos::types::mount::Mount;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::cgroup::Cgroup;
use crate::fault::Fault;
use crate::metrics::Usage;
use crate::mounts;
use crate::options::Options;
use crate::process::Process;
use crate::quark::Quark;
use crate::reaper::Reaper;
use crate::stdio::{self, Kept, Paths};
use crate::terminal::{Socket, Terminal};

/// How long a container that is killed may take to end.
const KILLED: Duration = Duration::from_secs(10);

/// Processes by their names, and what they are to run: an OCI process object in JSON.
type Execs = HashMap<String, (Arc<Process>, Arc<[u8]>)>;

/// A container.
pub struct Container {
    /// Its ID.
    pub id: String,
    /// Its bundle.
    pub bundle: PathBuf,
    /// Its first process.
    pub init: Arc<Process>,
    /// Those that `exec` started, or will.
    execs: Mutex<Execs>,
    /// The image that its start makes it of, if any.
    image: Option<PathBuf>,
    /// Whether it is in the sandbox of its pod's first container.
    shares_kernel: bool,
    /// What it used when that was last known, if it is there.
    last_usage: Mutex<Option<Usage>>,
    /// Known when there is a sandbox.
    cgroup: OnceLock<Cgroup>,
    quark: Quark,
    reaper: Arc<Reaper>,
}

/// What is to be made.
pub struct New<'a> {
    /// Its ID.
    pub id: &'a str,
    /// Its bundle.
    pub bundle: &'a Path,
    /// What its root file system is made of; nothing if it is there already.
    pub rootfs: &'a [Mount],
    /// The streams of its first process.
    pub paths: Paths,
    /// The directory of the image that it is to be made of, if any.
    pub image: Option<&'a Path>,
    /// Whether it is to be in the sandbox of its pod's first container.
    pub shares_kernel: bool,
    /// How to call `quark`.
    pub options: Options,
}

impl Container {
    /// Makes a container; and what tells the end of its first process. One of an image is made
    /// when it is started, as by containerd's own shim: nothing tells of it before.
    ///
    /// # Errors
    /// With nothing left behind.
    pub async fn create(
        new: New<'_>,
        reaper: &Arc<Reaper>,
    ) -> Result<(Self, Option<oneshot::Receiver<u32>>)> {
        let rootfs = new.bundle.join("rootfs");
        if !new.rootfs.is_empty() {
            std::fs::create_dir_all(&rootfs).with_context(|| rootfs.display().to_string())?;
            mounts::apply(new.rootfs, &rootfs)?;
        }
        let made = Self::prepare(&new, reaper).await;
        if made.is_err() {
            mounts::remove(&rootfs);
        }
        made
    }

    async fn prepare(
        new: &New<'_>,
        reaper: &Arc<Reaper>,
    ) -> Result<(Self, Option<oneshot::Receiver<u32>>)> {
        new.options.save(new.bundle)?;
        let container = Self {
            id: new.id.to_owned(),
            bundle: new.bundle.to_owned(),
            init: Arc::new(Process::new("", new.paths.clone())),
            execs: Mutex::default(),
            image: new.image.map(Path::to_owned),
            shares_kernel: new.shares_kernel,
            last_usage: Mutex::default(),
            cgroup: OnceLock::new(),
            quark: Quark::new(new.options.clone(), reaper.clone()),
            reaper: reaper.clone(),
        };
        let ended = match new.image {
            Some(_) => None,
            None => Some(container.launch(&["create"]).await?),
        };
        Ok((container, ended))
    }

    /// Makes its sandbox by a command; what tells the end of its first process.
    async fn launch(&self, command: &[&str]) -> Result<oneshot::Receiver<u32>> {
        let pid_file = self.bundle.join("init.pid");
        let mut command = command.to_vec();
        command.extend(["--bundle", utf8(&self.bundle)?, "--pid-file", utf8(&pid_file)?]);
        let paths = &self.init.paths;
        let _expectation = self.reaper.expect();
        let (kept, socket) = begin(&self.quark, &self.bundle, &command, &self.id, paths).await?;
        let attached = async {
            let terminal = attach(socket, paths).await?;
            Ok::<_, anyhow::Error>((terminal, read_pid(&pid_file)?))
        };
        let (terminal, pid) = match attached.await {
            Ok(attached) => attached,
            Err(e) => {
                self.quark.run(&["delete", "--force", &self.id]).await.ok();
                return Err(e);
            }
        };
        self.init.attach(pid, kept, terminal);
        self.cgroup.get_or_init(|| Cgroup::of(pid));
        Ok(self.reaper.watch(pid))
    }

    fn execs(&self) -> MutexGuard<'_, Execs> {
        self.execs.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A process by its name.
    ///
    /// # Errors
    /// When there is none.
    pub fn process(&self, exec_id: &str) -> Result<Arc<Process>, Fault> {
        if exec_id.is_empty() {
            return Ok(self.init.clone());
        }
        let found = self.execs().get(exec_id).map(|(process, _)| process.clone());
        found.ok_or_else(|| Fault::NotFound(format!("exec {exec_id} in container {}", self.id)))
    }

    /// The processes that `exec` started, or will.
    pub fn all_execs(&self) -> Vec<Arc<Process>> {
        self.execs().values().map(|(process, _)| process.clone()).collect()
    }

    /// What its programs use, if its cgroup does not tell: they run in the sandbox of another
    /// container. When they have ended, or the sandbox does not answer, what they had used before:
    /// whoever watches would take less for a new beginning.
    pub async fn own_usage(&self) -> Option<Usage> {
        if !self.shares_kernel {
            return None;
        }
        let event = self.quark.run(&["events", "--stats", &self.id]).await;
        let usage = event.and_then(|event| Usage::parse(&event)).ok();
        let mut last = self.last_usage.lock().unwrap_or_else(|e| e.into_inner());
        *last = usage.or(*last);
        *last
    }

    /// True if it has ended because memory was used up.
    pub async fn was_out_of_memory(&self) -> bool {
        if !self.shares_kernel {
            return self.cgroup().oom_kills() > 0;
        }
        // The cgroup knows of nobody but who stands for it.
        let state = self.quark.run(&["state", &self.id]).await.unwrap_or_default();
        let state = serde_json::from_str::<Value>(&state).unwrap_or_default();
        state["ended"]["out_of_memory"] == true
    }

    /// Its cgroup; an empty one before there is a sandbox.
    pub fn cgroup(&self) -> &Cgroup {
        static NONE: Cgroup = Cgroup::NONE;
        self.cgroup.get().unwrap_or(&NONE)
    }

    /// Adds a process: an OCI process object in JSON.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn add_exec(&self, exec_id: &str, spec: &[u8], paths: Paths) -> Result<(), Fault> {
        let mut execs = self.execs();
        if execs.contains_key(exec_id) {
            return Err(Fault::AlreadyExists(format!("exec {exec_id} in container {}", self.id)));
        }
        let process = Arc::new(Process::new(exec_id, paths));
        execs.insert(exec_id.to_owned(), (process, spec.into()));
        Ok(())
    }

    /// Starts the container's program, or has that of an image go on; what tells its end, if that
    /// is not known yet.
    ///
    /// # Errors
    /// As `quark start` and `quark restore`.
    pub async fn start(&self) -> Result<Option<oneshot::Receiver<u32>>> {
        let Some(image) = &self.image else {
            self.quark.run(&["start", &self.id]).await?;
            return Ok(None);
        };
        let command = ["restore", "--detach", "--image-path", utf8(image)?];
        self.launch(&command).await.map(Some)
    }

    /// Whether there is nothing of it yet, as its start is to make it of an image.
    pub fn is_awaited(&self) -> bool {
        self.image.is_some() && self.init.pid() == 0 && self.init.exit().is_none()
    }

    /// Saves it in an image; it ends then, unless it is to go on.
    ///
    /// # Errors
    /// As `quark checkpoint`.
    pub async fn checkpoint(&self, image: &Path, exit: bool) -> Result<()> {
        let mut command = vec!["checkpoint", "--image-path", utf8(image)?];
        command.extend((!exit).then_some("--leave-running"));
        command.push(&self.id);
        self.quark.run(&command).await.map(drop)
    }

    /// Starts a process that was added; what tells its end.
    ///
    /// # Errors
    /// As `quark exec`.
    pub async fn start_exec(&self, process: &Process) -> Result<oneshot::Receiver<u32>> {
        let name = &process.exec_id;
        let spec = self.execs().get(name).map(|(_, spec)| spec.clone()).context("it is deleted")?;
        // IDs of containerd have no slash in them; config.json is a file of others.
        let (spec_file, pid_file) = (
            self.bundle.join(format!("exec-{name}.json")),
            self.bundle.join(format!("exec-{name}.pid")),
        );
        let _expectation = self.reaper.expect();
        let run = async {
            std::fs::write(&spec_file, &spec).with_context(|| spec_file.display().to_string())?;
            let command = [
                "exec",
                "--process",
                utf8(&spec_file)?,
                "--detach",
                "--pid-file",
                utf8(&pid_file)?,
            ];
            let (kept, socket) =
                begin(&self.quark, &self.bundle, &command, &self.id, &process.paths).await?;
            let pid = read_pid(&pid_file)?;
            match attach(socket, &process.paths).await {
                Ok(terminal) => process.attach(pid, kept, terminal),
                Err(e) => {
                    signal(pid, Signal::KILL.as_raw()).ok();
                    return Err(e);
                }
            }
            Ok(self.reaper.watch(pid))
        };
        let started = run.await;
        for file in [spec_file, pid_file] {
            std::fs::remove_file(file).ok();
        }
        started
    }

    /// Sends a signal to a process, or to all of the container.
    ///
    /// # Errors
    /// When it has ended; as `quark kill`.
    pub async fn kill(&self, process: &Process, signo: u32, all: bool) -> Result<(), Fault> {
        let ended = || Fault::NotFound("process already finished".to_owned());
        if process.exit().is_some() {
            return Err(ended());
        }
        if process.exec_id.is_empty() {
            let number = signo.to_string();
            let mut arguments = vec!["kill"];
            arguments.extend(all.then_some("--all"));
            arguments.extend([self.id.as_str(), &number]);
            return match self.quark.run(&arguments).await {
                Ok(_) => Ok(()),
                Err(e) if is_gone(&e) || process.exit().is_some() => Err(ended()),
                Err(e) => Err(e.into()),
            };
        }
        let pid = process.pid();
        if pid == 0 {
            return Err(Fault::FailedPrecondition("process not created".to_owned()));
        }
        signal(pid, i32::try_from(signo).unwrap_or(0)).map_err(|_| ended())
    }

    /// Removes a process that has ended, or was never started.
    ///
    /// # Errors
    /// When it runs.
    pub async fn delete_exec(&self, process: &Process) -> Result<(), Fault> {
        if process.pid() != 0 && process.exit().is_none() {
            return Err(running(&process.exec_id));
        }
        process.release().await;
        self.execs().remove(&process.exec_id);
        Ok(())
    }

    /// Removes the container, which has ended or was never started.
    ///
    /// # Errors
    /// When it runs; as `quark delete`.
    pub async fn delete(&self) -> Result<(), Fault> {
        if self.image.is_some() {
            // What is just being made of an image would be there afterwards.
            drop(self.init.turn.lock().await);
        }
        if self.init.is_started() && self.init.exit().is_none() {
            return Err(running(&self.id));
        }
        self.quark.run(&["delete", "--force", &self.id]).await?;
        if self.init.pid() != 0 {
            tokio::time::timeout(KILLED, self.init.wait())
                .await
                .map_err(|_| anyhow!("container {} does not end", self.id))?;
        }
        self.init.release().await;
        mounts::remove(&self.bundle.join("rootfs"));
        Ok(())
    }

    /// Stops all its processes, or lets them go on.
    ///
    /// # Errors
    /// As `quark pause` and `resume`.
    pub async fn pause(&self, pause: bool) -> Result<()> {
        self.quark.run(&[if pause { "pause" } else { "resume" }, &self.id]).await?;
        self.init.set_paused(pause);
        Ok(())
    }

    /// Sets its limits: an OCI resources object in JSON.
    ///
    /// # Errors
    /// As `quark update`.
    pub async fn update(&self, resources: &[u8]) -> Result<()> {
        self.quark.run_with(&["update", "--resources", "-", &self.id], resources).await.map(drop)
    }

    /// The host processes in it.
    ///
    /// # Errors
    /// As `quark ps`.
    pub async fn pids(&self) -> Result<Vec<u32>> {
        let text = self.quark.run(&["ps", "--format", "json", &self.id]).await?;
        serde_json::from_str::<Option<Vec<u32>>>(&text)
            .map(Option::unwrap_or_default)
            .context("quark ps")
    }
}

/// Runs a command that starts a process with these streams.
async fn begin(
    quark: &Quark,
    bundle: &Path,
    command: &[&str],
    id: &str,
    paths: &Paths,
) -> Result<(Kept, Option<Socket>)> {
    let mut arguments = command.to_vec();
    let socket = paths.terminal.then(|| Socket::new(bundle)).transpose()?;
    let (mut streams, mut kept) = Default::default();
    if let Some(socket) = &socket {
        arguments.extend(["--console-socket", socket.name()]);
    } else {
        (streams, kept) = stdio::open(paths)?;
    }
    arguments.push(id);
    quark.launch(bundle, &arguments, streams).await?;
    Ok((kept, socket))
}

async fn attach(socket: Option<Socket>, paths: &Paths) -> Result<Option<Terminal>> {
    match socket {
        Some(socket) => Terminal::attach(&socket, paths).await.map(Some),
        None => Ok(None),
    }
}

fn running(name: &str) -> Fault {
    Fault::FailedPrecondition(format!("{name} is running: kill it first"))
}

/// What runc's callers know as a container that has ended.
fn is_gone(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    text.contains("not running") || text.contains("does not exist")
}

fn read_pid(path: &Path) -> Result<i32> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.trim().parse().with_context(|| path.display().to_string())
}

fn signal(pid: i32, signo: i32) -> Result<()> {
    let pid = Pid::from_raw(pid).context("no process")?;
    let signal = Signal::from_named_raw(signo).with_context(|| format!("signal {signo}"))?;
    Ok(kill_process(pid, signal)?)
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{}: not a name in UTF-8", path.display()))
}
