//! A hostile guest kernel at the door of the kvm platform.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| qvisor::platform::kvm::door::hostile::run(bytes));
