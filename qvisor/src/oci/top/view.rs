//! The screen's layout: a line of totals, the containers, a line of keys.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use super::super::info::printable;
use super::super::watch::Look;
use super::rows::{HEAD, Row, Sort, size};

/// What is on the screen.
#[derive(Debug, Default)]
pub struct View {
    rows: Vec<Row>,
    sort: Sort,
    /// The selected row, and how far it is scrolled.
    table: TableState,
    totals: String,
    warning: Option<String>,
    /// Rows that the last drawing had place for.
    page: usize,
}

/// Where a key moves the selection to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// By so many rows.
    By(isize),
    /// By so many pages.
    Page(isize),
    /// To the first row.
    First,
    /// To the last row.
    Last,
}

impl View {
    /// Shows what was seen, and keeps the container that is selected.
    pub fn show(&mut self, look: &Look) {
        let selected = self.selected();
        self.rows = Row::of(look);
        let asleep: Vec<&Row> = self.rows.iter().filter(|row| row.is_asleep).collect();
        let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0u64, u64::saturating_add);
        self.totals = format!(
            "{} containers, {} asleep; held {}, saved by sleep {}; looked in {:.2} s",
            self.rows.len(),
            asleep.len(),
            size(sum(&mut self.rows.iter().filter_map(|row| row.held))),
            size(sum(&mut asleep.iter().filter_map(|row| row.saved()))),
            look.took.as_secs_f64(),
        );
        self.warning = match look.unreadable.as_slice() {
            [] => None,
            [(_, why)] => Some(printable(why)),
            [(_, why), more @ ..] => Some(printable(&format!("{} more, and: {why}", more.len()))),
        };
        self.order(selected);
    }

    /// Orders by the next column.
    pub fn sort_next(&mut self) {
        let selected = self.selected();
        self.sort = self.sort.next();
        self.order(selected);
    }

    /// Moves the selection.
    pub fn select(&mut self, how: Move) {
        let Some(last) = self.rows.len().checked_sub(1) else { return };
        let now = self.table.selected().unwrap_or(0);
        let rows = |by: isize, of: usize| by.saturating_mul(isize::try_from(of).unwrap_or(1));
        let to = match how {
            Move::By(by) => now.saturating_add_signed(by),
            Move::Page(by) => now.saturating_add_signed(rows(by, self.page.max(1))),
            Move::First => 0,
            Move::Last => last,
        };
        self.table.select(Some(to.min(last)));
    }

    fn selected(&self) -> Option<(String, String)> {
        let row = self.rows.get(self.table.selected()?)?;
        Some((row.root.clone(), row.id.clone()))
    }

    fn order(&mut self, selected: Option<(String, String)>) {
        self.sort.order(&mut self.rows);
        let found = selected.and_then(|(root, id)| {
            self.rows.iter().position(|row| row.root == root && row.id == id)
        });
        // One that is gone leaves its place to the next.
        let place = found.or(self.table.selected()).unwrap_or(0);
        self.table.select(self.rows.len().checked_sub(1).map(|last| place.min(last)));
    }

    /// Draws it all.
    pub fn draw(&mut self, frame: &mut Frame<'_>) {
        let [above, middle, below] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Paragraph::new(self.totals.as_str()), above);
        let keys = format!("q quit   ↑ ↓ move   s sort (by {})", self.sort.column());
        let last = self.warning.as_ref().map_or(keys, |why| format!("not looked at: {why}"));
        frame.render_widget(Paragraph::new(last).style(Modifier::DIM), below);
        self.page = usize::from(middle.height.saturating_sub(1));

        let is_number = |column: usize| (2..=7).contains(&column);
        let cell = |(column, text): (usize, String)| {
            let side = if is_number(column) { Alignment::Right } else { Alignment::Left };
            Cell::from(Text::from(text).alignment(side))
        };
        let head = HEAD.iter().map(|name| (*name).to_owned()).enumerate().map(cell);
        let head = TableRow::new(head).style(Style::new().add_modifier(Modifier::BOLD));
        // Only those that can be seen become text: there may be thousands.
        let first = self.first_shown();
        let shown = self.rows.iter().skip(first).take(self.page);
        let rows = shown.map(|row| {
            let style = if row.is_asleep { Modifier::DIM } else { Modifier::empty() };
            TableRow::new(row.cells().into_iter().enumerate().map(cell)).style(style)
        });
        let widths = [
            Constraint::Fill(3),
            Constraint::Length(16),
            Constraint::Length(5),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(8),
            Constraint::Length(9),
            Constraint::Length(7),
            Constraint::Fill(2),
        ];
        let table = Table::new(rows, widths).header(head).row_highlight_style(Modifier::REVERSED);
        let selected = self.table.selected().map(|at| at - first.min(at));
        let mut state = TableState::new().with_selected(selected);
        frame.render_stateful_widget(table, middle, &mut state);
    }

    /// The first row that is shown: as before, if the selected one is shown then.
    fn first_shown(&mut self) -> usize {
        let page = self.page.max(1);
        let selected = self.table.selected().unwrap_or(0);
        let most = self.rows.len().saturating_sub(page);
        let from = selected.saturating_sub(page - 1);
        let first = self.table.offset().clamp(from, selected.max(from)).min(most.max(from));
        *self.table.offset_mut() = first;
        first
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rows::tests::sample;
    use super::*;

    fn look(count: usize) -> Look {
        let samples = (0..count).map(|n| {
            let slept = (n % 2 == 0).then_some((9 << 20, 1 << 20));
            sample(&format!("c{n:03}"), 1000 - n as u64, slept)
        });
        Look { samples: samples.collect(), ..Look::default() }
    }

    /// The screen's lines.
    fn lines(view: &mut View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn it_shows_totals_containers_and_keys() {
        let mut view = View::default();
        view.show(&look(3));
        let lines = lines(&mut view, 120, 10);
        assert_eq!(
            lines[0],
            "3 containers, 2 asleep; held 2.9K, saved by sleep 16.0M; looked in 0.00 s"
        );
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(1).join(" "), HEAD.join(" "));
        assert_eq!(words(2)[..7], ["c000", "Hibernated", "0s", "1.0K", "9.0M", "1.0M", "8.0M"]);
        assert_eq!(words(3)[..7], ["c001", "Running", "0s", "999B", "5.0M", "-", "-"]);
        assert_eq!(lines[5..9], [""; 4]);
        assert!(lines[9].contains("s sort (by HELD)"), "{}", lines[9]);
    }

    #[test]
    fn the_selected_container_stays_selected_and_visible() {
        let mut view = View::default();
        view.show(&look(100));
        let shown = |view: &mut View| lines(view, 120, 13)[2..12].to_vec();
        assert!(shown(&mut view)[0].starts_with("c000"));
        view.select(Move::By(-1));
        view.select(Move::By(12));
        assert!(shown(&mut view)[9].starts_with("c012"));
        view.select(Move::Page(1));
        assert!(shown(&mut view)[9].starts_with("c022"));
        // Scrolled as little as is needed.
        view.select(Move::By(-3));
        assert!(shown(&mut view)[9].starts_with("c022"));
        view.select(Move::Last);
        assert!(shown(&mut view)[9].starts_with("c099"));
        view.sort_next();
        let selected = view.rows[view.table.selected().unwrap()].id.clone();
        assert_eq!(selected, "c099");
        view.show(&look(5));
        assert_eq!(view.table.selected(), Some(4));
        assert!(shown(&mut view)[0].starts_with("c000"));
        view.select(Move::First);
        view.show(&look(0));
        view.select(Move::Last);
        assert_eq!(view.table.selected(), None);
        assert!(shown(&mut view).iter().all(String::is_empty));
    }

    #[test]
    fn any_size_of_screen_will_do() {
        let mut view = View::default();
        view.show(&look(100));
        view.select(Move::By(50));
        for (width, height) in [(1, 1), (2, 3), (10, 2), (30, 5), (300, 200), (0, 0)] {
            lines(&mut view, width, height);
            view.select(Move::Page(1));
        }
    }

    #[test]
    fn control_characters_do_not_reach_the_screen() {
        let mut view = View::default();
        let mut hostile = look(1);
        hostile.samples[0].id = "\x1b]0;title\x07\u{9b}2J".into();
        hostile.samples[0].root = "/run/\x1b[2J\n".into();
        hostile.unreadable.push(("/x".into(), "\x1b[31m".into()));
        view.show(&hostile);
        let all = lines(&mut view, 200, 6).join("\n");
        assert!(!all.chars().any(|c| c.is_control() && c != '\n'), "{all:?}");
        assert!(all.contains("?]0;title") && all.contains("/run/?[2J?"), "{all}");
    }
}
