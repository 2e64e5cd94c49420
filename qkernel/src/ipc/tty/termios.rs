//! Terminal settings (termios(3)), as the kernel's interface lays them out.

use linux_raw_sys::general::{
    B38400, BRKINT, CREAD, CS8, ECHO, ECHOCTL, ECHOE, ECHOK, ECHOKE, HUPCL, ICANON, ICRNL, IEXTEN,
    IMAXBEL, ISIG, IUTF8, IXON, NCCS, ONLCR, OPOST, VDISCARD, VEOF, VERASE, VINTR, VKILL, VLNEXT,
    VMIN, VQUIT, VREPRINT, VSTART, VSTOP, VSUSP, VWERASE,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct termios2`: the first 36 bytes are `struct termios`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[allow(missing_docs)]
pub struct Termios {
    pub iflag: u32,
    pub oflag: u32,
    pub cflag: u32,
    pub lflag: u32,
    pub line: u8,
    pub cc: [u8; NCCS as usize],
    pub ispeed: u32,
    pub ospeed: u32,
}

/// Bytes of `struct termios`.
pub const TERMIOS_BYTES: usize = 36;
/// Bytes of the old `struct termio`.
pub const TERMIO_BYTES: usize = 18;

const fn control(letter: u8) -> u8 {
    letter & 0x1f
}

impl Default for Termios {
    /// What a new terminal has.
    fn default() -> Self {
        let mut cc = [0; NCCS as usize];
        let mut set = |index: u32, byte| cc[index as usize] = byte;
        set(VINTR, control(b'C'));
        set(VQUIT, control(b'\\'));
        set(VERASE, 0x7f);
        set(VKILL, control(b'U'));
        set(VEOF, control(b'D'));
        set(VMIN, 1);
        set(VSTART, control(b'Q'));
        set(VSTOP, control(b'S'));
        set(VSUSP, control(b'Z'));
        set(VREPRINT, control(b'R'));
        set(VDISCARD, control(b'O'));
        set(VWERASE, control(b'W'));
        set(VLNEXT, control(b'V'));
        Termios {
            iflag: ICRNL | IXON | IUTF8,
            oflag: OPOST | ONLCR,
            cflag: B38400 | CS8 | CREAD | HUPCL,
            lflag: ISIG | ICANON | ECHO | ECHOE | ECHOK | ECHOCTL | ECHOKE | IEXTEN,
            line: 0,
            cc,
            ispeed: 38400,
            ospeed: 38400,
        }
    }
}

impl Termios {
    /// As cfmakeraw(3) makes it.
    pub fn make_raw(&mut self) {
        // IGNBRK | BRKINT | PARMRK | ISTRIP | INLCR | IGNCR | ICRNL | IXON, and no bell either.
        self.iflag &= !(0o1 | BRKINT | 0o10 | 0o40 | 0o100 | 0o200 | ICRNL | IXON | IMAXBEL);
        self.oflag &= !OPOST;
        self.lflag &= !(ECHO | 0o100 | ICANON | ISIG | IEXTEN);
        self.cflag = self.cflag & !(0o60 | 0o400) | CS8;
        self.cc[VMIN as usize] = 1;
        self.cc[linux_raw_sys::general::VTIME as usize] = 0;
    }

    /// True if lines are edited before they are read.
    pub fn is_canonical(&self) -> bool {
        self.lflag & ICANON != 0
    }

    /// True if `byte` is the control character `which` (V*), which is switched off when it is 0.
    pub fn is_char(&self, byte: u8, which: u32) -> bool {
        byte != 0 && self.cc[which as usize] == byte
    }

    /// True if ^S and ^Q hold output and let it go on.
    pub fn has_usual_flow_keys(&self) -> bool {
        const CTRL_S: u8 = 0x13;
        const CTRL_Q: u8 = 0x11;
        self.iflag & IXON != 0 && self.is_char(CTRL_S, VSTOP) && self.is_char(CTRL_Q, VSTART)
    }

    /// As it is if nobody may change what is not zero in `locked` (TIOCSLCKTRMIOS) from `old`.
    pub fn keeping(mut self, locked: &Termios, old: &Termios) -> Self {
        let flags = |new: u32, old: u32, locked: u32| new & !locked | old & locked;
        self.iflag = flags(self.iflag, old.iflag, locked.iflag);
        self.oflag = flags(self.oflag, old.oflag, locked.oflag);
        self.cflag = flags(self.cflag, old.cflag, locked.cflag);
        self.lflag = flags(self.lflag, old.lflag, locked.lflag);
        let byte = |new: u8, old: u8, locked: u8| if locked == 0 { new } else { old };
        self.line = byte(self.line, old.line, locked.line);
        for (index, new) in self.cc.iter_mut().enumerate() {
            *new = byte(*new, old.cc[index], locked.cc[index]);
        }
        self
    }

    /// Takes over the old `struct termio`.
    pub fn set_termio(&mut self, bytes: &[u8; TERMIO_BYTES]) {
        let word = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        self.iflag = self.iflag & 0xffff_0000 | word(0);
        self.oflag = self.oflag & 0xffff_0000 | word(2);
        self.cflag = self.cflag & 0xffff_0000 | word(4);
        self.lflag = self.lflag & 0xffff_0000 | word(6);
        self.line = bytes[8];
        self.cc[..8].copy_from_slice(&bytes[9..17]);
    }

    /// As the old `struct termio`.
    pub fn to_termio(self) -> [u8; TERMIO_BYTES] {
        let mut bytes = [0; TERMIO_BYTES];
        for (at, word) in [self.iflag, self.oflag, self.cflag, self.lflag].into_iter().enumerate() {
            bytes[2 * at..2 * at + 2].copy_from_slice(&(word as u16).to_le_bytes());
        }
        bytes[8] = self.line;
        bytes[9..17].copy_from_slice(&self.cc[..8]);
        bytes
    }
}
