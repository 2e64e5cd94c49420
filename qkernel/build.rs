//! Builds the vDSO that is embedded in the kernel image: one rustc and one linker run, with the
//! toolchain that builds everything else.
//!
//! The same for every target of this crate, so that what the tests call natively is what guests
//! get.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE_BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let workspace = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("..");
    let (source, script) = (workspace.join("vdso/vdso.rs"), workspace.join("vdso/vdso.lds"));
    for input in ["vdso/vdso.rs", "vdso/vdso.lds", "qlib/src/clock/page.rs", "qkernel/build.rs"] {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    // The host's own target is there for certain, as this very program needs it.
    let host = env::var("HOST")?;
    if !host.starts_with("x86_64-") {
        return Err(format!("the vDSO is built on x86-64 only, not on {host}").into());
    }
    let rustc = env::var("RUSTC")?;
    let (object, image) = (out.join("vdso.o"), out.join("vdso.so"));
    run(Command::new(&rustc)
        .args([
            "--edition",
            "2024",
            "--crate-name",
            "vdso",
            "--crate-type",
            "lib",
            "--emit",
            "obj",
            "--target",
            &host,
        ])
        // Unwind tables, so that a debugger or profiler finds its way out of the image; no code
        // ever unwinds.
        .args([
            "-C",
            "opt-level=2",
            "-C",
            "panic=abort",
            "-C",
            "force-unwind-tables=yes",
            "-C",
            "codegen-units=1",
        ])
        // The crate does not use all of the page's functions.
        .args(["-C", "relocation-model=pic", "-A", "dead_code"])
        .arg("-o")
        .arg(&object)
        .arg(&source))?;
    run(Command::new(linker(&rustc, &host)?)
        .args([
            "-flavor",
            "gnu",
            "-shared",
            "-soname",
            "linux-vdso.so.1",
            "--hash-style=both",
            "--build-id=sha1",
        ])
        .args([
            "--no-undefined",
            "--eh-frame-hdr",
            "--gc-sections",
            "--strip-all",
            "-z",
            "max-page-size=4096",
        ])
        .arg("-T")
        .arg(&script)
        .arg("-o")
        .arg(&image)
        .arg(&object))?;
    // Whole pages, as it is mapped.
    let mut bytes = fs::read(&image)?;
    bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
    fs::write(out.join("vdso.pages"), bytes)?;
    Ok(())
}

/// The linker that comes with the toolchain (and links the kernel image too).
fn linker(rustc: &str, host: &str) -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new(rustc).args(["--print", "sysroot"]).output()?;
    let sysroot = String::from_utf8(output.stdout)?;
    let linker = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin/rust-lld");
    if !linker.exists() {
        return Err(format!(
            "{} is missing: the Rust toolchain must be one of rustup's",
            linker.display()
        )
        .into());
    }
    Ok(linker)
}

fn run(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.status().map_err(|e| format!("{command:?}: {e}"))?;
    if !status.success() {
        return Err(format!("{command:?} failed: {status}").into());
    }
    Ok(())
}
