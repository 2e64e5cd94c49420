//! The `quark` binary.
#![deny(unsafe_code)]

fn main() -> std::process::ExitCode {
    qvisor::oci::main()
}
