//! The `kvm` platform's ring 0: what qvisor does on `process`, the image does for itself here.

pub mod clock;
