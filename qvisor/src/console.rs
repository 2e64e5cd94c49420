//! Terminals on the host side: pseudo-terminal pairs, handing one end to a caller, and relaying
//! between a guest's terminal and the user's.
#![deny(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::net::SendFlags;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::{
    OptionalActions, Termios, Winsize, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use crate::sys;

/// A pseudo-terminal.
#[derive(Debug)]
pub struct Pty {
    /// The end of whoever types and reads the screen.
    pub master: OwnedFd,
    /// The end of the program.
    pub slave: OwnedFd,
}

impl Pty {
    /// A new pair with a window of `size` (rows, columns); (0, 0) leaves it unset.
    ///
    /// # Errors
    /// When the host has none left.
    pub fn open(size: (u16, u16)) -> Result<Self> {
        let make = || -> rustix::io::Result<Pty> {
            let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
            let master = openpt(flags)?;
            grantpt(&master)?;
            unlockpt(&master)?;
            let slave = ioctl_tiocgptpeer(&master, flags)?;
            Ok(Pty { master, slave })
        };
        let pty = make().context("opening a pseudo-terminal")?;
        if size != (0, 0) {
            set_window(&pty.master, size);
        }
        Ok(pty)
    }

    /// Sends the master end to whoever listens on the UNIX socket at `path`, as runc's
    /// `--console-socket`.
    ///
    /// # Errors
    /// When nobody takes it.
    pub fn send_master(&self, path: &Path) -> Result<()> {
        let name = ptsname(&self.master, Vec::new()).context("naming the pseudo-terminal")?;
        let send = || -> io::Result<()> {
            let stream = UnixStream::connect(path)?;
            let name = [IoSlice::new(name.to_bytes())];
            sys::send_files(&stream, &name, &[self.master.as_fd()], SendFlags::empty())?;
            Ok(())
        };
        send()
            .with_context(|| format!("sending the terminal to --console-socket {}", path.display()))
    }
}

/// The window size (rows, columns) of a terminal, (0, 0) when it is none.
pub fn window(fd: impl AsFd) -> (u16, u16) {
    tcgetwinsize(fd).map_or((0, 0), |w| (w.ws_row, w.ws_col))
}

/// Sets the window size of a terminal; on anything else it does nothing.
pub fn set_window(fd: impl AsFd, (rows, columns): (u16, u16)) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(fd, size).ok();
}

/// Standard input in raw mode while this lives.
struct RawMode(Option<Termios>);

impl RawMode {
    fn enter() -> Self {
        let stdin = io::stdin();
        let Some(old) = isatty(&stdin).then(|| tcgetattr(&stdin).ok()).flatten() else {
            return RawMode(None);
        };
        let mut raw = old.clone();
        raw.make_raw();
        let done = tcsetattr(&stdin, OptionalActions::Now, &raw).is_ok();
        RawMode(done.then_some(old))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Some(old) = &self.0 {
            tcsetattr(io::stdin(), OptionalActions::Now, old).ok();
        }
    }
}

/// The signals that a command catches which has something to undo.
const CAUGHT: [Signal; 7] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// Signals that a foreground command does not pass on. They are about its own children, and its
/// own use of its terminal: in the background it has to stop before it changes that.
const NOT_FORWARDED: [Signal; 3] = [Signal::SIGCHLD, Signal::SIGTTIN, Signal::SIGTTOU];

/// Catches signals that ask this program to end, so that none ends it while it has something to
/// undo. Called again it gives another descriptor for the same signals, each of which is read once.
///
/// # Errors
/// Those of signalfd(2).
pub fn catch_signals() -> Result<SignalFd> {
    let mut set = SigSet::empty();
    set.extend(CAUGHT);
    catch(&set)
}

/// The same, and catches all others that a foreground command passes on to the container: as runc,
/// whatever can be caught, real-time signals too. Make it before the container, so that none is
/// lost.
///
/// # Errors
/// As there.
pub fn catch_all_signals() -> Result<SignalFd> {
    let mut set = sys::all_signals();
    NOT_FORWARDED.into_iter().for_each(|signal| set.remove(signal));
    catch(&set)
}

fn catch(set: &SigSet) -> Result<SignalFd> {
    set.thread_block().context("blocking signals")?;
    SignalFd::with_flags(set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .context("catching signals")
}

/// Takes one caught signal, if there is one.
///
/// # Errors
/// With its name, when it asks this program to end. The others mean nothing to a program that
/// waits.
pub fn end_if_asked(signals: &SignalFd) -> Result<()> {
    if let Ok(Some(info)) = signals.read_signal()
        && asks_to_end(info.ssi_signo.cast_signed())
        && let Ok(signal) = Signal::try_from(info.ssi_signo.cast_signed())
    {
        return Err(Interrupted(signal).into());
    }
    Ok(())
}

/// A signal has asked this program to end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {0}")]
pub struct Interrupted(pub Signal);

/// True if a signal asks a program to end.
pub fn asks_to_end(signo: i32) -> bool {
    matches!(signo, libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM)
}

/// The name of a signal by its number.
pub fn signal_name(signo: i32) -> String {
    Signal::try_from(signo).map_or_else(|_| signo.to_string(), |signal| signal.to_string())
}

/// Waits until `fd` is readable, or for a signal that asks this program to end.
///
/// # Errors
/// With the signal's name when one came.
pub fn wait_readable(fd: BorrowedFd<'_>, signals: &SignalFd) -> Result<()> {
    loop {
        let mut fds =
            [PollFd::new(fd, PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            other => other.context("waiting")?,
        };
        if fds[0].any() == Some(true) {
            return Ok(());
        }
        end_if_asked(signals)?;
    }
}

/// Stays with a process until `end` becomes readable: passes signals on to `forward`, and with a
/// `master` relays between it and this program's standard input and output.
///
/// # Errors
/// When polling fails, or `forward` does.
pub fn attend(
    end: BorrowedFd<'_>,
    signals: &SignalFd,
    master: Option<&OwnedFd>,
    mut forward: impl FnMut(i32) -> Result<()>,
) -> Result<()> {
    let _raw = master.map(|_| RawMode::enter());
    let mut relay = master.map(Relay::new).transpose()?;
    loop {
        let mut fds = vec![
            PollFd::new(end, PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        let stdin = io::stdin();
        if let Some(relay) = &relay {
            let mut events = PollFlags::POLLIN;
            events.set(PollFlags::POLLOUT, !relay.pending.is_empty());
            fds.push(PollFd::new(relay.master.as_fd(), events));
            if relay.wants_input() {
                fds.push(PollFd::new(stdin.as_fd(), PollFlags::POLLIN));
            }
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => continue,
            other => other.context("waiting")?,
        };
        let ready: Vec<PollFlags> =
            fds.iter().map(|f| f.revents().unwrap_or(PollFlags::empty())).collect();
        while let Ok(Some(info)) = signals.read_signal() {
            let signo = info.ssi_signo.cast_signed();
            // One of this process itself says that nobody reads what it shows.
            if signo != libc::SIGPIPE || info.ssi_pid != std::process::id() {
                forward(signo)?;
            }
        }
        if let Some(r) = &mut relay {
            if ready.get(3).is_some_and(|r| !r.is_empty()) {
                r.input();
            }
            let master = ready.get(2).copied().unwrap_or(PollFlags::empty());
            if master.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR)
                && !r.output()
            {
                relay = None;
            } else if master.contains(PollFlags::POLLOUT) {
                r.flush();
            }
        }
        if ready.first().is_some_and(|r| !r.is_empty()) {
            break;
        }
    }
    // What the program wrote last is still in the terminal.
    if let Some(relay) = &mut relay {
        relay.drain();
    }
    Ok(())
}

/// Bytes between the user's terminal and the guest's. The master never blocks: a guest that does
/// not read must not keep us from showing what it writes.
struct Relay<'a> {
    master: &'a OwnedFd,
    /// Typed, and not yet taken by the master.
    pending: Vec<u8>,
    input_open: bool,
}

impl<'a> Relay<'a> {
    fn new(master: &'a OwnedFd) -> Result<Self> {
        rustix::io::ioctl_fionbio(master, true).context("setting up the terminal")?;
        Ok(Relay { master, pending: Vec::new(), input_open: true })
    }

    fn wants_input(&self) -> bool {
        self.input_open && self.pending.is_empty()
    }

    fn input(&mut self) {
        let mut buffer = [0; 4096];
        match rustix::io::read(io::stdin(), &mut buffer) {
            Ok(0) | Err(_) => self.input_open = false,
            Ok(n) => {
                self.pending.extend_from_slice(&buffer[..n]);
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        match rustix::io::write(self.master, &self.pending) {
            Ok(n) => drop(self.pending.drain(..n)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => self.pending.clear(),
        }
    }

    /// Shows what the guest wrote; false when its end is closed.
    fn output(&mut self) -> bool {
        let mut buffer = [0; 16384];
        match rustix::io::read(self.master, &mut buffer) {
            Ok(n) if n > 0 => show(&buffer[..n]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
            _ => false,
        }
    }

    fn drain(&mut self) {
        let mut buffer = [0; 16384];
        while let Ok(n) = rustix::io::read(self.master, &mut buffer) {
            if n == 0 || !show(&buffer[..n]) {
                break;
            }
        }
    }
}

fn show(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match rustix::io::write(io::stdout(), bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_carries_bytes_and_a_window() {
        let pty = Pty::open((24, 80)).unwrap();
        assert_eq!(window(&pty.slave), (24, 80));
        rustix::io::write(&pty.slave, b"hi\n").unwrap();
        let mut buffer = [0; 16];
        let n = rustix::io::read(&pty.master, &mut buffer).unwrap();
        assert_eq!(&buffer[..n], b"hi\r\n");
    }
}
