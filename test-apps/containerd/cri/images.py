"""The images that critest pulls, made from root file systems that are here, and a registry that serves them: the part of the
OCI distribution specification that a pull needs, on the loopback device."""
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import threading

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar"

# A program with the set-user-ID bit that says as whom it runs.
WHO = r"""
#include <stdio.h>
#include <unistd.h>
int main(void) { return printf("Effective uid: %d\n", (int)geteuid()) < 0; }
"""


class Registry:
    """Blobs by digest, manifests by name and tag or digest."""

    def __init__(self):
        self.blobs, self.manifests = {}, {}
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                found = registry.look_up(self.path.split("?")[0])
                self.send_response(200 if found else 404)
                kind, digest, body = found or ("text/plain", "", b"no such thing\n")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if digest:
                    self.send_header("Docker-Content-Digest", digest)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def look_up(self, path):
        """Media type, digest and bytes of what a path names; None if there is nothing."""
        if path == "/v2/":
            return "application/json", "", b"{}"
        match = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", path)
        if not match:
            return None
        name, kind, reference = match.groups()
        if kind == "blobs":
            body = self.blobs.get(reference)
            return body and ("application/octet-stream", reference, body)
        body = self.manifests.get((name, reference))
        return body and (MANIFEST, digest_of(body), body)

    def add_blob(self, body):
        digest = digest_of(body)
        self.blobs[digest] = body
        return digest

    def add(self, reference, layers, **config):
        """An image under a name with a tag; its layers are digests of blobs."""
        name, tag = reference.rsplit(":", 1)
        text = json.dumps({"architecture": "amd64", "os": "linux", "config": config,
                           "rootfs": {"type": "layers", "diff_ids": layers}}).encode()
        body = json.dumps({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": self.add_blob(text), "size": len(text)},
            "layers": [{"mediaType": LAYER, "digest": layer, "size": len(self.blobs[layer])} for layer in layers],
        }).encode()
        self.manifests[(name, tag)] = self.manifests[(name, digest_of(body))] = body


def digest_of(body):
    return "sha256:" + hashlib.sha256(body).hexdigest()


def packed(directory):
    """A directory as an uncompressed tar archive."""
    return subprocess.run(["tar", "-C", directory, "--sort=name", "--mtime=@0", "-cf", "-", "."],
                          stdout=subprocess.PIPE, check=True).stdout


def fill(registry, work, busybox, nginx):
    """Makes all images. `busybox` and `nginx` are root file systems (rootfs/image.py)."""
    def layer(name, files, modes=()):
        root = os.path.join(work, name)
        for path, text in files.items():
            path = os.path.join(root, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
        for path, mode in modes:
            os.chmod(os.path.join(root, path), mode)
        return registry.add_blob(packed(root))

    # Busybox over Debian, which has what busybox here lacks. Each of its programs is a file, for a case hides one of them.
    whole = registry.add_blob(packed(nginx))
    small = os.path.join(work, "small/usr/bin")
    os.makedirs(small)
    shutil.copy(busybox + "/bin/busybox", small)
    for applet in os.listdir(busybox + "/bin"):
        if applet != "busybox":
            os.link(small + "/busybox", os.path.join(small, applet))
    small = registry.add_blob(packed(work + "/small"))
    users = layer("users", {
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/false\n"
                      "nobody:x:65534:65534:nobody:/:/bin/false\ndefault-user:x:1000:1000::/home/default-user:/bin/sh\n",
        "etc/group": "root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n",
    })
    base = [whole, small, users]
    env = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    registry.add("e2e-test-images/busybox:1.29-2", base, Env=env, Cmd=["sh"])
    registry.add("pause:3.10", base, Env=env, Cmd=["sleep", "infinity"])
    registry.add("e2e-test-images/httpd:2.4.39-4", base, Env=env, Cmd=[
        "sh", "-c", "mkdir -p /www && echo It works > /www/index.html && echo httpd && exec httpd -f -p 80 -h /www"])
    serve = ["nginx", "-g", "daemon off;"]
    registry.add("e2e-test-images/nginx:1.14-2", [whole], Env=env, Cmd=serve)
    page = layer("hostnet", {"etc/nginx/sites-enabled/default": "server { listen 12003; root /var/www/html;"
                                                                " index index.nginx-debian.html; }\n"})
    registry.add("k8s-staging-cri-tools/hostnet-nginx-amd64:latest", [whole, page], Env=env, Cmd=serve)
    who = os.path.join(work, "who")
    os.makedirs(who + "/bin")
    subprocess.run(["cc", "-static", "-O2", "-o", who + "/bin/who-am-i", "-xc", "-"], input=WHO, text=True, check=True)
    os.chmod(who + "/bin/who-am-i", 0o4755)
    registry.add("e2e-test-images/nonewprivs:1.3", base + [registry.add_blob(packed(who))], Env=env, Cmd=["/bin/who-am-i"])
    prefix = "k8s-staging-cri-tools/test-image-"
    for name, user in (("user-uid", "1002"), ("user-username", "www-data"), ("user-uid-group", "1003:1004"),
                       ("user-username-group", "www-data:1004"), ("predefined-group", "1000")):
        registry.add(f"{prefix}{name}:latest", base, Env=env, Cmd=["sh"], User=user)
    for name in ("latest:latest", "tag:test", "tag:all", "1:latest", "2:latest", "3:latest"):
        mark = layer("mark-" + name.replace(":", "-"), {"mark": name})
        registry.add(prefix + name, base + [mark], Env=env, Cmd=["sh"])
    for tag in "123":
        registry.add(f"{prefix}tags:{tag}", base, Env=env, Cmd=["sh"])
