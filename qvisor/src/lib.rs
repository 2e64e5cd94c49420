//! The host side of quark: guest memory and host calls, the platforms that run guest
//! code, the container life cycle. The `quark` binary is a thin shell around this library, so that
//! tests can reach every room. The rooms are layers (`tests/layers.rs`): each uses only those below
//! it.
#![deny(unsafe_code)]

pub mod cgroup;
pub mod console;
pub mod image;
pub mod oci;
pub mod platform;
pub mod sandbox;
#[cfg(test)]
#[path = "../tests/support/skip.rs"]
mod skip;
pub mod store;
pub mod streams;
pub mod sys;
