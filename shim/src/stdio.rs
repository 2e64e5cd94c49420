//! Standard streams: the FIFOs, files and loggers that containerd's clients name.
//!
//! A program gets the FIFOs themselves, nothing is copied. The shim keeps the other end of each
//! open: so a program that writes while containerd starts anew is not killed by SIGPIPE but waits,
//! and standard input ends only when containerd asks for that (`CloseIO`).

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;

use crate::quark::Streams;

/// The streams that a client names; empty for none.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    /// A FIFO.
    pub stdin: String,
    /// A FIFO, `file://PATH`, or a file.
    pub stdout: String,
    /// As `stdout`.
    pub stderr: String,
    /// The program has a terminal; `stderr` is not used then.
    pub terminal: bool,
}

/// The ends that are kept open.
#[derive(Debug, Default)]
pub struct Kept {
    stdin: Option<OwnedFd>,
    _outputs: Vec<OwnedFd>,
}

impl Kept {
    /// Lets standard input end once its other writers have closed it.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }
}

/// The two ends of a stream: the program's, and the one that is kept, if it is a FIFO.
pub struct Ends {
    /// For the program.
    pub program: OwnedFd,
    /// To keep.
    pub kept: Option<OwnedFd>,
}

/// Opens the streams of a program without a terminal.
///
/// # Errors
/// When one of them cannot be opened.
pub fn open(paths: &Paths) -> Result<(Streams, Kept)> {
    let (mut streams, mut kept) = (Streams::default(), Kept::default());
    if let Some(ends) = input(&paths.stdin)? {
        (streams.stdin, kept.stdin) = (Some(ends.program), ends.kept);
    }
    for (path, stream) in
        [(&paths.stdout, &mut streams.stdout), (&paths.stderr, &mut streams.stderr)]
    {
        if let Some(ends) = output(path)? {
            *stream = Some(ends.program);
            kept._outputs.extend(ends.kept);
        }
    }
    Ok((streams, kept))
}

/// Opens what is to be standard input.
///
/// # Errors
/// When it cannot be opened.
pub fn input(path: &str) -> Result<Option<Ends>> {
    if path.is_empty() {
        return Ok(None);
    }
    let path = Path::new(path);
    // The reader first: only so the writer does not wait for one.
    let program = without_waiting(File::options().read(true)).open(path);
    let program = program.with_context(|| format!("standard input {}", path.display()))?;
    let kept = is_fifo(path).then(|| without_waiting(File::options().write(true)).open(path));
    Ok(Some(Ends { program: program.into(), kept: kept.transpose()?.map(OwnedFd::from) }))
}

/// Opens what is to be standard output or standard error.
///
/// # Errors
/// When it cannot be opened, or is of a kind that is not supported.
pub fn output(name: &str) -> Result<Option<Ends>> {
    if name.is_empty() {
        return Ok(None);
    }
    let (scheme, path) = name.split_once("://").unwrap_or(("fifo", name));
    let path = Path::new(path);
    match scheme {
        "fifo" | "file" => {}
        _ => bail!("output {name:?}: use a FIFO or file://PATH; {scheme}:// is not supported"),
    }
    let what = || format!("output {}", path.display());
    if is_fifo(path) {
        let kept = without_waiting(File::options().read(true)).open(path).with_context(what)?;
        let program = without_waiting(File::options().write(true)).open(path).with_context(what)?;
        return Ok(Some(Ends { program: program.into(), kept: Some(kept.into()) }));
    }
    if let (true, Some(parent)) = (scheme == "file", path.parent()) {
        DirBuilder::new().recursive(true).mode(0o755).create(parent).with_context(what)?;
    }
    let file = File::options().append(true).create(true).mode(0o644).open(path);
    Ok(Some(Ends { program: file.with_context(what)?.into(), kept: None }))
}

fn is_fifo(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.file_type().is_fifo())
}

/// quark opens FIFOs anew, so that this flag is nobody else's.
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn output_that_nobody_reads_yet_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        let ends = output(path.to_str().unwrap()).unwrap().unwrap();
        let kept = ends.kept;
        File::from(ends.program).write_all(b"text").unwrap();
        let mut reader = without_waiting(File::options().read(true)).open(&path).unwrap();
        drop(kept);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }

    #[test]
    fn input_ends_when_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in");
        mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        let paths = Paths { stdin: path.to_str().unwrap().to_owned(), ..Paths::default() };
        let (streams, mut kept) = open(&paths).unwrap();
        let mut stdin = File::from(streams.stdin.unwrap());
        let mut writer = File::options().write(true).open(&path).unwrap();
        writer.write_all(b"x").unwrap();
        drop(writer);
        let mut byte = [0; 8];
        assert_eq!(stdin.read(&mut byte).unwrap(), 1);
        let error = stdin.read(&mut byte).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        kept.close_stdin();
        assert_eq!(stdin.read(&mut byte).unwrap(), 0);
    }

    #[test]
    fn output_goes_to_files_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("out");
        let name = format!("file://{}", path.display());
        for text in ["a", "b"] {
            let ends = output(&name).unwrap().unwrap();
            File::from(ends.program).write_all(text.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), "ab");
        let error = output("http://x").err().unwrap().to_string();
        assert_eq!(
            error,
            "output \"http://x\": use a FIFO or file://PATH; http:// is not supported"
        );
    }
}
