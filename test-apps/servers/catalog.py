"""The twelve servers: how each is started, as its Debian package or its image's users do, and what asks it."""
import dataclasses
import os
import shutil
import subprocess

import clients

HERE = os.path.dirname(os.path.abspath(__file__))
APPS = os.path.join(HERE, "apps")
ROOTFS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "target", "rootfs", "servers")
# Every n-th file of the static ones; a row of the others is text.
STATIC_FILES = 100


def static_path(n):
    return f"/file/{n % STATIC_FILES}"


def static_body(n):
    return f"file {n % STATIC_FILES} ".encode().ljust(1024, b"x")


def php_path(n):
    return f"/index.php?row={n}"


@dataclasses.dataclass
class Server:
    """One of them. `user` is a name of the root file system's /etc/passwd; `prepare(root)` puts configuration and data
    where an administrator would."""
    name: str
    arguments: list
    port: int
    client: object
    user: str = "root"
    prepare: object = None
    cwd: str = "/"
    # Those that a service manager would make at each start.
    directories: tuple = ()
    # Its programs may gain rights by set-user-id bits and file capabilities, as those of an engine's containers may.
    gains_rights: bool = False
    more: dict = dataclasses.field(default_factory=dict)
    environment: tuple = ()
    rootfs: str = ROOTFS

    def made_client(self, address):
        return self.client(address, self.port, **self.more)


def write(root, path, text, mode=0o644):
    path = os.path.join(root, path.lstrip("/"))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb" if isinstance(text, bytes) else "w") as f:
        f.write(text)
    os.chmod(path, mode)


def app(name):
    return lambda root: write(root, f"/srv/{name}", open(os.path.join(APPS, name)).read())


def chroot(root, *arguments, text=None):
    done = subprocess.run(["chroot", root, *arguments], input=text, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} in {root}: {done.stderr.strip()[-600:]}")
    return done.stdout


def static_files(root):
    for n in range(STATIC_FILES):
        write(root, "/var/www/html" + static_path(n), static_body(n))


def postgres(root):
    path = os.path.join(root, "etc/postgresql/15/main/pg_hba.conf")
    with open(path, "a") as f:
        f.write("host all all all trust\n")


def mariadb(root):
    # As mariadb-install-db does its own: a server that only reads these lines.
    chroot(root, "/usr/sbin/mariadbd", "--bootstrap", "--user=mysql",
           text="FLUSH PRIVILEGES;\nCREATE DATABASE test;\nCREATE USER test@'%' IDENTIFIED BY 'test';\nGRANT ALL ON test.* TO test@'%';\n")


def php(root):
    write(root, "/var/www/html/index.php", open(os.path.join(APPS, "index.php")).read())
    write(root, "/etc/nginx/sites-available/default", open(os.path.join(APPS, "php.conf")).read())


def go(root):
    if shutil.which("go") is None:
        raise SystemExit("the Go server needs Go: run scripts/setup.sh servers")
    out = os.path.join(root, "srv/server")
    done = subprocess.run(["go", "build", "-o", out, os.path.join(APPS, "server.go")], capture_output=True, text=True,
                          env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"})
    if done.returncode:
        raise SystemExit(f"go build: {done.stderr.strip()[-600:]}")


def ssh_key(root):
    """The key of root, made once."""
    key = os.path.join(root, "root/.ssh/id_ed25519")
    os.makedirs(os.path.dirname(key), mode=0o700, exist_ok=True)
    if not os.path.exists(key):
        chroot(root, "/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/id_ed25519")
    shutil.copy(key + ".pub", os.path.join(root, "root/.ssh/authorized_keys"))


ALL = [
    Server("nginx", ["nginx", "-g", "daemon off;"], 80, clients.Http, prepare=static_files,
           more={"path": static_path, "body": static_body}),
    Server("redis", ["redis-server", "/etc/redis/redis.conf", "--daemonize", "no", "--bind", "0.0.0.0", "--protected-mode", "no",
                     "--logfile", ""], 6379, clients.Redis, user="redis", directories=("/run/redis",)),
    Server("postgresql", ["/usr/lib/postgresql/15/bin/postgres", "-D", "/var/lib/postgresql/15/main", "-c",
                          "config_file=/etc/postgresql/15/main/postgresql.conf", "-c", "listen_addresses=*"],
           5432, clients.Postgres, user="postgres", prepare=postgres, directories=("/run/postgresql",)),
    # As its image does: there is no name server to ask who a client is.
    Server("mariadb", ["mariadbd", "--bind-address=0.0.0.0", "--skip-name-resolve"], 3306, clients.Mariadb, user="mysql", prepare=mariadb,
           directories=("/run/mysqld",)),
    Server("memcached", ["memcached", "-l", "0.0.0.0"], 11211, clients.Memcached, user="memcache"),
    Server("apache", ["/bin/sh", "-c", ". /etc/apache2/envvars; exec apache2 -D FOREGROUND"], 80, clients.Http, prepare=static_files,
           more={"path": static_path, "body": static_body}, directories=("/run/apache2", "/run/lock/apache2")),
    Server("node", ["node", "/srv/app.js"], 3000, clients.Http, prepare=app("app.js")),
    Server("gunicorn", ["gunicorn", "--workers", "2", "--bind", "0.0.0.0:8000", "app:app"], 8000, clients.Http, prepare=app("app.py"),
           cwd="/srv"),
    Server("go", ["/srv/server"], 8080, clients.Http, prepare=go),
    Server("java", ["java", "/srv/Server.java"], 8080, clients.Http, prepare=app("Server.java")),
    Server("php-fpm", ["/bin/sh", "-c", "php-fpm8.2 --nodaemonize & exec nginx -g 'daemon off;'"], 80, clients.Http, prepare=php,
           more={"path": php_path}, directories=("/run/php",)),
    Server("sshd", ["/usr/sbin/sshd", "-D", "-e"], 22, clients.Ssh, prepare=ssh_key, directories=("/run/sshd",)),
]
