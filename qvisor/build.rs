//! Builds the guest kernel image for `x86_64-unknown-none`, so that it can be embedded in the
//! binary.
//!
//! `QUARK_KERNEL_IMAGE` names an image to embed instead; `none` embeds nothing, which makes a
//! library that cannot boot. `QUARK_KERNEL_CHECKS=1` has the image check itself (its debug
//! assertions), which a user would pay for.

use std::env;
use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-none";

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let workspace = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("..");
    println!("cargo::rerun-if-env-changed=QUARK_KERNEL_IMAGE");
    println!("cargo::rerun-if-env-changed=QUARK_KERNEL_CHECKS");
    println!("cargo::rerun-if-changed=build.rs");
    let embedded = out.join("qkernel.elf");
    match env::var("QUARK_KERNEL_IMAGE") {
        Ok(none) if none == "none" => fs::write(&embedded, [])?,
        Ok(image) => {
            println!("cargo::rerun-if-changed={image}");
            fs::copy(&image, &embedded).map_err(|e| format!("QUARK_KERNEL_IMAGE={image}: {e}"))?;
        }
        Err(_) => {
            for input in [
                "Cargo.toml",
                "Cargo.lock",
                "qkernel/Cargo.toml",
                "qkernel/build.rs",
                "qkernel/src",
                "vdso",
                "qlib/Cargo.toml",
                "qlib/src",
            ] {
                println!("cargo::rerun-if-changed={}", workspace.join(input).display());
            }
            fs::copy(build_image(&workspace, &out)?, &embedded)?;
        }
    }
    // A name for it, which no start needs to work out.
    let mut hasher = DefaultHasher::new();
    fs::read(&embedded)?.hash(&mut hasher);
    println!("cargo::rustc-env=QUARK_KERNEL_BUILD={:016x}", hasher.finish());
    Ok(())
}

/// Runs cargo for the kernel image; where it lies.
fn build_image(workspace: &Path, out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    // OUT_DIR is <target>/<profile>/build/<package>/out. A target directory of its own, as the
    // outer cargo holds the lock of this one; shared by the outer profiles, as the image is the
    // same.
    let checks = env::var("QUARK_KERNEL_CHECKS").is_ok_and(|checks| checks == "1");
    let target = out
        .ancestors()
        .nth(4)
        .ok_or("OUT_DIR is not below a target directory")?
        .join(if checks { "image-checks" } else { "image" });
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .current_dir(workspace)
        .args([
            "build",
            "--release",
            "-p",
            "qkernel",
            "--bin",
            "qkernel",
            "--features",
            "image",
            "--target",
            TARGET,
        ])
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", "-C force-frame-pointers=yes")
        // A panic is shown with symbols; line tables would be most of the image. Smaller, and what
        // is used together lies together: on kvm each page of text that is touched first is an
        // exit. (Level 3 makes a twentieth more of it, and nothing faster.)
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "2")
        // Arithmetic that overflows ends the sandbox: what a kernel computes wrongly is what an
        // attacker works with. It costs nothing that can be measured.
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", if checks { "true" } else { "false" })
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    // What the outer cargo tells its children is about the outer build (clippy's wrapper, its
    // flags).
    for name in [
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
        "RUSTDOCFLAGS",
    ] {
        cargo.env_remove(name);
    }
    let status = cargo.status()?;
    if !status.success() {
        if !target_installed() {
            return Err(format!(
                "the Rust target {TARGET} is missing: run `rustup target add {TARGET}`"
            )
            .into());
        }
        return Err("the kernel image does not build (see above)".into());
    }
    Ok(target.join(TARGET).join("release/qkernel"))
}

/// True if the standard library's core for the image's target is there.
fn target_installed() -> bool {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let output =
        Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output();
    output.is_ok_and(|o| {
        let dir = String::from_utf8_lossy(&o.stdout).trim().to_owned();
        !dir.is_empty() && fs::read_dir(dir).is_ok_and(|mut d| d.next().is_some())
    })
}
