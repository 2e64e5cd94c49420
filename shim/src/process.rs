//! A process that containerd knows: a container's first one, or one that `exec` started.

use std::sync::{Mutex, MutexGuard};

use containerd_shim_protos::api::Status;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use tokio::sync::{oneshot, watch};

use crate::events;
use crate::stdio::{Kept, Paths};
use crate::terminal::Terminal;

/// How a process ended.
#[derive(Clone, Debug)]
pub struct Exit {
    /// Its code, or 128 and the signal.
    pub status: u32,
    /// When.
    pub at: Timestamp,
}

/// The process.
pub struct Process {
    /// The name of an `exec`; empty for a container's first process.
    pub exec_id: String,
    /// Its standard streams.
    pub paths: Paths,
    /// For one request at a time, and none while its end is told.
    pub turn: tokio::sync::Mutex<()>,
    /// Held, shared, by who sends it a signal: its end, which may be the signal's doing, is told
    /// after the answer. Kubernetes' side of containerd closes the connection when it hears of the
    /// end, and would take the missing answer for an error.
    pub signals: tokio::sync::RwLock<()>,
    state: Mutex<State>,
    exit: watch::Sender<Option<Exit>>,
}

#[derive(Default)]
struct State {
    pid: i32,
    started: bool,
    paused: bool,
    kept: Kept,
    terminal: Option<Terminal>,
}

impl Process {
    /// One that does not run yet.
    pub fn new(exec_id: &str, paths: Paths) -> Self {
        Self {
            exec_id: exec_id.to_owned(),
            paths,
            turn: tokio::sync::Mutex::default(),
            signals: tokio::sync::RwLock::default(),
            state: Mutex::default(),
            exit: watch::Sender::new(None),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// It has a host process now, and these ends of its streams are to be kept.
    pub fn attach(&self, pid: i32, kept: Kept, terminal: Option<Terminal>) {
        let mut state = self.state();
        (state.pid, state.kept, state.terminal) = (pid, kept, terminal);
    }

    /// The host process that it is, or that stands for it; 0 if there is none yet.
    pub fn pid(&self) -> i32 {
        self.state().pid
    }

    /// [`Process::pid`], as messages have it.
    pub fn pid_u32(&self) -> u32 {
        u32::try_from(self.pid()).unwrap_or(0)
    }

    /// Its program runs.
    pub fn set_started(&self) {
        self.state().started = true;
    }

    /// Whether its program has been started.
    pub fn is_started(&self) -> bool {
        self.state().started
    }

    /// It is paused, or goes on.
    pub fn set_paused(&self, paused: bool) {
        self.state().paused = paused;
    }

    /// What containerd calls its state. One that is hibernated runs: whoever asks it is answered.
    pub fn status(&self) -> Status {
        if self.exit().is_some() {
            return Status::STOPPED;
        }
        let state = self.state();
        match (state.started, state.paused) {
            (_, true) => Status::PAUSED,
            (true, false) => Status::RUNNING,
            (false, false) => Status::CREATED,
        }
    }

    /// How it ended, if it did.
    pub fn exit(&self) -> Option<Exit> {
        self.exit.borrow().clone()
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Exit {
        let mut receiver = self.exit.subscribe();
        match receiver.wait_for(Option::is_some).await {
            Ok(exit) => exit.clone().unwrap_or_else(|| Exit::now(128 + 9)),
            // The sender is a part of this.
            Err(_) => Exit::now(128 + 9),
        }
    }

    /// It has ended.
    pub fn set_exit(&self, exit: Exit) {
        self.exit.send_replace(Some(exit));
    }

    /// Waits for the host process to end, which `ended` tells.
    pub async fn ended(&self, ended: oneshot::Receiver<u32>) -> Exit {
        Exit::now(ended.await.unwrap_or(128 + 9))
    }

    /// Closes standard input.
    pub fn close_stdin(&self) {
        let mut state = self.state();
        state.kept.close_stdin();
        if let Some(terminal) = &mut state.terminal {
            terminal.close_stdin();
        }
    }

    /// Sets the size of its terminal; nothing without one.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn resize(&self, columns: u32, rows: u32) -> anyhow::Result<()> {
        self.state().terminal.as_ref().map_or(Ok(()), |t| t.resize(columns, rows))
    }

    /// Lets go of its streams, when what is left to read of them has been read.
    pub async fn release(&self) {
        let (kept, terminal) = {
            let mut state = self.state();
            (std::mem::take(&mut state.kept), state.terminal.take())
        };
        if let Some(terminal) = terminal {
            terminal.finish().await;
        }
        drop(kept);
    }
}

impl Exit {
    /// An end now.
    pub fn now(status: u32) -> Self {
        Self { status, at: events::now() }
    }
}
