//! The scripts and the Makefile, in a folder below /tmp with a space in its name, with SIGHUP
//! ignored: what a newcomer may do. Cargo, QEMU and the like are small scripts here that note how
//! they were called; `anywhere::` in `syscalls.rs` does the same with real sandboxes.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use support::{Outcome, limit, workspace};

/// Files of the repository that the scripts read besides themselves are those of [`Clone::new`].
const COPIED: &[&str] =
    &["Makefile", "scripts/adversary", "scripts/kvm-vm", "scripts/skips", "scripts/test-kvm"];

/// Builds, and names programs of tests whose paths have spaces.
const CARGO: &str = r#"
note cargo "$@"
case "$*" in
rustc*)
    mkdir -p target/release && cp "$here/quark" target/release/quark && cp "$here/quark" target/release/containerd-shim-quark-v1 ;;
*--message-format=*)
    for name in syscalls oci hibernate kvm adversary; do
        printf '{"executable": "%s", "target": {"name": "%s", "kind": ["test"]}}\n' \
            "$here/programs of tests/$name" "$name"
    done ;;
*--workspace*)
    printf '%s\n' "$SKIPPED" >>target/skipped ;;
esac
"#;

/// A program of tests: lists those of the file next to it, or notes how it was called and finds
/// what it needs where it was told.
const PROGRAM: &str = r#"
if [ "$1" = --list ]; then cat "$0.list"; exit; fi
note "${0##*/}" "$@"
[ -x "$QUARK_BIN" ] && [ -e scripts/test-kvm ]
"#;

/// The machine: runs the command that is packed in its initial RAM disk.
const QEMU: &str = r#"
if [ "$1" = --version ]; then echo "QEMU emulator version 9.0"; exit; fi
note qemu
for argument; do
    case $argument in
    file,id=output,path=*) output=${argument#*path=} ;;
    file,id=status,path=*) status=${argument#*path=} ;;
    file:*) : >"${argument#file:}" ;;
    *.cpio) image=$argument ;;
    esac
done
unpacked=$(mktemp -d)
tar -C "$unpacked" -xf "$image"
(. "$unpacked/settings" && [ -d "$repository" ] && [ -d "$out" ]) || exit 1
bash "$unpacked/command" </dev/null >"$output" 2>&1
echo $? >"$status"
rm -rf "$unpacked"
"#;

const QUARK: &str = r#"
case "$1" in
doctor) echo "yes  kvm platform: works" ;;
--fast-calls) echo "PASS race: nothing came of it" ;;
*) echo "PASS attack: nothing came of it" ;;
esac
"#;

/// What the other scripts of the repository, and programs of the machine, are replaced by.
const STUB: &str = r#"note "${0##*/}" "$@""#;

/// A copy of the scripts in a folder of its own.
struct Clone {
    root: PathBuf,
}

impl Clone {
    fn new() -> Clone {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("quark's clone {} {number}", std::process::id());
        let clone = Clone { root: Path::new("/tmp").join(name) };
        for file in COPIED {
            clone.copy(file);
        }
        clone.script("bin/cargo", CARGO);
        clone.script("bin/qemu", QEMU);
        clone.script("bin/quark", QUARK);
        clone.script("bin/cpio", "exec tar --no-recursion -cf - -T -");
        let stubs =
            ["bin/busybox", "bin/modprobe", "bin/mkfs.ext4", "scripts/setup.sh", "rootfs/image.py"];
        for stub in stubs.into_iter().chain([
            "test-apps/docker/test.sh",
            "test-apps/docker/with-docker.sh",
            "test-apps/containerd/test.sh",
        ]) {
            clone.script(stub, STUB);
        }
        for name in ["syscalls", "oci", "hibernate", "kvm", "adversary"] {
            clone.script(&format!("bin/programs of tests/{name}"), PROGRAM);
            let list = format!("quark::{name}::one: test\nnative::{name}::one: test\n");
            clone.write(&format!("bin/programs of tests/{name}.list"), &list);
        }
        clone.write("bin/programs of tests/oci.list", "life::one: test\nlife::two: test\n");
        clone.write("qvisor/tests/kvm-exceptions.txt", "# Such.\noci::life::two not there\n");
        clone.write("qvisor/tests/kvm-whole.txt", "# Such.\n");
        clone.write("qvisor/tests/skips.txt", "# Such.\nkvm::* there is no KVM\n");
        for directory in ["rootfs/tests", "test-apps/functionbench/tests", "test-apps/judge"] {
            clone.write(
                &format!("{directory}/test_some.py"),
                "import unittest\nclass Some(unittest.TestCase):\n    def test_it(self): pass\n",
            );
        }
        for directory in ["test-apps", "test-apps/adversary", "bench/micro"] {
            clone.write(&format!("{directory}/Makefile"), "all:\n");
        }
        // As if the kernel of the machine had been unpacked.
        let text = fs::read_to_string(clone.root.join("scripts/kvm-vm")).expect("kvm-vm");
        let modules = text.lines().find_map(|l| l.strip_prefix("modules=(")?.strip_suffix(')'));
        clone.write("target/kvm-vm/kernel/key", modules.expect("a list of modules"));
        clone.write("target/kvm-vm/kernel/01-some.ko", "");
        clone
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        fs::write(path, text).expect(name);
    }

    /// A script that can `note` how it was called, and knows as `here` where `bin` is.
    fn script(&self, name: &str, text: &str) {
        let bin = self.root.join("bin");
        let head = format!(
            "#!/bin/bash\nhere=\"{}\"\nnote() {{ printf '<%s>' \"$@\" >>\"$here/notes\"; \
             echo >>\"$here/notes\"; }}\n",
            bin.display()
        );
        self.write(name, &(head + text + "\n"));
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.root.join(name), executable).expect(name);
    }

    fn copy(&self, name: &str) {
        self.write(name, "");
        fs::copy(workspace().join(name), self.root.join(name)).expect(name);
    }

    /// Runs a command there as one in the background of a script under nohup(1).
    fn run(&self, variables: &[(&str, &str)], command: &[&str]) -> Outcome {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("bash");
        shell.args(["-c", "nohup \"$@\" & wait $!", "bash"]).args(command);
        // Cargo and make tell those that they start of themselves, and quark's tests what to test.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["CARGO", "MAKE", "MFLAGS", "QUARK_"].iter().any(|p| name.starts_with(p)) {
                shell.env_remove(&*name);
            }
        }
        shell.env("PATH", format!("{}:{path}", self.root.join("bin").display()));
        shell.env("QEMU", self.root.join("bin/qemu"));
        shell.envs(variables.iter().copied()).current_dir(&self.root);
        support::run(&mut shell, limit())
    }

    /// How the replaced programs were called.
    fn notes(&self) -> String {
        fs::read_to_string(self.root.join("bin/notes")).unwrap_or_default()
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).ok();
    }
}

/// # Panics
/// Unless the command did what it should.
fn expect(clone: &Clone, outcome: &Outcome, code: i32, said: &str) {
    let ended = outcome.status.and_then(|s| s.code()) == Some(code);
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(
        ended && text.contains(said),
        "expected {code} and \"{said}\": {}\n{}\nnotes:\n{}",
        outcome.describe(),
        outcome.stdout,
        clone.notes()
    );
}

#[test]
fn make_test_passes_or_says_what_was_skipped() {
    let clone = Clone::new();
    let made = clone.run(&[("SKIPPED", "SKIPPED kvm::some: no KVM")], &["make", "test"]);
    expect(&clone, &made, 0, "== 1 tests were skipped, of which 0 must not be");
    for note in ["<setup.sh>", "<image.py><root><python>", "<test.sh><target/release/quark>"] {
        assert!(clone.notes().contains(note), "{note}: {}", clone.notes());
    }
    let tested = clone.notes().matches("<test.sh><target/release/quark>").count();
    assert_eq!(tested, 2, "Docker and containerd: {}", clone.notes());
    let made = clone.run(&[("SKIPPED", "SKIPPED oci::some: no root")], &["make", "test"]);
    expect(&clone, &made, 2, "oci::some: no root (must not be)");
}

#[test]
fn make_test_kvm_runs_the_parts_on_this_machine_or_an_emulated_one() {
    for machine in ["", "1"] {
        let clone = Clone::new();
        let made = clone.run(&[("VM", machine)], &["make", "test-kvm"]);
        expect(&clone, &made, 0, "== oci: 1 tests passed, 1 excepted");
        let notes = clone.notes();
        assert_eq!(notes.contains("<qemu>"), machine == "1", "{notes}");
        for part in [
            "<syscalls><--test-threads=1><--nocapture><--skip><native::>",
            "<oci><--test-threads=1><--nocapture><--exact><life::one>\n",
            "<hibernate><--test-threads=1><--nocapture><--exact><quark::hibernate::one>",
            "<kvm><--test-threads=1>",
        ] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
        assert!(!notes.contains("<adversary><--test"), "{notes}");
    }
}

#[test]
fn a_short_run_of_test_kvm_leaves_modules_to_the_whole_one() {
    let clone = Clone::new();
    clone.write("bin/programs of tests/oci.list", "life::one: test\nwords::three: test\n");
    clone.write("qvisor/tests/kvm-exceptions.txt", "# Such.\n");
    clone.write("qvisor/tests/kvm-whole.txt", "# Such.\noci::words the same there\n");
    let made = clone.run(&[], &["make", "test-kvm", "SHORT=1"]);
    expect(&clone, &made, 0, "== oci: 1 tests passed, 0 excepted, 1 left to the whole run");
    assert!(!clone.notes().contains("words::three"), "{}", clone.notes());
    let made = clone.run(&[], &["make", "test-kvm"]);
    expect(&clone, &made, 0, "== oci: 2 tests passed, 0 excepted, 0 left to the whole run");
    clone.write("qvisor/tests/kvm-whole.txt", "oci::gone the same there\n");
    let made = clone.run(&[], &["make", "test-kvm"]);
    expect(&clone, &made, 2, "no reason, or no such module: oci::gone");
}

#[test]
fn a_filter_of_test_kvm_may_have_colons() {
    for machine in ["", "1"] {
        let clone = Clone::new();
        let parts = "PARTS=syscalls:quark::sys hibernate:native::hibernate::one";
        let made = clone.run(&[("VM", machine)], &["make", "test-kvm", parts]);
        expect(&clone, &made, 0, "== syscalls: 1 tests passed, 0 excepted");
        let notes = clone.notes();
        for part in [
            "<syscalls><--test-threads=1><--nocapture><quark::sys><--skip><native::>",
            "<hibernate><--test-threads=1><--nocapture><--exact><native::hibernate::one>\n",
        ] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
        let made = clone.run(&[("VM", machine)], &["scripts/test-kvm", "oci:none::such"]);
        expect(&clone, &made, 1, "no test is named *none::such*");
        let made = clone.run(&[], &["scripts/test-kvm", "such"]);
        expect(&clone, &made, 2, "there is no part such");
    }
}

#[test]
fn the_machine_runs_its_command_word_by_word() {
    let clone = Clone::new();
    let words = ["two words", "a'b\"c", "$HOME `id`", "", "*"];
    let print = [&["scripts/kvm-vm", "--", "printf", "<%s>"], &words[..]].concat();
    let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
    let ran = clone.run(&[], &print);
    expect(&clone, &ran, 0, &expected);
    let ran = clone.run(&[], &["scripts/kvm-vm", "bash", "-c", "exit 7"]);
    expect(&clone, &ran, 7, "");
    let variables = [("QUARK_SOME", "it's a $word")];
    let ran = clone.run(&variables, &["scripts/kvm-vm", "bash", "-c", "echo \"=$QUARK_SOME=\""]);
    expect(&clone, &ran, 0, "=it's a $word=");
}

#[test]
fn skips_are_counted_and_refused() {
    let clone = Clone::new();
    clone.write("some log", "SKIPPED kvm::one: no KVM\nSKIPPED kvm::one: no KVM\nok\n");
    let counted = clone.run(&[], &["scripts/skips", "some log"]);
    expect(&clone, &counted, 0, "== 1 tests were skipped, of which 0 must not be");
    let counted = clone.run(&[], &["scripts/skips", "--none", "some log"]);
    expect(&clone, &counted, 1, "== 1 tests were skipped, of which 1 must not be");
    let counted = clone.run(&[], &["scripts/skips", "no log"]);
    expect(&clone, &counted, 2, "not there");
}

#[test]
fn attacks_that_are_not_made_have_not_failed() {
    let clone = Clone::new();
    let quark = clone.root.join("bin/quark");
    let attacked = |quark: &str| clone.run(&[("QUARK", quark)], &["scripts/adversary", "2"]);
    expect(&clone, &attacked(&quark.to_string_lossy()), 0, "0 failures");
    expect(&clone, &attacked("/bin/true"), 1, "FAIL adversary: nothing was tried");
    expect(&clone, &attacked("/nonexistent/quark"), 1, "FAIL races: nothing was tried");
}

#[test]
fn setup_says_what_is_missing_and_installs_nothing() {
    let clone = Clone::new();
    clone.copy("scripts/setup.sh");
    let tools =
        ["cc", "make", "python3", "debootstrap", "runc", "dockerd", "containerd", "iptables"];
    let more = [
        "ip",
        "curl",
        "unshare",
        "mount",
        "newuidmap",
        "script",
        "cargo-fmt",
        "cargo-clippy",
        "rustup",
        "apt-get",
    ];
    for tool in tools.iter().chain(&more) {
        clone.script(&format!("bin/{tool}"), STUB);
    }
    clone.script("bin/rustc", "echo \"$here/sysroot\"");
    clone.script("bin/ldd", "exit 1");
    let path = clone.root.join("bin").to_string_lossy().into_owned();
    let check = || {
        // The shell and nohup are not among what is checked.
        let path = format!("PATH={path}");
        clone.run(&[], &["env", &path, "/bin/bash", "scripts/setup.sh", "--check"])
    };
    expect(&clone, &check(), 1, "setup: missing: the Rust target x86_64-unknown-none");
    clone.write("bin/sysroot/lib/rustlib/x86_64-unknown-none/lib/libcore", "");
    expect(&clone, &check(), 0, "setup: complete");
    fs::remove_file(clone.root.join("bin/cc")).expect("cc");
    expect(&clone, &check(), 1, "setup: missing: gcc");
    let notes = clone.notes();
    assert!(!notes.contains("<rustup>") && !notes.contains("<apt-get>"), "{notes}");
}
