//! ioctl(2) on terminals (ioctl_tty(2)).

use alloc::sync::Arc;

use linux_raw_sys::general::{CAP_SYS_ADMIN, TCIFLUSH, TCIOFLUSH, TCOFLUSH, TCOOFF, TCOON};
use linux_raw_sys::ioctl::{
    FIONREAD, TCFLSH, TCGETA, TCGETS, TCGETS2, TCSBRK, TCSBRKP, TCSETA, TCSETAF, TCSETAW, TCSETS,
    TCSETS2, TCSETSF, TCSETSF2, TCSETSW, TCSETSW2, TCXONC, TIOCEXCL, TIOCGDEV, TIOCGETD, TIOCGEXCL,
    TIOCGLCKTRMIOS, TIOCGPGRP, TIOCGSID, TIOCGWINSZ, TIOCNOTTY, TIOCNXCL, TIOCOUTQ, TIOCSCTTY,
    TIOCSETD, TIOCSLCKTRMIOS, TIOCSPGRP, TIOCSTI, TIOCSWINSZ,
};
use qlib::Va;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::jobs;
use super::termios::{TERMIO_BYTES, TERMIOS_BYTES, Termios};
use super::{Tty, Window};
use crate::errno::{Errno, Result};
use crate::task::Thread;

/// Serves an ioctl on `tty`, from its own side or (`is_master`) from its master's.
pub fn serve(
    thread: &Arc<Thread>,
    tty: &Arc<Tty>,
    is_master: bool,
    command: u32,
    argument: u64,
) -> Result<usize> {
    let at = Va(argument);
    let mm = thread.mm();
    let may_change = || if is_master { Ok(()) } else { jobs::check_change(thread, tty) };
    match command {
        TCGETS => mm.write_bytes(at, &tty.termios().as_bytes()[..TERMIOS_BYTES])?,
        TCGETS2 => mm.write(at, &tty.termios())?,
        TCGETA => mm.write_bytes(at, &tty.termios().to_termio())?,
        TCSETS | TCSETSW | TCSETSF | TCSETS2 | TCSETSW2 | TCSETSF2 | TCSETA | TCSETAW | TCSETAF => {
            may_change()?;
            let new = read_termios(thread, tty, command, at)?;
            tty.set_termios(new, matches!(command, TCSETSF | TCSETSF2 | TCSETAF));
        }
        TIOCGLCKTRMIOS => mm.write_bytes(at, &tty.locked().as_bytes()[..TERMIOS_BYTES])?,
        TIOCSLCKTRMIOS => {
            if !thread.creds().capable(CAP_SYS_ADMIN) {
                return Err(Errno::EPERM);
            }
            tty.set_locked(read_short(thread, at, Termios::new_zeroed())?);
        }
        TIOCGWINSZ => {
            tty.follow_window();
            mm.write(at, &tty.window().words)?;
        }
        TIOCSWINSZ => {
            let words = mm.read(at)?;
            tty.set_window(Window { words });
        }
        TIOCSCTTY if !is_master => jobs::acquire(thread, tty, argument == 1)?,
        TIOCNOTTY if !is_master => jobs::release(&thread.process, tty)?,
        TIOCGPGRP | TIOCGSID => {
            if !is_master && !jobs::is_controlling(&thread.process, tty) {
                return Err(Errno::ENOTTY);
            }
            let (session, foreground) = tty.owners();
            if session == 0 && command == TIOCGSID {
                return Err(Errno::ENOTTY);
            }
            let asked = if command == TIOCGSID { session } else { foreground };
            mm.write(at, &thread.number_of(asked))?;
        }
        TIOCSPGRP => jobs::set_foreground(thread, tty, mm.read(at)?)?,
        FIONREAD => mm.write(at, &(tty.readable_bytes() as u32))?,
        TIOCOUTQ => mm.write(at, &(tty.output_bytes() as u32))?,
        TCFLSH => {
            may_change()?;
            match argument as u32 {
                TCIFLUSH => tty.flush(true, false),
                TCOFLUSH => tty.flush(false, true),
                TCIOFLUSH => tty.flush(true, true),
                _ => return Err(Errno::EINVAL),
            }
        }
        TCXONC => {
            may_change()?;
            match argument as u32 {
                TCOOFF => tty.set_stopped(true),
                TCOON => tty.set_stopped(false),
                // TCIOFF and TCION send the stop and start characters, which nobody on the far side
                // is there to obey.
                2 | 3 => {}
                _ => return Err(Errno::EINVAL),
            }
        }
        // A break has no meaning here. Output needs no draining: it is on its way already.
        TCSBRK | TCSBRKP => may_change()?,
        TIOCEXCL => tty.set_exclusive(true),
        TIOCNXCL => tty.set_exclusive(false),
        TIOCGEXCL => mm.write(at, &u32::from(tty.is_exclusive()))?,
        TIOCGETD => mm.write(at, &0u32)?,
        TIOCSETD => {
            let discipline: u32 = mm.read(at)?;
            if discipline != 0 {
                return Err(Errno::EINVAL);
            }
        }
        TIOCGDEV => mm.write(at, &(super::device::SLAVE_MAJOR << 8 | tty.number))?,
        // Feigned input is a way out of a sandbox inside; Linux lets administrators switch it off,
        // too.
        TIOCSTI => return Err(Errno::EPERM),
        _ => return Err(Errno::ENOTTY),
    }
    Ok(0)
}

fn read_termios(thread: &Thread, tty: &Tty, command: u32, at: Va) -> Result<Termios> {
    let mm = thread.mm();
    let mut new = tty.termios();
    match command {
        TCSETS2 | TCSETSW2 | TCSETSF2 => new = mm.read(at)?,
        TCSETA | TCSETAW | TCSETAF => {
            let mut old = [0; TERMIO_BYTES];
            mm.read_bytes(at, &mut old)?;
            new.set_termio(&old);
        }
        _ => {
            new = read_short(thread, at, new)?;
        }
    }
    Ok(new)
}

/// A `struct termios`; what it lacks comes from `rest`.
fn read_short(thread: &Thread, at: Va, rest: Termios) -> Result<Termios> {
    let mut bytes = [0; size_of::<Termios>()];
    bytes.copy_from_slice(rest.as_bytes());
    thread.mm().read_bytes(at, &mut bytes[..TERMIOS_BYTES])?;
    Termios::read_from_bytes(&bytes).map_err(|_| Errno::EINVAL)
}
