"""A control plane of its own for each run of a judge, and the proxy before it on one of the two sides."""

import base64
import contextlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "target" / "judges"
TESTBED = ROOT / "target" / "testbed" / "kube-testbed"


class Server:
    """A process that is ended by its number, and by nothing else."""

    def __init__(self, command, log):
        self.log = log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)

    def until(self, look):
        """Returns what `look` finds, once it finds something. The bound only ends a hang."""
        for _ in range(1200):
            if found := look():
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit(f"{self.process.args[0]} did not start: {self.log}")

    def end(self):
        self.process.terminate()
        self.process.wait()


def kubeconfig(original, url, certificate):
    """The same user with another server."""
    text = re.sub(r"server: .*", f"server: {url}", original.read_text())
    authority = base64.b64encode(certificate.read_bytes()).decode()
    return re.sub(r"certificate-authority-data: .*", f"certificate-authority-data: {authority}", text)


def kubeconfig_server(path):
    """The address of the server."""
    return re.search(r"server: (\S+)", path.read_text())[1]


class World:
    """The servers of one run."""

    def __init__(self, plane, user, admin, out, proxy):
        self.plane, self.user, self.out = plane, user, out
        self._admin = admin
        # The number of the proxy's process, if there is one.
        self.proxy = proxy

    @property
    def apiserver(self):
        """A kubeconfig of the apiserver itself."""
        return self.plane / "admin.kubeconfig"

    def served(self):
        """The number of answers from the proxy's cache so far; None without a proxy."""
        if self._admin is None:
            return None
        metrics = urllib.request.urlopen(f"{self._admin}/metrics").read().decode()
        (self.out / "metrics").write_text(metrics)
        return sum(int(value) for value in re.findall(r"^kube_fanout_served_total{.*} (\d+)", metrics, re.M))


@contextlib.contextmanager
def world(side, out, proxy):
    """Starts the servers of a side, "direct" or "proxy"; logs are in `out`. `World.user` is the kubeconfig of the side.
    The proxy caches whatever is read, and authenticates every caller."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # Short, because etcd's unix socket is below it.
    plane = pathlib.Path(tempfile.mkdtemp(prefix="judges-"))
    servers = [Server([str(TESTBED), "up", "--dir", str(plane)], out / "plane.log")]
    try:
        servers[0].until(lambda: (plane / "ready").exists())
        user, admin = plane / "admin.kubeconfig", None
        if side == "proxy":
            certificate = out / "proxy.crt"
            servers.append(Server(
                [str(proxy), "serve", "--kubeconfig", str(user), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
                 "--auth", "delegated", "--tls-self-signed", "--tls-self-signed-out", str(certificate),
                 "--cache-sensitive", "secrets,configmaps"], out / "proxy.log"))
            listens = re.compile(r"^serving on (\S+)\nmetrics and health on (\S+)$", re.M)
            url, admin = servers[1].until(lambda: listens.search((out / "proxy.log").read_text())).groups()
            original, user = user, out / "kubeconfig"
            user.write_text(kubeconfig(original, url, certificate))
        yield World(plane, user, admin, out, servers[1].process.pid if admin else None)
    finally:
        for server in reversed(servers):
            server.end()
        shutil.rmtree(plane, ignore_errors=True)
