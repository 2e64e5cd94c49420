//! `quark top`: all containers of the host on one screen.

mod rows;
mod screen;
mod view;

use std::io::IsTerminal;

use anyhow::Result;

use super::cli::{self, Global};
use super::info::{print, table};
use super::watch::Watcher;
pub(super) use rows::size;
use rows::{Row, Sort};

/// `quark top`.
///
/// # Errors
/// When standard output is closed, the terminal fails, or a signal asks this program to end.
pub fn top(global: &Global, options: &cli::Top) -> Result<()> {
    let mut watcher = Watcher::new(global);
    if !options.once && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return screen::run(watcher, options.interval);
    }
    let look = watcher.look();
    look.warn();
    let mut rows = Row::of(&look);
    Sort::Held.order(&mut rows);
    let head = std::iter::once(rows::HEAD.map(str::to_owned));
    let cells: Vec<_> = head.chain(rows.iter().map(Row::cells)).collect();
    print(&table(&cells))
}
