//! A hostile guest kernel at the channel of the kvm platform.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| qvisor::platform::kvm::channel::hostile::run(bytes));
