"""The requests that the recipes show are made, against the real application and stand-ins for what else they name."""

from __future__ import annotations

import json
import shutil
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
pytest.importorskip("httpx2", reason="httpx2 is not installed")

import httpx2
from starlette.testclient import TestClient

from tests.docs.pages import ROOT, fences
from tests.support.photographs import pictures
from tests.support.serving import TOKEN, client, png, sent
from tests.support.zoo import made

HOME = ROOT / "docs" / "how-to" / "home-assistant.md"
STUDIO = ROOT / "docs" / "how-to" / "label-studio.md"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    path = tmp_path_factory.mktemp("fitted") / "zoo"
    with pytest.MonkeyPatch.context() as here:
        here.setenv("CONCM_CACHE", str(path.parent / "cache"))
        with made(path) as zoo:
            zoo.learn({"okapi": pictures("okapi", 4)})
    return path


@pytest.fixture
def program(fitted, tmp_path, cache):
    with client(shutil.copytree(fitted, tmp_path / "zoo")) as found:
        del found.headers["Authorization"]  # what is shown must send it
        yield found


class Elsewhere:
    """The package `requests`, for concm and for one other server whose files these are."""

    RequestException = httpx2.HTTPError

    def __init__(self, program: TestClient, files: dict[str, bytes]) -> None:
        self.program, self.files, self.posted = program, files, list[tuple[str, Any]]()

    def get(self, address: str, **how: Any) -> Any:
        for word in ("timeout", "allow_redirects"):
            how.pop(word, None)
        if address.startswith("http://127.0.0.1:8000/"):
            return self.program.get(address, **how)
        found = self.files.get(address)
        return httpx2.Response(404 if found is None else 200, content=found, request=httpx2.Request("GET", address))

    def post(self, address: str, *, timeout: float, **how: Any) -> Any:
        if address.startswith("http://127.0.0.1:8000/"):
            return self.program.post(address, **how)
        self.posted.append((address, how["json"]))
        return httpx2.Response(200, request=httpx2.Request("POST", address))


def script(page, title: str, monkeypatch: pytest.MonkeyPatch, **modules: Any) -> SimpleNamespace:
    """A program that a page shows, with stand-ins for some of the packages that it imports."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name.replace("_", "."), module)
    monkeypatch.setenv("CONCM_TOKEN", TOKEN)
    monkeypatch.setenv("LABEL_STUDIO_TOKEN", "of-the-studio")
    [fence] = [fence for fence in fences(page, "python") if fence.title == title]
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(fence.text, fence.where, "exec", dont_inherit=True), names)
    return SimpleNamespace(**names)


# Home Assistant


def settings(title: str) -> list[Any]:
    """What the YAML of that name says, with the secret that the page gives."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!secret", lambda loader, node: f"Bearer {TOKEN}")
    return [yaml.load(fence.text, Loader) for fence in fences(HOME, "yaml") if fence.title == title]


def filled(template: str, **values: str) -> str:
    for name, value in values.items():
        template = template.replace("{{ " + name + " }}", value)
    return template


def test_the_files_of_home_assistant_are_what_they_should_be():
    assert settings("secrets.yaml")[0]["concm_key"].startswith("Bearer ")
    [automation] = settings("automations.yaml")[0]
    assert [step.get("action") for step in automation["actions"]][:2] == ["camera.snapshot", "shell_command.ask_concm"]
    assert settings("configuration.yaml")[1]["mqtt"]["sensor"][0]["state_topic"] == "concm/garden"


def test_the_command_of_home_assistant_asks_about_a_photo(program):
    """curl's options are read as curl reads them: the file names header and address, and the form has one photo."""
    command = settings("configuration.yaml")[0]["shell_command"]["ask_concm"].split()
    assert command[:3] == ["curl", "--config", "/config/concm.curl"]
    field, _, file = command[command.index("--form") + 1].partition("=")
    assert file.startswith("@")
    [fence] = fences(HOME, "text")
    options = dict(line.split(" = ", 1) for line in fence.text.splitlines() if " = " in line)
    name, _, value = json.loads(options["header"]).partition(": ")
    path = json.loads(options["url"]).removeprefix("http://192.168.1.20:8000")
    headers = {name: value.replace("choose-a-long-one-yourself", TOKEN)}
    answer = program.post(path, headers=headers, files=[(field, ("feeder.jpg", png("cat"), "image/jpeg"))])
    [found] = answer.json()["predictions"]
    assert (found["label"], found["unknown"]) == ("cat", False)
    assert 0 <= found["score"] <= 1


def test_the_sensor_counts_and_the_command_names_what_waits(program):
    shown = settings("configuration.yaml")[0]
    key = {"Authorization": f"Bearer {TOKEN}"}
    files = sent(*((f"{at}.png", png("submarine", 300 + at)) for at in range(3)))
    numbers = [one["inbox"] for one in program.post("/api/predict", headers=key, files=files).json()["predictions"]]
    [sensor] = shown["rest"]
    answer = program.get(sensor["resource"].removeprefix("http://192.168.1.20:8000"), headers=sensor["headers"])
    assert answer.json()["inbox"] == 3
    command = shown["rest_command"]["concm_name"]
    assert command["method"] == "post"
    body = filled(command["payload"], name="submarine", photos=str(numbers))
    headers = {**command["headers"], "Content-Type": command["content_type"]}
    done = program.post(command["url"].removeprefix("http://192.168.1.20:8000"), headers=headers, content=body)
    assert (done.status_code, done.json()["detail"]) == (200, "submarine (3)")


# Frigate


class Broker:
    def __init__(self) -> None:
        self.said = list[tuple[str, Any]]()

    def publish(self, topic: str, payload: str, retain: bool) -> None:
        self.said.append((topic, json.loads(payload)))


def event(number: str, kind: str = "end", label: str = "bird") -> SimpleNamespace:
    after = {"id": number, "camera": "garden", "label": label, "has_snapshot": True}
    return SimpleNamespace(payload=json.dumps({"type": kind, "before": after, "after": after}).encode())


@pytest.fixture
def frigate(program, monkeypatch):
    files = {
        f"http://127.0.0.1:5000/api/events/{number}/snapshot.jpg": png(name)
        for number, name in (("1.a", "owl"), ("2.b", "submarine"))
    }
    elsewhere = Elsewhere(program, files)
    paho = {name: ModuleType(name.replace("_", ".")) for name in ("paho", "paho_mqtt", "paho_mqtt_client")}
    paho["paho"].mqtt, paho["paho_mqtt"].client = paho["paho_mqtt"], paho["paho_mqtt_client"]
    shown = script(HOME, "frigate_concm.py", monkeypatch, requests=elsewhere, **paho)
    return SimpleNamespace(shown=shown, elsewhere=elsewhere, broker=Broker())


def test_frigate_is_told_what_was_recognised_and_home_assistant_too(frigate):
    for message in (event("1.a", "new"), event("1.a", label="car"), event("1.a")):
        frigate.shown.on_message(frigate.broker, None, message)
    [(topic, found)] = frigate.broker.said
    assert (topic, found["label"]) == ("concm/garden", "owl")
    said = {"subLabel": "owl", "subLabelScore": found["score"]}
    assert frigate.elsewhere.posted == [("http://127.0.0.1:5000/api/events/1.a/sub_label", said)]


def test_what_is_unknown_waits_in_the_inbox_and_what_is_gone_stops_nothing(frigate, program, capsys):
    for number in ("2.b", "3.c"):
        frigate.shown.on_message(frigate.broker, None, event(number))
    assert [found["unknown"] for _, found in frigate.broker.said] == [True]
    assert frigate.elsewhere.posted == []
    assert "3.c: " in capsys.readouterr().out
    status = program.get("/api/status", headers={"Authorization": f"Bearer {TOKEN}"})
    assert status.json()["inbox"] == 1


# Label Studio


@pytest.fixture
def studio(program, monkeypatch):
    files = {
        "http://127.0.0.1:8080/data/upload/1/cat.png": png("cat"),
        "http://127.0.0.1:8080/data/upload/1/yak.png": png("submarine"),
        "http://169.254.169.254/secret": png("cat"),
    }
    elsewhere = Elsewhere(program, files)
    shown = script(STUDIO, "label_studio_concm.py", monkeypatch, requests=elsewhere)
    return TestClient(shown.app)


def task(image: str) -> dict[str, Any]:
    return {"id": 7, "data": {"image": image}}


def test_label_studio_connects(studio):
    assert studio.get("/health").json()["status"] == "UP"
    project = {"project": "1.1700000000", "schema": "<View/>", "hostname": "http://127.0.0.1:8080", "access_token": "x"}
    assert studio.post("/setup", json=project).json() == {"model_version": "version 2"}


def test_label_studio_gets_a_choice_for_each_task_or_none(studio):
    tasks = [task(f"/data/upload/1/{name}.png") for name in ("cat", "yak", "nothing")]
    found = studio.post("/predict", json={"tasks": tasks, "project": "1.1", "label_config": "<View/>", "params": {}})
    first, *others = found.json()["results"]
    assert first["result"] == [
        {"from_name": "choice", "to_name": "image", "type": "choices", "value": {"choices": ["cat"]}}
    ]
    assert (first["model_version"], 0 < first["score"] <= 1) == ("version 2", True)
    assert [one["result"] for one in others] == [[], []]


@pytest.mark.parametrize("image", ["http://169.254.169.254/secret", "//169.254.169.254/secret", "file:///etc/passwd"])
def test_nothing_is_fetched_from_anywhere_but_label_studio(studio, image):
    assert studio.post("/predict", json={"tasks": [task(image)]}).json() == {"results": [{"result": [], "score": 0.0}]}


def test_what_people_choose_in_label_studio_is_taught(studio, program):
    choice = {"from_name": "choice", "to_name": "image", "type": "choices", "value": {"choices": ["submarine"]}}
    said = {"action": "ANNOTATION_CREATED", "annotation": {"result": [choice]}, "task": task("/data/upload/1/yak.png")}
    assert studio.post("/webhook", json=said).status_code == 201
    assert studio.post("/webhook", json={"action": "PROJECT_UPDATED"}).status_code == 201
    classes = program.get("/api/classes", headers={"Authorization": f"Bearer {TOKEN}"}).json()["classes"]
    assert (classes[-1]["name"], classes[-1]["photos"]) == ("submarine", 1)
