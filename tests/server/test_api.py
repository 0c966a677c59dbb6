"""The HTTP API as programs use it."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import shutil
import sqlite3
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
import torch

from concm.backbones import cores
from concm.classifier.check import check
from concm.classifier.classifier import Classifier
from concm.classifier.store import Store
from concm.classifier.stream import PILE
from concm.data.images import BrokenPicture
from concm.data.scenarios import natural
from concm.errors import ConcmError
from concm.progress import track
from concm.server import api, changing, openapi
from concm.server.inbox import ROOM, Inbox
from concm.server.predictor import Predictor
from concm.server.security import Guard
from tests.support.photographs import BACKBONE, picture
from tests.support.serving import NEW, client, png, sent, several
from tests.support.tiny import call
from tests.support.zoo import COUNT


def answers(program, files, **query) -> list[dict]:
    found = program.post("/api/predict", files=files, params=query)
    assert found.status_code == 200, found.text
    return found.json()["predictions"]


def names(program) -> dict[str, int]:
    return {row["name"]: row["photos"] for row in program.get("/api/classes").json()["classes"]}


# asking


def test_photos_are_answered_as_the_command_line_answers_them(program, store, tmp_path, capsys):
    file = tmp_path / "cat.png"
    file.write_bytes(png("cat"))
    assert call("predict", store, file, "--json", "--backbone", BACKBONE, "--top", 5) == 0
    said = json.loads(capsys.readouterr().out)
    gc.collect()
    [found] = answers(program, sent(("cat.png", png("cat"))), keep="none")
    assert found.keys() == said.keys()
    assert found["label"] == said["label"] == "cat"
    assert found["score"] == pytest.approx(said["score"], abs=1e-5)
    assert found["photo"] == "cat.png"


def test_answers_come_in_order_and_failures_beside_them(program):
    files = [*several("cat", 2), *sent(("x.jpg", b"no photo")), *several("dog", 2)]
    found = program.post("/api/predict", files=files).json()
    assert [one["top"][0][0] for one in found["predictions"]] == ["cat", "cat", "dog", "dog"]
    assert [said.split()[0] for said in found["failures"]] == ["x.jpg"]


def test_a_photo_that_is_too_large_keeps_no_other_from_its_answer(program, monkeypatch):
    monkeypatch.setattr("concm.server.uploads.MOST_BYTES", 1_000_000)
    files = [*several("cat", 1), *sent(("big.png", png("cat") + bytes(1_000_000))), *several("dog", 1)]
    answer = program.post("/api/predict", files=files)
    assert answer.status_code == 200
    assert [one["top"][0][0] for one in answer.json()["predictions"]] == ["cat", "dog"]
    assert answer.json()["failures"] == ["big.png is too large: a photo has 1 million bytes at most"]


def test_the_nearest_taught_photos_say_why(program):
    [found] = answers(program, several("okapi", 1), nearest=3, top=2)
    assert [photo["class"] for photo in found["nearest"]] == ["okapi"] * 3
    assert found["nearest"][0]["likeness"] >= found["nearest"][1]["likeness"]
    assert program.get(f"/api/photos/{found['nearest'][0]['number']}/thumbnail").status_code == 200
    assert len(found["top"]) == 2


@pytest.mark.parametrize("query", ["top=0", "top=x", "nearest=99", "keep=maybe", "unknown_rate=1", "unknown_rate=nan"])
def test_a_wrong_question_is_refused(program, query):
    assert program.post(f"/api/predict?{query}", files=several("cat", 1)).status_code == 400


@pytest.mark.parametrize("nearest", ["-1", "21", "x", str(2**70)])
def test_the_inbox_has_the_same_bounds(program, nearest):
    answers(program, several("submarine", 1))
    answer = program.get(f"/api/inbox?nearest={nearest}")
    assert (answer.status_code, answer.json()["error"][:9]) == (400, "`nearest`")
    assert len(program.get("/api/inbox?nearest=20").json()["photos"][0]["nearest"]) == 20


@pytest.mark.parametrize("device", ["cpu", "meta"], ids=["a CPU", "something else, for which other threads decode"])
def test_requests_go_through_the_backbone_together(device):
    """While the backbone is busy, photos of others wait, and go with the next pile; a broken one keeps none of them."""
    sizes, busy, go = [], threading.Event(), threading.Event()

    class Slow:
        transform, workers = natural(16), 1

        def __call__(self, pixels):
            sizes.append(len(pixels))
            busy.set()
            assert go.wait(20)
            return torch.zeros(len(pixels), 3)

    slow = Slow()
    slow.device = torch.device(device)
    predictor = Predictor(slow)

    def asked(content, name):
        return predictor.see(content, name, lambda seen: seen.photo.name)

    first = asked(png("cat"), "first")
    assert busy.wait(20)
    later = [asked(png("dog", number) if number else b"no photo", str(number)) for number in range(PILE)]
    go.set()
    assert first.result(20) == "first"
    with pytest.raises(BrokenPicture):
        later[0].result(20)
    assert [one.result(20) for one in later[1:]] == [str(number) for number in range(1, PILE)]
    assert sizes == [1, PILE - 1]
    predictor.close()


def test_a_photo_that_is_alone_is_lent_other_cores():
    """Two that come at the same time have one each: the second waits for nobody, and the first one's are not taken."""
    lent, begun, go = [], threading.Semaphore(0), threading.Event()

    class Slow:
        transform, workers, device = natural(16), 2, torch.device("cpu")

        def __call__(self, pixels):
            lent.append(cores.lent())
            begun.release()
            assert go.wait(20)
            return torch.zeros(len(pixels), 3)

    predictor = Predictor(Slow())
    asked = []
    for number in range(2):
        asked.append(predictor.see(png("cat"), str(number), lambda seen: cores.lent()))
        assert begun.acquire(timeout=20)
    go.set()
    assert [one.result(20) for one in asked] == lent == [2, 1]
    predictor.close()
    assert cores.lent() == 1


def test_learning_does_not_keep_anybody_from_asking(program):
    desk = program.app.app.state.desk
    begun, go = threading.Event(), threading.Event()

    def slow(classifier):
        with classifier.store.writing():
            begun.set()
            assert go.wait(20)

    job = desk.change("something slow", slow)
    assert begun.wait(20)
    assert answers(program, several("cat", 1))[0]["label"] == "cat"
    assert program.get("/api/status").json()["jobs"] == [{"job": job.id, "title": "something slow", "state": "running"}]
    go.set()
    assert job.over.wait(20)
    assert program.get(f"/api/jobs/{job.id}").json()["state"] == "done"


def test_a_long_job_says_how_much_of_it_is_done(program):
    desk = program.app.app.state.desk
    half, go = threading.Event(), threading.Event()

    def slow(classifier):
        for step in track(range(4), "something"):
            if step == 2:
                half.set()
                assert go.wait(20)

    job = desk.change("something slow", slow)
    assert half.wait(20)
    assert program.get("/api/status").json()["jobs"][0]["percent"] == 50
    assert program.get(f"/api/jobs/{job.id}").json()["percent"] == 50
    go.set()
    assert job.over.wait(20)
    assert "percent" not in program.get(f"/api/jobs/{job.id}").json()


def test_learning_says_how_far_it_is(program, monkeypatch):
    half, go, write = threading.Event(), threading.Event(), Classifier._write

    def slow(*given, **how):
        half.set()
        assert go.wait(20)
        write(*given, **how)

    monkeypatch.setattr(Classifier, "_write", slow)
    monkeypatch.setattr(changing, "WAIT", 0.0)
    answer = program.post("/api/learn", data={"name": "gnu"}, files=several("gnu", 2))
    assert half.wait(20)
    assert program.get(answer.headers["location"]).json()["percent"] == 50
    go.set()


def test_what_takes_long_is_a_job_to_ask_for(program, monkeypatch):
    monkeypatch.setattr(changing, "WAIT", 0.0)
    answer = program.post("/api/learn", data={"name": "gnu"}, files=several("gnu", 2))
    assert answer.status_code in (200, 202)
    number = answer.json()["job"]
    assert program.app.app.state.desk.jobs.get(number).over.wait(30)
    job = program.get(f"/api/jobs/{number}").json()
    assert (job["state"], job["version"], job["detail"]) == ("done", 3, "gnu (2)")
    assert program.get("/api/jobs").json()["jobs"] == [job]
    assert program.get("/api/jobs/99").status_code == 404


def test_an_answer_that_fails_says_so_and_the_next_one_works(program, monkeypatch):
    def failing(*words):
        raise RuntimeError("the disk is on fire, at /secret/place")

    with monkeypatch.context() as patch:
        patch.setattr("concm.classifier.classifier.Classifier.rename", failing)
        answer = program.post("/api/classes/rename", json={"name": "okapi", "to": "gnu"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert program.post("/api/classes/rename", json={"name": "okapi", "to": "gnu"}).status_code == 200


def test_jobs_that_are_added_from_many_threads_are_all_done(program, monkeypatch):
    """Old ones are forgotten while new ones come, and none of these is lost."""
    monkeypatch.setattr("concm.server.jobs.KEPT", 3)
    desk, jobs, wrong = program.app.app.state.desk, [], []
    interval = sys.getswitchinterval()

    def crowd() -> None:
        try:
            for _ in range(200):
                jobs.append(desk.jobs.add("nothing", lambda classifier: {}))
        except RuntimeError as error:
            wrong.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=crowd) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert len(jobs) == 800
    assert all(job.over.wait(20) for job in jobs)


# the inbox


def test_unknown_photos_wait_are_named_together_and_wait_again_after_undo(program):
    found = answers(program, several("submarine", 20))
    assert all(one["unknown"] for one in found)
    waiting = program.get("/api/inbox").json()["photos"]
    assert [one["inbox"] for one in waiting] == [one["inbox"] for one in found]
    assert len({one["group"] for one in waiting}) < 5  # they look alike
    numbers = [one["inbox"] for one in waiting]
    done = program.post("/api/learn", json={"classes": {"submarine": numbers}}).json()
    assert (done["action"], done["detail"], done["version"]) == ("learn", "submarine (20)", 3)
    assert program.get("/api/inbox").json()["photos"] == []
    again = answers(program, several("submarine", 10, first=500), keep="none")
    assert [one["top"][0][0] for one in again] == ["submarine"] * 10
    assert program.post("/api/undo", json={"version": 3}).json()["version"] == 2
    assert len(program.get("/api/inbox").json()["photos"]) == 20


def test_several_classes_are_taught_from_the_inbox_in_one_version(program):
    one, other = (
        [found["inbox"] for found in answers(program, several(name, 3), keep="all")] for name in ("gnu", "yak")
    )
    done = program.post("/api/learn", json={"classes": {"gnu": one, "yak": other}}).json()
    assert (done["version"], done["classes"]) == (3, 8)


def test_the_same_photo_waits_once_and_can_be_dismissed(program):
    first, second = (answers(program, several("submarine", 1))[0]["inbox"] for _ in range(2))
    assert first == second
    assert program.post("/api/inbox/dismiss", json={"photos": [first]}).json() == {"dismissed": 1}
    assert program.get("/api/status").json()["inbox"] == 0
    assert program.get(f"/api/inbox/{first}/thumbnail").status_code == 404
    assert program.post("/api/learn", json={"classes": {"gnu": [first]}}).status_code == 409


def test_the_inbox_is_still_there_when_the_server_is_started_again_and_has_bounds(program, store, monkeypatch):
    answers(program, several("submarine", 3))
    other = Inbox(store)
    assert len(other.waiting()) == 3
    other.close()
    assert ROOM >= 1000
    monkeypatch.setattr("concm.server.inbox.ROOM", 2)
    newest = answers(program, several("submarine", 3, first=400))[1:]
    status = program.get("/api/status").json()
    assert (status["inbox"], status["inbox_room"], status["inbox_dropped"]) == (2, 2, 4)
    assert [one["inbox"] for one in program.get("/api/inbox").json()["photos"]] == [one["inbox"] for one in newest]


def test_photos_that_do_not_wait_never_take_the_room_of_those_that_do(program, monkeypatch):
    """Known photos that a page keeps, photos sent again, dismissed and taught ones."""
    monkeypatch.setattr("concm.server.inbox.ROOM", 4)
    waiting = {one["inbox"] for one in answers(program, several("submarine", 3))}
    for _ in range(4):
        answers(program, several("cat", 3), keep="all")
        answers(program, several("dog", 3, first=400), keep="all")
    for at in range(6):
        [one] = answers(program, several("submarine", 1, first=500 + at))
        program.post("/api/inbox/dismiss", json={"photos": [one["inbox"]]})
    for at in range(6):
        [one] = answers(program, several("gnu", 1, first=500 + at), keep="all")
        program.post("/api/learn", json={"classes": {"gnu": [one["inbox"]]}})
    assert {one["inbox"] for one in program.get("/api/inbox").json()["photos"]} == waiting
    kept = answers(program, several("fox", 4), keep="all")
    assert all(program.get(f"/api/inbox/{one['inbox']}/thumbnail").status_code == 200 for one in kept)
    assert program.get("/api/status").json()["inbox_dropped"] == 0


def test_known_photos_that_are_unknown_when_they_are_asked_again_wait_as_the_newest(program, monkeypatch):
    monkeypatch.setattr("concm.server.inbox.ROOM", 3)
    first = [one["inbox"] for one in answers(program, several("cat", 3), keep="all", unknown_rate=0)]
    second = [one["inbox"] for one in answers(program, several("submarine", 3))]
    assert first != second == [one["inbox"] for one in program.get("/api/inbox").json()["photos"]]
    again = answers(program, several("cat", 3), unknown_rate=0.999)
    assert [(one["unknown"], one["inbox"]) for one in again] == [(True, number) for number in first]
    status = program.get("/api/status").json()
    assert (status["inbox"], status["inbox_dropped"]) == (3, 3)
    assert [one["inbox"] for one in program.get("/api/inbox").json()["photos"]] == first
    answers(program, several("dog", 1), keep="all", unknown_rate=0)
    assert program.get("/api/status").json()["inbox_dropped"] == 3


@pytest.mark.parametrize("path", ["photos/remove", "classes/forget"])
def test_a_named_photo_that_is_removed_or_forgotten_waits_again(program, path):
    numbers = [one["inbox"] for one in answers(program, several("submarine", 3))]
    program.post("/api/learn", json={"classes": {"submarine": numbers}})
    assert program.get("/api/status").json()["inbox"] == 0
    own = [photo["number"] for photo in program.get("/api/classes/submarine/photos").json()["photos"]]
    body = {"photos": own[:2]} if path == "photos/remove" else {"name": "submarine"}
    assert program.post(f"/api/{path}", json=body).status_code == 200
    waiting = [one["inbox"] for one in program.get("/api/inbox").json()["photos"]]
    assert waiting == (numbers[:2] if path == "photos/remove" else numbers)


def test_a_photo_that_two_classes_claim_is_left_out_and_still_waits(program):
    numbers = [one["inbox"] for one in answers(program, several("submarine", 3))]
    classes = {"submarine": numbers[:2], "lighthouse": numbers[1:]}
    done = program.post("/api/learn", json={"classes": classes, "duplicates": "skip"}).json()
    assert done["detail"] == "submarine (1), lighthouse (1)"
    assert [one["inbox"] for one in program.get("/api/inbox").json()["photos"]] == [numbers[1]]


def test_what_was_taught_from_a_file_does_not_wait_any_more(program):
    answers(program, several("submarine", 2))
    program.post("/api/learn", data={"name": "submarine"}, files=several("submarine", 1))
    assert program.get("/api/status").json()["inbox"] == 1


def test_an_inbox_of_an_older_version_is_read(store):
    with sqlite3.connect(store / "inbox.db") as db:
        db.execute(
            "CREATE TABLE items (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, digest TEXT NOT NULL UNIQUE,"
            " added TEXT NOT NULL, shown INTEGER NOT NULL, taught INTEGER, features BLOB NOT NULL,"
            " thumbnail BLOB NOT NULL)"
        )
    db.close()
    with client(store) as program:
        answers(program, several("submarine", 1))
        assert program.get("/api/status").json()["inbox"] == 1


def test_photos_that_were_recognised_since_are_marked(program):
    answers(program, several("submarine", 6))
    assert (
        program.post("/api/learn", data={"name": "submarine"}, files=several("submarine", 8, first=0)).status_code
        == 200
    )
    waiting = program.get("/api/inbox").json()["photos"]
    assert sum(one["recognised"] for one in waiting) >= 4


# teaching and correcting


def test_photos_are_taught_under_a_name_or_by_their_folders(program):
    assert program.post("/api/learn", data={"name": "gnu"}, files=several("gnu", 2)).json()["detail"] == "gnu (2)"
    folders = sent(*((f"photos/{name}/{at}.png", png(name, at)) for name in ("yak", "elk") for at in range(2)))
    assert program.post("/api/learn", files=folders).json()["detail"] == "yak (2), elk (2)"
    assert names(program)["elk"] == 2
    assert program.post("/api/learn", files=several("hare", 1)).status_code == 400


LAYOUTS = [
    ("shop/Plum/a.png", "shop/Plum/old/a.png", "shop/Leek/old/b.png"),
    ("shop/Plum/old/a.png", "shop/Leek/old/b.png"),
    ("shop/a.png", "shop/Plum/b.png"),
    ("a.png", "Plum/old/b.png"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("path", ["learn", "evaluate"])
def test_folders_that_cannot_all_be_classes_are_refused(program, path, layout):
    files = sent(*((name, png("gnu", at)) for at, name in enumerate(layout)))
    answer = program.post(f"/api/{path}", files=files)
    assert (answer.status_code, "do not lie side by side" in answer.json()["error"]) == (400, True)
    assert program.get("/api/status").json()["version"] == 2
    assert program.post("/api/learn", data={"name": "gnu"}, files=files).json()["detail"] == f"gnu ({len(layout)})"


def test_photos_that_are_known_are_left_out_and_disputed_ones_refused_or_skipped(program):
    done = program.post("/api/learn", data={"name": "okapi"}, files=several("okapi", 4, first=2)).json()
    assert done["remarks"] == ["2 of 4 photos of 'okapi' are known already"]
    files = [*several("gnu", 1), *several("cat", 1, first=0)]
    answer = program.post("/api/learn", data={"name": "gnu"}, files=files)
    assert (answer.status_code, "which is it?" in answer.json()["error"]) == (400, True)
    assert answer.json()["error"].endswith('can be left out with `"duplicates": "skip"`')
    assert answer.json()["choice"] == {"duplicates": "skip"}
    answer = program.post("/api/learn", data={"name": "gnu", "duplicates": "skip"}, files=files)
    assert answer.json()["detail"] == "gnu (1)"
    assert program.post("/api/learn", data={"name": "x", "duplicates": "no"}, files=files).status_code == 400


def test_where_nothing_is_left_to_learn_no_choice_is_offered(program):
    [one] = answers(program, several("cat", 1, first=0), keep="all")
    for how in (
        {"json": {"classes": {"dog": [one["inbox"]]}}},
        {"data": {"name": "dog"}, "files": several("cat", 1, 0)},
    ):
        answer = program.post("/api/learn", **how)
        assert (answer.status_code, "choice" in answer.json()) == (400, False)
        assert "(dog) is already known as a photo of 'cat': which is it?" in answer.json()["error"]
        assert answer.json()["error"].endswith("A known photo gets another class with `/api/photos/move`")
    [number] = [one["inbox"] for one in answers(program, several("submarine", 1))]
    answer = program.post("/api/learn", json={"classes": {"submarine": [number], "lighthouse": [number]}})
    assert (answer.status_code, "choice" in answer.json()) == (400, False)
    assert answer.json()["error"].endswith("Give it to one class alone")


def test_a_name_that_is_almost_a_known_one_is_asked_about(program):
    answer = program.post("/api/learn", data={"name": "Okapi"}, files=several("gnu", 2))
    assert (answer.status_code, "almost the same name" in answer.json()["error"]) == (400, True)
    assert 'say `"similar_names": "keep"` if' in answer.json()["error"]
    assert answer.json()["choice"] == {"similar_names": "keep"}
    kept = program.post("/api/learn", data={"name": "Okapi", "similar_names": "keep"}, files=several("gnu", 2))
    assert kept.json()["detail"] == "Okapi (2)"


@pytest.mark.parametrize("how", ["a file", "the inbox"])
def test_who_teaches_nothing_new_is_told_that_nothing_changed(program, how):
    if how == "a file":
        done = program.post("/api/learn", data={"name": "okapi"}, files=several("okapi", 2, first=0)).json()
    else:
        numbers = [one["inbox"] for one in answers(program, several("okapi", 2, first=0), keep="all")]
        done = program.post("/api/learn", json={"classes": {"okapi": numbers}}).json()
    assert (done["changed"], done["version"]) == (False, 2)
    assert done["remarks"] == ["2 of 2 photos of 'okapi' are known already", "there is nothing new to learn"]
    assert "action" not in done
    assert program.post("/api/classes/rename", json={"name": "okapi", "to": "gnu"}).json()["changed"]


@pytest.mark.parametrize("path", ["classes/rename", "photos/move"])
def test_what_a_correction_is_told_of_similar_names_reaches_it(program, monkeypatch, path):
    told = []
    for name in ("rename", "move"):
        monkeypatch.setattr(Classifier, name, lambda self, what, to, **ways: told.append((to, ways)))
    body = {"name": "okapi", "photos": [1], "to": "Okapi"}
    program.post(f"/api/{path}", json=body)
    program.post(f"/api/{path}", json={**body, "similar_names": "keep"})
    assert told == [("Okapi", {}), ("Okapi", {"similar_names": "keep"})]


def test_every_correction_is_one_version_that_undo_takes_back(program):
    before = names(program)
    own = [photo["number"] for photo in program.get("/api/classes/okapi/photos").json()["photos"]]
    steps = [
        ("photos/remove", {"photos": own[:1]}),
        ("photos/move", {"photos": own[1:2], "to": "gnu"}),
        ("classes/rename", {"name": "cat", "to": "tiger"}),
        ("classes/merge", {"names": ["gnu"], "into": "tiger"}),
        ("classes/forget", {"name": "dog"}),
    ]
    for at, (path, body) in enumerate(steps, 3):
        answer = program.post(f"/api/{path}", json=body)
        assert (answer.status_code, answer.json()["version"]) == (200, at)
    assert names(program) == {"tiger": COUNT + 1, "fox": COUNT, "hen": COUNT, "owl": COUNT, "okapi": 2}
    for _ in steps:
        assert program.post("/api/undo", json={}).status_code == 200
    assert names(program) == before


def test_what_cannot_be_done_is_refused_with_the_librarys_sentence(program):
    answer = program.post("/api/classes/rename", json={"name": "okapy", "to": "gnu"})
    assert (answer.status_code, "did you mean 'okapi'" in answer.json()["error"]) == (409, True)
    assert program.post("/api/classes/forget", json={}).json()["error"] == "`name` is missing"
    assert program.get("/api/classes/okapy/photos").status_code == 409


def test_who_undoes_what_another_has_changed_since_is_told(program):
    assert program.post("/api/learn", data={"name": "gnu"}, files=several("gnu", 1)).json()["version"] == 3
    answer = program.post("/api/undo", json={"version": 2})
    assert (answer.status_code, program.get("/api/status").json()["version"]) == (409, 3)


def test_a_version_that_another_process_makes_is_seen_at_once(program, store):
    with Classifier(store, device="cpu") as other:
        other.learn({"gnu": [picture("gnu", at) for at in range(3)]})
    assert program.get("/api/status").json()["version"] == 3
    assert answers(program, several("gnu", 1))[0]["version"] == 3


# looking


def test_the_classifier_is_measured_on_photos_in_folders(program):
    files = sent(
        *((f"{name}/{at}.png", png(name, at)) for name in ("cat", "dog", "submarine") for at in range(300, 304))
    )
    found = program.post("/api/evaluate", files=files).json()
    assert (found["photos"], found["strangers"], found["acc"]) == (8, 4, 100.0)
    wrong = program.post("/api/evaluate", files=sent(("cat/a.png", png("dog")))).json()
    assert (wrong["confused"], wrong["wrong"][0]["photo"]) == ([["cat", "dog", 1]], "a.png")


def test_photos_that_were_taught_are_counted_when_it_is_measured(program, store):
    with Classifier(store, device="cpu") as other:
        other.learn({"gnu": [png("gnu", at) for at in range(3)]})
    found = program.post("/api/evaluate", files=sent(*((f"gnu/{at}.png", png("gnu", at)) for at in range(4)))).json()
    assert found["taught"] == 3
    assert any(said.startswith("3 of 4 photos were taught") for said in found["remarks"])


def test_nobody_waits_for_an_answer_while_an_album_is_read(program, monkeypatch):
    begun, go, every = threading.Event(), threading.Event(), Store.every_photo

    def slow(store: Store):
        with store._mutex:
            begun.set()
            assert go.wait(20)
            return every(store)

    monkeypatch.setattr(Store, "every_photo", slow)
    with ThreadPoolExecutor(2) as pool:
        read = pool.submit(program.get, "/api/map")
        assert begun.wait(20)
        try:
            asked = pool.submit(answers, program, several("cat", 1))
            assert asked.result(10)[0]["label"] == "cat"
        finally:
            go.set()
        assert read.result(20).status_code == 200


def test_a_check_is_made_once_for_all_who_ask_and_says_how_far_it_is(program, monkeypatch):
    half, go, checks = threading.Event(), threading.Event(), []

    def slow(album, known):
        checks.append(known.version)
        for step in track(range(4), "comparing photos"):
            if step == 2:
                half.set()
                assert go.wait(20)
        return check(album, known)

    monkeypatch.setattr("concm.server.desk.check", slow)
    assert program.get("/api/status").json()["checking"] is None
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(program.get, "/api/health") for _ in range(2)]
        try:
            assert half.wait(20)
            assert program.get("/api/status").json()["checking"] == 50
        finally:
            go.set()
        one, other = (answer.result(20).json() for answer in asked)
    assert one == other
    assert checks == [2]
    assert program.get("/api/status").json()["checking"] is None


def test_health_names_classes_with_few_photos_and_photos_that_look_wrong(program):
    wrong = sent(("wrong.png", png("fox", 900)))
    program.post("/api/learn", data={"name": "okapi"}, files=wrong)
    found = program.get("/api/health").json()
    assert found["version"] == 3
    assert (found["mislabelled"][0]["photo"], found["mislabelled"][0]["more_like"]) == ("wrong.png", "fox")
    assert (found["confused"][0]["name"], found["confused"][0]["taken_for"]) == ("okapi", "fox")
    numbers = [photo["number"] for photo in program.get("/api/classes/fox/photos").json()["photos"]]
    assert set(found["confused"][0]["because"]) <= set(numbers)
    program.post("/api/learn", data={"name": "gnu"}, files=several("gnu", 1))
    rows = {row["name"]: row for row in program.get("/api/health").json()["classes"]}
    assert (rows["gnu"]["photos"], rows["gnu"]["verdict"]) == (1, "more photos")
    assert rows["cat"]["verdict"] == "enough"


def test_the_map_has_every_photo_and_class_within_its_square(program):
    found = program.get("/api/map").json()
    assert (len(found["photos"]), len(found["classes"])) == (5 * COUNT + 4, 6)
    assert all(0 <= value <= 1 for photo in found["photos"] for value in photo["at"])


def test_history_card_and_backup_can_be_fetched(program, tmp_path):
    assert [row["action"] for row in program.get("/api/history").json()["versions"]] == ["fit", "learn"]
    assert program.get("/api/card").text.startswith("# zoo")
    assert program.get("/api/exports/backup").status_code == 404
    assert program.post("/api/export", json={"what": "everything"}).status_code == 400
    done = program.post("/api/export", json={"what": "backup"}).json()
    with zipfile.ZipFile(io.BytesIO(program.get(done["file"]).content)) as archive:
        archive.extractall(tmp_path / "copy")
    with Classifier(tmp_path / "copy" / "zoo", device="cpu") as copy:
        assert [row.name for row in copy.classes][-1] == "okapi"
        assert copy.verify() == []


def test_a_store_that_cannot_be_written_answers_all_the_same(store, monkeypatch):
    monkeypatch.setattr("concm.classifier.database.writable", lambda path: False)
    with client(store) as program:
        assert answers(program, several("submarine", 1))[0]["unknown"]
        answer = program.post("/api/learn", data={"name": "gnu"}, files=several("gnu", 1))
        assert (answer.status_code, "read-only" in answer.json()["error"]) == (409, True)
    assert not (store / "inbox.db").exists()


@pytest.mark.parametrize("kept", ["photos", "inbox"])
def test_a_thumbnail_is_asked_for_again_and_sent_only_if_it_changed(program, kept):
    number = answers(program, several("submarine", 1))[0]["inbox"] if kept == "inbox" else 1
    first = program.get(f"/api/{kept}/{number}/thumbnail")
    assert first.headers["cache-control"] == "private, no-cache"
    again = program.get(f"/api/{kept}/{number}/thumbnail", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = program.get(f"/api/{kept}/{number}/thumbnail", headers={"If-None-Match": '"another"'})
    assert (other.status_code, other.content) == (200, first.content)


# the document


def test_the_document_describes_every_request_and_no_other(program):
    document = program.get("/api/openapi.json").json()
    described = {(path, method.upper()) for path, own in document["paths"].items() for method in own}
    routes = {(route.path, method) for route in api.ROUTES for method in route.methods - {"HEAD"}}
    assert described == routes
    assert json.loads(json.dumps(openapi.document())) == document


def test_predictions_have_the_fields_that_the_document_requires(program):
    [found] = answers(program, sent(("photos/boat/1.png", png("submarine"))), nearest=1)
    assert found["folder"] == "boat"
    schema = openapi.SCHEMAS["Prediction"]
    assert set(schema["required"]) <= found.keys() == schema["properties"].keys()


def test_many_ask_while_one_teaches(store):
    """Answers are those of one version or the other, and none fails."""
    with client(store) as program:
        guard: Guard = program.app

        async def crowd() -> list[dict]:
            transport = httpx2.ASGITransport(guard)
            async with httpx2.AsyncClient(
                transport=transport, base_url=str(program.base_url), headers=program.headers
            ) as http:
                asked = [http.post("/api/predict", files=several("cat", 1, first=NEW + at)) for at in range(16)]
                taught = http.post("/api/learn", data={"name": "gnu"}, files=several("gnu", 3))
                return [answer.json() for answer in await asyncio.gather(*asked[:8], taught, *asked[8:])]

        found = asyncio.run(crowd())
    assert found.pop(8)["version"] == 3
    assert {one["predictions"][0]["top"][0][0] for one in found} == {"cat"}
    assert {one["predictions"][0]["version"] for one in found} <= {2, 3}


def test_the_server_leaves_nothing_behind(store, tmp_path):
    with client(store) as program:
        program.post("/api/export", json={"what": "backup"})
        folder = program.app.app.state.desk.exports
        assert folder.exists()
    assert not folder.exists()
    shutil.rmtree(store)


def test_a_damaged_inbox_is_told_in_a_sentence(store):
    (store / "inbox.db").write_bytes(b"no database" * 100)
    with pytest.raises(
        ConcmError, match=r"cannot use .*inbox\.db \(file is not a database\); if it is damaged, delete"
    ):
        Inbox(store)
    (store / "inbox.db").unlink()
    Inbox(store).close()
