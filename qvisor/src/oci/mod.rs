//! The command line and the life cycle of containers, as runc has them.
//!
//! A command is a short-lived process. It makes a *sandbox process* (`child`), talks to it over the
//! container's control socket (`control`), and keeps what must outlive it in the state directory
//! (`state`). Nothing here touches guest memory; the sandbox process leaves this room when it
//! boots.
#![deny(unsafe_code)]

pub mod annotation;
pub mod background;
pub mod bundle;
pub mod checkpoint;
mod child;
pub mod cli;
pub mod client;
pub mod clones;
pub mod compat;
pub mod create;
pub mod devices;
mod durable;
pub mod error;
pub mod exec;
pub mod fork;
pub mod held;
pub mod hibernation;
pub mod hooks;
mod hub;
pub mod info;
pub mod install;
pub mod life;
pub mod list;
pub mod log;
mod member;
pub mod metrics;
mod moment;
pub mod mount_points;
pub mod mounts;
pub mod network;
pub mod pod;
pub mod pool;
pub mod pressure;
pub mod process;
pub mod rollback;
pub mod rootless;
pub mod roots;
pub mod run;
pub mod rw_dirs;
pub mod seccomp;
pub mod sleep;
pub mod snapshots;
pub mod spec;
pub mod state;
pub mod template;
pub mod top;
pub mod uds;
pub mod update;
pub mod upper;
pub mod view;
pub mod wait;
pub mod watch;
mod wire;

use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};

use cli::{Cli, Command};
use error::WithCode;
use state::Store;

/// The main function of `quark`.
pub fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    // Processes that quark starts itself take no detour over the command line.
    match arguments.get(1).map(String::as_bytes) {
        Some(first) if first == create::SANDBOX_COMMAND.to_bytes() => return code(child::main()),
        Some(first) if first == member::MEMBER_COMMAND.to_bytes() => return code(member::main()),
        Some(first) if first == rootless::PROBE_COMMAND.to_bytes() => {
            return code(rootless::probe_main());
        }
        Some(first) if first == exec::SHIM_COMMAND.to_bytes() => {
            return code(exec::shim_main(arguments.get(2..).unwrap_or_default()));
        }
        _ => {}
    }
    let (arguments, ignored) = match as_runsc(&arguments).map(compat::translate).transpose() {
        Ok(None) => (arguments, Vec::new()),
        Ok(Some((translated, ignored))) => {
            (std::iter::once("quark".to_owned()).chain(translated).collect(), ignored)
        }
        Err(e) => {
            log::fatal(&format!("{e:#}"), false);
            return code(RUNSC_FAILED);
        }
    };
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return code(info::print(&e.to_string()).map_or(1, |()| 0));
        }
        Err(e) => {
            log::fatal(&usage_error(&e), false);
            return code(1);
        }
    };
    let log = cli.global.log.clone();
    let result =
        log::init(log.as_deref(), cli.global.log_format, cli.global.debug).and_then(|()| {
            for flag in ignored {
                tracing::debug!("{flag}: it has no meaning for quark");
            }
            dispatch(cli)
        });
    match result {
        Ok(status) => code(status),
        Err(e) => {
            log::fatal(&format!("{e:#}"), log.is_some());
            code(e.downcast_ref::<WithCode>().map_or(1, |w| i32::from(w.code)))
        }
    }
}

/// The exit code of runsc for a command line that it does not understand.
const RUNSC_FAILED: i32 = 128;

/// The arguments for runsc, if this program is called so.
fn as_runsc(arguments: &[String]) -> Option<&[String]> {
    let (name, rest) = arguments.split_first()?;
    if std::path::Path::new(name).file_name().is_some_and(|name| name == "runsc") {
        return Some(rest);
    }
    let (first, rest) = rest.split_first()?;
    (first == "--compat=runsc").then_some(rest)
}

fn parse(arguments: &[String]) -> Result<Cli, clap::Error> {
    // containerd's shim writes it so, as runc's options may begin with one hyphen.
    let arguments = arguments.iter().map(|a| match a.as_str() {
        "-no-subreaper" => "--no-subreaper",
        other => other,
    });
    let matches = Cli::command().try_get_matches_from(arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.global.root_given = matches.value_source("root") == Some(ValueSource::CommandLine);
    let of_command = matches.subcommand().map(|(_, of_command)| of_command);
    let is_given = || of_command?.value_source("bundle").map(|s| s == ValueSource::CommandLine);
    match &mut cli.command {
        Command::Run(run) => run.bundle_given = is_given() == Some(true),
        Command::Restore(restore) => restore.bundle_given = is_given() == Some(true),
        _ => {}
    }
    Ok(cli)
}

fn dispatch(cli: Cli) -> Result<i32> {
    let global = &cli.global;
    let store = || Store::new(&global.root);
    // What people type, and no engine: a part of the ID will do.
    let find = |id: &str| roots::find(global, id);
    match &cli.command {
        Command::Do(o) => return run::do_command(global, o),
        Command::Run(o) => {
            return match &o.template {
                Some(template) => clones::of_template(global, template, o),
                None => run::run_command(global, &o.run, &o.moment),
            };
        }
        Command::Create(o) => run::create_command(global, o)?,
        Command::Start(o) => moment::start(&store()?, &o.id, global)?,
        Command::State(o) => info::state(&store()?, &o.id, global.timeout)?,
        Command::Kill(o) => {
            life::kill(&store()?, &o.id, life::parse_signal(&o.signal)?, o.all, global.timeout)?
        }
        Command::Hibernate(o) => {
            let (store, id) = find(&o.id)?;
            match o.durable {
                true => durable::sleep::hibernate(&store, &id, global)?,
                false => hibernation::hibernate(&store, &id, global.timeout, o.force)?,
            }
        }
        Command::Wake(o) => {
            let (store, id) = find(&o.id)?;
            hibernation::wake(&store, &id, global.timeout)?;
        }
        Command::Why(o) => {
            let (store, id) = find(&o.id)?;
            hibernation::why(&store, &id, global.timeout)?;
        }
        Command::Wait(o) => wait::wait(&find(&o.id)?, o, global.timeout)?,
        Command::Delete(o) => life::delete(&store()?, &o.id, o.force)?,
        Command::List(o) => list::list(global, o)?,
        Command::Metrics(o) => metrics::metrics(global, o)?,
        Command::Top(o) => top::top(global, o)?,
        Command::Ps(o) => info::ps(&find(&o.id)?, o, global.timeout)?,
        Command::Exec(o) => return exec::exec_command(global, o),
        Command::Events(o) => info::events(&find(&o.id)?, o, global.timeout)?,
        Command::Checkpoint(o) => match &o.name {
            Some(name) => snapshots::take(&store()?, (&o.id, name), o.keep, global)?,
            None => moment::checkpoint(&store()?, o, global)?,
        },
        Command::Restore(o) => return run::restore_command(global, o),
        Command::Fork(o) => fork::fork(&store()?, o, global)?,
        Command::Rollback(o) => rollback::rollback(&store()?, o, global)?,
        Command::Snapshots(o) => snapshots::snapshots(&store()?, o)?,
        Command::Template(o) => template::template(&store()?, o, global)?,
        Command::Pool(o) => return pool::pool(global, o),
        Command::Pause(o) => life::pause(&store()?, &o.id, true, global.timeout)?,
        Command::Resume(o) => life::pause(&store()?, &o.id, false, global.timeout)?,
        Command::Update(o) => update::update(&store()?, o, global.timeout)?,
        Command::Features => info::features()?,
        Command::Spec(o) => spec::write(&o.bundle)?,
        Command::Doctor => info::doctor()?,
        Command::Install(o) => install::install(o)?,
        Command::Completions(o) => {
            let mut text = Vec::new();
            clap_complete::generate(o.shell, &mut Cli::command(), "quark", &mut text);
            info::print(&String::from_utf8_lossy(&text))?;
        }
        Command::Uninstall(o) => install::uninstall(o)?,
    }
    Ok(0)
}

/// One line of what clap would say in many.
fn usage_error(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).take_while(|l| !l.starts_with("Usage:"));
    // Where to read more is said below.
    let said = lines.filter(|l| !l.is_empty() && !l.starts_with("For more information"));
    let message = said.collect::<Vec<_>>().join(" ").replace(" tip: ", "; ");
    format!("{} (see quark --help)", message.strip_prefix("error: ").unwrap_or(&message))
}

fn code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status & 0xff).unwrap_or(1))
}
