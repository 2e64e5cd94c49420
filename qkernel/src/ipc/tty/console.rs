//! A terminal of the host as the container's own: its far side is a host handle. The host's line
//! discipline is switched to raw; ours does the work, so that job control and line editing belong
//! to the guest.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::ioctl::{TCGETS, TCSETS, TIOCGWINSZ};
use qlib::host::{Op, STREAM};
use zerocopy::{FromBytes, IntoBytes};

use super::termios::{TERMIOS_BYTES, Termios};
use super::{Far, Tty, Window, pty};
use crate::errno::{Errno, Result};
use crate::host::{Call, Handle};
use crate::net::host::{HostWatcher, add_watcher, remove_watcher};
use crate::sync::Mutex;
use crate::user_namespace::UserNs;
use crate::wait::{PollMask, Signal};
use crate::{input, time};

/// Bytes moved by one host call.
const CHUNK_BYTES: usize = 4096;

/// The host's side of a console.
pub struct Console {
    handle: Handle,
    token: u64,
    tty: Mutex<Weak<Tty>>,
    /// There was no room for input: the host is asked again when there is.
    is_throttled: AtomicBool,
    /// The host's window when it was last looked at.
    window: Mutex<Window>,
}

/// Waits until the host has taken the output of all consoles, or `deadline_ns` (CLOCK_MONOTONIC)
/// has passed.
pub async fn drain(deadline_ns: u64) {
    const LOOK_NS: u64 = 5_000_000;
    let is_full =
        || pty::list().into_iter().filter_map(pty::tty).any(|t| t.far.drains() && t.has_output());
    while is_full() && time::monotonic_ns() < deadline_ns {
        let signal = Arc::new(Signal::default());
        time::insert(time::monotonic_ns() + LOOK_NS, signal.clone());
        signal.wait().await;
    }
}

/// Makes a terminal of host handle `number` for a container; `window`: rows and columns, zeros to
/// ask the host.
pub fn open(
    container: u32,
    number: u32,
    window: (u16, u16),
    owner: (u32, u32),
) -> Result<Arc<Tty>> {
    let handle = Handle::new(number);
    make_raw(number)?;
    let console = Arc::new_cyclic(|this: &Weak<Console>| Console {
        handle,
        token: add_watcher(this.clone()),
        tty: Mutex::new(Weak::new()),
        is_throttled: AtomicBool::new(false),
        window: Mutex::new(host_window(number).unwrap_or_default()),
    });
    let far = console.clone();
    let tty = pty::enter((container, UserNs::default()), |n| Tty::new(n, far), false, owner)?;
    *console.tty.lock() = Arc::downgrade(&tty);
    tty.set_window(match window {
        (0, 0) => host_window(number).unwrap_or_default(),
        (rows, cols) => Window { words: [rows, cols, 0, 0] },
    });
    Call::on(Op::Watch, number).arg(0, console.token).run()?;
    Ok(tty)
}

fn make_raw(number: u32) -> Result {
    let mut bytes = alloc::vec![0; TERMIOS_BYTES];
    Call::on(Op::TtyIoctl, number).arg(0, u64::from(TCGETS)).bytes_out(&mut bytes).run()?;
    bytes.resize(size_of::<Termios>(), 0);
    let mut termios = Termios::read_from_bytes(&bytes).map_err(|_| Errno::EIO)?;
    termios.make_raw();
    bytes.copy_from_slice(termios.as_bytes());
    Call::on(Op::TtyIoctl, number)
        .arg(0, u64::from(TCSETS))
        .bytes(&bytes[..TERMIOS_BYTES])
        .run()?;
    Ok(())
}

fn host_window(number: u32) -> Result<Window> {
    let mut bytes = alloc::vec![0; 8];
    Call::on(Op::TtyIoctl, number).arg(0, u64::from(TIOCGWINSZ)).bytes_out(&mut bytes).run()?;
    let words = <[u16; 4]>::read_from_bytes(&bytes).map_err(|_| Errno::EIO)?;
    Ok(Window { words })
}

impl Console {
    /// Moves what was typed on the host to the terminal.
    fn pump_input(&self, tty: &Tty) {
        let mut bytes = alloc::vec![0; CHUNK_BYTES];
        loop {
            let room = tty.input_room().min(CHUNK_BYTES);
            if room == 0 {
                self.is_throttled.store(true, Ordering::Relaxed);
                return;
            }
            match Call::on(Op::Read, self.handle.number())
                .arg(0, STREAM)
                .bytes_out(&mut bytes[..room])
                .run()
            {
                Ok(0) => return tty.hang_up(),
                Ok(count) => {
                    input::note_taken(false);
                    tty.feed(&bytes[..(count as usize).min(room)]);
                }
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                Err(_) => return tty.hang_up(),
            }
        }
    }

    /// Moves output to the host, as far as it takes it.
    fn pump_output(&self, tty: &Tty) {
        loop {
            let bytes = tty.take_output(CHUNK_BYTES);
            if bytes.is_empty() {
                return;
            }
            match Call::on(Op::Write, self.handle.number()).arg(0, STREAM).bytes(&bytes).run() {
                Ok(count) => tty.return_output(bytes.get(count as usize..).unwrap_or_default()),
                Err(Errno::EAGAIN | Errno::EINTR) => return tty.return_output(&bytes),
                Err(_) => return tty.hang_up(),
            }
        }
    }

    fn tty(&self) -> Option<Arc<Tty>> {
        self.tty.lock().upgrade()
    }
}

impl Far for Console {
    fn on_output(&self, tty: &Tty) {
        self.pump_output(tty);
    }

    fn drains(&self) -> bool {
        true
    }

    fn changed_window(&self) -> Option<Window> {
        let now = host_window(self.handle.number()).ok()?;
        let mut last = self.window.lock();
        let has_changed = *last != now;
        *last = now;
        has_changed.then_some(now)
    }

    fn on_room(&self, tty: &Tty) {
        if self.is_throttled.swap(false, Ordering::Relaxed) {
            self.pump_input(tty);
        }
    }
}

impl HostWatcher for Console {
    fn on_ready(&self, events: PollMask) {
        let Some(tty) = self.tty() else { return };
        if events.intersects(PollMask::OUT) {
            self.pump_output(&tty);
        }
        if events.intersects(PollMask::READ | PollMask::HUP | PollMask::ERR) {
            // A moment at which it can be seen: the host signals a new size to nobody here.
            tty.follow_window();
            self.pump_input(&tty);
        }
    }

    fn is_news(&self, events: PollMask) -> bool {
        events != PollMask::OUT || self.tty().is_some_and(|tty| tty.has_output())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        remove_watcher(self.token);
    }
}
