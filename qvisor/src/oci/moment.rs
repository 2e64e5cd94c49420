//! Images that are made at a moment in a container's life: when it has written something, or has
//! answered a first request.
//!
//! The sandbox notices it, and tells the connection on which it was asked to before the container
//! was started. A command makes the image then, as `quark checkpoint` does: `quark run`, which is
//! there anyway, or one that is left behind until then by `quark run --detach` and `quark start`.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use qlib::control::{Reply, Request};

use super::annotation::switch_in;
use super::cli::{self, Global};
use super::client::{ANSWER_TIMEOUT, Connection, unexpected};
use super::error::SandboxEnded;
use super::state::{Entry, State, Status, Store};
use super::{checkpoint, life};
use crate::image::directory;
use crate::sys::{self, Spawn};

/// What it writes.
const WHEN: &str = "io.quark.checkpoint-when";
/// "true": it has answered.
const SERVED: &str = "io.quark.checkpoint-after-first-request";
/// The directory of the image.
const PATH: &str = "io.quark.checkpoint-path";
/// "true": it goes on.
const GOES_ON: &str = "io.quark.checkpoint-leave-running";
/// containerd's, of a container of Kubernetes.
const OF_KUBERNETES: &str = "io.kubernetes.cri.container-type";

/// What has come to pass then.
#[derive(Debug, PartialEq, Eq)]
enum Sign {
    /// It has written this to its standard output.
    Text(String),
    /// It has answered a first request, and is idle.
    Served,
}

/// When a container is saved in an image, and what becomes of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Moment {
    sign: Sign,
    image: PathBuf,
    goes_on: bool,
    /// Those of `--rw-dir`.
    rw_dirs: Vec<String>,
}

impl Moment {
    /// What the options say, else the annotations.
    ///
    /// # Errors
    /// When there is an image already that an option names, or the annotations make no sense.
    pub fn choose(
        options: &cli::MomentOptions,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<Self>> {
        let sign = match (&options.checkpoint_when, options.checkpoint_after_first_request) {
            (Some(text), _) => Sign::Text(text.clone()),
            (None, true) => Sign::Served,
            (None, false) => return Self::of(annotations),
        };
        let image = std::path::absolute(&options.image_path)?;
        if directory::is_image(&image) {
            bail!("there is an image in {}: remove it, or name another place", image.display());
        }
        let (goes_on, rw_dirs) = (options.leave_running, options.rw_dir.clone());
        Ok(Some(Self { sign, image, goes_on, rw_dirs }))
    }

    /// What annotations say. One that has been saved already is not saved again.
    ///
    /// # Errors
    /// Names the annotation.
    pub fn of(annotations: &BTreeMap<String, String>) -> Result<Option<Self>> {
        let is_true = |name| Ok::<_, anyhow::Error>(switch_in(annotations, name)? == Some(true));
        let (sign, name) = match (annotations.get(WHEN), is_true(SERVED)?) {
            (None, false) => return Ok(None),
            (Some(text), false) => (Sign::Text(text.clone()), WHEN),
            (None, true) => (Sign::Served, SERVED),
            (Some(_), true) => bail!("annotations {WHEN} and {SERVED}: use one of them"),
        };
        if annotations.contains_key(OF_KUBERNETES) {
            bail!("annotation {name}: who makes a pod may not name directories of the host");
        }
        let Some(path) = annotations.get(PATH).map(PathBuf::from).filter(|p| p.is_absolute())
        else {
            bail!("annotation {name}: add {PATH}, the absolute path of the image's directory");
        };
        if directory::is_image(&path) {
            tracing::info!("there is an image in {}: no other is made", path.display());
            return Ok(None);
        }
        // Its annotation says which directories.
        Ok(Some(Self { sign, image: path, goes_on: is_true(GOES_ON)?, rw_dirs: Vec::new() }))
    }

    /// Has the sandbox of a container that has not been started watch for it.
    ///
    /// # Errors
    /// When such a container cannot be saved; as for any request.
    pub fn watch(self, entry: &Entry, state: &State) -> Result<Watch> {
        checkpoint::check(state)?;
        let mut connection = Connection::open(entry, ANSWER_TIMEOUT)?;
        let awaited = match &self.sign {
            Sign::Text(text) => {
                connection.order(&Request::WatchOutput { text: text.clone() })?;
                Request::AwaitOutput
            }
            Sign::Served => Request::AwaitService,
        };
        // The answer may take as long as the container lives.
        connection.set_timeout(None);
        connection.send(&awaited, &[])?;
        Ok(Watch { moment: self, connection, id: state.id.clone() })
    }
}

/// A moment that a sandbox watches for.
pub struct Watch {
    moment: Moment,
    connection: Connection,
    id: String,
}

impl Watch {
    /// Leaves a process behind that makes the image when the moment has come, and ends then, or
    /// with the container.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn leave(self, global: &Global) -> Result<()> {
        let mut arguments: Vec<OsString> = vec!["quark".into(), "--root".into()];
        // Its directory is the root.
        arguments.push(std::path::absolute(&global.root)?.into());
        if let Some(log) = &global.log {
            let format = global.log_format.to_possible_value().context("the log's format")?;
            arguments.extend(["--log".into(), std::path::absolute(log)?.into()]);
            arguments.extend(["--log-format".into(), format.get_name().into()]);
        }
        if global.debug {
            arguments.push("--debug".into());
        }
        if let Some(timeout) = global.timeout {
            arguments.extend(["--timeout".into(), format!("{}us", timeout.as_micros()).into()]);
        }
        arguments.extend(["checkpoint", "--when-told", "--image-path"].map(OsString::from));
        arguments.push(self.moment.image.into());
        if self.moment.goes_on {
            arguments.push("--leave-running".into());
        }
        for dir in self.moment.rw_dirs {
            arguments.extend(["--rw-dir".into(), dir.into()]);
        }
        arguments.extend(["--".into(), self.id.into()]);
        let args = arguments.into_iter().map(|word| CString::new(word.into_vec()));
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.context("opening /dev/null")?;
        let connection = self.connection.stream().as_fd();
        let args = args.collect::<Result<Vec<_>, _>>()?;
        sys::spawn(&Spawn::here(&args, [connection, null.as_fd(), null.as_fd()], connection))
            .context("starting the command that makes the image")
            .map(drop)
    }

    /// Makes the image when the moment has come, meanwhile.
    pub fn serve(mut self, global: &Global) -> Saver {
        let (goes_on, global) = (self.moment.goes_on, global.clone());
        let thread = std::thread::spawn(move || {
            let store = Store::new(&global.root)?;
            told(&mut self.connection, &store, &self.id)?;
            let options = cli::Checkpoint {
                id: self.id,
                image_path: self.moment.image,
                name: None,
                keep: None,
                leave_running: goes_on,
                when_told: false,
                rw_dir: self.moment.rw_dirs,
                packing: cli::Packing::default(),
                criu: cli::Criu::default(),
            };
            checkpoint::checkpoint(&store, &options, &global)
        });
        Saver { thread, goes_on }
    }
}

/// What makes an image while a command stays with its container.
pub struct Saver {
    thread: JoinHandle<Result<()>>,
    goes_on: bool,
}

impl Saver {
    /// The exit status of the command, whose container has ended with `status`: success if it ended
    /// because it was saved.
    ///
    /// # Errors
    /// When it was not saved, and ended well.
    pub fn finish(self, status: i32) -> Result<i32> {
        let saved = self.thread.join().map_err(|_| anyhow!("making the image failed"))?;
        match saved {
            Ok(()) if self.goes_on => Ok(status),
            Ok(()) => Ok(0),
            Err(e) if status != 0 => {
                tracing::error!("{e:#}");
                Ok(status)
            }
            Err(e) => Err(e),
        }
    }
}

/// `quark checkpoint`, at once or at the moment that the connection tells that standard input is.
///
/// # Errors
/// As [`checkpoint::checkpoint`]; when the moment does not come any more.
pub fn checkpoint(store: &Store, options: &cli::Checkpoint, global: &Global) -> Result<()> {
    if options.when_told {
        let stream = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)?;
        told(&mut Connection::from_stream(UnixStream::from(stream)), store, &options.id)?;
    }
    checkpoint::checkpoint(store, options, global)
}

fn told(connection: &mut Connection, store: &Store, id: &str) -> Result<()> {
    match connection.receive() {
        Ok(Reply::Done) => {}
        Ok(other) => return Err(unexpected(&other)),
        Err(e) if e.is::<SandboxEnded>() => {
            bail!("container {id} ended before it was to be saved: there is no image of it")
        }
        Err(e) => return Err(e),
    }
    // Its start may not be noted yet, or its hooks may be under way.
    store.entry(id)?.lock().map(drop)
}

/// `quark start`, of a container that may have to be saved as its annotations say.
///
/// # Errors
/// As [`life::start`]; when the annotations make no sense, or it cannot be saved.
pub fn start(store: &Store, id: &str, global: &Global) -> Result<()> {
    let found = store.load(id).ok();
    let watch = match &found {
        Some((entry, state)) if state.status() == Status::Created => {
            // It has no program to be started: it goes on in the middle of one.
            ensure!(
                !entry.is_owned(),
                "container {id} is not yours to start: the command that made it of an image (quark \
                 pool, restore or run) has it go on"
            );
            Moment::of(&state.annotations)?.map(|moment| moment.watch(entry, state)).transpose()?
        }
        // What is wrong is told there.
        _ => None,
    };
    life::start(store, id, global.timeout)?;
    watch.map_or(Ok(()), |watch| watch.leave(global))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(annotations: &[(&str, &str)]) -> Result<Option<Moment>> {
        let own = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Moment::of(&own.collect())
    }

    #[test]
    fn annotations_say_when_and_where() {
        assert_eq!(of(&[(PATH, "/nowhere")]).unwrap(), None);
        assert_eq!(of(&[(SERVED, "false")]).unwrap(), None);
        let said = of(&[(WHEN, "ready"), (PATH, "/nowhere")]).unwrap().unwrap();
        let (sign, image) = (Sign::Text("ready".into()), "/nowhere".into());
        let expected = Moment { sign, image, goes_on: false, rw_dirs: Vec::new() };
        assert_eq!(said, expected);
        let served = of(&[(SERVED, "true"), (PATH, "/nowhere"), (GOES_ON, "true")]).unwrap();
        let served = served.unwrap();
        assert!(served.sign == Sign::Served && served.goes_on);
        for (bad, why) in [
            (&[(WHEN, "ready")] as &[_], PATH),
            (&[(WHEN, "ready"), (PATH, "image")], "absolute"),
            (&[(SERVED, "yes"), (PATH, "/x")], "write \"true\""),
            (&[(SERVED, "true"), (WHEN, "x"), (PATH, "/x")], "use one of them"),
            (&[(WHEN, "x"), (PATH, "/x"), (OF_KUBERNETES, "container")], "who makes a pod"),
        ] {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("io.quark."), "{error}");
        }
    }

    #[test]
    fn one_that_was_saved_is_not_saved_again() {
        let dir = std::env::temp_dir().join(format!("quark-moment-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.to_str().unwrap();
        assert!(of(&[(WHEN, "ready"), (PATH, path)]).unwrap().is_some());
        std::fs::write(dir.join("manifest.json"), "").unwrap();
        assert_eq!(of(&[(WHEN, "ready"), (PATH, path)]).unwrap(), None);
        let options = cli::MomentOptions {
            checkpoint_when: Some("ready".into()),
            checkpoint_after_first_request: false,
            image_path: dir.clone(),
            leave_running: false,
            rw_dir: Vec::new(),
        };
        let error = Moment::choose(&options, &BTreeMap::new()).unwrap_err().to_string();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(error.contains("there is an image in"), "{error}");
    }
}
