//! The ends of processes. The shim is the subreaper of everything that `quark` leaves behind:
//! sandboxes, and the processes that stand for those that `exec` started.

use std::collections::HashMap;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Result;
use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Knows who waits for which process.
#[derive(Default)]
pub struct Reaper {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By process ID.
    waiting: HashMap<i32, oneshot::Sender<u32>>,
    /// How many commands run that may leave a process behind whose ID is not known yet.
    expecting: usize,
    /// Processes that ended in the meantime.
    early: HashMap<i32, u32>,
}

/// While it lives, the ends of processes that nobody waits for are remembered.
pub struct Expectation(Arc<Reaper>);

impl Drop for Expectation {
    fn drop(&mut self) {
        let mut table = self.0.table();
        table.expecting -= 1;
        if table.expecting == 0 {
            table.early = HashMap::new();
        }
    }
}

impl Reaper {
    /// Starts reaping.
    ///
    /// # Errors
    /// When the signal handler cannot be installed.
    pub fn start() -> Result<Arc<Self>> {
        let reaper = Arc::new(Self::default());
        let mut children = signal(SignalKind::child())?;
        let own = reaper.clone();
        tokio::spawn(async move {
            while children.recv().await.is_some() {
                own.reap();
            }
        });
        Ok(reaper)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn reap(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get();
            let code = status.exit_status().or(status.terminating_signal().map(|s| 128 + s));
            // Neither: a stop, which is not asked for.
            let Some(code) = code.and_then(|c| u32::try_from(c).ok()) else { continue };
            let mut table = self.table();
            if let Some(waiter) = table.waiting.remove(&pid) {
                waiter.send(code).ok();
            } else if table.expecting > 0 {
                table.early.insert(pid, code);
            }
        }
    }

    /// To be held from before a command starts until what it left behind is watched.
    pub fn expect(self: &Arc<Self>) -> Expectation {
        self.table().expecting += 1;
        Expectation(self.clone())
    }

    /// Waits for a process that a command left behind: its exit code, or 128 and the signal.
    pub fn watch(&self, pid: i32) -> oneshot::Receiver<u32> {
        let (sender, receiver) = oneshot::channel();
        let mut table = self.table();
        if let Some(code) = table.early.remove(&pid) {
            sender.send(code).ok();
        } else {
            table.waiting.insert(pid, sender);
        }
        receiver
    }

    /// Waits for a child of this process. Nothing is reaped between its start and this, unless the
    /// caller awaits something.
    pub fn watch_child(&self, child: &Child) -> oneshot::Receiver<u32> {
        self.watch(i32::try_from(child.id()).unwrap_or_default())
    }
}
