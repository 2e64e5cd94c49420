//! The kvm platform: the guest kernel runs in ring 0 of a KVM virtual machine, user code in its ring 3.
