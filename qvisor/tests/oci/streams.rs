//! Regular files as standard streams: what programs see of them is what they see on Linux, so each
//! is run there too.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::process::{Command, Stdio};

use super::support::{Place, finish, place};

const INPUT: &str = "one\ntwo\nthree\nfour\n";

/// What a command made of its standard input, [`INPUT`] from its fourth byte on, and of its
/// standard output, a file with something in it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    code: Option<i32>,
    output: String,
    errors: String,
    /// Where the two files are afterwards, for who comes next.
    positions: (u64, u64),
}

fn see(p: &Place, mut command: Command, append: bool) -> Seen {
    let (input, output) = (p.dir.join("input"), p.dir.join("output"));
    fs::write(&input, INPUT).unwrap();
    fs::write(&output, "what was there\n").unwrap();
    let mut input = File::open(&input).unwrap();
    input.seek(SeekFrom::Start(4)).unwrap();
    let mut output =
        OpenOptions::new().read(true).write(!append).append(append).open(&output).unwrap();
    output.seek(SeekFrom::Start(5)).unwrap();
    command
        .stdin(input.try_clone().unwrap())
        .stdout(output.try_clone().unwrap())
        .stderr(Stdio::piped());
    let done = finish(command.spawn().unwrap(), &["do"]);
    let positions = (input.stream_position().unwrap(), output.stream_position().unwrap());
    let mut text = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut text).unwrap();
    Seen {
        code: done.status.code(),
        output: text,
        errors: String::from_utf8_lossy(&done.stderr).into_owned(),
        positions,
    }
}

#[test]
fn files_have_the_position_that_others_share() {
    let Some(p) = place() else { return };
    let calls = r#"
import errno, fcntl, os, sys
say = lambda *a: print(*a, file=sys.stderr)
def fails(what, *a):
    try: say(what.__name__, a, what(*a))
    except OSError as e: say(what.__name__, a, errno.errorcode[e.errno])
say(os.lseek(0, 0, 1), os.read(0, 2), os.lseek(0, 0, 1), os.pread(0, 3, 1), os.lseek(0, 0, 1))
say(os.lseek(0, -3, 2), os.read(0, 9), os.lseek(0, 4, 0), os.lseek(0, 0, os.SEEK_DATA), os.lseek(0, 0, os.SEEK_HOLE))
for whence in 0, 1, 2: fails(os.lseek, 0, -100, whence)
fails(os.lseek, 0, 1000, os.SEEK_DATA); fails(os.lseek, 0, 0, 17)
fails(os.write, 0, b"x"); fails(os.ftruncate, 0, 3)
say([fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND) for fd in (0, 1)])
say(os.lseek(1, 0, 1), os.write(1, b"hello "), os.lseek(1, 0, 1), os.pwrite(1, b"J", 0), os.lseek(1, 0, 1), os.pread(1, 4, 0))
os.lseek(0, 0, 0); say(os.sendfile(1, 0, None, 5), os.lseek(0, 0, 1), os.lseek(1, 0, 1))
say(os.sendfile(1, 0, 8, 3), os.lseek(0, 0, 1))
os.ftruncate(1, 20); say(os.fstat(1).st_size, os.lseek(1, 0, 2)); os.write(1, b"end\n")
if os.fork() == 0: os.write(1, b"of the child\n"); os._exit(0)
os.wait(); os.write(1, b"and of the parent\n")
say("/proc/self/fdinfo", open("/proc/self/fdinfo/1").read().split()[:2])
"#;
    let python = format!("exec python3 -c '{calls}'");
    for script in [
        "wc -c",
        "tail -c 5",
        "head -n 1; head -n 1",
        "sed -n 1q; head -n 1",
        "od -A d -j 5 -N 3 -c",
        "read a; echo $a; (read b; echo $b); cat",
        "echo out; echo err >&2; echo out again",
        "ulimit -f 1; trap '' XFSZ; head -c 2000 /dev/zero | tr '\\0' x; echo $?",
        &python,
    ] {
        for append in [false, true] {
            // sendfile(2) refuses files that are appended to.
            if append && script == python {
                continue;
            }
            let mut native = Command::new("/bin/sh");
            native.args(["-c", script]);
            let expected = see(&p, native, append);
            assert_eq!(
                see(&p, p.quark(&["do", "--", "/bin/sh", "-c", script]), append),
                expected,
                "{script}"
            );
        }
    }
}

#[test]
fn run_and_exec_take_files_too() {
    let Some(p) = place() else { return };
    p.configure(&["sh", "-c", "read first; wc -c; echo done"], |_| {});
    let seen = see(&p, p.quark(&["run", &p.id]), false);
    assert_eq!(
        (seen.code, seen.output.as_str(), seen.errors.as_str()),
        (Some(0), "what 11\ndone\ne\n", "")
    );
    assert_eq!(seen.positions.0, INPUT.len() as u64);

    p.configure(&["sleep", "1000"], |_| {});
    p.create(&[]);
    p.good(&["start", &p.id]);
    let seen = see(&p, p.quark(&["exec", &p.id, "sh", "-c", "read a; echo $a; cat"]), true);
    assert_eq!(seen.output, "what was there\ntwo\nthree\nfour\n", "{seen:?}");
}

#[test]
fn links_tell_what_kind_of_file_it_is_and_not_where() {
    let Some(p) = place() else { return };
    let link = |stdin: Stdio| {
        let mut command = p.quark(&["do", "--", "readlink", "/proc/self/fd/0"]);
        let child =
            command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        String::from_utf8(finish(child, &["do"]).stdout).unwrap()
    };
    fs::write(p.dir.join("input"), INPUT).unwrap();
    let file = link(File::open(p.dir.join("input")).unwrap().into());
    assert!(file.starts_with("file:[") && !file.contains('/'), "{file}");
    assert_eq!(link(Stdio::null()), "/dev/null\n");
    assert!(link(Stdio::piped()).starts_with("pipe:["));
}
