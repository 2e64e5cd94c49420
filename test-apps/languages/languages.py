"""The languages: for each its image, jobs that end, and services that are put to sleep."""
import dataclasses
import os

# Of test-apps/servers, which run.py shows.
import catalog
import clients

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclasses.dataclass
class Job:
    """A shell command in an empty directory. It is right if it succeeds, and prints in quark what it prints in runc. A long one
    compiles or installs: some minutes in an emulated machine."""
    name: str
    command: str
    is_long: bool = False


@dataclasses.dataclass
class Language:
    """`image` is a description of this directory; `services` are commands that answer GET /row/N on port 8080 with "row N"."""
    name: str
    image: str
    jobs: list
    services: dict
    environment: tuple = ()

    def description(self):
        return os.path.join(HERE, self.image + ".yaml")

    def server(self, name, arguments, rootfs):
        return catalog.Server(name, arguments, 8080, clients.Http, environment=self.environment, rootfs=rootfs)


def java(*options):
    return ["java", *options, "-Xmx256m", "-cp", "/srv/rows", "Rows"]


def collected(*options):
    """The job of Java with a collector."""
    return f"java {' '.join(options)} -Xmx256m /srv/app/Jobs.java"


ALL = [
    Language("Python", "language-python", [
        Job("processes, threads, asyncio, SQLite", "python3 /srv/app/jobs.py"),
        Job("venv, pip install", "python3 -m venv v && v/bin/pip install -q --no-index --find-links /srv/wheels flask && v/bin/python /srv/app/installed.py", is_long=True),
    ], {"python": ["python3", "/srv/app/server.py"]}),
    Language("Python, scientific", "language-scientific", [
        Job("NumPy, pandas, Pillow, OpenCV, scikit-learn, PyTorch", "python3 /srv/app/science_jobs.py"),
    ], {"python-scientific": ["python3", "/srv/app/science.py"]}),
    Language("Node.js", "language-node", [
        Job("streams, processes, sockets, WebAssembly", "node /srv/app/jobs.js"),
        Job("worker_threads", "node /srv/app/workers.js selftest"),
        Job("npm install, esbuild, Express", "cp /srv/app/package*.json /srv/app/app.js . && npm install --offline --cache /srv/npm >log 2>&1 || { cat log; exit 1; }; "
            "npm run build >log 2>&1 || { cat log; exit 1; }; node dist/app.js selftest", is_long=True),
    ], {"node-express": ["node", "/srv/app/dist/app.js"], "node-workers": ["node", "/srv/app/workers.js"]}),
    Language("Go", "language-go", [
        Job("go build, goroutines, sockets", "cp -r /srv/app/jobs . && cd jobs && CGO_ENABLED=0 go build -o jobs . && ./jobs"),
        Job("go build with cgo", "cp -r /srv/app/called . && cd called && CGO_ENABLED=1 go build -o called . && ./called selftest", is_long=True),
        Job("go vet, go test", "cp -r /srv/app/jobs . && cd jobs && go vet . && go test . | cut -f 1-2", is_long=True),
    ], {"go-static": ["/srv/rows"], "go-cgo": ["/srv/called"]}, environment=("GOFLAGS=-mod=mod", "GOPROXY=off", "GOCACHE=/var/tmp/go")),
    Language("Java", "language-java", [
        Job("G1", collected("-XX:+UseG1GC")),
        Job("Serial", collected("-XX:+UseSerialGC")),
        Job("Parallel", collected("-XX:+UseParallelGC")),
        Job("ZGC", collected("-XX:+UseZGC")),
        Job("Shenandoah", collected("-XX:+UseShenandoahGC")),
        Job("javac, jar", "mkdir classes && javac -d classes /srv/app/Jobs.java && jar --create --file jobs.jar --main-class Jobs -C classes . && java -jar jobs.jar | sort"),
        Job("maven, JUnit", "cp -r /srv/app/tested . && cd tested && mvn -B -o -Dmaven.repo.local=/srv/m2 package >log 2>&1 || { tail -40 log; exit 1; }; "
            "grep -o 'Tests run: [0-9]*, Failures: [0-9]*' log | tail -1", is_long=True),
        Job("maven, Spring Boot", "cp -r /srv/app/spring . && cd spring && mvn -B -o -q -Dmaven.repo.local=/srv/m2 package >log 2>&1 || { tail -40 log; exit 1; }; "
            "jar --list --file target/spring-1.jar | wc -l", is_long=True),
    ], {"java-g1": java("-XX:+UseG1GC"), "java-serial": java("-XX:+UseSerialGC"), "java-zgc": java("-XX:+UseZGC"),
        "spring-boot": ["java", "-Xmx256m", "-jar", "/srv/spring.jar"]}),
    Language("Ruby", "language-ruby", [
        Job("threads, Ractors, fork, sockets, pty", "ruby /srv/app/jobs.rb"),
    ], {"ruby": ["ruby", "/srv/app/server.rb"]}),
    Language("PHP", "language-php", [
        Job("fork, SQLite, signals", "php /srv/app/jobs.php"),
        Job("with the just-in-time compiler", "php -d opcache.enable_cli=1 -d opcache.jit_buffer_size=64M -d opcache.jit=tracing /srv/app/jobs.php"),
    ], {"php": ["php", "-S", "0.0.0.0:8080", "/srv/app/server.php"]}, environment=("PHP_CLI_SERVER_WORKERS=4",)),
    Language("Perl", "language-perl", [
        Job("threads, fork, files, timers", "perl /srv/app/jobs.pl"),
    ], {"perl": ["perl", "/srv/app/server.pl"]}),
    Language(".NET Core 3.1", "language-dotnet", [
        Job("collector, tasks, sockets, mappings", "/srv/dotnet/dotnet /srv/app/Jobs.dll"),
        Job("the server's collector", "COMPlus_gcServer=1 /srv/dotnet/dotnet /srv/app/Jobs.dll"),
        Job("Mono", "mono /srv/app/Jobs.exe"),
        Job("mcs", "mcs -out:rows.exe /srv/app/Rows.cs && ls"),
    ], {"dotnet": ["/srv/dotnet/dotnet", "/srv/app/Rows.dll"], "mono": ["mono", "/srv/app/Rows.exe"]}),
    Language("Rust", "language-rust", [
        Job("cargo build", "cp -r /srv/app project && cd project && cargo build -q --offline && ls target/debug/rows", is_long=True),
        Job("cargo test", "cp -r /srv/app project && cd project && cargo test -q --offline >log 2>&1 || { cat log; exit 1; }; grep -o 'test result: ok. [0-9]* passed' log", is_long=True),
    ], {"rust": ["/srv/rows"]}),
    Language("C, C++", "language-c", [
        Job("gcc, OpenMP, signals", "gcc -O2 -Wall -fopenmp -o threads /srv/app/threads.c && ./threads"),
        Job("g++, make -j", "sh /srv/app/project.sh project", is_long=True),
        Job("git", "sh /srv/app/versions.sh \"$PWD\""),
        Job("apt-get, dpkg", "sh /srv/app/packages.sh"),
    ], {}),
]
