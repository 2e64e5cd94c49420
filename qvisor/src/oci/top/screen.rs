//! The live screen: the terminal, keys and signals, and a thread that looks.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::watch::{Look, Watcher};
use super::view::{Move, View};
use crate::console;

/// How long signals, a new size and a new look may wait to be noticed.
const TICK: Duration = Duration::from_millis(100);

/// Gives the terminal back as it was. A panic does so too, by the hook of [`ratatui::try_init`].
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the screen until somebody quits.
///
/// # Errors
/// When the terminal fails, or a signal asks this program to end.
pub fn run(watcher: Watcher, interval: Duration) -> Result<()> {
    // Before there is another thread, which would get them.
    let signals = console::catch_signals()?;
    let (quit, looks) = look_on(watcher, interval)?;
    let mut view = View::default();
    let mut terminal = ratatui::try_init().context("setting up the terminal")?;
    let restored = Restored;
    let shown = (|| {
        loop {
            console::end_if_asked(&signals)?;
            if let Some(look) = looks.try_iter().last() {
                view.show(&look);
            }
            if !turn(&mut terminal, &mut view)? {
                return Ok(());
            }
        }
    })();
    drop(restored);
    drop(quit);
    shown
}

/// Draws, and does what keys ask for; false to quit. A new size is seen by the next drawing.
fn turn(terminal: &mut DefaultTerminal, view: &mut View) -> Result<bool> {
    terminal.draw(|frame| view.draw(frame)).context("drawing")?;
    let mut limit = TICK;
    while event::poll(limit).context("waiting for a key")? {
        if let Event::Key(key) = event::read().context("reading a key")?
            && key.kind != KeyEventKind::Release
            && !on_key(key, view)
        {
            return Ok(false);
        }
        limit = Duration::ZERO;
    }
    Ok(true)
}

/// Does what a key asks for; false to quit.
fn on_key(key: KeyEvent, view: &mut View) -> bool {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('s') => view.sort_next(),
        KeyCode::Up | KeyCode::Char('k') => view.select(Move::By(-1)),
        KeyCode::Down | KeyCode::Char('j') => view.select(Move::By(1)),
        KeyCode::PageUp => view.select(Move::Page(-1)),
        KeyCode::PageDown => view.select(Move::Page(1)),
        KeyCode::Home => view.select(Move::First),
        KeyCode::End => view.select(Move::Last),
        _ => {}
    }
    true
}

/// Looks at each interval, in a thread of its own: keys do not wait for sandboxes. It ends when the
/// first of the two that are returned is dropped, or with the program.
fn look_on(mut watcher: Watcher, interval: Duration) -> Result<(Sender<()>, Receiver<Look>)> {
    let (quit, is_over) = mpsc::channel::<()>();
    let (to, looks) = mpsc::channel();
    let look = move || {
        while to.send(watcher.look()).is_ok()
            && is_over.recv_timeout(interval) == Err(RecvTimeoutError::Timeout)
        {}
    };
    thread::Builder::new().name("look".to_owned()).spawn(look).context("starting a thread")?;
    Ok((quit, looks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let mut view = View::default();
        let mut press = |code, modifiers| on_key(KeyEvent::new(code, modifiers), &mut view);
        for code in [KeyCode::Char('q'), KeyCode::Esc] {
            assert!(!press(code, KeyModifiers::NONE));
        }
        assert!(!press(KeyCode::Char('c'), KeyModifiers::CONTROL));
        for code in [KeyCode::Char('c'), KeyCode::Char('s'), KeyCode::Down, KeyCode::PageUp] {
            assert!(press(code, KeyModifiers::NONE));
        }
    }
}
