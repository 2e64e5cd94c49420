//! Terminals: line discipline, pseudoterminals, the console, and what sessions have to do with them
//! (tty(4), pty(7)).
//!
//! A [`Tty`] is what programs read, write and control: the slave side of a pseudoterminal, or the
//! console. What is beyond it (a master, or a terminal of the host) is its [`Far`] side.

pub mod console;
pub mod device;
pub mod ioctl;
pub mod jobs;
pub mod ldisc;
pub mod pty;
pub mod termios;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    TIOCPKT_DOSTOP, TIOCPKT_FLUSHREAD, TIOCPKT_FLUSHWRITE, TIOCPKT_NOSTOP, TIOCPKT_START,
    TIOCPKT_STOP,
};
use zerocopy::FromZeros;

pub use jobs::{controlling, hang_up_session, process_ended};

use self::ldisc::{Effects, LineDiscipline};
use self::termios::Termios;
use crate::errno::{Errno, Result};
use crate::io::IoBuffer;
use crate::sync::Mutex;
use crate::task::signal::{SigInfo, send_to_group};
use crate::time;
use crate::wait::{Observer, PollMask, WaitQueue};

/// Output that is kept while nobody takes it; writers wait beyond that.
const OUTPUT_BYTES: usize = 16 << 10;
/// How much of a write is processed at a time.
const CHUNK_BYTES: usize = 4 << 10;

/// struct winsize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Rows, columns, and their size in pixels.
    pub words: [u16; 4],
}

/// What is beyond a terminal.
pub trait Far: Send + Sync {
    /// Output is there to be taken by [`Tty::take_output`]. Called without any lock held.
    fn on_output(&self, tty: &Tty);
    /// The settings or the room for input changed: more may be handed in by [`Tty::feed`].
    fn on_room(&self, tty: &Tty);
    /// What packet mode tells of (TIOCPKT_*, ioctl_tty(2)) has changed.
    fn on_change(&self, _bits: u32) {}
    /// True if output goes on without anybody reading it in here.
    fn drains(&self) -> bool {
        false
    }
    /// The size of the window out there, if it has changed since this was last asked.
    fn changed_window(&self) -> Option<Window> {
        None
    }
}

/// A terminal as programs see it.
pub struct Tty {
    /// The number in /dev/pts.
    pub number: u32,
    state: Mutex<TtyState>,
    /// Notified when it can be read or written, and when it hangs up.
    queue: WaitQueue,
    far: Arc<dyn Far>,
}

struct TtyState {
    line: LineDiscipline,
    window: Window,
    /// What of the settings may not be changed (TIOCSLCKTRMIOS): where it is not zero.
    locked: Termios,
    /// Processed output on its way to the far side.
    output: VecDeque<u8>,
    /// The session whose controlling terminal it is, 0 none.
    session: u32,
    /// The foreground process group.
    foreground: u32,
    /// Open files of this side.
    opens: usize,
    /// TIOCEXCL.
    is_exclusive: bool,
    /// The far side is gone: reads end, writes fail.
    is_hung_up: bool,
    /// When a read with VTIME gives up.
    read_deadline_ns: Option<u64>,
}

/// Wakes readers whose VTIME has passed.
struct ReadTimer(Arc<Tty>);

impl Observer for ReadTimer {
    fn notify(&self, _events: PollMask) {
        self.0.queue.wake(PollMask::READ);
    }
}

impl Tty {
    /// A new terminal with default settings.
    pub fn new(number: u32, far: Arc<dyn Far>) -> Arc<Self> {
        Arc::new(Tty {
            number,
            state: Mutex::new(TtyState {
                line: LineDiscipline::default(),
                window: Window::default(),
                locked: Termios::new_zeroed(),
                output: VecDeque::new(),
                session: 0,
                foreground: 0,
                opens: 0,
                is_exclusive: false,
                is_hung_up: false,
                read_deadline_ns: None,
            }),
            queue: WaitQueue::new(),
            far,
        })
    }

    /// The settings.
    pub fn termios(&self) -> Termios {
        *self.state.lock().line.termios()
    }

    /// Changes the settings; `flush`: forgets what was typed.
    pub fn set_termios(&self, termios: Termios, flush: bool) {
        let (had_keys, has_keys, was_stopped, is_stopped) = {
            let mut state = self.state.lock();
            if flush {
                state.line.flush_input();
            }
            let had_keys = state.line.termios().has_usual_flow_keys();
            let was_stopped = state.line.is_stopped();
            let termios = termios.keeping(&state.locked, state.line.termios());
            state.line.set_termios(termios);
            (had_keys, termios.has_usual_flow_keys(), was_stopped, state.line.is_stopped())
        };
        match (had_keys, has_keys) {
            (false, true) => self.far.on_change(TIOCPKT_DOSTOP),
            (true, false) => self.far.on_change(TIOCPKT_NOSTOP),
            _ => {}
        }
        self.tell_of_flow(was_stopped, is_stopped);
        self.queue.wake(PollMask::READ | PollMask::WRITE);
        self.far.on_room(self);
        self.far.on_output(self);
    }

    /// What of the settings may not be changed: where it is not zero.
    pub fn locked(&self) -> Termios {
        self.state.lock().locked
    }

    /// Says what may not be changed from now on.
    pub fn set_locked(&self, locked: Termios) {
        self.state.lock().locked = locked;
    }

    /// The window's size.
    pub fn window(&self) -> Window {
        self.state.lock().window
    }

    /// Changes the window's size; the foreground group gets SIGWINCH if it is another one.
    pub fn set_window(&self, window: Window) {
        let foreground = {
            let mut state = self.state.lock();
            if state.window == window {
                return;
            }
            state.window = window;
            state.foreground
        };
        self.signal_group(foreground, linux_raw_sys::general::SIGWINCH);
    }

    /// Takes over a window size that was set on the far side, of which nobody notifies.
    pub fn follow_window(&self) {
        if let Some(window) = self.far.changed_window() {
            self.set_window(window);
        }
    }

    fn signal_group(&self, pgid: u32, signo: u32) {
        if pgid != 0 {
            send_to_group(pgid, SigInfo::kernel(signo));
        }
    }

    /// The session and the foreground process group, 0 none.
    pub fn owners(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.session, state.foreground)
    }

    /// Sets both.
    pub fn set_owners(&self, session: u32, foreground: u32) {
        let mut state = self.state.lock();
        state.session = session;
        state.foreground = foreground;
    }

    /// True if the far side is gone.
    pub fn is_hung_up(&self) -> bool {
        self.state.lock().is_hung_up
    }

    /// How many bytes [`Tty::feed`] can take.
    pub fn input_room(&self) -> usize {
        self.state.lock().line.room()
    }

    /// Takes bytes from the far side.
    pub fn feed(&self, bytes: &[u8]) {
        let (signals, foreground, flushed, was_stopped, is_stopped) = {
            let mut state = self.state.lock();
            let was_stopped = state.line.is_stopped();
            let Effects { echo, signals, flush_output } = state.line.input(bytes);
            if flush_output {
                state.output.clear();
            }
            // As on Linux, echoes that nobody takes are lost.
            if state.output.len() < OUTPUT_BYTES {
                state.output.extend(echo);
            }
            (signals, state.foreground, flush_output, was_stopped, state.line.is_stopped())
        };
        if flushed {
            self.far.on_change(TIOCPKT_FLUSHREAD | TIOCPKT_FLUSHWRITE);
        }
        self.tell_of_flow(was_stopped, is_stopped);
        self.far.on_output(self);
        for signo in signals {
            self.signal_group(foreground, signo);
        }
        if self.state.lock().line.can_read() {
            self.queue.wake(PollMask::READ);
        }
    }

    /// Takes up to `max` bytes of output away for the far side.
    pub fn take_output(&self, max: usize) -> Vec<u8> {
        let taken: Vec<u8> = {
            let mut state = self.state.lock();
            if state.line.is_stopped() {
                return Vec::new();
            }
            let count = max.min(state.output.len());
            state.output.drain(..count).collect()
        };
        if !taken.is_empty() {
            self.queue.wake(PollMask::WRITE);
        }
        taken
    }

    /// Puts back what the far side could not take.
    pub fn return_output(&self, bytes: &[u8]) {
        let mut state = self.state.lock();
        for byte in bytes.iter().rev() {
            state.output.push_front(*byte);
        }
    }

    /// True if the far side has something to take.
    pub fn has_output(&self) -> bool {
        let state = self.state.lock();
        !state.output.is_empty() && !state.line.is_stopped()
    }

    /// Bytes of output nobody has taken yet (TIOCOUTQ).
    pub fn output_bytes(&self) -> usize {
        self.state.lock().output.len()
    }

    /// Bytes that could be read (FIONREAD).
    pub fn readable_bytes(&self) -> usize {
        self.state.lock().line.readable_bytes()
    }

    /// Throws away what was typed and not read, or written and not taken (tcflush(3)).
    pub fn flush(&self, input: bool, output: bool) {
        {
            let mut state = self.state.lock();
            if input {
                state.line.flush_input();
            }
            if output {
                state.output.clear();
            }
        }
        let of_input = if input { TIOCPKT_FLUSHREAD } else { 0 };
        let of_output = if output { TIOCPKT_FLUSHWRITE } else { 0 };
        self.far.on_change(of_input | of_output);
        self.queue.wake(PollMask::WRITE);
        self.far.on_room(self);
    }

    /// Holds output, or lets it go on (tcflow(3)).
    pub fn set_stopped(&self, stopped: bool) {
        let was_stopped = {
            let mut state = self.state.lock();
            let was_stopped = state.line.is_stopped();
            state.line.set_stopped(stopped);
            was_stopped
        };
        self.tell_of_flow(was_stopped, stopped);
        self.far.on_output(self);
    }

    fn tell_of_flow(&self, was_stopped: bool, is_stopped: bool) {
        match (was_stopped, is_stopped) {
            (false, true) => self.far.on_change(TIOCPKT_STOP),
            (true, false) => self.far.on_change(TIOCPKT_START),
            _ => {}
        }
    }

    /// The far side is gone: readers see the end, the session's leader and the foreground group get
    /// SIGHUP.
    pub fn hang_up(&self) {
        {
            let mut state = self.state.lock();
            if core::mem::replace(&mut state.is_hung_up, true) {
                return;
            }
            state.output.clear();
        }
        self.queue.wake(PollMask::all());
        jobs::notify_hang_up(self);
    }

    /// Reads for a program: EAGAIN when there is nothing yet.
    pub fn read(self: &Arc<Self>, buffer: &mut IoBuffer<'_>) -> Result<usize> {
        let max = buffer.remaining();
        let taken = {
            let mut state = self.state.lock();
            if state.is_hung_up {
                return Ok(0);
            }
            if state.line.can_read() || max == 0 {
                state.read_deadline_ns = None;
                state.line.read(max)
            } else if state.line.termios().is_canonical() {
                None
            } else {
                self.read_raw(&mut state, max)
            }
        };
        let Some(taken) = taken else { return Err(Errno::EAGAIN) };
        let stored = buffer.put(&taken);
        self.far.on_room(self);
        stored
    }

    /// A raw read that VMIN does not satisfy yet: what VTIME makes of it.
    fn read_raw(self: &Arc<Self>, state: &mut TtyState, max: usize) -> Option<Vec<u8>> {
        let (minimum, timeout_ns) = (state.line.minimum(), state.line.timeout_ns());
        if minimum == 0 && timeout_ns == 0 {
            return Some(state.line.read(max).unwrap_or_default());
        }
        // A buffer smaller than VMIN is full sooner.
        if state.line.readable_bytes() >= max {
            return state.line.read(max);
        }
        let may_time_out = timeout_ns != 0 && (minimum == 0 || state.line.readable_bytes() > 0);
        if !may_time_out {
            return None;
        }
        let now = time::monotonic_ns();
        match state.read_deadline_ns {
            Some(deadline) if now >= deadline => {
                state.read_deadline_ns = None;
                Some(state.line.read(max).unwrap_or_default())
            }
            Some(_) => None,
            None => {
                let deadline = now.saturating_add(timeout_ns);
                state.read_deadline_ns = Some(deadline);
                time::insert(deadline, Arc::new(ReadTimer(self.clone())));
                None
            }
        }
    }

    /// Writes for a program: EAGAIN when the far side takes nothing, EIO when it is gone.
    pub fn write(&self, buffer: &mut IoBuffer<'_>) -> Result<usize> {
        let mut done = 0;
        while buffer.remaining() > 0 {
            {
                let state = self.state.lock();
                if state.is_hung_up {
                    return if done > 0 { Ok(done) } else { Err(Errno::EIO) };
                }
                if state.output.len() >= OUTPUT_BYTES {
                    break;
                }
            }
            let bytes = match buffer.take_vec(CHUNK_BYTES) {
                Ok(bytes) => bytes,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            let mut out = Vec::with_capacity(bytes.len() + 16);
            {
                let mut state = self.state.lock();
                state.line.output(&bytes, &mut out);
                state.output.extend(out);
            }
            done += bytes.len();
            self.far.on_output(self);
        }
        if done == 0 && buffer.remaining() > 0 { Err(Errno::EAGAIN) } else { Ok(done) }
    }

    /// Readiness for programs.
    pub fn poll(&self) -> PollMask {
        let state = self.state.lock();
        if state.is_hung_up {
            return PollMask::READ | PollMask::WRITE | PollMask::HUP | PollMask::ERR;
        }
        let mut mask = PollMask::empty();
        if state.line.can_read() {
            mask |= PollMask::READ;
        }
        if state.output.len() < OUTPUT_BYTES && !state.line.is_stopped() {
            mask |= PollMask::WRITE;
        }
        mask
    }

    /// What is notified of readiness for programs.
    pub fn queue(&self) -> &WaitQueue {
        &self.queue
    }

    /// An open file of this side came (`true`) or went: how many there are now.
    fn count_open(&self, came: bool) -> usize {
        let mut state = self.state.lock();
        state.opens = if came { state.opens + 1 } else { state.opens.saturating_sub(1) };
        state.opens
    }

    fn is_exclusive(&self) -> bool {
        self.state.lock().is_exclusive
    }

    fn set_exclusive(&self, on: bool) {
        self.state.lock().is_exclusive = on;
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        pty::remove_dead(self.number);
    }
}
