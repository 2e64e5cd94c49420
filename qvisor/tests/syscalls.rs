//! System-call tests: C programs that must pass on Linux itself before they may judge the sandbox.
//!
//! Each program of `test-apps/syscalls` is a family of small cases. It runs natively, under `quark
//! do`, and once more with every call site patched and freed frames poisoned, and each case becomes
//! three tests here, `native::FAMILY::CASE`, `quark::…` and `fast::…`. What quark does not pass yet
//! stands in `test-apps/syscalls/expected-failures.csv` with the platform ("any": both) and its
//! reason; a case listed there that passes is a failure too. `anywhere::…` runs a few of them as a
//! newcomer may: in a folder below /tmp with a space in its name, with signals ignored.
//!
//! Environment: `QUARK_SANDBOX_TESTS=0` leaves the sandbox half out; `QUARK_BIN` and
//! `QUARK_PLATFORM` as in `support`.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

/// How long a whole program may take, before [`support::slowed`]; its own limit for each case is
/// far below.
const LIMIT: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Native,
    Quark,
    /// Under `quark --fast-calls eager`: every call that can be fast is. Freed frames are poisoned,
    /// so that whoever still sees one shows it.
    Fast,
}

/// What a program said of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    Skip,
    Fail(String),
}

/// The results of one run of a program, made at the first question.
struct Family {
    program: PathBuf,
    mode: Mode,
    results: OnceLock<(BTreeMap<String, Verdict>, String)>,
}

impl Family {
    fn verdict(&self, case: &str) -> Verdict {
        let (results, end) = self.results.get_or_init(|| {
            let mut command = match self.mode {
                Mode::Native => Command::new(&self.program),
                Mode::Quark => {
                    let mut c = support::quark();
                    c.args(["do", "--"]).arg(&self.program);
                    c
                }
                Mode::Fast => {
                    let mut c = support::quark();
                    c.args(["--fast-calls", "eager", "do", "--"]).arg(&self.program);
                    c.env("QUARK_POISON_FRAMES", "1");
                    c
                }
            };
            // Below it lie the programs: `quark do` shows the current directory even where a clone
            // lies in /tmp.
            let command = command.current_dir(support::workspace());
            let outcome = support::run(
                command.env("QUARK_TEST_LIMIT_S", support::limit().as_secs().to_string()),
                support::slowed(LIMIT),
            );
            (outcome.stdout.lines().filter_map(parse).collect(), outcome.describe())
        });
        results
            .get(case)
            .cloned()
            .unwrap_or_else(|| Verdict::Fail(format!("no result; the program: {end}")))
    }
}

/// One line of a program's output.
fn parse(line: &str) -> Option<(String, Verdict)> {
    if let Some(name) = line.strip_prefix("ok ") {
        return Some((name.to_owned(), Verdict::Ok));
    }
    let (rest, skipped) = match line.strip_prefix("skip ") {
        Some(rest) => (rest, true),
        None => (line.strip_prefix("FAIL ")?, false),
    };
    let (name, why) = rest.split_once(": ")?;
    Some((name.to_owned(), if skipped { Verdict::Skip } else { Verdict::Fail(why.to_owned()) }))
}

fn programs(directory: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(directory)
        .map(|d| d.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    all.sort();
    all
}

fn cases(program: &Path) -> Vec<String> {
    let outcome = support::run(Command::new(program).arg("--list"), support::slowed(LIMIT));
    assert!(outcome.success(), "{} --list: {}", program.display(), outcome.describe());
    outcome.stdout.lines().map(str::to_owned).collect()
}

/// The platform that the sandboxes run on.
fn platform() -> String {
    match std::env::var("QUARK_PLATFORM") {
        Ok(name) if name != "auto" => name,
        // What quark takes then.
        _ => {
            let doctor =
                support::run(support::quark().arg("doctor"), support::slowed(LIMIT)).stdout;
            let kvm = doctor
                .lines()
                .any(|line| line.starts_with("yes ") && line.contains(" kvm platform"));
            if kvm { "kvm" } else { "process" }.to_owned()
        }
    }
}

/// "FAMILY/CASE" to the platform and the reason why it may fail there.
fn expected_failures() -> BTreeMap<String, (String, String)> {
    let path = support::workspace().join("test-apps/syscalls/expected-failures.csv");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut all = BTreeMap::new();
    for line in text.lines().skip(1).filter(|l| !l.is_empty()) {
        let mut fields = line.splitn(3, ',');
        let (Some(case), Some(platform), Some(reason)) =
            (fields.next(), fields.next(), fields.next())
        else {
            panic!("{}: not three fields: {line}", path.display())
        };
        assert!(
            ["process", "kvm", "any"].contains(&platform),
            "{}: no platform: {line}",
            path.display()
        );
        assert!(!reason.trim().is_empty(), "{}: no reason: {line}", path.display());
        let entry = (platform.to_owned(), reason.to_owned());
        assert!(all.insert(case.to_owned(), entry).is_none(), "{}: twice: {case}", path.display());
    }
    all
}

fn judge_native(verdict: Verdict) -> Result<(), Failed> {
    match verdict {
        Verdict::Ok | Verdict::Skip => Ok(()),
        Verdict::Fail(why) => Err(why.into()),
    }
}

fn judge_quark(native: &Verdict, quark: Verdict, expected: Option<&str>) -> Result<(), Failed> {
    let failure = match (native, quark) {
        (Verdict::Fail(why), _) => {
            return Err(format!("not judged: it fails on Linux itself: {why}").into());
        }
        (_, Verdict::Fail(why)) => Some(why),
        (Verdict::Ok, Verdict::Skip) => Some("skipped, but not on Linux itself".to_owned()),
        _ => None,
    };
    match (failure, expected) {
        (None, None) | (Some(_), Some(_)) => Ok(()),
        (Some(why), None) => Err(why.into()),
        (None, Some(reason)) => {
            Err(format!("passes now: take it out of expected-failures.csv (which says: {reason})")
                .into())
        }
    }
}

/// The programs find signals as a login shell's do: who starts tests in the background has some
/// ignored (nohup(1), `&` in a script).
#[allow(unsafe_code)]
fn reset_signals() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    for signo in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: the default action runs no code of this process.
        unsafe { signal(signo, SigHandler::SigDfl) }.expect("signal");
    }
}

/// The program that [`anywhere`] runs: some of its cases need signals as they are by default.
const ANYWHERE: &str = "signals";

/// Runs the cases of a program, natively and inside, from another folder and as nohup(1) and `&`
/// have it.
fn anywhere() -> Result<(), Failed> {
    let folder = PathBuf::from(format!("/tmp/quark's clone {}", std::process::id()));
    let result = run_in(&folder);
    fs::remove_dir_all(&folder).ok();
    result
}

fn run_in(folder: &Path) -> Result<(), Failed> {
    let program = format!("target/test-apps/syscalls/{ANYWHERE}");
    for name in [program.as_str(), "test-apps/syscalls/expected-failures.csv"] {
        let to = folder.join(name);
        fs::create_dir_all(to.parent().unwrap_or(folder))?;
        fs::copy(support::workspace().join(name), to)?;
    }
    let outcome = support::run(
        Command::new("bash")
            .args(["-c", "nohup \"$@\" & wait $!", "bash"])
            .arg(std::env::current_exe()?)
            .args([&format!("::{ANYWHERE}::"), "--skip", "fast::"])
            .env("QUARK_TEST_WORKSPACE", folder),
        support::slowed(LIMIT),
    );
    if outcome.success() && outcome.stdout.contains(&format!("quark::{ANYWHERE}::")) {
        return Ok(());
    }
    Err(format!("{}\n{}", outcome.describe(), outcome.stdout).into())
}

fn main() {
    reset_signals();
    let arguments = Arguments::from_args();
    let sandbox = std::env::var("QUARK_SANDBOX_TESTS").map_or(SANDBOX_BY_DEFAULT, |v| v != "0");
    let directory = support::test_apps("syscalls");
    let programs = programs(&directory);
    let mut expected = expected_failures();
    let here = if sandbox { platform() } else { String::new() };
    let mut trials = Vec::new();
    if programs.is_empty() {
        let message = format!("{}: no programs; run: make test-apps", directory.display());
        trials.push(Trial::test("programs_are_built", move || Err(message.into())));
    }
    for program in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let family =
            |mode| Arc::new(Family { program: program.clone(), mode, results: OnceLock::new() });
        let native = family(Mode::Native);
        let inside = [("quark", family(Mode::Quark)), ("fast", family(Mode::Fast))];
        for case in cases(&program) {
            let known = expected
                .remove(&format!("{name}/{case}"))
                .filter(|(platform, _)| *platform == here || platform == "any")
                .map(|(_, reason)| reason);
            let (n, c) = (native.clone(), case.clone());
            trials.push(Trial::test(format!("native::{name}::{case}"), move || {
                judge_native(n.verdict(&c))
            }));
            for (way, quark) in &inside {
                let (n, q, c, known) = (native.clone(), quark.clone(), case.clone(), known.clone());
                trials.push(
                    Trial::test(format!("{way}::{name}::{case}"), move || {
                        judge_quark(&n.verdict(&c), q.verdict(&c), known.as_deref())
                    })
                    .with_ignored_flag(!sandbox),
                );
            }
        }
    }
    if sandbox && !directory.starts_with("/tmp/") {
        trials.push(Trial::test("anywhere::a_few_cases_pass_with_signals_ignored", anywhere));
    }
    trials.push(Trial::test("expected_failures_name_real_cases", move || {
        match expected.keys().next() {
            None => Ok(()),
            Some(case) => Err(format!("expected-failures.csv: there is no case {case}").into()),
        }
    }));
    libtest_mimic::run(&arguments, trials).exit();
}

/// True if the sandbox half runs unless the environment says otherwise.
const SANDBOX_BY_DEFAULT: bool = true;
