//! Writes the man pages, one for `quark` and one for each of its commands, into a directory:
//! `cargo run -p qvisor --example man -- DIR`. Their words are those of `--help`, from the same
//! definition, and exit codes those of doc/operations.md.
//!
//! An example and no command of `quark`, as its sandboxes would carry the code for all their lives.
#![deny(unsafe_code)]

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use qvisor::oci::cli::Cli;

/// The manual that has the exit codes.
const OPERATIONS: &str = include_str!("../../doc/operations.md");

/// Files that a reader may look for, and what they are.
const FILES: &[(&str, &str)] = &[
    ("/run/quark", "State of containers, without --root."),
    (
        "$XDG_RUNTIME_DIR/quark",
        "The same for an ordinary user; else /run/user/UID/quark or ~/.local/share/quark.",
    ),
    ("/var/tmp", "Here the nameless files lie that the memory of hibernated containers goes to."),
    ("/etc/docker/daemon.json", "Docker's configuration, which quark install changes."),
    ("/etc/containerd/config.toml", "containerd's, which it changes too."),
    ("/usr/share/doc/quark", "Manuals, if quark was installed as a package."),
];

fn main() -> Result<()> {
    let dir = std::env::args_os().nth(1).map(PathBuf::from).context("usage: man DIR")?;
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    for (name, text) in pages(&date())? {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The day that the pages are of: SOURCE_DATE_EPOCH's, so that a build can be repeated, or today.
fn date() -> String {
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|s| s.parse().ok());
    let time =
        epoch.map_or_else(SystemTime::now, |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s));
    humantime::format_rfc3339_seconds(time).to_string()[..10].to_owned()
}

/// Every page: its file's name and its text.
fn pages(date: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let mut quark = command();
    let names: Vec<String> = shown(&quark).map(|c| c.get_name().to_owned()).collect();
    let commands: Vec<Command> = shown(&quark).cloned().collect();
    let mut pages = vec![page(quark.clone(), date, |roff| {
        section(roff, "EXIT STATUS", &exit_codes()?);
        let files = FILES.iter().map(|&(file, what)| (file.to_owned(), what.to_owned()));
        section(roff, "FILES", &files.collect::<Vec<_>>());
        see_also(roff, names.iter().map(|name| format!("quark-{name}")));
        Ok(())
    })?];
    quark.build();
    for command in commands {
        pages.push(page(command, date, |roff| {
            see_also(roff, ["quark".to_owned()].into_iter());
            Ok(())
        })?);
    }
    Ok(pages)
}

/// The command line as root has it on any host.
fn command() -> Command {
    let command = Cli::command().mut_arg("root", |root| root.default_value("/run/quark"));
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

/// The commands that `--help` shows.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

/// One page, with what `more` adds at its end.
fn page(
    mut command: Command,
    date: &str,
    more: impl FnOnce(&mut Roff) -> Result<()>,
) -> Result<(String, Vec<u8>)> {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let source = format!("quark {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.override_usage(usage)).date(date).source(source).manual("quark");
    let mut text = Vec::new();
    man.render(&mut text)?;
    let mut roff = Roff::new();
    more(&mut roff)?;
    text.extend(roff.render().into_bytes());
    Ok((man.get_filename(), text))
}

/// A section of things and what they mean.
fn section(roff: &mut Roff, name: &str, items: &[(String, String)]) {
    roff.control("SH", [name]);
    for (item, meaning) in items {
        roff.control("TP", []);
        roff.text([bold(item)]).text([roman(meaning)]);
    }
}

fn see_also(roff: &mut Roff, pages: impl Iterator<Item = String>) {
    let mut line: Vec<Inline> = Vec::new();
    for page in pages {
        line.extend([bold(page), roman("(1), ")]);
    }
    line.push(roman("/usr/share/doc/quark/doc/operations.md"));
    roff.control("SH", ["SEE ALSO"]);
    roff.text(line);
}

/// The exit codes and when they come, from the table of doc/operations.md.
fn exit_codes() -> Result<Vec<(String, String)>> {
    let missing = "doc/operations.md has no table of exit codes";
    let (_, table) = OPERATIONS.split_once("## Exit codes\n").context(missing)?;
    let rows = table.lines().skip_while(|l| l.is_empty()).take_while(|l| l.starts_with('|'));
    let mut codes = Vec::new();
    for row in rows.skip(2) {
        let row = row.replace('`', "");
        let (code, when) = row.trim_matches('|').split_once('|').context(missing)?;
        codes.push((code.trim().to_owned(), when.trim().to_owned()));
    }
    anyhow::ensure!(!codes.is_empty(), missing);
    Ok(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a reader sees it: without the marks of roff.
    fn plain(text: &[u8]) -> String {
        let text = String::from_utf8(text.to_vec()).unwrap();
        let text = text.replace("\\*(Aq", "'").replace("\\-", "-");
        text.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "")
    }

    #[test]
    fn every_command_has_a_page_with_its_options() {
        let pages = pages("2026-01-31").unwrap();
        let find = |name: &str| {
            let page = pages.iter().find(|(file, _)| file == name);
            plain(&page.unwrap_or_else(|| panic!("no {name}")).1)
        };
        let mut quark = command();
        let all = find("quark.1");
        for command in shown(&quark) {
            let name = command.get_name();
            let text = find(&format!("quark-{name}.1"));
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let long = arg.get_long().map(|long| format!("--{long}"));
                assert!(text.contains(&long.unwrap_or_default()), "{name}: {arg}");
                let help = arg.get_long_help().or(arg.get_help());
                let help = help.map(ToString::to_string).unwrap_or_default();
                assert!(text.contains(&help), "{name}: {arg}: {help} in {text}");
            }
            assert!(text.contains(&format!("quark {name}")), "{text}");
            assert!(all.contains(&format!("quark-{name}(1)")), "{name}");
        }
        assert_eq!(pages.len(), shown(&quark).count() + 1);
        let usage = quark.render_usage().to_string();
        assert!(all.contains(usage.trim_start_matches("Usage: ")), "{usage} in {all}");
    }

    #[test]
    fn what_depends_on_the_builder_is_not_in_them() {
        let (_, text) = &pages("2026-01-31").unwrap()[0];
        let text = plain(text);
        assert!(text.contains("[default: /run/quark]"), "{text}");
        assert!(text.lines().any(|l| l.starts_with(".TH") && l.contains("2026-01-31")), "{text}");
    }

    #[test]
    fn exit_codes_are_those_of_the_manual() {
        let codes = exit_codes().unwrap();
        for code in ["0", "1", "70", "255"] {
            assert!(codes.iter().any(|(c, when)| c == code && !when.is_empty()), "{code}");
        }
    }
}
