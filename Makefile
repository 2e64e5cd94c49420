# quark's everyday commands. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
CARGO ?= cargo
QUARK := target/release/quark
FUZZ_SECONDS ?= 60
# Each sandbox starts the program twice and keeps its data: without shared libraries, and with packed relocations,
# both cost less. These flags are the program's own, as procedural macros cannot be made with the first.
STATIC := -C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs
.DEFAULT_GOAL := help

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

.PHONY: setup
setup: ## Install what is missing (apt packages, the Rust target of the kernel image)
	@scripts/setup.sh

.PHONY: build
build: setup ## Build target/release/quark, the kernel image inside it, and containerd-shim-quark-v1
	$(CARGO) rustc --release --locked -p qvisor --bin quark -- $(STATIC)
	$(CARGO) rustc --release --locked -p containerd-shim-quark --bin containerd-shim-quark-v1 -- $(STATIC)

.PHONY: build-checked
build-checked: setup ## Build target/checked/quark, which checks its own invariants as it runs, the guest kernel too: for tests with QUARK_BIN
	QUARK_KERNEL_CHECKS=1 $(CARGO) build --locked -p qvisor --bin quark
	install -D target/debug/quark target/checked/quark

.PHONY: test-apps
test-apps: setup ## Build the C programs of the tests and benchmarks into target/
	@$(MAKE) --no-print-directory -j2 -C test-apps
	@$(MAKE) --no-print-directory -C test-apps/adversary
	@$(MAKE) --no-print-directory -C bench/micro

.PHONY: rootfs
rootfs: setup ## Make the root file systems that tests, demo and benchmarks run on
	@rootfs/image.py root busybox
	@rootfs/image.py root python

.PHONY: test
test: build test-apps rootfs ## Every test: unit, system calls, hibernation, command line, Docker, containerd
	@# What runs beside a hostile guest needs no loader and no libraries of the host.
	@for file in $(QUARK) target/release/containerd-shim-quark-v1; do ! readelf -lW $$file | grep INTERP || { echo "$$file is not linked statically"; exit 1; }; done
	@mkdir -p target && : >target/skipped
	/usr/bin/python3 -m unittest discover -s rootfs/tests
	/usr/bin/python3 -m unittest discover -s test-apps/functionbench/tests
	/usr/bin/python3 -m unittest discover -s test-apps/judge
	$(CARGO) test --workspace --locked --no-fail-fast
	@$(MAKE) --no-print-directory test-loom
	test-apps/docker/test.sh $(QUARK)
	LIMIT=400 test-apps/docker/with-docker.sh $(QUARK) test-apps/docker/matrix.py
	test-apps/containerd/test.sh $(QUARK)
	@scripts/skips target/skipped

.PHONY: test-kvm
test-kvm: setup test-apps rootfs ## The tests of sandboxes on the kvm platform, if need be in an emulated machine (SHORT=1 leaves out what is not of the platform, PLATFORM=process to compare)
	@PLATFORM=$(or $(PLATFORM),kvm) SHORT=$(SHORT) scripts/test-kvm $(PARTS)

.PHONY: adversary
adversary: build test-apps ## Attack sandboxes for ROUNDS rounds (200), with every processor busy besides
	@scripts/adversary $(or $(ROUNDS),200)

.PHONY: test-loom
test-loom: setup ## The reference counts of frames and the kernel lock, in every order that threads can have (loom); part of test
	RUSTFLAGS="--cfg loom" $(CARGO) test --locked --target-dir target/loom -p qlib --lib loom

.PHONY: bombs
bombs: build test-apps ## Throw ROUNDS (1000) rounds of memory bombs at sandboxes with a limit (SEED=n repeats one run); a short part is in test
	python3 test-apps/bombs/run.py --quark $(QUARK) --rounds $(or $(ROUNDS),1000) $(if $(SEED),--seed $(SEED))

.PHONY: fuzz
fuzz: ## Fuzz the host-call channel of the kvm platform for FUZZ_SECONDS (60); needs nightly Rust and `cargo install cargo-fuzz`
	@cargo fuzz --version >/dev/null 2>&1 || { echo "install cargo-fuzz first: cargo install cargo-fuzz --locked"; exit 1; }
	# The kernel image is not needed. On stable Rust the same steps are taken, boundedly, by `cargo test -p qvisor hostile`.
	QUARK_KERNEL_IMAGE=none $(CARGO) +nightly fuzz run --fuzz-dir fuzz channel -- -max_total_time=$(FUZZ_SECONDS) -max_len=4096

.PHONY: fuzz-syscalls
fuzz-syscalls: build test-apps rootfs ## Random system calls with hostile arguments in a sandbox that sleeps every few seconds (SECONDS=1800 SEED=n)
	@python3 test-apps/fuzz/run.py --quark $(QUARK) --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED))

.PHONY: storm
storm: build rootfs ## REQUESTS (100000) of six kinds to a container that is told to sleep all the time, none lost (SEED=n); a short part is in test
	@python3 test-apps/storm/run.py --quark $(QUARK) --requests $(or $(REQUESTS),100000) $(if $(SEED),--seed $(SEED))

.PHONY: docker-table
docker-table: build ## Try Docker's options with runc and with quark, and write doc/compatibility/docker.md
	LIMIT=800 test-apps/docker/with-docker.sh $(QUARK) test-apps/docker/matrix.py --write doc/compatibility/docker.md

.PHONY: critest
critest: build ## The conformance tests of Kubernetes' runtime interface under containerd, with runc and with quark; fails if quark alone fails one (needs Go 1.24)
	@scripts/setup.sh cri
	@python3 test-apps/containerd/cri/run.py --quark $(QUARK)

.PHONY: servers
servers: build ## Twelve servers of Debian beside runc (and RUNSC=path): start, memory, 20 sleeps; target/servers/report.md (ONLY="redis sshd", ONLY=throughput, ONLY=logins; BEFORE=another quark binary)
	@scripts/setup.sh servers
	@rootfs/image.py root servers
	@/usr/bin/python3 test-apps/servers/run.py --quark $(QUARK) $(if $(ONLY),--only "$(ONLY)") $(if $(RUNSC),--runsc $(RUNSC)) $(if $(BEFORE),--before $(BEFORE))

.PHONY: languages
languages: build ## Programs of ten languages in runc and in quark, with their services hibernated 20 times; target/languages/report.md (ONLY="Go Java", SLEEPS=n; PLATFORM=kvm, LONG=1)
	@scripts/setup.sh servers
ifeq ($(PLATFORM),kvm)
	@/usr/bin/python3 test-apps/languages/run.py --quark $(QUARK) $(if $(ONLY),--only "$(ONLY)") --roots
	@scripts/kvm-vm --if-needed --timeout 7200 --memory 6144 --out target/languages /usr/bin/python3 test-apps/languages/run.py --quark $(QUARK) --platform kvm $(if $(ONLY),--only "$(ONLY)") $(if $(LONG),,--short) --sleeps $(or $(SLEEPS),2)
else
	@/usr/bin/python3 test-apps/languages/run.py --quark $(QUARK) --platform $(or $(PLATFORM),auto) $(if $(ONLY),--only "$(ONLY)") --sleeps $(or $(SLEEPS),20)
endif

.PHONY: functionbench
functionbench: build ## FunctionBench's functions under Docker with quark, runc and runsc: cold, warm, hibernated, woken; target/functionbench/report.md (ONLY="matmul hello-node", ROUNDS=n, RUNSC=path, WITHOUT="runsc")
	@/usr/bin/python3 test-apps/functionbench/run.py --quark $(QUARK) $(if $(ONLY),--only "$(ONLY)") $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(RUNSC),--runsc $(RUNSC)) $(if $(WITHOUT),--without "$(WITHOUT)")

.PHONY: judge
judge: build ## Suites that others wrote (CPython's, Go's, stress-ng) natively and in quark; doc/compatibility/*.csv has what differs (ONLY="cpython go stress", PART=test_socket, AGAIN=1)
	@scripts/setup.sh judge
	@/usr/bin/python3 test-apps/judge/run.py --quark $(QUARK) --rootfs "$$(rootfs/image.py root test-apps/judge/judge.yaml)" $(if $(ONLY),--only "$(ONLY)") $(if $(PART),--part "$(PART)") $(if $(AGAIN),--again)

.PHONY: deb
deb: build ## Make target/debian/quark_VERSION_amd64.deb, a Debian package (with cargo-deb, which is built if it is missing)
	@scripts/setup.sh deb
	@packaging/deb/build

.PHONY: test-deb
test-deb: deb rootfs ## Install, use, upgrade and remove that package in a small Debian of its own, after lintian and man
	@scripts/setup.sh test-deb
	@test-apps/packages/deb.sh target/debian/quark_$$($(QUARK) --version | cut -d' ' -f2)_amd64.deb

.PHONY: deny
deny: ## Licences, sources and advisories of all dependencies (needs cargo-deny, and the network for advisories)
	$(CARGO) deny --locked check

.PHONY: lint
lint: setup ## Format and clippy, the kernel image included
	$(CARGO) fmt --all --check
	rustfmt --edition 2024 --check vdso/vdso.rs
	@git ls-files '*.rs' | python3 -c 'import re, sys; wide = [f"{f}:{n}: a comment of {len(l)} columns (at most 100; rustfmt does not wrap it)" \
		for f in sys.stdin.read().split() for n, l in enumerate(open(f).read().splitlines(), 1) if re.match(" *//", l) and len(l) > 100]; \
		print(*wide, sep="\n") if wide else None; sys.exit(bool(wide))'
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy -p qkernel --features image --bin qkernel --target x86_64-unknown-none --locked -- -D warnings

.PHONY: demo
demo: build rootfs ## A Python function's whole life: cold, warm, hibernated, woken; writes target/demo/report.json (PLATFORM=kvm|process, REPEAT=n)
ifeq ($(PLATFORM),kvm)
	@scripts/kvm-vm --if-needed --out target/demo python3 bench/demo.py --quark $(QUARK) --platform kvm --repeat $(or $(REPEAT),3)
else
	@python3 bench/demo.py --quark $(QUARK) --platform $(or $(PLATFORM),auto) $(if $(REPEAT),--repeat $(REPEAT))
endif

.PHONY: bench
bench: build test-apps rootfs ## Measure quark and the peers that are installed; writes target/bench/report.json (ONLY=start|micro|threads|scale|hello|hibernation|clone; PLATFORM=kvm: the system calls there; BEFORE=another quark binary, to compare)
ifeq ($(PLATFORM),kvm)
	@scripts/kvm-vm --if-needed --out target/bench python3 bench/run.py --quark $(QUARK) --platform kvm --only micro
else
	@python3 bench/run.py --quark $(QUARK) --platform $(or $(PLATFORM),auto) $(if $(ONLY),--only $(ONLY)) $(if $(BEFORE),--before $(BEFORE))
endif
