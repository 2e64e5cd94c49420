//! `quark run --template`: containers of a template, one or many.

use std::collections::VecDeque;

use anyhow::{Result, anyhow};
use nix::sys::signalfd::SignalFd;

use super::bundle::Bundle;
use super::cli::{self, Global};
use super::create::{self, Begun, Created, Origin};
use super::life::Going;
use super::state::Store;
use super::{checkpoint, life, log, pool, run, template};
use crate::console;
use crate::image::Manifest;
use crate::image::files::Files;

/// How many are made at once, for each processor: while one sandbox process waits for the host's
/// kernel another one has something to do.
const AT_ONCE: usize = 2;

/// `quark run --template`; the exit code.
///
/// # Errors
/// With nothing left behind. Of many each is there or not, and those that are not are told.
pub fn of_template(global: &Global, name: &str, options: &cli::RunAny) -> Result<i32> {
    let store = Store::new(&global.root)?;
    if options.pool.is_some()
        && let Some(status) = pool::run_ready(global, &store, name, options)?
    {
        return Ok(status);
    }
    let given = options.bundle_given.then_some(options.run.create.bundle.as_path());
    let template = template::open(&store, name)?;
    let mut bundle = Bundle::load(template.bundle(given)?)?;
    if options.new_network {
        bundle.set_new_network();
    }
    let manifest = template.read()?;
    let image = &template.files;
    match options.count {
        None => {
            let run = (&options.run, options.background);
            run::make_again(global, run, &bundle, (Origin::new(image, &manifest)?, &manifest))
        }
        Some(count) => many(global, options, count, (&store, &bundle), (image, &manifest)),
    }
}

/// Makes `count` containers; the exit code.
fn many(
    global: &Global,
    options: &cli::RunAny,
    count: u32,
    (store, bundle): (&Store, &Bundle),
    (image, manifest): (&Files, &Manifest),
) -> Result<i32> {
    let cli::RunAny { run: cli::Run { create: options, .. }, background, .. } = options;
    run::check(global, options)?;
    checkpoint::check_bundle(&image.dir, manifest, bundle)?;
    // There is no socket to send terminals to.
    run::terminal(bundle, None, true)?;
    let ids = (1..=count).map(|number| format!("{}-{number}", options.id));
    let image = Some(Origin::new(image, manifest)?);
    let init = manifest.container.init;
    let are_there = make_all(store, (global, init), ids, |id, signals| {
        let request = run::request(global, options, bundle, None, signals, false);
        let background = *background;
        create::begin(&create::Request { id, image, background, claimed: true, ..request })
    })?;
    Ok(i32::from(!are_there))
}

/// Makes containers of an image whose first process is `init`; whether all are there, and those
/// that are not are told. It begins with the next ones while the earlier ones boot, and while those
/// wake that have.
///
/// # Errors
/// With none made.
pub(super) fn make_all(
    store: &Store,
    (global, init): (&Global, u32),
    ids: impl Iterator<Item = String>,
    mut begin: impl FnMut(&str, &SignalFd) -> Result<Begun>,
) -> Result<bool> {
    let at_once = AT_ONCE * std::thread::available_parallelism().map_or(1, usize::from);
    let mut making = Making {
        store,
        init,
        signals: console::catch_signals()?,
        has_log: global.log.is_some(),
        begun: VecDeque::new(),
        going: VecDeque::new(),
        has_failed: false,
        is_over: false,
    };
    for id in ids {
        if !making.may_begin(&id) {
            continue;
        }
        let begun = begin(&id, &making.signals);
        making.begin(id, begun);
        if making.begun.len() >= at_once {
            making.go_on();
        }
        if making.going.len() >= at_once {
            making.finish();
        }
    }
    while !making.begun.is_empty() {
        making.go_on();
    }
    while !making.going.is_empty() {
        making.finish();
    }
    Ok(!making.has_failed)
}

/// Containers on their way.
struct Making<'a> {
    store: &'a Store,
    /// The first process of each.
    init: u32,
    signals: SignalFd,
    /// There is a file for the log.
    has_log: bool,
    begun: VecDeque<(String, Begun)>,
    going: VecDeque<(String, Going, Created)>,
    has_failed: bool,
    /// A signal has asked this program to end.
    is_over: bool,
}

impl Making<'_> {
    /// False if no more are to be made.
    fn may_begin(&mut self, id: &str) -> bool {
        let asked = console::end_if_asked(&self.signals);
        self.is_over |= asked.is_err();
        if self.is_over {
            self.fail(id, &anyhow!("not made, as this command was asked to end"));
            return false;
        }
        if let Ok(entry) = self.store.entry(id) {
            life::remove_abandoned(&entry);
        }
        true
    }

    fn begin(&mut self, id: String, begun: Result<Begun>) {
        match begun {
            Ok(begun) => self.begun.push_back((id, begun)),
            Err(e) => self.fail(&id, &e),
        }
    }

    /// Has the first one go on that boots.
    fn go_on(&mut self) {
        let Some((id, begun)) = self.begun.pop_front() else { return };
        if self.is_over {
            drop(begun);
            return self.fail(&id, &anyhow!("not made, as this command was asked to end"));
        }
        let made = begun.finish(&self.signals).and_then(|created| {
            match life::go_on(self.store, &id, (self.init, None), &created.setup) {
                Ok(going) => Ok((going, created)),
                Err(e) => {
                    run::undo(created);
                    Err(e)
                }
            }
        });
        match made {
            Ok((going, created)) => self.going.push_back((id, going, created)),
            Err(e) => {
                self.is_over |= e.is::<console::Interrupted>();
                self.fail(&id, &e);
            }
        }
    }

    /// Waits for the first one that wakes.
    fn finish(&mut self) {
        let Some((id, going, created)) = self.going.pop_front() else { return };
        if let Err(e) = going.finish() {
            run::undo(created);
            self.fail(&id, &e);
        }
    }

    fn fail(&mut self, id: &str, error: &anyhow::Error) {
        self.has_failed = true;
        log::fatal(&format!("{id}: {error:#}"), self.has_log);
    }
}
