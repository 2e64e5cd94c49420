//! The line discipline: what becomes of bytes on their way from a terminal to its readers, and from
//! writers to it. Knows nothing of processes and files.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    ECHO, ECHOCTL, ECHOE, ECHOK, ECHOKE, ECHONL, ICANON, ICRNL, IEXTEN, IGNCR, IMAXBEL, INLCR,
    ISIG, ISTRIP, IUTF8, IXANY, IXON, NOFLSH, OCRNL, ONLCR, ONLRET, ONOCR, OPOST, SIGINT, SIGQUIT,
    SIGTSTP, VEOF, VEOL, VEOL2, VERASE, VINTR, VKILL, VLNEXT, VMIN, VQUIT, VREPRINT, VSTART, VSTOP,
    VSUSP, VWERASE,
};

use super::termios::Termios;

/// The longest line that is kept; more of it is dropped.
pub const INPUT_BYTES: usize = 4096;
/// Bytes that wait for readers; more is not taken.
const QUEUE_BYTES: usize = 16 << 10;
/// The bits of c_oflag that say how tabs are written, and the value that asks for spaces.
const TAB_DELAY: u32 = 0o14000;
const TAB_WIDTH: usize = 8;
const BELL: u8 = 7;

/// A terminal's line discipline.
#[derive(Clone, Debug, Default)]
pub struct LineDiscipline {
    /// Settings.
    termios: Termios,
    /// The line being typed.
    edit: Vec<u8>,
    /// What can be read.
    ready: VecDeque<u8>,
    /// Edited lines: their lengths. Their bytes lie at the front of `ready`.
    lines: VecDeque<usize>,
    /// Where the cursor is, in columns.
    column: usize,
    /// The column the line being typed began at.
    edit_column: usize,
    /// The next byte is taken literally.
    literal: bool,
    /// Output is held (^S).
    stopped: bool,
}

/// What input did besides what can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// To be written to the terminal, after output processing.
    pub echo: Vec<u8>,
    /// Signals for the foreground process group.
    pub signals: Vec<u32>,
    /// Output that is still queued is to be thrown away.
    pub flush_output: bool,
}

impl LineDiscipline {
    /// The settings.
    pub fn termios(&self) -> &Termios {
        &self.termios
    }

    /// Changes the settings.
    pub fn set_termios(&mut self, termios: Termios) {
        let was_canonical = self.termios.is_canonical();
        self.termios = termios;
        if was_canonical && !termios.is_canonical() {
            // What was typed so far can be read at once.
            self.ready.extend(self.edit.drain(..));
            self.lines.clear();
        } else if !was_canonical && termios.is_canonical() && !self.ready.is_empty() {
            self.lines.push_back(self.ready.len());
        }
        if termios.iflag & IXON == 0 {
            self.stopped = false;
        }
    }

    fn local(&self, flag: u32) -> bool {
        self.termios.lflag & flag != 0
    }

    fn input_flag(&self, flag: u32) -> bool {
        self.termios.iflag & flag != 0
    }

    /// True if output is held.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Holds output, or lets it go on (tcflow(3)).
    pub fn set_stopped(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// How many bytes may come now without being lost.
    pub fn room(&self) -> usize {
        if self.termios.is_canonical() && self.lines.is_empty() {
            // Nobody can read and so make room: what does not fit is dropped, and what ends the
            // line must be seen.
            return INPUT_BYTES;
        }
        QUEUE_BYTES.saturating_sub(self.edit.len() + self.ready.len())
    }

    /// Forgets what was typed and not read.
    pub fn flush_input(&mut self) {
        self.edit.clear();
        self.ready.clear();
        self.lines.clear();
        self.literal = false;
    }

    /// Takes bytes from the terminal.
    pub fn input(&mut self, bytes: &[u8]) -> Effects {
        let mut effects = Effects::default();
        for byte in bytes {
            self.input_byte(*byte, &mut effects);
        }
        effects
    }

    fn input_byte(&mut self, byte: u8, effects: &mut Effects) {
        let mut byte = if self.input_flag(ISTRIP) { byte & 0x7f } else { byte };
        if core::mem::take(&mut self.literal) {
            return self.take_char(byte, effects);
        }
        if self.input_flag(IXON) && self.flow_control(byte) {
            return;
        }
        if self.local(ISIG)
            && let Some(signo) = self.signal_of(byte)
        {
            if !self.local(NOFLSH) {
                self.flush_input();
                effects.flush_output = true;
                effects.echo.clear();
            }
            if self.local(ECHO) {
                self.echo_char(byte, effects);
            }
            effects.signals.push(signo);
            return;
        }
        match byte {
            b'\r' if self.input_flag(IGNCR) => return,
            b'\r' if self.input_flag(ICRNL) => byte = b'\n',
            b'\n' if self.input_flag(INLCR) => byte = b'\r',
            _ => {}
        }
        if self.local(ICANON) && self.edit_char(byte, effects) {
            return;
        }
        self.take_char(byte, effects);
    }

    /// ^S and ^Q: whether `byte` was one of them.
    fn flow_control(&mut self, byte: u8) -> bool {
        if self.termios.is_char(byte, VSTART) {
            self.stopped = false;
            return true;
        }
        if self.termios.is_char(byte, VSTOP) {
            self.stopped = true;
            return true;
        }
        if self.stopped && self.input_flag(IXANY) {
            self.stopped = false;
        }
        false
    }

    fn signal_of(&self, byte: u8) -> Option<u32> {
        [(VINTR, SIGINT), (VQUIT, SIGQUIT), (VSUSP, SIGTSTP)]
            .into_iter()
            .find(|(which, _)| self.termios.is_char(byte, *which))
            .map(|(_, signo)| signo)
    }

    /// Line editing: whether `byte` was an editing character or ended the line.
    fn edit_char(&mut self, byte: u8, effects: &mut Effects) -> bool {
        let is = |which| self.termios.is_char(byte, which);
        let extended = self.local(IEXTEN);
        if is(VERASE) {
            self.erase_char(effects);
        } else if is(VKILL) {
            self.kill_line(byte, effects);
        } else if extended && is(VWERASE) {
            self.erase_word(effects);
        } else if extended && is(VLNEXT) {
            self.literal = true;
            if self.local(ECHO) && self.local(ECHOCTL) {
                self.write(b"^\x08", effects);
            }
        } else if extended && is(VREPRINT) && self.local(ECHO) {
            self.echo_char(byte, effects);
            self.write(b"\n", effects);
            self.edit_column = self.column;
            for i in 0..self.edit.len() {
                self.echo_char(self.edit[i], effects);
            }
        } else if byte == b'\n' {
            if self.local(ECHO | ECHONL) {
                self.write(b"\n", effects);
            }
            self.end_line(Some(byte));
        } else if is(VEOF) {
            self.end_line(None);
        } else if is(VEOL) || (extended && is(VEOL2)) {
            if self.local(ECHO) {
                self.echo_char(byte, effects);
            }
            self.end_line(Some(byte));
        } else {
            return false;
        }
        true
    }

    fn end_line(&mut self, last: Option<u8>) {
        self.edit.extend(last);
        self.lines.push_back(self.edit.len());
        self.ready.extend(self.edit.drain(..));
    }

    fn take_char(&mut self, byte: u8, effects: &mut Effects) {
        // Room is kept for what ends the line.
        let is_full = match self.termios.is_canonical() {
            true => self.edit.len() >= INPUT_BYTES - 1,
            false => self.edit.len() + self.ready.len() >= QUEUE_BYTES,
        };
        if is_full {
            if self.input_flag(IMAXBEL) {
                self.write(&[BELL], effects);
            }
            return;
        }
        if self.local(ECHO) {
            if self.edit.is_empty() {
                self.edit_column = self.column;
            }
            if byte == b'\n' {
                self.write(b"\n", effects);
            } else {
                self.echo_char(byte, effects);
            }
        }
        if self.local(ICANON) {
            self.edit.push(byte);
        } else {
            self.ready.push_back(byte);
        }
    }

    /// Takes the last character of the line away: its bytes. With IUTF8 a character may have
    /// several.
    fn pop_char(&mut self) -> Option<u8> {
        let mut byte = self.edit.pop()?;
        while self.input_flag(IUTF8) && is_continuation(byte) {
            match self.edit.pop() {
                Some(before) => byte = before,
                None => break,
            }
        }
        Some(byte)
    }

    /// Removes the cursor's last step: `byte` was the first of the character that is gone.
    fn unwrite(&mut self, byte: u8, effects: &mut Effects) {
        if !self.local(ECHO) {
            return;
        }
        if !self.local(ECHOE) {
            let erase = self.termios.cc[VERASE as usize];
            return self.echo_char(erase, effects);
        }
        let width = match byte {
            b'\t' => self.column.saturating_sub(self.typed_width()),
            _ if is_control(byte) => 2 * usize::from(self.local(ECHOCTL)),
            _ => 1,
        };
        for _ in 0..width {
            let rub: &[u8] = if byte == b'\t' { b"\x08" } else { b"\x08 \x08" };
            self.write(rub, effects);
        }
    }

    /// The column after the line as it is typed so far.
    fn typed_width(&self) -> usize {
        self.edit.iter().fold(self.edit_column, |column, byte| match *byte {
            b'\t' => column / TAB_WIDTH * TAB_WIDTH + TAB_WIDTH,
            byte if is_control(byte) => column + 2 * usize::from(self.local(ECHOCTL)),
            byte if self.input_flag(IUTF8) && is_continuation(byte) => column,
            _ => column + 1,
        })
    }

    fn erase_char(&mut self, effects: &mut Effects) {
        if let Some(byte) = self.pop_char() {
            self.unwrite(byte, effects);
        }
    }

    fn erase_word(&mut self, effects: &mut Effects) {
        let mut in_word = false;
        while let Some(last) = self.edit.last() {
            let is_word = last.is_ascii_alphanumeric() || *last == b'_' || *last >= 0x80;
            if in_word && !is_word {
                break;
            }
            in_word |= is_word;
            self.erase_char(effects);
        }
    }

    fn kill_line(&mut self, byte: u8, effects: &mut Effects) {
        if self.local(ECHO) && self.local(ECHOK) && self.local(ECHOKE) && self.local(ECHOE) {
            while !self.edit.is_empty() {
                self.erase_char(effects);
            }
            return;
        }
        self.edit.clear();
        if self.local(ECHO) {
            self.echo_char(byte, effects);
            if self.local(ECHOK) {
                self.write(b"\n", effects);
            }
        }
    }

    fn echo_char(&mut self, byte: u8, effects: &mut Effects) {
        if self.local(ECHOCTL) && is_control(byte) && byte != b'\t' {
            self.write(&[b'^', byte ^ 0x40], effects);
        } else {
            self.write(&[byte], effects);
        }
    }

    fn write(&mut self, bytes: &[u8], effects: &mut Effects) {
        let mut out = core::mem::take(&mut effects.echo);
        self.output(bytes, &mut out);
        effects.echo = out;
    }

    /// Output processing: appends to `out` what the terminal gets for `bytes`.
    pub fn output(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let flags = self.termios.oflag;
        let on = |flag| flags & OPOST != 0 && flags & flag != 0;
        for &byte in bytes {
            match byte {
                b'\n' if on(ONLCR) => {
                    out.extend_from_slice(b"\r\n");
                    self.column = 0;
                }
                b'\n' => {
                    out.push(byte);
                    if on(ONLRET) {
                        self.column = 0;
                    }
                }
                b'\r' if on(ONOCR) && self.column == 0 => {}
                b'\r' if on(OCRNL) => out.push(b'\n'),
                b'\r' => {
                    out.push(byte);
                    self.column = 0;
                }
                b'\t' => {
                    let spaces = TAB_WIDTH - self.column % TAB_WIDTH;
                    self.column += spaces;
                    if flags & OPOST != 0 && flags & TAB_DELAY == TAB_DELAY {
                        out.extend(core::iter::repeat_n(b' ', spaces));
                    } else {
                        out.push(byte);
                    }
                }
                8 => {
                    out.push(byte);
                    self.column = self.column.saturating_sub(1);
                }
                _ => {
                    out.push(byte);
                    let invisible =
                        is_control(byte) || (self.input_flag(IUTF8) && is_continuation(byte));
                    self.column = self.column.wrapping_add(usize::from(!invisible));
                }
            }
        }
    }

    /// True if a read would find something.
    pub fn can_read(&self) -> bool {
        if self.termios.is_canonical() {
            !self.lines.is_empty()
        } else {
            self.ready.len() >= self.minimum().max(1)
        }
    }

    /// VMIN.
    pub fn minimum(&self) -> usize {
        usize::from(self.termios.cc[VMIN as usize])
    }

    /// VTIME, in nanoseconds.
    pub fn timeout_ns(&self) -> u64 {
        u64::from(self.termios.cc[linux_raw_sys::general::VTIME as usize]) * 100_000_000
    }

    /// Bytes that could be read (FIONREAD).
    pub fn readable_bytes(&self) -> usize {
        if self.termios.is_canonical() { self.lines.iter().sum() } else { self.ready.len() }
    }

    /// Takes up to `max` bytes: of one line only when lines are edited; nothing at all for an end
    /// of file. `None` when there is nothing yet.
    pub fn read(&mut self, max: usize) -> Option<Vec<u8>> {
        if !self.termios.is_canonical() {
            let count = max.min(self.ready.len());
            return (count > 0 || max == 0).then(|| self.ready.drain(..count).collect());
        }
        let line = self.lines.front_mut()?;
        let count = max.min(*line).min(self.ready.len());
        *line -= count;
        if *line == 0 {
            self.lines.pop_front();
        }
        Some(self.ready.drain(..count).collect())
    }
}

fn is_control(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(line: &mut LineDiscipline, text: &[u8]) -> Effects {
        line.input(text)
    }

    fn read(line: &mut LineDiscipline) -> Option<Vec<u8>> {
        line.read(4096)
    }

    #[test]
    fn a_line_is_read_when_it_is_complete() {
        let mut line = LineDiscipline::default();
        assert_eq!(typed(&mut line, b"ab").echo, b"ab");
        assert!(!line.can_read() && read(&mut line).is_none());
        assert_eq!(typed(&mut line, b"c\rnext").echo, b"c\r\nnext");
        assert!(line.can_read());
        assert_eq!(line.readable_bytes(), 4);
        assert_eq!(line.read(2).as_deref(), Some(&b"ab"[..]));
        assert_eq!(read(&mut line).as_deref(), Some(&b"c\n"[..]));
        assert_eq!(read(&mut line), None);
    }

    #[test]
    fn characters_words_and_lines_are_erased() {
        let mut line = LineDiscipline::default();
        assert_eq!(typed(&mut line, b"ax\x7f").echo, b"ax\x08 \x08");
        typed(&mut line, b"bc de_f\x17g\n");
        assert_eq!(read(&mut line).as_deref(), Some(&b"abc g\n"[..]));
        typed(&mut line, b"gone\x15kept\n");
        assert_eq!(read(&mut line).as_deref(), Some(&b"kept\n"[..]));
        // A character of several bytes goes as a whole; a control character takes two columns.
        assert_eq!(typed(&mut line, "\u{e4}\x7f".as_bytes()).echo, "\u{e4}\x08 \x08".as_bytes());
        assert_eq!(typed(&mut line, b"\x01\x7f").echo, b"^A\x08 \x08\x08 \x08");
        typed(&mut line, b"\x7f\x7f\n");
        assert_eq!(read(&mut line).as_deref(), Some(&b"\n"[..]));
    }

    #[test]
    fn a_tab_is_erased_to_where_it_began() {
        let mut line = LineDiscipline::default();
        assert_eq!(typed(&mut line, b"ab\t\x7f").echo, b"ab\t\x08\x08\x08\x08\x08\x08");
    }

    #[test]
    fn end_of_file_ends_a_line_or_a_read() {
        let mut line = LineDiscipline::default();
        assert_eq!(typed(&mut line, b"ab\x04").echo, b"ab");
        assert_eq!(read(&mut line).as_deref(), Some(&b"ab"[..]));
        assert_eq!(read(&mut line), None);
        typed(&mut line, b"\x04");
        assert!(line.can_read());
        assert_eq!(read(&mut line).as_deref(), Some(&b""[..]));
        assert_eq!(read(&mut line), None);
    }

    #[test]
    fn signals_come_and_flush() {
        let mut line = LineDiscipline::default();
        let effects = typed(&mut line, b"abc\x03");
        assert_eq!(effects.signals, [SIGINT]);
        assert_eq!(effects.echo, b"^C");
        assert!(effects.flush_output);
        typed(&mut line, b"d\n");
        assert_eq!(read(&mut line).as_deref(), Some(&b"d\n"[..]));
        assert_eq!(typed(&mut line, b"\x1a\x1c").signals, [SIGTSTP, SIGQUIT]);
        // Taken literally it is a byte like any other.
        assert_eq!(typed(&mut line, b"\x16\x03\n").signals, []);
        assert_eq!(read(&mut line).as_deref(), Some(&b"\x03\n"[..]));
    }

    #[test]
    fn raw_bytes_pass_at_once() {
        let mut line = LineDiscipline::default();
        typed(&mut line, b"half");
        let mut raw = *line.termios();
        raw.make_raw();
        line.set_termios(raw);
        assert_eq!(read(&mut line).as_deref(), Some(&b"half"[..]));
        assert_eq!(typed(&mut line, b"\x03\r\x04\x13"), Effects::default());
        assert_eq!(read(&mut line).as_deref(), Some(&b"\x03\r\x04\x13"[..]));
        let mut out = Vec::new();
        line.output(b"a\n", &mut out);
        assert_eq!(out, b"a\n");
    }

    #[test]
    fn the_least_count_of_a_raw_read_is_respected() {
        let mut line = LineDiscipline::default();
        let mut raw = *line.termios();
        raw.make_raw();
        raw.cc[VMIN as usize] = 3;
        line.set_termios(raw);
        typed(&mut line, b"ab");
        assert!(!line.can_read());
        typed(&mut line, b"c");
        assert!(line.can_read());
    }

    #[test]
    fn output_is_held_and_let_go() {
        let mut line = LineDiscipline::default();
        typed(&mut line, b"\x13");
        assert!(line.is_stopped());
        typed(&mut line, b"\x11");
        assert!(!line.is_stopped());
    }

    #[test]
    fn output_is_processed() {
        let mut line = LineDiscipline::default();
        let mut out = Vec::new();
        line.output(b"a\nb", &mut out);
        assert_eq!(out, b"a\r\nb");
        let mut settings = *line.termios();
        settings.oflag |= TAB_DELAY;
        line.set_termios(settings);
        out.clear();
        line.output(b"\t|", &mut out);
        assert_eq!(out, b"       |");
    }

    #[test]
    fn too_long_a_line_loses_its_end_and_can_still_be_ended() {
        let mut line = LineDiscipline::default();
        typed(&mut line, &alloc::vec![b'x'; 2 * INPUT_BYTES]);
        typed(&mut line, b"\n");
        assert_eq!(read(&mut line).map(|l| l.len()), Some(INPUT_BYTES));
    }

    #[test]
    fn the_old_structure_carries_the_lower_halves() {
        let mut termios = Termios::default();
        let old = termios.to_termio();
        let before = termios;
        termios.set_termio(&old);
        assert_eq!(termios, before);
    }
}
